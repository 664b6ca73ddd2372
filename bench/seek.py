"""What the seek lock, optimistic reads, the resting gate and the timer queue must reach, measured in one run.

    python bench/seek.py [SECTION ...] [--json FILE]

Ratios of medians of interleaved rounds, as in targets.py. `timers` prints the lock's statistics of both patterns.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from measure import Result, context, interleaved, loop, now, run, unique

import shmlock
from shmlock._segment.layout import OPENINGS
from shmlock.bench.runner import run as run_scenario
from shmlock.bench.scenarios.timers import ONE_BY_ONE, SCENARIO, SEEK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess

NEVER_RESTS = 1 << 40
SECONDS = 2.0


def conversions() -> Iterator[Result]:
    """One process alone: what an upgrade costs, and the other ways to change."""
    lock = shmlock.SeekLock(unique("seek"))
    count = 2000

    def upgrades() -> float:
        with lock.seeker:
            return loop(lock.upgraded(), count)

    def seeks() -> float:
        turns = range(count)
        with lock.reader:
            began = now()
            for _ in turns:
                lock.read_to_seek()
                lock.seek_to_read()
            return (now() - began) / count * 1e9

    seen = interleaved(
        25,
        reader=lambda: loop(lock.reader, 10 * count),
        writer=lambda: loop(lock.writer, count),
        seeker=lambda: loop(lock.seeker, count),
        upgraded=upgrades,
        converted=seeks,
    )
    for what, side in (("with lock.writer", "writer"), ("with lock.seeker", "seeker"), ("S to W and back", "upgraded")):
        yield Result("convert", what, seen[side] / 1000, "us")
    yield Result("convert", "R to S and back", seen["converted"] / 1000, "us")
    yield Result("convert", "S to W and back / writer", seen["upgraded"] / seen["writer"], "x", 1.5)
    lock.unlink()


# --- optimistic reads


def _optimistically(lock: shmlock.RWLock, state: Any, count: int) -> float:
    """Nanoseconds for a stamp, a read and its validation."""
    stamp, validate = lock.optimistic_stamp, lock.validate
    turns = range(count)
    began = now()
    for _ in turns:
        seen = stamp()
        _ = state[0]
        validate(seen)
    return (now() - began) / count * 1e9


def _under_the_lock(lock: shmlock.RWLock, state: Any, count: int) -> float:
    reader = lock.reader
    turns = range(count)
    began = now()
    for _ in turns:
        with reader:
            _ = state[0]
    return (now() - began) / count * 1e9


def _read_on(name: str, go: Any, stop: Any, done: Any) -> None:
    lock = shmlock.RWLock(name)
    state = memoryview(bytes(64)).cast("Q")
    _optimistically(lock, state, 10)
    go.wait()
    turns = 0
    while not stop.value:
        _optimistically(lock, state, 200)
        turns += 200
    done.send(turns)


def _reads_a_second(lock: shmlock.RWLock, processes: int) -> float:
    go, stop = context.Barrier(processes + 1), context.RawValue("b", 0)
    pipes, workers = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        worker: ForkProcess = context.Process(target=_read_on, args=(lock.name, go, stop, theirs))
        worker.start()
        pipes.append(ours)
        workers.append(worker)
    go.wait()
    began = now()
    time.sleep(0.5)
    stop.value = 1
    turns: int = sum(pipe.recv() for pipe in pipes)
    took = now() - began
    for worker in workers:
        worker.join()
    return turns / took


def optimistic() -> Iterator[Result]:
    """A read of one word, in both ways; then optimistically in as many processes as there are cores."""
    lock = shmlock.RWLock(unique("optimistic"))
    state = memoryview(bytes(64)).cast("Q")
    count = 20_000

    def look() -> int:
        return state[0]

    def consistently() -> float:
        turns = range(count)
        began = now()
        for _ in turns:
            lock.read_consistent(look)
        return (now() - began) / count * 1e9

    seen = interleaved(
        25,
        lock=lambda: _under_the_lock(lock, state, count),
        optimistic=lambda: _optimistically(lock, state, count),
        consistent=consistently,
    )
    yield Result("optimistic", "read under lock.reader", seen["lock"], "ns")
    yield Result("optimistic", "stamp, read, validate", seen["optimistic"], "ns")
    yield Result("optimistic", "read_consistent", seen["consistent"], "ns")
    yield Result("optimistic", "stamp, read, validate / lock.reader", seen["optimistic"] / seen["lock"], "x", 0.5)
    cores = os.cpu_count() or 1
    crowds = sorted({1, max(cores // 2, 1), cores})
    grown = interleaved(5, **{str(crowd): functools.partial(_reads_a_second, lock, crowd) for crowd in crowds})
    for crowd in crowds:
        yield Result("optimistic", f"{crowd} processes: throughput", grown[str(crowd)] / 1e6, "M/s")
    ratio = grown[str(cores)] / grown["1"]
    yield Result("optimistic", f"throughput of {cores} / of 1", ratio, "x", 0.75 * cores, at_least=True)
    lock.unlink()


# --- the gate that rests after a write until a reader asks


def _keep_reading(name: str, stop: Any, done: Any, _: float) -> None:
    reader = shmlock.RWLock(name).reader
    turns = 0
    while not stop.value:
        for _ in range(50):
            with reader:
                pass
        turns += 50
    done.put(("read", turns))


def _keep_writing(name: str, stop: Any, done: Any, pause: float) -> None:
    writer = shmlock.RWLock(name).writer
    turns = 0
    while not stop.value:
        began = now()
        with writer:
            pass
        turns += 1
        while pause and now() - began < pause:
            pass
    done.put(("written", turns))


def _keep_busy(name: str, stop: Any, done: Any, _: float) -> None:
    """Takes part, and does something else: the kernel interrupts it for each revocation."""
    with shmlock.RWLock(name).reader:
        pass
    while not stop.value:
        pass
    done.put(("busy", 0))


def _rates(jobs: list[tuple[Callable[..., None], float]], *, rests: bool) -> dict[str, float]:
    lock = shmlock.RWLock(unique("rest"))
    lock._words[OPENINGS] = 0 if rests else NEVER_RESTS  # noqa: SLF001  there is no public way not to have it
    stop, done = context.RawValue("b", 0), context.SimpleQueue()
    workers: list[ForkProcess] = [
        context.Process(target=job, args=(lock.name, stop, done, pause)) for job, pause in jobs
    ]
    for worker in workers:
        worker.start()
    time.sleep(0.5)
    stop.value = 1
    rates = {"read": 0.0, "written": 0.0, "busy": 0.0}
    for what, turns in (done.get() for _ in workers):
        rates[what] += turns / 0.5
    for worker in workers:
        worker.join()
    seen = lock.statistics()
    rates["revocation"] = seen.revocation_ns / max(seen.revocations, 1) / 1000
    lock.unlink()
    lock.close()
    return rates


def rest() -> Iterator[Result]:
    """A writer beside other processes, with the rest and without: what it brings, and that readers don't pay for it."""
    crowds: dict[str, list[tuple[Callable[..., None], float]]] = {
        "writer, a busy process": [(_keep_writing, 0.0), (_keep_busy, 0.0)],
        "two writers": [(_keep_writing, 0.0), (_keep_writing, 0.0)],
        "writer, reader": [(_keep_writing, 0.0), (_keep_reading, 0.0)],
        "a write in 100 us, reader": [(_keep_writing, 1e-4), (_keep_reading, 0.0)],
        "a write in 1 ms, reader": [(_keep_writing, 1e-3), (_keep_reading, 0.0)],
    }
    for what, jobs in crowds.items():
        sides: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for _ in range(7):
            for rests, seen in sides.items():
                seen.append(_rates(jobs, rests=rests))
        revocation = statistics.median(rates["revocation"] for rates in sides[False])
        yield Result("rest", f"{what}: a revocation", revocation, "us")
        for kind in ("written", "read"):
            with_rest, without = (statistics.median(rates[kind] for rates in sides[rests]) for rests in (True, False))
            if without:
                yield Result("rest", f"{what}: {kind}, without", without, "/s")
                yield Result("rest", f"{what}: {kind}, with / without", with_rest / without, "x")


