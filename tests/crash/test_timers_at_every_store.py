"""A process is killed before its nth store, for every n of everything that it can do with timers.

Whatever store it was: each timer is as it was or as it was to be, comes once, and nobody waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock import timers as room
from shmlock._segment.layout import DIRTY, GATE, GATE_CLOSED, HIGH_WATER, SEEKER, SEQUENCE, WRITER
from tests.crash.mortal import RECORDS, every_step, mortal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start

START = {timer_id: 10 * timer_id for timer_id in range(1, 8)}
LATE = 10**6


@pytest.fixture
def timers(name: str) -> Iterator[shmlock.TimerQueue]:
    """A queue with a few timers and a little room."""
    with shmlock.TimerQueue(name, capacity=9, max_participants=4) as made:
        begin(made)
        yield made


def begin(timers: shmlock.TimerQueue) -> None:
    """All there, one of them postponed, one handed out and acknowledged, and armed again."""
    for timer_id, expires in START.items():
        timers.schedule(timer_id, expires - 5 if timer_id == 3 else 1 if timer_id == 5 else expires)
    assert timers.postpone(3, START[3])
    assert timers.wake_expired(1) == [5]
    timers.schedule(5, START[5])


def end(timers: shmlock.TimerQueue) -> dict[int, int]:
    """What there is, when it has come, each once; the lock is free, and nobody is in it. And begin anew."""
    assert timers.next_expiry() is not None
    timers._patrol_at = 0
    timers.wake_expired(-1)  # what the dead had in hand is taken back
    found = {timer_id: timers.expiry(timer_id) for timer_id in [*START, 9]}
    seen = {timer_id: expires for timer_id, expires in found.items() if expires is not None}
    assert len(timers) == len(seen)
    assert timers.next_expiry() == min(seen.values())
    assert timers.wake_expired(LATE) == sorted(seen, key=lambda timer_id: seen[timer_id])
    timers._patrol_at = 0
    assert timers.wake_expired(LATE) == []
    timers.reap()
    words = timers._words
    assert words[GATE] != GATE_CLOSED
    assert [words[word] for word in (DIRTY, WRITER, SEEKER)] == [0] * 3
    assert words[SEQUENCE] & 1 == 0
    assert words[HIGH_WATER] == 1
    assert not timers._batches.any()
    begin(timers)
    return seen


def without(timer_id: int) -> dict[int, int]:
    """All but one."""
    return {other: expires for other, expires in START.items() if other != timer_id}


CHANGES: dict[str, tuple[Callable[[shmlock.TimerQueue], object], dict[int, int]]] = {
    "new": (lambda timers: timers.schedule(9, 15), START | {9: 15}),
    "earlier": (lambda timers: timers.schedule(7, 5), START | {7: 5}),
    "later": (lambda timers: timers.schedule(2, 99), START | {2: 99}),
    "postponed": (lambda timers: timers.postpone(2, 99), START | {2: 99}),
    "cancelled": (lambda timers: timers.cancel(2), without(2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes(timers: shmlock.TimerQueue, start: Start, change: str) -> None:
    """Either it is done or it is not; done if the call has returned; and nothing else is changed."""
    action, after = CHANGES[change]
    outcomes: list[dict[int, int]] = []

    def check(_: int) -> None:
        outcomes.append(end(timers))
        assert outcomes[-1] in (START, after)

    def operate(_: Peer) -> None:
        action(shmlock.TimerQueue(timers.name))

    stores = every_step(start, operate, check)
    assert outcomes[0] == START
    assert outcomes[-1] == after
    assert stores > 10


def test_collecting(timers: shmlock.TimerQueue, start: Start) -> None:
    """In several batches, with postponed timers between: killed before it returns, or before it asks again."""

    def collect(_: Peer) -> None:
        room._BATCH = 2  # type: ignore[misc]
        assert len(shmlock.TimerQueue(timers.name).wake_expired(55)) == 5

    def check(_: int) -> None:
        assert end(timers) == START

    assert every_step(start, collect, check) > 100


def test_acknowledging(timers: shmlock.TimerQueue, start: Start) -> None:
    """Killed while it asks again: what it had in hand comes once more or not at all, all or nothing."""
    seen = []

    def collect(_: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert ours.wake_expired(25) == [1, 2]
        assert ours.wake_expired(35) == [3]

    def check(_: int) -> None:
        seen.append(len(end(timers)))

    every_step(start, collect, check)
    assert set(seen) == {7, 5}
    assert seen[0] == 7
    assert seen[-1] == 5


def test_leaving(timers: shmlock.TimerQueue, start: Start) -> None:
    """Killed while it closes: it has seen what it had in hand or it has not, all or nothing."""
    seen = []

    def collect(_: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert ours.wake_expired(25) == [1, 2]
        ours._segment.handles.clear()  # it is the last, with that of the parent's gone
        ours._engine.leave()

    def check(_: int) -> None:
        seen.append(len(end(timers)))

    every_step(start, collect, check)
    assert set(seen) == {7, 5}
    assert seen[0] == 7
    assert seen[-1] == 5


def test_taking_back(timers: shmlock.TimerQueue, start: Start) -> None:
    """One that takes over from a dead collector, and from one that was killed doing so, and so on."""

    def collect(peer: Peer) -> None:
        peer.say(shmlock.TimerQueue(timers.name).wake_expired(25))

    last = 0
    while True:
        first = start(collect)
        assert first.hear() == [1, 2]
        assert first.join() == 0  # in the way of one that is killed: with os._exit

        def take_over(_: Peer, last: int = last) -> None:
            mortal(last)
            assert shmlock.TimerQueue(timers.name).wake_expired(35) == [1, 2, 3]

        code = start(take_over).join()
        assert end(timers) == START
        if not code:
            break
        last += 1
    assert last > 50 or RECORDS


def test_mending(timers: shmlock.TimerQueue, start: Start) -> None:
    """One that mends what the dead left half changed can be killed doing so."""

    def mend(_: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert len(ours) == 7

    def check(_: int) -> None:
        began = time.monotonic()
        assert end(timers) == START
        assert time.monotonic() - began < 10
        timers._table._words[0] = 1

    timers._table._words[0] = 1
    assert every_step(start, mend, check) > 30


def test_first_use(name: str, start: Start) -> None:
    """Of a queue that was just created, by processes each of which is killed a store later than the one before."""
    timers = shmlock.TimerQueue(name, capacity=2, max_participants=4)

    def use(_: Peer) -> None:
        ours = shmlock.TimerQueue(name)
        ours.schedule(1, 1)
        assert ours.wake_expired(1) == [1]

    def check(_: int) -> None:
        timers._patrol_at = 0
        assert timers.wake_expired(1) in ([], [1])
        assert timers.wake_expired(1) == []
        assert len(timers) == 0

    every_step(start, use, check)
    timers.schedule(1, 1)
    timers.schedule(2, 2)
    assert timers.wake_expired(2) == [1, 2]
    timers.close()
