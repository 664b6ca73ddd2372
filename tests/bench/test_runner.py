"""Rounds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from shmlock.bench import runner
from shmlock.bench.runner import run
from shmlock.bench.samples import Results
from shmlock.bench.scenario import WrongData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmlock.bench.scenario import Scenario


class Told:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def begin(self, scenario: Scenario, steps: int) -> None:
        """Keep it."""
        self.all.append((scenario.name, steps))

    def step(self, what: str) -> None:
        """Keep it."""
        self.all.append(what)

    def end(self) -> None:
        """Keep it."""
        self.all.append("end")


def test_sides_take_turns(make: Callable[..., Scenario]) -> None:
    """In each round each side is measured once in each column; no side's samples are all taken at one time."""
    said: list[str] = []

    def side(name: str) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            said.append(name)
            return {"wall": float(len(said))}

        return measure

    scenario = make({"a": side("a"), "b": side("b")})
    told = Told()
    found = run(scenario, scenario.turned(quick=False, given={"rounds": 2}), told)
    assert "".join(said) == "aabbaabb"
    assert found.samples["wall", "1", "b"] == [3.0, 7.0]
    assert told.all == [("mix", 8), *(["a 1", "a 2", "b 1", "b 2"] * 2), "end"]
    assert found.seconds > 0


def test_wrong_data_end_a_side(make: Callable[..., Scenario]) -> None:
    """It is measured no more, in no column; the others go on, and what it had before is kept."""
    calls = iter(range(10))

    def wrong() -> Mapping[str, float]:
        if next(calls) == 2:
            raise WrongData("two were in")
        return {"wall": 1.0}

    scenario = make({"bad": wrong, "good": lambda: {"wall": 2.0}})
    found = run(scenario, scenario.turned(quick=False, given={"rounds": 3}))
    assert found.faults == ["bad, 1: two were in"]
    assert found.samples["wall", "1", "bad"] == [1.0]
    assert found.samples["wall", "2", "good"] == [2.0] * 3
    assert next(calls) == 3


def test_what_takes_long_is_measured_less(make: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has taken so long in all, however long one round takes; the others in each round."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def taking(share: float) -> Callable[[], dict[str, float]]:
        def side() -> dict[str, float]:
            now[0] += runner.LONG * share
            return {"wall": 1.0}

        return side

    scenario = make({"slow": taking(1.1), "slower": taking(0.6), "good": taking(0.1)})
    found = run(scenario, scenario.turned(quick=False))
    assert [len(found.samples["wall", "1", side]) for side in ("slow", "slower", "good")] == [1, 2, 5]


def test_a_side_that_fails_is_a_fault_and_measured_no_more(make: Callable[..., Scenario]) -> None:
    """The others go on; what it said last is told."""

    def fail() -> NoReturn:
        raise RuntimeError("in a process\nTraceback\nOSError: no more")

    found = run(scenario := make({"bad": fail, "good": lambda: {"wall": 2.0}}), scenario.turned(quick=False))
    assert found.faults == ["bad, 1: RuntimeError: OSError: no more"]
    assert found.sides == ["good"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_it_is_closed_and_what_was_measured_is_kept(make: Callable[..., Scenario], error: type[BaseException]) -> None:
    """Whatever ends it: the scenario cleans up, the bar is taken away, and whoever gave the results has them."""

    def fail() -> NoReturn:
        raise error

    closed: list[bool] = []
    scenario = make({"good": lambda: {"wall": 2.0}, "bad": fail}, close=lambda: closed.append(True))
    kept, told = Results(scenario, scenario.turned(quick=True)), Told()
    with pytest.raises(error):
        run(scenario, kept.knobs, told, results=kept)
    assert closed == [True]
    assert told.all[-1] == "end"
    assert kept.samples["wall", "2", "good"] == [2.0]


def test_it_is_closed_when_there_are_no_cases(make: Callable[..., Scenario]) -> None:
    """What was opened while the cases were made is closed."""

    def cases(_: object) -> NoReturn:
        raise OSError

    closed: list[bool] = []
    scenario = make(cases=cases, close=lambda: closed.append(True))
    with pytest.raises(OSError):  # noqa: PT011  it is ours
        run(scenario, scenario.turned(quick=True))
    assert closed == [True]


def test_knobs_are_turned(make: Callable[..., Scenario]) -> None:
    """As usual, quick, or as given; one that there isn't is an error that names those that there are."""
    scenario = make()
    assert scenario.turned(quick=False) == {"workers": 100, "counts": (1, 2), "rounds": 5}
    assert scenario.turned(quick=True, given={"workers": "8"}) == {"workers": 8, "counts": (1,), "rounds": 2}
    with pytest.raises(KeyError, match=r"no knob 'wokers'; it has counts, rounds, workers"):
        scenario.turned(quick=True, given={"wokers": 1})
