"""What recording metrics must cost, measured in one run, beside the locks that the second seed had around its counters.

    python bench/metrics.py [SECTION ...] [--json FILE]

Ratios of medians of interleaved rounds, as in targets.py.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from measure import Result, context, interleaved, now, run, unique

import shmlock
from shmlock.bench.scenarios import record as scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.context import ForkProcess

    Record = Callable[[int, float], None]

CODE, SECONDS = 200, 0.0123


class Counted:
    """One count a code, on a shared array: what is recorded under a lock of somebody else's here."""

    def __init__(self) -> None:
        self.counts = context.RawArray("Q", 600)
        self.latencies = context.RawArray("Q", 4096)


def one_lock(counted: Counted, lock: Any) -> Record:
    """The smallest thing: an uncontended `with lock: counts[code] += 1`."""
    counts = counted.counts

    def record(code: int, _: float) -> None:
        with lock:
            counts[code] += 1

    return record


def after(counted: Counted, lock: Any) -> Record:
    """The second seed after its change: one exclusive lock around the counts and the histogram."""
    counts, latencies = counted.counts, counted.latencies

    def record(code: int, seconds: float) -> None:
        with lock:
            counts[code] += 1
            latencies[int(seconds * 1e3)] += 1

    return record


def before(counted: Counted, codes: shmlock.RWLock, histogram: shmlock.RWLock) -> Record:
    """The second seed before its change: two read-write locks, taken for writing one after the other.

    (There it counted under the *read* lock of one, which was wrong; to be right both must be written.)
    """
    counts, latencies = counted.counts, counted.latencies

    def record(code: int, seconds: float) -> None:
        with codes.writer:
            counts[code] += 1
        with histogram.writer:
            latencies[int(seconds * 1e3)] += 1

    return record


def ways(name: str) -> dict[str, Record]:
    """All ways to record, ready to be used by forked children as well."""
    counted = Counted()
    return {
        "lock": one_lock(counted, context.Lock()),
        "before": before(counted, shmlock.RWLock(f"{name}.a"), shmlock.RWLock(f"{name}.b")),
        "after": after(counted, context.Lock()),
        "ours": shmlock.RTMetrics(f"{name}.m", max_participants=32).record,
    }


def forget(name: str) -> None:
    """Unlink what `ways` made."""
    for what in "abm":
        shmlock.unlink(f"{name}.{what}")


def _loop(record: Record, count: int) -> float:
    """Nanoseconds each."""
    turns = range(count)
    began = now()
    for _ in turns:
        record(CODE, SECONDS)
    return (now() - began) / count * 1e9


def alone() -> Iterator[Result]:
    """One process."""
    name = unique("record")
    sides = {what: functools.partial(_loop, record, 5000) for what, record in ways(name).items()}
    seen = interleaved(25, **sides)
    for what, label in (
        ("lock", "with multiprocessing.Lock(): counts[code] += 1"),
        ("before", "two RW locks"),
        ("after", "one multiprocessing.Lock around both"),
        ("ours", "RTMetrics.record"),
    ):
        yield Result("alone", label, seen[what], "ns")
    yield Result("alone", "RTMetrics.record / with lock: counts[code] += 1", seen["ours"] / seen["lock"], "x", 4.0)
    forget(name)


def together() -> Iterator[Result]:
    """1, as many processes as there are cores, and 20: what a record costs, and how many all of them make.

    Measured as in the bench's scenario `record`.
    """
    cores = os.cpu_count() or 1
    sides: dict[str, tuple[str, Callable[[int, float], Mapping[str, float]]]] = {
        "before": ("two RW locks", functools.partial(scenario.under_locks, scenario.LOCKED[scenario.BEFORE])),
        "after": ("one lock", functools.partial(scenario.under_locks, scenario.LOCKED[scenario.AFTER])),
        "ours": ("RTMetrics", scenario.ours),
    }
    seen: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    for _ in range(5):
        for processes in (1, cores, 20):
            for side, (_, measure) in sides.items():
                seen[side, processes].append(measure(processes, 0.4))
    rate, cpu = (
        {key: statistics.median(each[what] for each in values) for key, values in seen.items()}
        for what in ("records", "cpu")
    )
    for side, (label, _) in sides.items():
        for processes in (1, cores, 20):
            yield Result("together", f"{label}, {processes} processes", rate[side, processes] / 1e3, "k/s")
            yield Result("together", f"{label}, {processes} processes: CPU for each", cpu[side, processes], "ns")
    cost = cpu["ours", cores] / cpu["ours", 1]
    yield Result("together", f"RTMetrics: cost with {cores} processes / alone", cost, "x", 1.3)
    more = rate["ours", 20] / rate["ours", cores]
    yield Result("together", f"RTMetrics: throughput, 20 processes / {cores}", more, "x", 0.95, at_least=True)


def _fill(name: str, go: Any) -> None:
    """Record all kinds of things for as long as the histogram's windows take to fill."""
    clock = [0.0]
    metrics = shmlock.RTMetrics(name, clock=lambda: clock[0])
    for second in range(61):
        clock[0] = 1000.0 + second
        for number in range(100):
            metrics.record(200 + number % 30, 10 ** (number % 60 / 12 - 4))
    go.wait()
    go.wait()


def reading() -> Iterator[Result]:
    """64 participants that have recorded in every bucket and window: all of it, and the counts alone."""
    name = unique("reading")
    metrics = shmlock.RTMetrics(name, max_participants=66, clock=lambda: 1060.0)
    go = context.Barrier(65)
    workers: list[ForkProcess] = [context.Process(target=_fill, args=(name, go)) for _ in range(64)]
    for worker in workers:
        worker.start()
    go.wait()
    if metrics.total_count() != 64 * 10 * 100:
        sys.exit(f"reading: {metrics.total_count()} instead of {64 * 10 * 100}")

    def timed(read: Callable[[], object]) -> float:
        began = now()
        read()
        return (now() - began) * 1e3

    seen = interleaved(
        15,
        export=lambda: timed(metrics.export),
        count=lambda: timed(metrics.total_count),
        quantile=lambda: timed(lambda: metrics.latency_histogram().latency_at_quantile(99.0)),
    )
    metrics.reset()
    baseline = interleaved(15, export=lambda: timed(metrics.export))
    go.wait()
    for worker in workers:
        worker.join()
    yield Result("reading", "export, 64 participants", seen["export"], "ms", 20.0)
    yield Result("reading", "the same after a reset", baseline["export"], "ms", 20.0)
    yield Result("reading", "total_count", seen["count"], "ms")
    yield Result("reading", "a quantile", seen["quantile"], "ms")
    metrics.unlink()


SECTIONS: dict[str, Callable[[], Iterator[Result]]] = {"alone": alone, "together": together, "reading": reading}

if __name__ == "__main__":
    sys.exit(run(SECTIONS, __doc__))
