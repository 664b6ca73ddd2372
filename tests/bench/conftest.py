"""A scenario that costs nothing, and results that are made up."""

from __future__ import annotations

import functools
import math
import signal
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.bench.samples import Results
from shmlock.bench.scenario import Case, Knob, Measure, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MEASURES = {"wall": Measure("until all are <done>", "s"), "rate": Measure("of them", "/s", "more")}


def scenario(sides: Mapping[str, Callable[[], Mapping[str, float]]] | None = None, **others: Any) -> Scenario:
    """One with two columns; the sides are measured by these functions."""
    cases = [Case(side, column, measure) for side, measure in (sides or {}).items() for column in ("1", "2")]
    given: dict[str, Any] = {
        "name": "mix",
        "title": "A title & more",
        "question": "What is <asked>?",
        "measures": MEASURES,
        "knobs": {"workers": Knob(100, 20, "processes"), "counts": Knob((1, 2), (1,), "of each")},
        "cases": lambda _: cases,
        "answer": lambda results: f"It takes {results.median('wall', '1', 'shmlock.RWLock'):.2f} <s>.",
        "columns": "processes",
    }
    return Scenario(**{**given, **others})


def results(samples: Mapping[str, Sequence[float]], columns: Sequence[str] = ("1", "2")) -> Results:
    """The same samples of `wall`, by side, in each column."""
    made = scenario()
    found = Results(made, made.turned(quick=False))
    for side, values in samples.items():
        for column in columns:
            for value in values:
                found.add("wall", column, side, value)
    return found


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Take what ends a bench also in a suite that ignores it: in the background SIGINT, with nohup SIGHUP."""
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def make() -> Callable[..., Scenario]:
    """Return the function that makes a scenario."""
    return scenario


@pytest.fixture
def made() -> Callable[..., Results]:
    """Return the function that makes results."""
    return functools.partial(results)


@pytest.fixture
def some() -> Results:
    """Return results with a best, a worse, one that can't be told from the best, and one that never came."""
    found = results(
        {
            "shmlock.RWLock": [0.010, 0.011, 0.013, 0.011],
            "other": [0.030, 0.031, 0.035, 0.032],
            "alike": [0.011, 0.010, 0.011, 0.012],
            "stuck": [math.inf, math.inf, math.inf, math.inf],
        }
    )
    found.faults.append("other, 2: <wrong> data")
    found.skipped["missing"] = "not installed (pip install <missing>)"
    return found
