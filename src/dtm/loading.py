"""Load a function or class that a user names: ``module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dtm.errors import ConfigError, nearest


def load_object(spec: str, kind: str) -> Callable[..., Any]:
    """Import the function or class that ``spec`` names; ``kind`` ("reward", "method") is for the errors."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{kind} {spec!r} must be written module:name or path/to/file.py:name")
    if place.endswith(".py") and not Path(place).exists():
        raise ConfigError(f"{kind} {spec!r}: there is no file {place}")
    if "<" in name or place.startswith("<"):  # <locals>, <lambda>, <stdin>
        raise _unnamed(kind, spec)
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except Exception as problem:
        missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
        if missing is not None and f"{place}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{kind} {spec!r}: {problem}. Run from the folder that holds it, or give the file's path."
            ) from None
        error, file = type(problem).__name__, place.removesuffix(".py").rpartition(".")[2] + ".py"
        frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename.endswith(file)]
        raise ConfigError(
            f"{kind} {spec!r}: {place} cannot be imported, {error}: {problem}{last_line(frames)}"
        ) from problem
    found = getattr(module, name, None)
    if not callable(found):
        if place == "__main__":
            raise _unnamed(kind, spec)
        choices = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and value.__module__ == module.__name__
        ]
        wrong = (
            f"{name!r} in {place} cannot be called" if hasattr(module, name) else f"no {name!r} in {place}"
        )
        raise ConfigError(f"{kind} {spec!r}: {wrong}. {nearest(name, choices)}")
    return found


def _unnamed(kind: str, spec: str) -> ConfigError:
    return ConfigError(
        f"{kind} {spec!r} cannot be found again: it was defined in a notebook, inside a function or on "
        f"standard input. Move it to the top level of a file and name it path/to/file.py:name, or give it to "
        f"dtm.train(…, {kind}=…) and dtm.Run.open(…, {kind}=…) as an object."
    )


def name_of(found: Callable[..., Any]) -> str:
    """Return the name from which `load_object` loads a class or function: module:name, or file.py:name."""
    file = getattr(sys.modules.get(found.__module__), "__file__", None)
    place = os.path.relpath(file) if found.__module__ == "__main__" and file else found.__module__
    return f"{place}:{found.__qualname__}"


def last_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Format file and line of the last frame, in brackets; empty without frames."""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _import_module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def _import_file(path: Path) -> Any:
    """Import a file as a module with a unique name; it can import other files of its folder.

    The main script is returned as it is, not run a second time.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and path.resolve() == Path(script).resolve():
        return sys.modules["__main__"]
    place = path.resolve()
    key = f"{place}:{place.stat().st_mtime_ns}"
    name = f"dtm_user_{path.stem}_{hashlib.blake2b(key.encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:  # one copy of its classes, as long as the file does not change
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their own module there
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.pop(0)
    return module
