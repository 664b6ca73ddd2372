"""What came out of a scenario: raw samples, and what they come to."""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

        The median of the ratios of each round; it means something if the middle half of them is all on one side of 1.
        """
        pairs = zip(self.samples.get((measure, column, side), []), self.samples.get((measure, column, to), []))  # noqa: B905  a side may have dropped out
        ratios = [ours / theirs for ours, theirs in pairs if theirs and not math.isinf(theirs)]
        if not ratios:
            return math.nan, False
        found = Summary.of(ratios)
        return found.median, found.low > 1 or found.high < 1

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
            "answer": self.scenario.answer(self),
        }


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
        "shmlock": metadata.version("shmlock-rw"),
        "packages": {name: version for name, version in packages.items() if version},
    }
