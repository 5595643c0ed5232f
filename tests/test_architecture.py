"""How modules may know each other, as CONTRIBUTING says."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ffebm"
MODULES = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}


def import_order() -> list[str]:
    (listed,) = re.findall(r"Imports go one way: (.*?);", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    return re.findall(r"\w+", listed)


def test_imports_go_the_way_that_contributing_lists() -> None:
    """From left to right, package by package; the library never imports the experiments."""
    order = import_order()
    parts = {name: name.split(".")[1] for name in MODULES if name not in ("ffebm.__init__", "ffebm.__main__")}
    assert sorted(order) == sorted(set(parts.values()))
    for name, part in parts.items():
        for used in re.findall(r"^\s*from ffebm\.(\w+)", MODULES[name].read_text(), re.MULTILINE):
            assert order.index(used) <= order.index(part), f"{name} imports ffebm.{used}"


def test_no_module_asks_another_for_its_kind() -> None:
    """What differs from kind to kind is a method of the kind, which somebody's own kind can override."""
    sources = {name: path.read_text() for name, path in MODULES.items()}
    kinds = kinds_in(*sources.values())
    assert {"Hopfield", "FixedPoint", "Settings"} <= kinds
    assert "DivergenceError" not in kinds
    assert [f"{name}: {question}" for name, source in sources.items() for question in KindQuestions(source, kinds)] == []


def kinds_in(*sources: str) -> set[str]:
    """The classes that modules define, but for errors and warnings: to be told apart is what those are for."""
    classes = {node.name: node for source in sources for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}

    def is_exception(name: str) -> bool:
        if name in classes:
            return any(is_exception(ast.unparse(base).split(".")[-1]) for base in classes[name].bases)
        known = getattr(builtins, name, None)
        return isinstance(known, type) and issubclass(known, BaseException)

    return {name for name in classes if not is_exception(name)}


class KindQuestions:
    """The places where a module asks for a kind that another module of ffebm defines.

    Those are `isinstance`, `issubclass`, a comparison of `type(x)`, a `case Kind():`, and whether a method is that of a class.
    An `assert isinstance` for the type checker decides nothing, and `check_type` refuses what nobody could use.
    """

    def __init__(self, source: str, kinds: set[str]) -> None:
        self.tree = ast.parse(source)
        self.kinds = kinds
        self.imported = {
            name.asname or name.name: name.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ffebm"
            for name in node.names
        }
        self.aliases = {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def __iter__(self) -> Iterator[str]:
        asserted = {id(part) for node in ast.walk(self.tree) if isinstance(node, ast.Assert) for part in ast.walk(node.test)}
        for node in ast.walk(self.tree):
            if id(node) not in asserted and self._asks(node):
                yield f"{node.lineno}: {ast.unparse(node)}"

    def _asks(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                return self._is_foreign(kinds)
            case ast.Compare(left=left, comparators=rights):
                sides = [left, *rights]
                return self._compares_types(sides) or self._compares_methods(sides)
            case ast.MatchClass(cls=kind):
                return self._is_foreign(kind)
        return False

    def _is_foreign(self, kinds: ast.expr) -> bool:
        """Whether a kind, or a member of a union or tuple of kinds, is a class of another module of ffebm."""
        match kinds:
            case ast.Tuple(elts=members) | ast.List(elts=members) | ast.Set(elts=members):
                return any(map(self._is_foreign, members))
            case ast.BinOp(left=left, right=right):
                return self._is_foreign(left) or self._is_foreign(right)
            case ast.Name(id=name) if name in self.aliases:
                return self._is_foreign(self.aliases[name])
            case ast.Name(id=name):
                return self.imported.get(name) in self.kinds
            case ast.Attribute(value=ast.Name(id=name), attr=kind):
                return name in self.imported and kind in self.kinds
        return False

    def _compares_types(self, sides: list[ast.expr]) -> bool:
        return any(map(_is_type_of, sides)) and any(map(self._is_foreign, sides))

    def _compares_methods(self, sides: list[ast.expr]) -> bool:
        methods = [side for side in sides if isinstance(side, ast.Attribute) and side.attr != "__class__"]
        alike = len(methods) > 1 and len({method.attr for method in methods}) == 1
        return alike and any(_is_type_of(method.value) or self._is_class(method.value) for method in methods)

    def _is_class(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and (self.imported.get(node.id, node.id) in self.kinds or node.id == "cls")


def _is_type_of(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_]) | ast.Attribute(attr="__class__"):
            return True
    return False


KINDS = kinds_in(
    "class Energy(nn.Module, ABC): ...\nclass Hopfield(Energy): ...",
    "class Dense: ...\nclass Mine: ...",
    "class Lost(RuntimeError): ...\nclass Gone(errors.Lost): ...\nclass Hint(UserWarning): ...",
)
HEAD = """
from ffebm.energy import Energy, Hopfield as Net
from ffebm import interaction
from ffebm.errors import Gone, Hint
from torch import Tensor
KINDS = (int, Net)
class Mine: ...
"""


@pytest.mark.parametrize(
    "line",
    [
        "if isinstance(x, Energy): ...",
        "if isinstance(x, Net): ...",
        "y = [a for a in x if isinstance(a, int | Energy)]",
        "y = 1 if isinstance(x, (Tensor, Net)) else 2",
        "y = isinstance(x, KINDS)",
        "if not isinstance(x, interaction.Dense): ...",
        "if issubclass(x, Energy): ...",
        "if type(x) is Energy: ...",
        "if type(x) == Net: ...",
        "if type(x) in (Net, Mine): ...",
        "if x.__class__ is not Energy: ...",
        "if type(x).contrast is not Energy.contrast: ...",
        "if Net.drive is Energy.drive: ...",
        "match x:\n    case Energy(): ...",
        "match x:\n    case [1, Net() | None]: ...",
        "def f(x):\n    return isinstance(x, Energy)",
    ],
)
def test_the_scanner_sees_a_question_for_a_kind(line: str) -> None:
    assert len(list(KindQuestions(HEAD + line, KINDS))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "assert isinstance(x, Energy)",
        "assert isinstance(x, Energy) and type(x) is Net",
        "check_type('energy', x, Energy, 'Hopfield()')",
        "if isinstance(x, Tensor | int): ...",
        "if isinstance(x, Mine): ...",
        "if type(x) is Mine: ...",
        "if x.dtype is y.dtype: ...",
        "if x.energy is not y.energy: ...",
        "y = Energy(x) if x is not None else type(x).__name__",
        "match x:\n    case Mine() | int(): ...",
        "try: ...\nexcept Gone: ...",
        "if isinstance(x, Gone | OSError) or issubclass(x, Hint): ...",
    ],
)
def test_the_scanner_passes_over_what_is_allowed(line: str) -> None:
    assert list(KindQuestions(HEAD + line, KINDS)) == []
