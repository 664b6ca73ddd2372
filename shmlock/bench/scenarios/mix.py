"""100 workers that read and write with 1 ms inside the lock: the first seed's script, as processes."""

from __future__ import annotations

import functools
import os
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING

from shmlock.bench import peers
from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.data import Data
from shmlock.bench.peers import Peer, missing
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ctypes import c_double
    from multiprocessing.synchronize import Barrier

    from shmlock.bench.samples import Results

_turn = count()


def nap(seconds: float) -> float:
    """What `time.sleep` of so long really takes here, alone: the median of some batches."""

    def batch(size: int = 50) -> float:
        began = time.perf_counter()
        for _ in range(size):
            time.sleep(seconds)
        return (time.perf_counter() - began) / size

    return statistics.median(batch() for _ in range(9))


def _read(lock: Peer, data: Data, iterations: int, seconds: float, start: Start) -> None:
    reader, _ = lock.opened()
    with reader:  # what a fork shares is copied when it is touched first
        pass
    start.wait()
    for _ in range(iterations):
        with reader:
            data.read(seconds)


def _write(lock: Peer, data: Data, iterations: int, seconds: float, start: Start) -> None:
    _, writer = lock.opened()
    with writer:
        pass
    start.wait()
    for _ in range(iterations):
        with writer:
            data.write(seconds)


def naps_together(sleepers: int, seconds: float, times: int = 20) -> float:
    """What it takes here until so many processes have slept so long at the same time, with no lock: the median.

    From when the first falls asleep until the last is awake. They begin at moments that all of them know, for nobody
    has to wake anybody then.
    """
    if not sleepers:
        return 0.0
    apart = 10 * seconds + sleepers * 0.0005
    first = context.RawValue("d")

    def agree() -> None:
        first.value = time.monotonic() + apart

    job = functools.partial(_sleep, seconds, apart, times, context.Barrier(sleepers, agree), first)
    rounds = zip(*gather([job] * sleepers).results, strict=True)
    took: list[float] = [max(ended for _, ended in naps) - min(began for began, _ in naps) for naps in rounds]
    return statistics.median(took)


def _sleep(
    seconds: float, apart: float, times: int, ready: Barrier, first: c_double, start: Start
) -> list[tuple[float, float]]:
    naps = []
    start.wait()
    ready.wait()
    for moment in range(times):
        time.sleep(max(0.0, first.value + moment * apart - time.monotonic()))
        began = time.monotonic()
        time.sleep(seconds)
        naps.append((began, time.monotonic()))
    return naps


def unavoidable(writers: int, iterations: int, alone: float, together: float) -> float:
    """Seconds: all writers' sleeps, one after the other, and as many times those of all readers together."""
    return iterations * (writers * alone + together)


def crowd(
    peer: type[Peer], readers: int, writers: int, iterations: int, seconds: float, least: float
) -> Mapping[str, float]:
    """One round, with sleeps of so many seconds, for which `least` is unavoidable. Raises WrongData."""
    lock = peer(f"bench-{os.getpid()}-mix{next(_turn)}")
    data = Data()
    try:
        found = gather(
            [
                *(functools.partial(_read, lock, data, iterations, seconds) for _ in range(readers)),
                *(functools.partial(_write, lock, data, iterations, seconds) for _ in range(writers)),
            ]
        )
    finally:
        lock.close()
    data.check(writers * iterations)
    return {
        "wall": found.wall,
        "unavoidable": found.wall / least,
        "cpu": found.cpu,
        "switches": found.voluntary + found.involuntary,
        "memory": found.rss / 1024,
    }


def cases(knobs: Knobs) -> list[Case]:
    """All peers, for each share of readers; what the sleeps take is measured once for all of them."""
    workers, seconds = knobs["workers"], knobs["milliseconds"] / 1000
    alone = nap(seconds)
    columns = []
    for share in (80, 20, 50):
        readers = workers * share // 100
        writers = workers - readers
        least = unavoidable(writers, knobs["iterations"], alone, naps_together(readers, seconds))
        columns.append((f"{share}/{100 - share}", (readers, writers, knobs["iterations"], seconds, least)))
    return [
        Case(peer.name, column, functools.partial(crowd, peer, *round_))
        for peer in peers.peers()
        for column, round_ in columns
    ]


def answer(results: Results) -> str:
    """How near ours comes to what is unavoidable."""
    near = [results.median("unavoidable", column, "shmlock.RWLock") for column in results.columns]
    return (
        f"shmlock.RWLock takes {min(near):.2f} to {max(near):.2f} times what the sleeps alone make unavoidable. "
        "A lock that lets one in at a time must take all sleeps one after the other."
    )


SCENARIO = Scenario(
    name="mix",
    title="A hundred workers, reading and writing",
    question=(
        "100 processes use one lock 50 times each, and sleep a millisecond inside it: 80 of them read and 20 write, or "
        "the other way round, or half and half. How long does it take, and how much of that is the lock? Readers can "
        "be in together, so a lock that lets them should be far ahead where most of them read."
    ),
    measures={
        "wall": Measure("until all are done", "s"),
        "unavoidable": Measure("compared with what the sleeps make unavoidable", "x"),
        "cpu": Measure("CPU of all processes", "s"),
        "switches": Measure("context switches", ""),
        "memory": Measure("memory of the largest process", "MiB"),
    },
    knobs={
        "workers": Knob(100, 20, "processes"),
        "iterations": Knob(50, 10, "times that each is in"),
        "milliseconds": Knob(1.0, 1.0, "that it sleeps in there"),
    },
    cases=cases,
    answer=answer,
    missing=missing,
    columns="readers / writers",
    rounds=Knob(3, 1, "how often each side is measured"),
    notes=(
        "Unavoidable are the writers' sleeps, one after the other, and the readers', all of them at the same time: "
        "iterations x (writers x what the sleep takes here alone + what it takes until all readers have slept at the "
        "same time, with no lock). Both are measured once, before all."
    ),
)