# --- timers


def timers() -> Iterator[Result]:
    """2000 timers, each re-armed as soon as it came, by 8 processes that all look: with the seek lock and as before.

    The fourth seed has each come every 10 ms, on 8 cores in C. Here each comes every 300 ms: about as much as the old
    pattern can do on two cores in Python. The load is that of `python -m shmlock.bench timers`, for 2 s each.
    """
    found = run_scenario(SCENARIO, SCENARIO.turned(quick=False, given={"seconds": SECONDS}))
    if found.faults:
        sys.exit(f"timers: {'; '.join(found.faults)}")
    (column,) = found.columns
    for side in (SEEK, ONE_BY_ONE):
        yield Result("timers", f"{side}: rate", found.median("rate", column, side), "/s")
        yield Result("timers", f"{side}: CPU for each", found.median("cpu", column, side), "us")
        yield Result("timers", f"{side}: share of time spent waiting", found.median("waiting", column, side), "%")
    rate, waiting = (
        found.median(measure, column, SEEK) / found.median(measure, column, ONE_BY_ONE)
        for measure in ("rate", "waiting")
    )
    yield Result("timers", "rate, seek / one by one", rate, "x", 1.0, at_least=True)
    yield Result("timers", "waiting, seek / one by one", waiting, "x", 0.5)
    print(f"\n{found.answer()}\n")


