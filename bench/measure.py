"""What the scripts here share: a line of the table, interleaved rounds, a loop, and the command line."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shmlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

context = multiprocessing.get_context("fork")
now = time.perf_counter


@dataclass(frozen=True)
class Result:
    """One line of the table. `limit` None: for information."""

    section: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target holds."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def unique(what: str) -> str:
    """A segment name for this run."""
    return f"bench-{os.getpid()}-{what}"


def interleaved(rounds: int, **sides: Callable[[], float]) -> dict[str, float]:
    """Medians of what the sides return, measured in turn."""
    seen: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measure in sides.items():
            seen[side].append(measure())
    return {side: statistics.median(values) for side, values in seen.items()}


def loop(use: Any, count: int) -> float:
    """Nanoseconds for `with use: pass`, the loop included."""
    turns = range(count)
    began = now()
    for _ in turns:
        with use:
            pass
    return (now() - began) / count * 1e9


def run(sections: Mapping[str, Callable[[], Iterator[Result]]], about: str | None) -> int:
    """Run the sections that the command line asks for and print their table. 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="*", choices=[*sections, []], help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    options = parser.parse_args()
    results: list[Result] = []
    for section in options.section or sections:
        for result in sections[section]():
            results.append(result)
            sign = "" if result.limit is None else f"{'>=' if result.at_least else '<='} {result.limit:g}"
            verdict = "" if result.limit is None else ("ok" if result.reached else "MISSED")
            figure = f"{result.value:10.3f} {result.unit:4}"
            print(f"{result.section:10} {result.what:52} {figure} {sign:10} {verdict}", flush=True)
    if options.json:
        stamp = {
            "python": sys.version,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "shmlock": shmlock.__version__,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "max_rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "results": [asdict(result) | {"reached": result.reached} for result in results],
        }
        options.json.write_text(json.dumps(stamp, indent=1) + "\n")
    return 0 if all(result.reached for result in results) else 1
