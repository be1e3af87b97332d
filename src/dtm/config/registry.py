"""Find methods and tasks by name: the package's own, or a class in a user's file.

To add a method to the package, add its file and a line in `METHODS`. Entries are import paths, so that
importing this module does not import torch.
"""

from __future__ import annotations

from typing import Any

from dtm.config.method import IteratingConfig, MethodConfig
from dtm.config.task import TASK_CONFIGS, TaskConfig
from dtm.errors import ConfigError, nearest
from dtm.loading import load_object

METHODS = {
    "c-dtm": "dtm.methods.c_dtm:CDTM",
    "diffu-grpo": "dtm.methods.diffu_grpo:DiffuGRPO",
    "wd1": "dtm.methods.wd1:WD1",
    "unigrpo": "dtm.methods.unigrpo:UniGRPO",
    "spg": "dtm.methods.spg:SPG",
    "vrpo": "dtm.methods.vrpo:VRPO",
    "gdpo": "dtm.methods.gdpo:GDPO",
    "trace-rl": "dtm.methods.trace_rl:TraceRL",
    "gdsd": "dtm.methods.gdsd:GDSD",
    "dmpo": "dtm.methods.dmpo:DMPO",
    "espo": "dtm.methods.espo:ESPO",
    "just-grpo": "dtm.methods.just_grpo:JustGRPO",
    "agrpo": "dtm.methods.agrpo:AGRPO",
    "d2": "dtm.methods.d2:D2",
}
"""Method name → import path of its class."""


def load_method_class(name: str) -> Any:
    """Import the class of a method, given by name or as path/to/file.py:Class."""
    found = load_object(_import_path(name, METHODS, "method"), "method")
    config = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, MethodConfig)):
        raise ConfigError(
            f"method {name}: {getattr(found, '__name__', found)} needs a class attribute Config, a frozen "
            "dataclass that derives from dtm.MethodConfig; derive the method from dtm.Method"
        )
    if "updates" in config.__dataclass_fields__ and not issubclass(config, IteratingConfig):
        raise ConfigError(f"method {name}: its Config has updates; derive it from dtm.config.IteratingConfig")
    return found


def configure_method(name: str, **fields: Any) -> MethodConfig:
    """Return the settings of a method: its defaults with some fields changed.

    >>> configure_method("spg", draws=4).name
    'spg'
    """
    config: MethodConfig = load_method_class(name).Config(name=name, **fields)
    return config


def configure_task(kind: str) -> TaskConfig:
    """Return the default settings of a task, by kind or by path/to/file.py:Class for a user's class."""
    if kind in TASK_CONFIGS:
        return TASK_CONFIGS[kind](kind=kind)
    config = getattr(load_task_class(kind), "Config", TaskConfig)
    if not (isinstance(config, type) and issubclass(config, TaskConfig)):
        raise ConfigError(f"task {kind}: Config must be a frozen dataclass that derives from dtm.TaskConfig")
    return config(kind=kind)


def load_task_class(kind: str) -> Any:
    """Import a user's task class, given as path/to/file.py:Class."""
    return load_object(_import_path(kind, {name: "" for name in TASK_CONFIGS}, "task"), "task")


def _import_path(name: str, known: dict[str, str], kind: str) -> str:
    if ":" not in name and name not in known:
        raise ConfigError(f"no {kind} {name!r}. {nearest(name, known)} Your own: path/to/file.py:Class")
    return known.get(name, name)
