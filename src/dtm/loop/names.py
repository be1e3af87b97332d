"""Names of Python objects (methods, rewards) in a configuration, so that a run can be opened again."""

from __future__ import annotations

from dtm.config import METHODS
from dtm.config.registry import load_method_class
from dtm.errors import require
from dtm.loading import name_of
from dtm.methods.base import Method
from dtm.tasks.base import Reward


def object_name(given: object, named: str) -> str:
    """Return the name of an object's class as module:Class or file.py:Class; ``named`` if it is right."""
    kind = type(given)
    if named.endswith(f":{kind.__qualname__}"):
        return named
    require(
        "<locals>" not in kind.__qualname__,
        f"{kind.__qualname__} is defined inside a function, so its run could not be opened again: move it to "
        "the top level of its file",
    )
    return name_of(kind)


def method_name(method: Method, named: str) -> str:
    """Return the package's name of a method, or the import name of its class."""
    own = method.config.name
    if ":" in own or (own in METHODS and load_method_class(own) is type(method)):
        return own
    return object_name(method, named)


def reward_name(reward: Reward) -> str:
    """Return the import name of a reward function, from which `dtm eval` loads it."""
    return name_of(reward) if hasattr(reward, "__qualname__") else f"{type(reward).__module__}:{reward!r}"
