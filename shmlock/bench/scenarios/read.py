"""Reading what hardly ever changes, in 1 to 20 processes: the third seed's benchmark of four ways to read."""

from __future__ import annotations

import functools
import os
from itertools import count
from typing import TYPE_CHECKING, Any

import shmlock
from shmlock.bench import peers
from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.peers import Peer, missing
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import times_as_many
from shmlock.bench.turns import Turns, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmlock.bench.samples import Results

OPTIMISTIC, VERSIONED = "shmlock optimistic", "SharedConfig.get"
STATE = 42  # what is read

_turn = count()


# --- one process's reads


def _under(lock: Peer, state: Any, start: Start) -> Turns:
    """As a reader, or as the only one where a lock knows no readers."""
    reader, _ = lock.opened()

    def read(times: int) -> None:
        for _ in range(times):
            with reader:
                seen = state[0]
            if seen != STATE:
                raise WrongData(f"{seen} was read")

    return turns(start, read)


def _optimistically(lock: shmlock.RWLock, state: Any, start: Start) -> Turns:
    """A stamp, the read, and its validation; as a reader if somebody wrote meanwhile."""
    reader, stamp, validate = lock.reader, lock.optimistic_stamp, lock.validate

    def read(times: int) -> None:
        for _ in range(times):
            before = stamp()
            seen = state[0]
            if not validate(before):
                with reader:
                    seen = state[0]
            if seen != STATE:
                raise WrongData(f"{seen} was read")

    return turns(start, read)


def _versioned(config: shmlock.SharedConfig, start: Start) -> Turns:
    """The object of the newest version."""
    get = config.get

    def read(times: int) -> None:
        for _ in range(times):
            seen = get()
            if seen != STATE:
                raise WrongData(f"{seen} was read")

    return turns(start, read)


# --- rounds


def _crowd(job: Callable[[Start], Turns], readers: int, seconds: float) -> Mapping[str, float]:
    found = gather([job] * readers, seconds)
    reads = sum(each.made for each in found.results)
    return {"reads": reads / found.wall, "cpu": sum(each.cpu for each in found.results) / max(reads, 1) * 1e9}


def under(peer: type[Peer], readers: int, seconds: float) -> Mapping[str, float]:
    """One round under a lock. Raises WrongData."""
    lock = peer(f"bench-{os.getpid()}-read{next(_turn)}")
    try:
        return _crowd(functools.partial(_under, lock, _state()), readers, seconds)
    finally:
        lock.close()


def optimistically(readers: int, seconds: float) -> Mapping[str, float]:
    """One round without a lock, as long as nobody writes."""
    lock = shmlock.RWLock(f"bench-{os.getpid()}-read{next(_turn)}")
    try:
        return _crowd(functools.partial(_optimistically, lock, _state()), readers, seconds)
    finally:
        lock.unlink()
        lock.close()


def versioned(readers: int, seconds: float) -> Mapping[str, float]:
    """One round of a configuration that stays as it is."""
    config = shmlock.SharedConfig(f"bench-{os.getpid()}-read{next(_turn)}")
    try:
        config.publish(STATE)
        return _crowd(functools.partial(_versioned, config), readers, seconds)
    finally:
        config.unlink()
        config.close()


def _state() -> memoryview:
    """Words in shared memory."""
    words = memoryview(context.RawArray("Q", 8)).cast("B").cast("Q")
    words[0] = STATE
    return words


def cases(knobs: Knobs) -> list[Case]:
    """For each number of processes all ways to read."""
    seconds = knobs["seconds"]
    found = []
    for readers in knobs["processes"]:
        column = str(readers)
        ways = {peer.name: functools.partial(under, peer) for peer in peers.peers()}
        for side, way in (ways | {OPTIMISTIC: optimistically, VERSIONED: versioned}).items():
            found.append(Case(side, column, functools.partial(way, readers, seconds)))
    return found


def answer(results: Results) -> str:
    """Where the most processes read: ours to the exclusive lock, and what needs no lock to ours."""
    column = results.columns[-1] if results.columns else ""
    return (
        f"With {column} processes, shmlock.RWLock makes "
        f"{times_as_many(results, 'reads', column, 'shmlock.RWLock', 'multiprocessing.Lock')}; an optimistic read "
        f"{times_as_many(results, 'reads', column, OPTIMISTIC, 'shmlock.RWLock')}, and SharedConfig.get "
        f"{times_as_many(results, 'reads', column, VERSIONED, OPTIMISTIC)}."
    )


SCENARIO = Scenario(
    name="read",
    title="Reading what hardly ever changes",
    question=(
        "A state that all requests look at changes once in a blue moon. How many reads a second do 1, 2, 4, 10 and 20 "
        "processes get under a read-write lock, under an exclusive lock, with optimistic reads (a stamp, the read, and "
        "whether anybody wrote meanwhile), or by a plain look at the newest version? Where readers do store to shared "
        "memory, more of them may well get less done."
    ),
    measures={
        "reads": Measure("reads of all processes", "1/s", "more"),
        "cpu": Measure("CPU for a read", "ns"),
    },
    knobs={
        "processes": Knob((1, 2, 4, 10, 20), (1, 2), "how many read at once, one column for each"),
        "seconds": Knob(0.3, 0.1, "that they read for"),
    },
    cases=cases,
    answer=answer,
    missing=missing,
    columns="processes",
    notes="CPU is that of the reading loops, without the processes' beginnings and ends.",
)
