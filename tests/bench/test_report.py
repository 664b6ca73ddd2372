"""The tables."""

from __future__ import annotations

import io
import math
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.bench.page import page
from shmlock.bench.report import command, number, scale, show, stamped, tables, text, turned
from shmlock.bench.samples import Results, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock.bench.scenario import Scenario


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0123, "0.0123"), (1.5, "1.50"), (12345.6, "12,346"), (0, "0"), (math.inf, "never"), (math.nan, "-"),
     (-2.5, "-2.50"), (99.96, "100.0")],
)  # fmt: skip
def test_a_number_has_three_figures(value: float, told: str) -> None:
    """And thousands set apart; never and nothing are words."""
    assert number(value) == told


@pytest.mark.parametrize(
    ("unit", "values", "told"),
    [
        ("s", [0.002, 5], (1e3, "ms")),
        ("s", [0.2, math.inf], (1, "s")),
        ("s", [2e-7, 0], (1e6, "µs")),
        ("s", [2e-8], (1e9, "ns")),
        ("ns", [2e6], (1e-6, "ms")),
        ("B", [2048], (1 / 1024, "KiB")),
        ("x", [0.001], (1, "x")),
        ("s", [math.inf], (1, "s")),
        ("", [], (1, "")),
    ],
)
def test_a_unit_fits_the_smallest(unit: str, values: list[float], told: tuple[float, str]) -> None:
    """So that none is told as 0.000002 s; what is no time and no size stays as it is."""
    factor, name = scale(unit, values)
    assert name == told[1]
    assert factor == pytest.approx(told[0])


def test_a_table_has_what_was_measured(some: Results) -> None:
    """Only measures with samples; the first of ours is what the others are compared with; the best is marked."""
    (table,) = tables(some)
    assert (table.title, table.reference) == ("Until all are <done> (ms)", "shmlock.RWLock")
    cells = {side: row[0] for side, row in table.rows}
    assert cells["shmlock.RWLock"] == ("11.0 ± 0.4", "", True, True)
    assert cells["other"] == ("31.5 ± 1.0", "2.86x", True, False)
    assert not cells["alike"].significant
    assert cells["stuck"] == ("never", "", True, False)


def test_more_may_be_better(made: Callable[..., Results]) -> None:
    """The best of a rate is the highest."""
    found = made({})
    for side, value in {"shmlock.RWLock": 1.0, "other": 2.0}.items():
        found.add("rate", "", side, value)
    (table,) = tables(found)
    assert [row[0].best for _, row in table.rows] == [False, True]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.0], "1.00"),
        ([1.0, math.inf, 1.0], "1.00, once never"),
        ([math.inf, 1.0, math.inf], "never, once 1.00"),
        ([1.0, 1.0], "1.00 ± 0.00"),
    ],
)
def test_a_value_tells_its_spread(made: Callable[..., Results], values: list[float], told: str) -> None:
    """One sample has none, and where some never came that is its spread."""
    (table,) = tables(made({"other": values}))
    assert table.rows[0][1][0].value == told


def test_one_round_is_never_significant(made: Callable[..., Results]) -> None:
    """However large the ratio is: it is told, and so is that it says nothing."""
    told = text(made({"shmlock.RWLock": [1.0], "other": [9.0]}))
    assert "9.00x n.s." in told
    assert "not significant (n.s.): the rounds" in told


def test_the_text_has_everything(some: Results) -> None:
    """Question, answer, tables with their signs explained, faults, and what was skipped."""
    told = text(some)
    assert told.startswith("mix: A title & more\n===================\nWhat is <asked>?\n")
    for part in (
        "Answer: It takes 0.01 <s>.", "Until all are <done> (ms), by processes", "* 11.0 ± 0.4", "2.86x", "n.s.",
        "never", "x: compared with shmlock.RWLock in the same round", "WRONG: other, 2: <wrong> data",
        "skipped missing: not installed (pip install <missing>)",
    ):  # fmt: skip
        assert part in told


def test_what_is_shown_beside_the_answer_stays_as_it_is(make: Callable[..., Scenario]) -> None:
    """Its lines are not run together: in the text, and on the page."""
    scenario = make({}, answer=lambda _: "It is <so>.\n\nTable:\n  a    <1>\n  b    2")
    found = Results(scenario, scenario.turned(quick=False))
    assert "Answer: It is <so>.\n\nTable:\n  a    <1>\n  b    2\n" in text(found)
    told = page(stamp({}), [found], {}, {})
    assert '<p class="answer">It is &lt;so&gt;.</p>\n<pre>Table:\n  a    &lt;1&gt;\n  b    2</pre>' in told


def test_columns_that_do_not_fit_are_below(made: Callable[..., Results]) -> None:
    """No line is wider than the terminal, and no column is lost."""
    columns = [str(2**power) for power in range(12)]
    told = text(made({"shmlock.RWLock": [1.0, 2.0], "other": [2.0, 3.0]}, columns), 60)
    assert max(map(len, told.splitlines())) <= 60
    assert [word for word in told.split() if word in columns[4:]] == columns[4:]


class Terminal(io.StringIO):
    """A file that says it is one."""

    def isatty(self) -> bool:
        """It says so."""
        return True


def test_a_terminal_gets_colours(some: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all that the text has; brackets in it are no markup."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    some.skipped["[red]"] = "[bold]"
    out = Terminal()
    show(some, out)
    assert "\x1b[" in out.getvalue()
    for part in ("11.0 ± 0.4", "2.86x", "WRONG", "never", "[red]: [bold]"):
        assert part in out.getvalue()


@pytest.mark.parametrize("rich", [None, "there"])
def test_what_is_no_terminal_gets_text(some: Results, monkeypatch: pytest.MonkeyPatch, rich: Any) -> None:
    """The same with rich and without."""
    if rich is None:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    out = io.StringIO()
    show(some, out)
    assert out.getvalue() == text(some)


def test_how_to_redo_it(made: Callable[..., Results]) -> None:
    """The knobs that were turned are said, and are in the command."""
    found = made({})
    assert command(found) == "python -m shmlock.bench mix"
    assert turned(found) == ""
    found.knobs.update(workers=8, counts=(1, 4))
    assert command(found) == "python -m shmlock.bench mix --set mix.workers=8 --set mix.counts=1,4"
    assert turned(found) == "Measured with workers 8 instead of 100, counts 1,4 instead of 1,2."


def test_the_stamp_is_a_line() -> None:
    """With the versions of what was measured."""
    line = stamped(stamp({"filelock": "3.1"}))
    assert "\n" not in line
    assert line.endswith(", filelock 3.1")
