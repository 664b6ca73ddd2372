"""Imports go down only: what each module imports, read from its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shmlock

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(shmlock.__file__).parent

# Bottom up. Rooms on one floor don't import each other; those in brackets of one house may.
FLOORS: list[set[str]] = [
    {"errors", "_lazy"},
    {"_kernel"},
    {"_segment"},
    {"_engine"},
    {"_faces"},
    {"locks"},
    {"_hdr"},
    {"_values", "_timetable", "_batches", "_rolling"},
    {"config", "metrics", "timers"},
    {"inspection"},
    {""},  # shmlock/__init__.py: the front door to all below
    {"_responses", "_command_line"},
    {"gunicorn", "prometheus", "wsgi", "asgi", "updater", "cli"},
    {"bench"},
    {"__main__"},
]
PURE = ["_engine.modes", "_engine.phases", "_engine.state", "_timetable", "_rolling", "_hdr", "_lazy"]


def modules() -> dict[str, Path]:
    """Every module by its name within the package; the package itself is ""."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(module: str, *, types: bool = True, late: bool = True) -> set[str]:
    """The modules of this package that a module imports.

    `types`: also those for type checkers only; `late`: also those that functions import when they are called.
    """
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = set()
    for node in walk(tree, types=types, late=late):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports here are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {within for name in found if (within := own_module(name)) is not None} - {module}


def walk(node: ast.AST, *, types: bool, late: bool) -> Iterator[ast.AST]:
    """All nodes below, without the bodies of `if TYPE_CHECKING:` or of functions unless they are wanted."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not types and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if not late and isinstance(child, ast.FunctionDef):
            continue
        yield from walk(child, types=types, late=late)


def own_module(name: str) -> str | None:
    """The module of this package that `shmlock.a.b.name` comes from, or None if it is another's."""
    head, _, rest = name.partition(".")
    if head != "shmlock":
        return None
    while rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest


def floor_of(module: str) -> int:
    """How high it lies."""
    house = module.split(".", maxsplit=1)[0]
    for level, floor in enumerate(FLOORS):
        if house in floor:
            return level
    pytest.fail(f"shmlock.{module} lies on no floor: give it one here and in shmlock/__init__.py")


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    """A module imports from floors below its own, or from its own house."""
    house = module.split(".", maxsplit=1)[0]
    for other in imported(module):
        inside = house == other.split(".")[0]
        assert inside or floor_of(other) < floor_of(module), f"shmlock.{module} imports shmlock.{other}"


@pytest.mark.parametrize("module", MODULES)
def test_no_circles(module: str) -> None:
    """No module needs itself, by way of others, to be imported."""
    assert module not in closure(module, late=False), f"shmlock.{module} imports itself"


def closure(module: str, *, types: bool = False, late: bool = True) -> set[str]:
    """All that a module imports, directly and not."""
    reached: set[str] = set()
    todo = [module]
    while todo:
        for other in imported(todo.pop(), types=types, late=late) - reached:
            reached.add(other)
            todo.append(other)
    return reached


@pytest.mark.parametrize("module", PURE)
def test_who_decides_knows_no_kernel(module: str) -> None:
    """What decides imports nothing of the kernel, not even indirectly or for type checkers, nor what waits."""
    reached = closure(module, types=True)
    assert not [other for other in reached if other.split(".")[0] == "_kernel"]
    assert reached <= {*PURE, "_segment.layout", "_segment.record", "_segment.words"}


def test_map() -> None:
    """The map in `shmlock/__init__.py` names every floor that there is, bottom up, and nothing else."""
    assert shmlock.__doc__ is not None
    drawn = re.findall(r"^ {4}(\w+)", shmlock.__doc__, re.MULTILINE)
    houses = {module.split(".")[0] for module in MODULES} - {"", "__main__"}
    parts = {
        "_values",
        "_timetable",
        "_batches",
        "_rolling",
        "_hdr",
        "_lazy",
        "_responses",
        "_command_line",
    }  # of what is above each
    assert set(drawn) == houses - parts
    levels = [floor_of(house) for house in drawn]
    assert levels == sorted(levels)


def test_this_test_sees_imports() -> None:
    """What is known to be imported is found, inside functions and for type checkers as well."""
    assert {"_kernel.robust", "_segment.layout", "errors"} <= imported("_engine.guard")
    assert "_engine.state" in imported("_engine.guard")
    assert "_engine.state" not in imported("_engine.guard", types=False)
    assert "updater.from_http" in imported("updater.source")
    assert "updater.from_http" not in imported("updater.source", late=False)
    assert "_kernel.libc" in closure("locks")
    assert imported("errors") == set()
