"""What came out of a scenario: raw samples, and what they come to."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shmlock.bench.scenario import Knobs, Scenario


@dataclass(frozen=True)
class Summary:
    """Of some samples: the median, and where the middle half of them lies."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Raises ValueError when there are none."""
        if not values:
            raise ValueError("there are no samples")
        if len(values) < 2 or any(map(math.isinf, values)):
            return cls(statistics.median(values), min(values), max(values), len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high, len(values))


@dataclass
class Results:
    """All of one scenario. `samples`: by (measure, column, side), in the order of the rounds."""

    scenario: Scenario
    knobs: Knobs
    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # by side: why
    faults: list[str] = field(default_factory=list)  # wrong data, by whom
    seconds: float = 0.0

    def add(self, measure: str, column: str, side: str, value: float) -> None:
        """Keep a sample."""
        self.samples.setdefault((measure, column, side), []).append(value)

    @property
    def sides(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(side for _, _, side in self.samples))

    @property
    def columns(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(column for _, column, _ in self.samples))

    def summary(self, measure: str, column: str, side: str) -> Summary | None:
        """None where there is nothing."""
        values = self.samples.get((measure, column, side))
        return Summary.of(values) if values else None

    def median(self, measure: str, column: str, side: str) -> float:
        """NaN where there is nothing."""
        found = self.summary(measure, column, side)
        return math.nan if found is None else found.median

    def ratio(self, measure: str, column: str, side: str, to: str) -> tuple[float, bool]:
        """One side to another, round by round, and whether it means something.

        The median of the ratios of each round; whether it means something says `significant`.
        """
        pairs = zip(self.samples.get((measure, column, side), []), self.samples.get((measure, column, to), []))  # noqa: B905  a side may have dropped out
        ratios = [ours / theirs for ours, theirs in pairs if theirs and not math.isinf(theirs)]
        return (statistics.median(ratios), significant(ratios)) if ratios else (math.nan, False)

    def answer(self) -> str:
        """The scenario's; it says so where too little was measured for one."""
        try:
            text = self.scenario.answer(self)
        except Exception:  # noqa: BLE001  it is made for all the samples, and an interrupted run has some of them
            text = "nan"
        return "Too little was measured to answer it." if re.search(r"\bnan\b", text) else text

    def as_json(self) -> dict[str, Any]:
        """What a file has of it."""
        return {
            "scenario": self.scenario.name,
            "knobs": self.knobs,
            "measures": {name: asdict(measure) for name, measure in self.scenario.measures.items()},
            "samples": [
                {"measure": measure, "column": column, "side": side, "values": [_finite(value) for value in values]}
                for (measure, column, side), values in self.samples.items()
            ],
            "skipped": self.skipped,
            "faults": self.faults,
            "seconds": round(self.seconds, 1),
            "answer": self.answer(),
        }


# Student's t for 95 % on both sides, by degrees of freedom from 1; from there on it is below the last.
_T: Final = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23, 2.21, 2.18, 2.17, 2.15, 2.14)


def significant(ratios: Sequence[float]) -> bool:
    """Whether the ratios of some rounds are not 1, but for a chance of 5 %: Student's t-test of their logarithms.

    One round says nothing. Where one is 0 or infinite, all must be on one side of 1.
    """
    if len(ratios) < 2:
        return False
    if any(ratio <= 0 or math.isinf(ratio) for ratio in ratios):
        return min(ratios) > 1 or max(ratios) < 1
    logarithms = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return abs(statistics.fmean(logarithms)) > error * _T[min(len(ratios) - 1, len(_T)) - 1]


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return "never" if math.isinf(value) else value


def stamp(packages: Mapping[str, str | None]) -> dict[str, Any]:
    """Where and when: machine, kernel, Python, and the versions of what was measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": sys.version.split()[0],
        "shmlock": _ours(),
        "packages": {name: version for name, version in packages.items() if version},
    }


def _ours() -> str:
    try:
        return metadata.version("shmlock-rw")
    except metadata.PackageNotFoundError:
        return "as in its source tree, not installed"
