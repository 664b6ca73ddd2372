"""What samples come to."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from shmlock.bench.samples import Summary, significant, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock.bench.samples import Results
    from shmlock.bench.scenario import Scenario


def test_a_summary_is_the_median_and_the_middle_half() -> None:
    """Of 1 to 5, 3 is in the middle, and half of them are from 2 to 4."""
    assert Summary.of([5, 1, 4, 2, 3]) == Summary(3, 2, 4, 5)


def test_a_summary_of_one_is_that_one() -> None:
    """Nothing is known of its spread."""
    assert Summary.of([7]) == Summary(7, 7, 7, 1)


def test_a_summary_of_none_is_an_error() -> None:
    """There is no number that would say it."""
    with pytest.raises(ValueError, match="no samples"):
        Summary.of([])


def test_a_summary_keeps_what_never_came() -> None:
    """The median of mostly never is never, and no quartile is made of infinities."""
    assert Summary.of([math.inf, 1, math.inf]) == Summary(math.inf, 1, math.inf, 3)


def test_a_ratio_is_taken_within_rounds(made: Callable[..., Results]) -> None:
    """A machine that slows down from round to round changes nothing: each round has its own ratio."""
    found = made({"other": [2, 4, 8.2], "shmlock.RWLock": [1, 2, 4]})
    assert found.ratio("wall", "1", "other", "shmlock.RWLock") == (2, True)


def test_a_ratio_of_rounds_that_disagree_is_not_significant(made: Callable[..., Results]) -> None:
    """One time more, one time less: nothing was shown."""
    found = made({"other": [2, 1, 1.2], "shmlock.RWLock": [1, 2, 1]})
    assert found.ratio("wall", "1", "other", "shmlock.RWLock") == (1.2, False)


def test_a_ratio_to_nothing_is_none(made: Callable[..., Results]) -> None:
    """Where there is no round in which both have a number, there is no ratio."""
    ratio, tells = made({"other": [2.0], "never": [math.inf]}).ratio("wall", "1", "other", "never")
    assert math.isnan(ratio)
    assert not tells


@pytest.mark.parametrize(
    ("ratios", "tells"),
    [
        ([2.0], False),
        ([2.0, 2.1], True),
        ([2.0, 1.1], False),
        ([1.0, 1.0, 1.0], False),
        ([1.5, 1.5], True),
        ([0.5, 0.45, 0.55], True),
        ([0.5, 0.9, 1.3], False),
        ([math.inf, math.inf], True),
        ([math.inf, 0.5], False),
        ([0.0, 0.5], True),
        ([1.02] * 30 + [1.01] * 30, True),
    ],
)
def test_significance(ratios: list[float], tells: bool) -> None:
    """One round says nothing, two that agree closely say something, and many say it of small ratios, too."""
    assert significant(ratios) is tells


def test_chance_is_rarely_significant(made: Callable[..., Results]) -> None:
    """All sixteen orders of signs of four equal steps: only those that all agree are significant."""
    del made
    signs = [[2 ** (0.1 if number >> bit & 1 else -0.1) for bit in range(4)] for number in range(16)]
    assert sum(map(significant, signs)) == 2


def test_json_has_all_samples(some: Results) -> None:
    """Raw, in the order of their rounds; never is said as such, since JSON has no infinity."""
    told = json.loads(json.dumps(some.as_json(), allow_nan=False))
    assert told["samples"][0] == {
        "measure": "wall", "column": "1", "side": "shmlock.RWLock", "values": [0.010, 0.011, 0.013, 0.011],
    }  # fmt: skip
    assert told["samples"][-1]["values"] == ["never"] * 4
    assert told["measures"]["rate"] == {"what": "of them", "unit": "/s", "better": "more", "columns": ""}
    assert (told["faults"], list(told["skipped"])) == (["other, 2: <wrong> data"], ["missing"])


@pytest.mark.parametrize("side", ["other", "shmlock.RWLock"])
def test_an_answer_needs_samples(make: Callable[..., Scenario], made: Callable[..., Results], side: str) -> None:
    """Where the answer would be made of nothing, it says that; an error in it is not the run's."""
    found = made({side: [1.0]})
    assert ("Too little" in found.answer()) is (side == "other")
    found.scenario = make(answer=lambda results: str(min(results.samples[()])))
    assert "Too little" in found.answer()


def test_the_stamp_names_the_machine() -> None:
    """And the versions of what is there; what isn't installed has none."""
    told = stamp({"filelock": "3.1", "missing": None})
    assert told["packages"] == {"filelock": "3.1"}
    assert {"when", "cpus", "cpu", "kernel", "libc", "python", "shmlock"} < set(told)
