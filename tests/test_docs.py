"""What README and the docstrings show is run, under names of the test's own."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import shmlock

ROOT = Path(__file__).parent.parent
MODULES = ["shmlock.locks", "shmlock.config", "shmlock.metrics", "shmlock.timers", "shmlock._engine.bias"]


@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 4), ("docs/metrics.md", 4), ("docs/modes.md", 2), ("docs/timers.md", 1)]
)
def test_examples_run(name: str, page: str, least: int) -> None:
    """Each block of Python on these pages runs as it stands, the first from nothing and the others after it."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= least
    for block in blocks:
        exec(compile(block.replace('"site', f'"{name}'), page, "exec"), {})  # noqa: S102  that is the point
    shmlock.unlink(f"{name}.config")


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_examples_run(name: str, module: str) -> None:
    """Each example in a docstring prints what it says, and leaves nothing behind."""
    found = 0
    for member in [*vars(importlib.import_module(module)).values()]:
        text = inspect.isclass(member) and member.__module__ == module and inspect.getdoc(member)
        if not text or ">>>" not in text:
            continue
        namespace: dict[str, Any] = {}
        test = doctest.DocTestParser().get_doctest(text.replace('"docs.', f'"{name}.'), namespace, module, None, 0)
        result = doctest.DocTestRunner().run(test)
        assert result.failed == 0
        found += 1
    assert found


def test_the_cases_are_tested() -> None:
    """Each row of docs/cases.md names tests, and each test that it names is there."""
    rows = [
        line for line in (ROOT / "docs/cases.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ][1:]
    assert len(rows) >= 45
    for row in rows:
        tested = row.strip("|").rpartition("|")[2]
        found = 0
        source = ""
        for word in re.findall(r"`([^`]+)`", tested):
            if word.endswith(".py"):
                source = (ROOT / "tests" / word).read_text(encoding="utf-8")
                found += 1
            else:
                assert f"def {word}(" in source, f"{word}: {row}"
        assert found, row
