"""Check the shapes of `dtm` at run time, in tests: import this before dtm.

Functions and dataclasses with an array annotation, such as ``Float[Tensor, "B L"]``, are checked by jaxtyping
and beartype, once per call. Others are left as they are: mypy checks their types, and checking every call
takes as long as the rest of the tests. JAXTYPING_DISABLE=1 switches the checks off.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import jaxtyping
from beartype import beartype

PACKAGE = "dtm"
ARRAYS = frozenset(
    name
    for name, thing in vars(jaxtyping).items()
    if isinstance(thing, type) and issubclass(thing, jaxtyping.AbstractDtype)
)
"""Names that annotate arrays: Float, Int, Bool, …"""
CHECKED = "__checked__"


def checked(thing: Any) -> Any:
    """A function whose arguments and result are checked, in one scope of letters; or a dataclass."""
    if isinstance(thing, type):
        thing.__init__ = checked(thing.__init__)
        return thing
    if isinstance(thing, staticmethod | classmethod):
        return type(thing)(checked(thing.__func__))
    if isinstance(thing, property):
        return property(checked(thing.fget), thing.fset, thing.fdel, thing.__doc__)
    made: Callable[..., Any] = jaxtyping.jaxtyped(beartype(thing), typechecker=None)
    return made


class Marker(ast.NodeTransformer):
    """Decorates functions and dataclasses with an array annotation by `checked`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Mark a function; the decorator is the innermost, which sees the annotations as they are written."""
        self.generic_visit(node)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if _has_array([node.returns, *(argument.annotation for argument in given)]):
            node.decorator_list.append(_decorator(node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Mark a dataclass; the decorator is the outermost, after ``@dataclass`` has written `__init__`."""
        self.generic_visit(node)
        fields = [child.annotation for child in node.body if isinstance(child, ast.AnnAssign)]
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        if is_dataclass and _has_array(fields):
            node.decorator_list.insert(0, _decorator(node))
        return node


def _has_array(annotations: Iterable[ast.expr | None]) -> bool:
    parts = (part for annotation in annotations if annotation for part in ast.walk(annotation))
    return any(isinstance(part, ast.Name) and part.id in ARRAYS for part in parts)


def _decorator(node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(CHECKED, ast.Load()), node)


class Loader(SourceFileLoader):
    """Loads a module with its checks."""

    def get_code(self, fullname: str) -> CodeType:
        """The marked module; its bytecode is not cached, which would be that without checks."""
        path = self.get_filename(fullname)
        tree = Marker().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with `checked` at hand."""
        setattr(module, CHECKED, checked)
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the modules of the package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module's spec with our loader; None: not of the package."""
        if fullname.split(".")[0] != PACKAGE:
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


if not jaxtyping.config.jaxtyping_disable:
    assert PACKAGE not in sys.modules, f"{PACKAGE} was imported before its shapes could be checked"
    sys.meta_path.insert(0, Finder())
