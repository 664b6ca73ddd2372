"""How long one writer waits among readers that overlap, and one reader among writers that come back to back."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from bisect import bisect
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shmlock.bench import peers
from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.data import Data
from shmlock.bench.peers import Context, Peer, missing
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario
from shmlock.bench.scenarios._said import clearly_less, milliseconds, never

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmlock.bench.samples import Results

WRITER, READER = "a writer among readers", "a reader among writers"
WITHIN: Final = {WRITER: "writer", READER: "reader"}  # the measure with the histogram
EDGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)  # ms
GRACE: Final = 0.0005  # seconds between two waits: whoever was in may queue up again

_turn = count()


class _Waiter:
    """What the crowd knows of the one that waits, in shared memory: since when, or that it is done."""

    def __init__(self) -> None:
        self._since = context.RawValue("d", 0.0)

    def begin(self) -> float:
        """It asks now."""
        self._since.value = now = time.monotonic()
        return now

    def done(self) -> None:
        """It asks no more."""
        self._since.value = -math.inf

    def starved(self, patience: float) -> bool:
        """Whether there is no use in going on: it is done, or has waited for too long."""
        since: float = self._since.value
        return since != 0 and time.monotonic() - since > patience


class _Side(NamedTuple):
    """One of the two kinds: what it takes, and what it does inside."""

    use: Context
    be_in: Callable[[float], None]


class Waits(NamedTuple):
    """Of the one: how long each took, in seconds, `inf` for a last one that took longer than its patience."""

    each: list[float]
    burned: float  # CPU seconds in all of them


def _wait(side: _Side, waiter: _Waiter, seconds: float, patience: float, start: Start) -> Waits:
    waits: list[float] = []
    burned = 0.0
    start.wait()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and math.inf not in waits:
            cpu, began = time.process_time(), waiter.begin()
            with side.use:
                took = time.monotonic() - began
                burned += time.process_time() - cpu
                side.be_in(0)
            waits.append(took if took <= patience else math.inf)
            time.sleep(GRACE)
    finally:
        waiter.done()
    return Waits(waits, burned)


def _keep_busy(side: _Side, waiter: _Waiter, hold: float, patience: float, start: Start) -> None:
    """Be in again and again, with nothing in between, until the waiter is done or has lost its patience."""
    start.wait()
    while not waiter.starved(patience):
        with side.use:
            side.be_in(hold)


def _job(
    lock: Peer, data: Data, waiter: _Waiter, column: str, knobs: Knobs, *, waits: bool, start: Start
) -> Waits | None:
    reader, writer = lock.opened()
    writes = waits == (column == WRITER)
    side = _Side(writer, data.write) if writes else _Side(reader, data.read)
    if waits:
        return _wait(side, waiter, knobs["seconds"], knobs["patience"], start)
    _keep_busy(side, waiter, knobs["milliseconds"] / 1000, knobs["patience"], start)
    return None


def crowd(peer: type[Peer], column: str, knobs: Knobs) -> Mapping[str, float | Mapping[str, float]]:
    """One round. Raises WrongData."""
    lock = peer(f"bench-{os.getpid()}-fair{next(_turn)}")
    job: Any = functools.partial(_job, lock, Data(), _Waiter(), column, knobs)
    try:
        found = gather(
            [
                lambda start: job(waits=True, start=start),
                *[lambda start: job(waits=False, start=start) for _ in range(knobs["crowd"])],
            ]
        )
    finally:
        lock.close()
    seen: Waits = found.results[0]
    waits = sorted(wait * 1000 for wait in seen.each)
    return {
        "median": statistics.median_low(waits),
        "p99": waits[math.ceil(len(waits) * 0.99) - 1],
        "longest": waits[-1],
        "burned": seen.burned / len(waits) * 1e6,
        WITHIN[column]: {
            str(edge): bisect(waits, edge) / len(waits) * 100 for edge in EDGES if edge <= knobs["patience"] * 1000
        },
    }


def cases(knobs: Knobs) -> list[Case]:
    """Both sorts of waiters, for all peers."""
    return [
        Case(peer.name, column, functools.partial(crowd, peer, column, knobs))
        for column in (WRITER, READER)
        for peer in peers.peers()
    ]


def answer(results: Results) -> str:
    """Ours in both columns; who starves; and who is better than ours."""
    parts = []
    for column in WITHIN:
        ours = results.median("longest", column, "shmlock.RWLock")
        starved = never(results, "longest", column)
        shorter = clearly_less(results, "longest", column, "shmlock.RWLock")
        parts.append(
            f"As {column}, shmlock.RWLock's waiter had to wait for {milliseconds(ours, 'ever')} at the longest. "
            + (f"Shorter with {', '.join(shorter)}. " if shorter else "With none it was clearly shorter. ")
            + (f"It never came with {', '.join(starved)}." if starved else "It came with all.")
        )
    return " ".join(parts)


SCENARIO = Scenario(
    name="fairness",
    title="One against the many",
    question=(
        "Readers overlap, so that there is hardly a moment without one: when does a writer get in? Writers come one "
        "after the other with nothing in between: when does a reader? A lock can be fast on the whole because it lets "
        "somebody wait for ever, or because it lets whoever has just left in again. One process waits here, again and "
        "again, and the others give it no gap."
    ),
    measures={
        "median": Measure("wait, the median", "ms"),
        "p99": Measure("wait, the 99th percentile", "ms"),
        "longest": Measure("wait, the longest", "ms"),
        "burned": Measure("CPU for each wait, of the one that waits", "us"),
        **{
            name: Measure(f"share of the waits of {column} that are over", "%", "", "ms since it asked")
            for column, name in WITHIN.items()
        },
    },
    knobs={
        "crowd": Knob(4, 3, "processes that give it no gap"),
        "milliseconds": Knob(1.0, 1.0, "that each of them is in"),
        "seconds": Knob(0.4, 0.2, "that the one goes on asking"),
        "patience": Knob(2.0, 0.5, "seconds after which it is taken never to get in"),
    },
    cases=cases,
    answer=answer,
    missing=missing,
    rounds=Knob(3, 2, "how often each side is measured"),
    columns="who waits",
    notes=(
        "When the patience is over the crowd leaves, and the wait counts as never. A lock that lets one in at a time "
        "makes a writer of each reader."
    ),
)
