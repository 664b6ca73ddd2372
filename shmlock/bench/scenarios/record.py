"""Counting status codes and latencies in all workers: the second seed's benchmark, alone and concurrently."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from itertools import count, cycle, islice
from typing import TYPE_CHECKING, Any, Final

import shmlock
from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.peers.ours import ShmlockRWLock
from shmlock.bench.peers.standard import Lock
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import times_as_many
from shmlock.bench.turns import Turns, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shmlock.bench.peers import Peer
    from shmlock.bench.samples import Results

    Record = Callable[[int, float], object]

CODES: Final = range(200, 300)  # as many as the seed has, one after the other
SECONDS: Final = 0.0123
OURS, BEFORE, AFTER = "shmlock.RTMetrics", "two RW locks", "one lock"

LOCKED: dict[str, Sequence[type[Peer]]] = {BEFORE: (ShmlockRWLock, ShmlockRWLock), AFTER: (Lock,)}
"""The lock of the counts, and the one of the histogram, if it has its own."""

_turn = count()


def _recorded(start: Start, record: Record) -> Turns:
    codes = cycle(CODES)

    def some(times: int) -> None:
        for code in islice(codes, times):
            record(code, SECONDS)

    return turns(start, some)


def _under_locks(locks: Sequence[Peer], counts: Any, latencies: Any, start: Start) -> Turns:
    """With one lock or with two, both taken for writing. The seed, by mistake, took one of its two for reading."""
    bucket = int(SECONDS * 1000)
    opened = [lock.opened()[1] for lock in locks]

    def with_one(code: int, _: float) -> None:
        with lock:
            counts[code] += 1
            latencies[bucket] += 1

    def with_two(code: int, _: float) -> None:
        with lock:
            counts[code] += 1
        with opened[1]:
            latencies[bucket] += 1

    lock = opened[0]
    return _recorded(start, with_two if len(opened) > 1 else with_one)


def _ours(metrics: shmlock.RTMetrics, start: Start) -> Turns:
    return _recorded(start, metrics.record)


# --- rounds


def under_locks(kinds: Sequence[type[Peer]], workers: int, seconds: float) -> Mapping[str, float]:
    """One round of counting on a shared array. Raises WrongData."""
    unique = f"bench-{os.getpid()}-record{next(_turn)}"
    locks: list[Peer] = []
    counts, latencies = context.RawArray("Q", CODES.stop), context.RawArray("Q", 1000)
    try:
        locks += (kind(f"{unique}.{number}") for number, kind in enumerate(kinds))
        job = functools.partial(_under_locks, locks, counts, latencies)
        return _crowd(job, workers, seconds, lambda: ({code: counts[code] for code in CODES}, sum(latencies)))
    finally:
        for lock in locks:
            lock.close()


def ours(workers: int, seconds: float) -> Mapping[str, float]:
    """One round of RTMetrics. Raises WrongData."""
    metrics = shmlock.RTMetrics(f"bench-{os.getpid()}-record{next(_turn)}", max_participants=workers + 2)
    micros = int(SECONDS * 1e6)
    try:
        job = functools.partial(_ours, metrics)
        return _crowd(job, workers, seconds, lambda: (metrics.totals(), round(metrics.latency_sum() * 1e6) / micros))
    finally:
        metrics.unlink()
        metrics.close()


def _crowd(
    job: Callable[[Start], Turns], workers: int, seconds: float, counted: Callable[[], tuple[Mapping[int, int], float]]
) -> Mapping[str, float]:
    found = gather([job] * workers, seconds)
    made = Counter[int]()
    for each in found.results:
        rounds, rest = divmod(each.made, len(CODES))
        made.update({code: rounds + (number < rest) for number, code in enumerate(CODES)})
    records = made.total()
    codes, latencies = counted()
    if Counter(codes) != made or latencies != records:
        raise WrongData(f"{sum(codes.values())} codes and {latencies:.0f} latencies were counted instead of {records}")
    return {
        "records": records / found.wall,
        "each": found.wall / records * 1e9,
        "cpu": sum(each.cpu for each in found.results) / records * 1e9,
    }


def cases(knobs: Knobs) -> list[Case]:
    """Before, after and ours, for each number of processes."""
    found = []
    for workers in knobs["processes"]:
        for side, kinds in LOCKED.items():
            found.append(Case(side, str(workers), functools.partial(under_locks, kinds, workers, knobs["seconds"])))
        found.append(Case(OURS, str(workers), functools.partial(ours, workers, knobs["seconds"])))
    return found


def answer(results: Results) -> str:
    """Ours to the better one of the seed, alone and together; and what company costs each."""
    if not results.columns:
        return "Nothing was measured."
    alone, crowd = results.columns[0], results.columns[-1]
    return (
        f"RTMetrics.record makes {times_as_many(results, 'records', alone, OURS, AFTER)} with {alone} at it, and "
        f"{times_as_many(results, 'records', crowd, OURS, AFTER)} with {crowd}. "
        f"From {alone} to {crowd}, the time for each of all records becomes "
        + "; ".join(f"with {side} {slower:.2f} times what it was" for side, slower in _slower(results, alone, crowd))
        + ". In the seed, with 20 at it, it became 6.8 times with two RW locks, and 4 times with one."
    )


def _slower(results: Results, alone: str, crowd: str) -> Iterator[tuple[str, float]]:
    for side in results.sides:
        slower = results.median("each", crowd, side) / results.median("each", alone, side)
        if not math.isnan(slower):
            yield side, slower


_CORES: Final = os.cpu_count() or 1

SCENARIO = Scenario(
    name="record",
    title="Counting each response",
    question=(
        "Each response is counted by its status code, and its latency in a histogram, by all workers. The seed had two "
        "read-write locks around them, and then one exclusive lock, which was simpler, right, and faster. What does a "
        "record cost in each way, alone and with all the others, and what without any lock? After each round all "
        "counts must be exactly what was recorded."
    ),
    measures={
        "records": Measure("records of all processes", "1/s", "more"),
        "each": Measure("time for each of all records, as the seed has it", "ns"),
        "cpu": Measure("CPU for a record", "ns"),
    },
    knobs={
        "processes": Knob(tuple(sorted({1, _CORES, 20})), (1, 2), "how many record at once, one column for each"),
        "seconds": Knob(0.3, 0.1, "that they record for"),
    },
    cases=cases,
    answer=answer,
    columns="processes",
    notes=(
        "The locks guard plain words in shared memory: no windows, no quantiles. RTMetrics keeps both, so alone it "
        "does more for each record than the two others."
    ),
)
