"""Rounds: each side once in each, one after the other, so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from shmlock.bench.samples import Results
from shmlock.bench.scenario import WrongData

if TYPE_CHECKING:
    from shmlock.bench.scenario import Case, Knobs, Scenario


LONG: Final = 8.0  # seconds


class Progress(Protocol):
    """Who is told how far it is."""

    def begin(self, scenario: Scenario, steps: int) -> None:
        """So many steps are to come."""

    def step(self, what: str) -> None:
        """One begins."""

    def end(self) -> None:
        """All are done."""


class Silent:
    """Tells nobody."""

    def begin(self, scenario: Scenario, steps: int) -> None:
        """Not told."""

    def step(self, what: str) -> None:
        """Not told."""

    def end(self) -> None:
        """Not told."""


def run(
    scenario: Scenario, knobs: Knobs, progress: Progress | None = None, *, results: Results | None = None
) -> Results:
    """Measure a scenario. A side whose data were wrong, or that failed, is told so, and measured no more.

    What has taken 8 s in all is not measured again, or the locks that poll would take most of the time of all. What
    takes as long as that in its first round has one sample, and then nothing about it is significant.

    Whoever gives the `results` to fill has what was measured until an exception, Ctrl-C included.
    """
    told = progress or Silent()
    results = Results(scenario, knobs) if results is None else results
    began = time.perf_counter()
    try:
        cases, missing = scenario.measurable(knobs)
        results.skipped.update(missing)
        told.begin(scenario, len(cases) * knobs["rounds"])
        wrong: set[str] = set()
        spent: dict[Case, float] = defaultdict(float)
        for _ in range(knobs["rounds"]):
            for case in cases:
                told.step(" ".join(filter(None, (case.side, case.column))))
                if case.side in wrong or spent[case] > LONG:
                    continue
                start = time.perf_counter()
                try:
                    found = case.measure()
                except Exception as error:  # noqa: BLE001  one side's failure is not the others'
                    wrong.add(case.side)
                    what = str(error) if isinstance(error, WrongData) else f"{type(error).__name__}: {last_line(error)}"
                    results.faults.append(f"{case.side}, {case.column}: {what}")
                    continue
                spent[case] += time.perf_counter() - start
                for measure, values in found.items():
                    by_column = values if isinstance(values, Mapping) else {case.column: values}
                    for column, value in by_column.items():
                        results.add(measure, column, case.side, value)
    finally:
        results.seconds = time.perf_counter() - began
        told.end()
        scenario.close()
    return results


def last_line(error: Exception) -> str:
    """The last line of what it says: it may quote a traceback."""
    return (str(error).strip().splitlines() or [""])[-1]