def _collect_all(name: str, go: Any, left: Any, done: Any) -> None:
    timers = shmlock.TimerQueue(name)
    seen: list[tuple[int, int]] = []
    go.wait()
    while left.value > 0:
        ids = timers.wake_expired(limit=500)
        moment = time.monotonic_ns()
        seen += [(ident, moment) for ident in ids]
        if ids:
            with left.get_lock():
                left.value -= len(ids)
        else:
            time.sleep(0.001)
    timers.wake_expired()
    done.put(seen)


def once() -> Iterator[Result]:
    """8 processes, 100,000 timers that come within five seconds: each collected exactly once, none before its time."""
    count, processes = 100_000, 8
    timers = shmlock.TimerQueue(unique("once"), capacity=count)
    began = now()
    first = time.monotonic_ns() + 6_000_000_000
    times = {ident: first + ident * 50_000 for ident in range(count)}
    for ident, moment in times.items():
        timers.schedule(ident, moment)
    yield Result("once", "schedule", (now() - began) / count * 1e6, "us")
    go, left, done = context.Barrier(processes), context.Value("q", count), context.SimpleQueue()
    workers: list[ForkProcess] = [
        context.Process(target=_collect_all, args=(timers.name, go, left, done)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    seen = [pair for _ in workers for pair in done.get()]
    for worker in workers:
        worker.join()
    late = sorted(moment - times[ident] for ident, moment in seen)
    yield Result("once", "collected", len(seen), "", count, at_least=True)
    yield Result("once", "collected more than once", len(seen) - len({ident for ident, _ in seen}), "", 0)
    yield Result("once", "collected before their time", sum(nanoseconds < 0 for nanoseconds in late), "", 0)
    yield Result("once", "late, median", late[len(late) // 2] / 1e6, "ms")
    yield Result("once", "late, longest", late[-1] / 1e6, "ms")
    timers.unlink()


SECTIONS: dict[str, Callable[[], Iterator[Result]]] = {
    "convert": conversions,
    "optimistic": optimistic,
    "rest": rest,
    "timers": timers,
    "once": once,
}

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(run(SECTIONS, __doc__))
