"""TimerQueue: each timer comes once, to one, in time; also when collectors die, stop, and get in each other's way."""

from __future__ import annotations

import enum
import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine.modes import SEEK, WRITE
from shmlock._kernel.deadline import FOREVER
from shmlock._segment.layout import BATCH, OWNER_DIED, READS, SEEKER, SEQUENCE, slot
from tests.ending import close_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start

FAR = 10**15  # ns; later than anything here lasts


@pytest.fixture
def timers(name: str) -> Iterator[shmlock.TimerQueue]:
    """A fresh queue of 100 timers."""
    with shmlock.TimerQueue(name, capacity=100, max_participants=16) as made:
        yield made


def collected(timers: shmlock.TimerQueue, count: int, now: int | None = None) -> list[int]:
    """What comes, called again and again, until there are so many: what was handed out to the dead takes a while."""
    found: list[int] = []
    end = time.monotonic() + 30
    while len(found) < count:
        found += timers.wake_expired(now)
        assert time.monotonic() < end
    return found


# --- what a user sees


def test_timers_come_once_when_they_are_due(timers: shmlock.TimerQueue) -> None:
    """None before its time, each once, those of earlier times first, and nothing is left."""
    for timer_id, expires in [(1, 30), (2, 10), (3, 20), (4, 20)]:
        timers.schedule(timer_id, expires)
    assert len(timers) == 4
    assert timers.next_expiry() == 10
    assert timers.wake_expired(now_ns=9) == []
    assert timers.wake_expired(now_ns=10) == [2]
    assert timers.next_expiry() == 20
    assert sorted(timers.wake_expired(now_ns=29)) == [3, 4]
    assert 1 in timers
    assert timers.wake_expired() == [1]
    assert timers.wake_expired() == []
    assert timers.next_expiry() is None
    assert len(timers) == 0
    assert 1 not in timers


def test_times_are_the_monotonic_clock_s(timers: shmlock.TimerQueue, start: Start) -> None:
    """A time taken in one process means the same in all others."""

    def collect(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        peer.say(ours.wake_expired())
        while not (found := ours.wake_expired()):
            pass
        peer.say((found, time.monotonic_ns()))

    expires = time.monotonic_ns() + 200_000_000
    timers.schedule(5, expires)
    child = start(collect)
    assert child.hear() == []
    found, at = child.hear()
    assert found == [5]
    assert at >= expires


def test_scheduling_again_moves(timers: shmlock.TimerQueue) -> None:
    """Earlier or later, as often as one likes; it stays one timer."""
    for expires in [50, 20, 70, 70, 30, 90, 10]:
        timers.schedule(1, expires)
        assert timers.expiry(1) == timers.next_expiry() == expires
        assert timers.wake_expired(expires - 1) == []
    assert len(timers) == 1
    assert timers.wake_expired(10) == [1]


def test_postponing_never_moves_to_an_earlier_time(timers: shmlock.TimerQueue) -> None:
    """The latest counts, in whatever order; True says that it does not come before the time given."""
    timers.schedule(1, 50)
    for expires, then in [(60, 60), (55, 60), (0, 60), (60, 60), (80, 80)]:
        assert timers.postpone(1, expires) is True
        assert timers.expiry(1) == then
    assert timers.wake_expired(79) == []
    assert timers.wake_expired(80) == [1]


def test_postponing_is_lazy(timers: shmlock.TimerQueue) -> None:
    """A thousand postponements cost no write; the timer is placed anew once, when it comes up at its old time."""
    timers.schedule(1, 50)
    timers.schedule(2, 500)
    writes = timers.statistics().write.locks
    for expires in range(100, 1100):
        assert timers.postpone(1, expires)
    timers.schedule(2, 1000)  # later: as cheap
    assert timers.wake_expired(49) == []
    assert timers.statistics().write.locks == writes
    assert timers.next_expiry() == 1000
    assert timers.wake_expired(60) == []
    assert timers.statistics().write.locks == writes + 1
    assert timers.wake_expired(499) == []
    assert timers.statistics().write.locks == writes + 1
    assert timers.wake_expired(1099) == [2, 1]


def test_next_expiry_is_never_too_late(timers: shmlock.TimerQueue) -> None:
    """Behind a few postponed timers it finds the first; behind many it is early at worst."""
    for timer_id in range(90):
        timers.schedule(timer_id, timer_id)
    for timer_id in range(5):
        timers.postpone(timer_id, 1000)
    assert timers.next_expiry() == 5
    for timer_id in range(89):
        timers.postpone(timer_id, 1000)
    early = timers.next_expiry()
    assert early is not None
    assert early <= 89
    assert timers.wake_expired(88) == []
    assert timers.next_expiry() == 89


def test_cancelled_timers_do_not_come(timers: shmlock.TimerQueue) -> None:
    """True for one that was to come; the id may be used again at once."""
    for timer_id in range(10):
        timers.schedule(timer_id, timer_id)
    assert timers.cancel(4)
    assert not timers.cancel(4)
    assert timers.expiry(4) is None
    assert len(timers) == 9
    assert timers.wake_expired(8) == [0, 1, 2, 3, 5, 6, 7, 8]
    timers.schedule(4, 5)
    assert timers.wake_expired(8) == [4]


def test_unknown_ids(timers: shmlock.TimerQueue) -> None:
    """What is not to come can't be cancelled or postponed, and that is an answer, no error; also when handed out."""
    for known in (False, True):
        assert timers.cancel(7) is False
        assert timers.postpone(7, FAR) is False
        assert timers.expiry(7) is None
        assert 7 not in timers
        assert "seven" not in timers
        assert 2**64 not in timers
        if not known:
            timers.schedule(7, 0)
            assert timers.wake_expired() == [7]
    assert len(timers) == 0


def test_a_past_time_is_due_at_once(timers: shmlock.TimerQueue) -> None:
    """However long past: the clock of a machine that was just started is near 0, and what lies before is past."""
    moments = [time.monotonic_ns() - 1, 0, -1, -(2**63)]
    for timer_id, moment in enumerate(moments):
        timers.schedule(timer_id, moment)
        assert timers.expiry(timer_id) == moment
    assert timers.next_expiry() == -(2**63)
    assert timers.wake_expired() == [3, 2, 1, 0]
    timers.schedule(1, 2**63 - 1)
    assert timers.wake_expired() == []
    assert timers.wake_expired(2**63 - 1) == [1]


class Number(enum.IntEnum):
    """An integer by another name."""

    SIX = 6


def test_ids_are_signed_integers_of_64_bits(timers: shmlock.TimerQueue) -> None:
    """All of them, and what Python takes for an integer; what comes back is a plain int."""
    idents = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32)]
    for timer_id in [*idents, Number.SIX, True]:
        timers.schedule(timer_id, 5)
    found = timers.wake_expired(5)
    assert sorted(found) == sorted([*idents, 6])
    assert all(type(timer_id) is int for timer_id in found)


@pytest.mark.parametrize("wrong", [1.0, "1", None, math.nan, math.inf, b"1", 2**63, -(2**63) - 1, [1]])
def test_what_is_no_id_or_time_changes_nothing(timers: shmlock.TimerQueue, wrong: Any) -> None:
    """The error names the object and what is wrong; no call has done a part of its work."""
    timers.schedule(1, 50)
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("timer_id", lambda: timers.schedule(wrong, 1)),
        ("expires_ns", lambda: timers.schedule(1, wrong)),
        ("timer_id", lambda: timers.postpone(wrong, 1)),
        ("expires_ns", lambda: timers.postpone(1, wrong)),
        ("timer_id", lambda: timers.cancel(wrong)),
        ("timer_id", lambda: timers.expiry(wrong)),
    ]
    if wrong is not None:
        attempts.append(("now_ns", lambda: timers.wake_expired(wrong)))
    for word, attempt in attempts:
        with pytest.raises((TypeError, ValueError), match=f"{timers.name}: {word} must be"):
            attempt()
    assert timers.expiry(1) == 50
    assert len(timers) == 1


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_a_limit_is_at_least_one(timers: shmlock.TimerQueue, limit: Any, error: type[Exception]) -> None:
    """Anything else is an error, which acknowledges nothing."""
    with pytest.raises(error, match="limit"):
        timers.wake_expired(limit=limit)


def test_a_limit_leaves_the_rest_for_the_next(timers: shmlock.TimerQueue) -> None:
    """So many and no more, the first ones."""
    for timer_id in range(100):
        timers.schedule(timer_id, timer_id)
    assert timers.wake_expired(limit=3) == [0, 1, 2]
    assert timers.wake_expired(limit=60) == [*range(3, 63)]
    assert timers.wake_expired(limit=60) == [*range(63, 100)]
    assert timers.wake_expired(limit=60) == []


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "many", 2**24 + 1])
def test_a_capacity_that_makes_no_sense(name: str, capacity: Any) -> None:
    """It is refused before anything is created."""
    with pytest.raises(ValueError, match="capacity"):
        shmlock.TimerQueue(name, capacity=capacity)
    with pytest.raises(shmlock.SegmentNotFound):
        shmlock.TimerQueue(name, create=False)


def test_the_capacity_is_fixed_at_creation(name: str) -> None:
    """4096 if nobody says otherwise; whoever attaches takes it as it is, or is told what differs."""
    with shmlock.TimerQueue(name) as timers:
        assert timers.capacity == 4096
        with pytest.raises(shmlock.LayoutMismatch, match="4096"):
            shmlock.TimerQueue(name, capacity=4095)
        with shmlock.TimerQueue(name, create=False) as other:
            other.schedule(1, 0)
        assert 1 in timers
        assert timers.statistics().name == name
        assert repr(timers) == f"<shmlock.TimerQueue {name!r}: 1 timer>"


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 100])
def test_a_full_queue_says_so(name: str, capacity: int) -> None:
    """What is in it stays and can be moved; whatever leaves it makes room."""
    with shmlock.TimerQueue(name, capacity=capacity) as timers:
        for timer_id in range(capacity):
            timers.schedule(timer_id, 10 + timer_id)
        for _ in range(2):
            with pytest.raises(shmlock.QueueFull, match=f"{name}: all {capacity} places"):
                timers.schedule(-1, 0)
        timers.schedule(0, 5)
        assert timers.wake_expired(9) == [0]
        with pytest.raises(shmlock.QueueFull):
            timers.schedule(-1, 0)  # 0 may have to be handed out again
        timers.schedule(0, 5)  # and has its place
        assert timers.wake_expired(9) == [0]
        assert timers.wake_expired(9) == []
        timers.schedule(-1, 0)
        assert timers.cancel(-1)
        timers.schedule(-2, 0)
        assert len(timers) == capacity
        assert timers.wake_expired(FAR) == [-2, *range(1, capacity)]


def test_ids_come_and_go(name: str) -> None:
    """Thousands of ids, a few at a time, fit a queue for a few."""
    with shmlock.TimerQueue(name, capacity=8) as timers:
        for turn in range(1000):
            idents = [turn * 1_000_003 + each for each in range(4)]
            for timer_id in idents:
                timers.schedule(timer_id, turn)
            assert sorted(timers.wake_expired(turn)) == idents


# --- collectors among each other


def test_who_is_late_leaves_at_once(timers: shmlock.TimerQueue, start: Start) -> None:
    """While another participant collects, [] is the answer, at once; timers can be postponed meanwhile."""

    def collect(peer: Peer) -> None:
        engine = shmlock.TimerQueue(timers.name)._engine
        assert engine.acquire(SEEK, FOREVER)
        peer.say("seeks")
        peer.hear()
        engine.release_seek()
        peer.say("left")

    timers.schedule(1, 0)
    timers.schedule(2, 0)
    child = start(collect)
    assert child.hear() == "seeks"
    for _ in range(50):
        assert timers.wake_expired() == []
    assert timers.postpone(2, FAR)
    assert timers.next_expiry() == 0
    child.say("leave")
    assert child.hear() == "left"
    assert timers.wake_expired() == [1]


def test_readers_look_under_the_lock_and_lose_the_try(timers: shmlock.TimerQueue, start: Start) -> None:
    """One that found no seeker when it looked, but meets one when it tries, leaves as well, and holds nothing."""

    def collect(peer: Peer) -> None:
        engine = shmlock.TimerQueue(timers.name)._engine
        assert engine.acquire(SEEK, FOREVER)
        peer.say("seeks")
        peer.hear()

    timers.schedule(1, 0)
    timers.wake_expired(-1)
    engine = timers._engine
    with timers._reader:
        child = start(collect)
        assert child.hear() == "seeks"
        found: list[tuple[int, int]] = []
        timers._collect(engine.me(), FAR + 2**63, 10, found)
        assert found == []
        assert timers._words[timers._engine.me().base + READS] == 1
    child.kill()
    assert collected(timers, 1) == [1]
    assert not engine.words[SEEKER]


def test_writers_that_queue_do_not_keep_a_collector_away(timers: shmlock.TimerQueue, start: Start) -> None:
    """R to S is refused while a writer waits; the collector's turn comes after it, the next writer's after a batch."""

    def schedule(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert 0 in ours  # has a slot
        peer.say("ready")
        for timer_id in (101, 102):
            peer.hear()
            ours._change(ours._table.schedule, timer_id, 0, ours._batches)  # as schedule does, without the look first
            peer.say("done")

    def waits() -> None:
        end = time.monotonic() + 30
        while "1 waiting" not in timers._engine.describe():
            assert time.monotonic() < end
            time.sleep(0.001)

    for timer_id in range(40):  # more than a batch
        timers.schedule(timer_id, 1)
    timers.wake_expired(-1)
    child = start(schedule)
    assert child.hear() == "ready"
    order: list[str] = []
    with timers._reader:
        child.say("the first")
        waits()

        def walk() -> bool:
            there = [timer_id for timer_id in (101, 102) if timers._table.find(timer_id) >= 0]
            order.append(f"walk, with {there}")
            return len(order) < 4

        def commit() -> None:
            if len(order) == 1:
                assert child.hear() == "done"
                child.say("the second")
                waits()
            order.append("commit")

        timers._engine.seek(walk, commit)
        timers._reader.__enter__()
    assert order == ["walk, with [101]", "commit", "walk, with [101, 102]", "commit", "walk, with [101, 102]"]
    assert child.hear() == "done"
    assert sorted(timers.wake_expired(1)) == [*range(40), 101, 102]


def test_each_timer_comes_once_among_eight(name: str, start: Start) -> None:
    """Eight processes collect 4,000 timers while they schedule and postpone: each comes once, none before its time."""
    timers = shmlock.TimerQueue(name, capacity=4096)
    begin = time.monotonic_ns() + 100_000_000
    expires = {timer_id: begin + (timer_id * 7919) % 1_000_000_000 for timer_id in range(4000)}
    for timer_id in range(0, 4000, 2):
        timers.schedule(timer_id, expires[timer_id])

    def work(peer: Peer, me: int) -> None:
        ours = shmlock.TimerQueue(name)
        for timer_id in range(me * 500 + 1, me * 500 + 500, 2):
            ours.schedule(timer_id, FAR * 10**3)
            ours.schedule(timer_id, expires[timer_id])
            expires[timer_id - 1] += 1_000_000
            if not ours.postpone(timer_id - 1, expires[timer_id - 1]):
                expires[timer_id - 1] -= 1_000_000  # it has come already
        found = []
        while len(ours) or time.monotonic_ns() < begin + 1_000_000_000:
            seen = ours.wake_expired()
            found += [(timer_id, time.monotonic_ns()) for timer_id in seen]
            time.sleep(0.001)
        peer.say((found, {timer_id: expires[timer_id] for timer_id in range(me * 500, me * 500 + 500)}))
        peer.hear()

    children = [start(lambda peer, me=me: work(peer, me)) for me in range(8)]  # type: ignore[misc]
    reports = [child.hear() for child in children]
    found = [one for seen, _ in reports for one in seen]
    assert sorted(timer_id for timer_id, _ in found) == [*range(4000)]
    wanted = {timer_id: moment for _, theirs in reports for timer_id, moment in theirs.items()}
    assert all(at >= wanted[timer_id] for timer_id, at in found)
    assert len(timers) == 0
    for child in children:
        child.say("go")
        assert child.join() == 0
    timers.close()


def test_collecting_goes_on_while_others_schedule_without_end(timers: shmlock.TimerQueue, start: Start) -> None:
    """Four processes that write one after the other, so that one always waits, do not keep a timer from coming."""

    def churn(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        peer.say("at it")
        while True:
            ours.schedule(-os.getpid(), FAR)
            ours.cancel(-os.getpid())

    for child in [start(churn) for _ in range(4)]:
        assert child.hear() == "at it"
    for timer_id in range(20):
        timers.schedule(timer_id, 0)
        assert timers.wake_expired() == [timer_id]


# --- those that die, stop, leave


def in_hand(timers: shmlock.TimerQueue, then: Callable[[shmlock.TimerQueue], object] | None = None) -> Any:
    """A child that collects, does something else, and says what it had."""

    def collect(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        found = ours.wake_expired()
        if then:
            then(ours)
        peer.say(found)
        peer.hear()

    return collect


@pytest.mark.parametrize("reap", [False, True])
def test_what_a_killed_collector_had_in_hand_comes_once_more(
    timers: shmlock.TimerQueue, start: Start, reap: bool
) -> None:
    """Its last call's timers, all of them, once; also when somebody has evicted it meanwhile."""
    for timer_id in range(50):
        timers.schedule(timer_id, timer_id)
    assert timers.wake_expired(9) == [*range(10)]
    child = start(in_hand(timers))
    assert child.hear() == [*range(10, 50)]
    assert len(timers) == 0
    child.kill()
    if reap:
        assert timers.reap() == 1
    assert collected(timers, 40) == [*range(10, 50)]
    time.sleep(0.11)  # the next patrol
    assert timers.wake_expired() == []


def test_a_stopped_collector_keeps_what_it_has(timers: shmlock.TimerQueue, start: Start) -> None:
    """However long it takes; when it is killed, what it had comes."""
    timers.schedule(1, 0)
    child = start(in_hand(timers))
    assert child.hear() == [1]
    child.stop()
    for _ in range(5):
        time.sleep(0.06)
        assert timers.wake_expired() == []
    child.kill()
    assert collected(timers, 1) == [1]


def schedule_another(timers: shmlock.TimerQueue) -> None:
    """Then collect it."""
    timers.schedule(2, 0)
    assert timers.wake_expired() == [2]


@pytest.mark.parametrize(
    ("then", "again"),
    [
        (shmlock.TimerQueue.wake_expired, []),
        (lambda timers: close_all(timers._segment), []),
        (schedule_another, [2]),
        (lambda timers: timers.schedule(3, 0), [3, 1]),
        (lambda timers: timers.schedule(1, 0), [1]),
        (lambda timers: timers.cancel(1), []),
        (lambda timers: timers.wake_expired(limit=1), []),
    ],
    ids=["asks again", "closes", "has others", "schedules another", "arms it again", "cancels it", "asks for one"],
)
def test_what_was_acknowledged_does_not_come_again(
    timers: shmlock.TimerQueue, start: Start, then: Callable[[shmlock.TimerQueue], object], again: list[int]
) -> None:
    """A collector that was killed after it asked again, or closed, or armed or cancelled what it had in hand."""
    timers.schedule(1, 1)
    child = start(in_hand(timers, then))
    assert child.hear() == [1]
    child.kill()
    assert collected(timers, len(again)) == again
    time.sleep(0.11)
    assert timers.wake_expired() == []


@pytest.mark.parametrize(
    ("ending", "again"), [("", []), ("raise SystemExit(1)", []), ("os.kill(os.getpid(), 9)", [1, 2])]
)
def test_a_process_that_ends_by_itself_has_seen_what_it_had(
    timers: shmlock.TimerQueue, ending: str, again: list[int]
) -> None:
    """Without a call of close(), in all of its threads; one that is killed has not."""
    for timer_id in (1, 2):
        timers.schedule(timer_id, timer_id)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, threading, shmlock; timers = shmlock.TimerQueue({timers.name!r})\n"
            "assert timers.wake_expired(limit=1) == [1]\n"
            "def work():\n"
            "    assert timers.wake_expired() == [2]\n"
            f"    {'' if 'kill' not in ending else 'os.kill(os.getpid(), 9)'}\n"
            "thread = threading.Thread(target=work); thread.start(); thread.join()\n" + ending,
        ],
        check=False,
    )
    assert done.returncode == {"": 0, "raise SystemExit(1)": 1}.get(ending, -signal.SIGKILL)
    assert collected(timers, len(again)) == again
    time.sleep(0.11)
    assert timers.wake_expired() == []


def test_exec_counts_as_death(timers: shmlock.TimerQueue, start: Start) -> None:
    """Also for the program that comes after it, with the same pid, and perhaps the same slot: it has seen nothing."""
    timers.schedule(1, 0)

    def collect(peer: Peer) -> None:
        found = shmlock.TimerQueue(timers.name).wake_expired()
        peer.say(found)
        peer.hear()
        code = f"import shmlock; t = shmlock.TimerQueue({timers.name!r}); t.reap(); print(t.wake_expired(), flush=True)"
        os.dup2(write, 1)
        os.execv(sys.executable, [sys.executable, "-c", code])

    read, write = os.pipe()
    child = start(collect)
    os.close(write)
    assert child.hear() == [1]
    child.say("go")
    with os.fdopen(read) as out:
        assert out.read() == "[1]\n"
    assert timers.wake_expired() == []


def test_a_later_owner_of_the_slot_is_told_from_the_dead(timers: shmlock.TimerQueue, start: Start) -> None:
    """It lives, collects and acknowledges in the slot of one that was killed; what that one had in hand still comes."""
    timers.schedule(1, 0)
    first = start(in_hand(timers))
    assert first.hear() == [1]
    first.kill()
    assert timers.reap() == 1

    def look(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert len(ours) == 0
        peer.say(ours._engine.me().number)
        peer.hear()

    second = start(look)
    assert second.hear() == 0 + (timers._engine.me().number == 0)
    assert collected(timers, 1) == [1]
    second.say("end")
    assert second.join() == 0


def test_a_later_owner_may_be_the_one_to_whom_it_comes(timers: shmlock.TimerQueue, start: Start) -> None:
    """Its first call does not acknowledge the dead one's batch, but hands it out."""

    def collect(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        assert ours.next_expiry() in {None, 0}
        assert ours._engine.me().number == 0
        peer.say(ours.wake_expired())
        peer.hear()

    timers.schedule(1, 0)
    timers.close()  # it was the one in slot 0
    timers = shmlock.TimerQueue(timers.name)
    for _ in range(3):
        child = start(collect)
        assert child.hear() == [1]
        child.kill()
    assert collected(timers, 1) == [1]


def test_a_collector_that_is_killed_while_it_seeks(timers: shmlock.TimerQueue, start: Start) -> None:
    """Nobody waits for it: the others find out by looking, when nobody schedules either."""

    def seek(peer: Peer) -> None:
        shmlock.TimerQueue(timers.name)._engine.acquire(SEEK, FOREVER)
        peer.say("seeks")
        peer.hear()

    timers.schedule(1, 0)
    child = start(seek)
    assert child.hear() == "seeks"
    assert timers.wake_expired() == []
    child.kill()
    assert collected(timers, 1) == [1]


def test_a_writer_that_is_killed_does_not_make_readers_spin(timers: shmlock.TimerQueue, start: Start) -> None:
    """With the sequence odd, and the timetable half changed: all goes on, after milliseconds, and is whole."""

    def write(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        ours._engine.acquire(WRITE, FOREVER)
        ours._table._words[0] = 1  # dirty
        ours._table._words[1] = 77  # and what it says of the heap is nonsense
        peer.say("writes")
        peer.hear()

    for timer_id in range(10):
        timers.schedule(timer_id, timer_id)
    child = start(write)
    assert child.hear() == "writes"
    assert timers._words[SEQUENCE] & 1
    child.kill()
    began = time.monotonic()
    assert timers.next_expiry() == 0
    assert time.monotonic() - began < 10
    assert len(timers) == 10
    assert timers._words[SEQUENCE] & 1 == 0
    assert timers._words[OWNER_DIED] == 0
    assert timers.wake_expired(FAR) == [*range(10)]


# --- threads, forks, handles


def test_each_thread_is_a_collector_of_its_own(timers: shmlock.TimerQueue) -> None:
    """One's call does not acknowledge what another has in hand; the end of a thread does."""
    for timer_id in range(2):
        timers.schedule(timer_id, timer_id)
    seen: list[list[int]] = []
    thread = threading.Thread(target=lambda: seen.append(timers.wake_expired(0)))
    thread.start()
    thread.join()
    gc.collect()
    assert seen == [[0]]
    assert timers.wake_expired() == [1]
    assert [tag for tag in timers._batches._column() if tag] == [
        timers._words[slot(timers._engine.me().number) + BATCH]
    ]


def test_a_forked_child_has_nothing_in_hand(timers: shmlock.TimerQueue, start: Start) -> None:
    """What its parent has is not acknowledged by the child's calls, nor by its end."""
    timers.schedule(1, 0)

    def parent(peer: Peer) -> None:
        ours = shmlock.TimerQueue(timers.name)
        found = ours.wake_expired()
        pid = os.fork()
        if not pid:
            assert ours.wake_expired() == []
            ours.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        peer.say(found)
        peer.hear()

    child = start(parent)
    assert child.hear() == [1]
    assert timers.wake_expired() == []
    child.kill()
    assert collected(timers, 1) == [1]


def test_handles_of_one_process_are_one(timers: shmlock.TimerQueue) -> None:
    """What one collected, another of the same thread acknowledges; pickled, it is the same queue."""
    other = pickle.loads(pickle.dumps(timers))
    other.schedule(1, 0)
    assert timers.wake_expired() == [1]
    assert other.wake_expired() == []
    assert not timers._batches.any()
    other.close()
    assert timers.wake_expired() == []


def test_a_closed_handle_says_so(timers: shmlock.TimerQueue) -> None:
    """Every use of it; and the queue goes on."""
    other = shmlock.TimerQueue(timers.name)
    other.close()
    other.close()
    attempts: list[Callable[[], object]] = [
        lambda: other.schedule(1, 1),
        lambda: other.postpone(1, 1),
        lambda: other.cancel(1),
        lambda: other.expiry(1),
        lambda: 1 in other,
        lambda: len(other),
        lambda: other.capacity,
        other.next_expiry,
        other.wake_expired,
        other.statistics,
        lambda: pickle.dumps(other),
    ]
    for attempt in attempts:
        with pytest.raises(shmlock.ClosedError, match=timers.name):
            attempt()
    assert "closed" in repr(other)
    timers.schedule(1, 1)


def test_another_kind_is_refused(timers: shmlock.TimerQueue) -> None:
    """By name, both ways."""
    with pytest.raises(shmlock.LayoutMismatch, match="TimerQueue"):
        shmlock.RWLock(timers.name)


@pytest.fixture
def handled(timers: shmlock.TimerQueue) -> Iterator[list[list[int]]]:
    """What a handler of SIGUSR1 got that collects."""
    seen: list[list[int]] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(timers.wake_expired()))
    yield seen
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_interrupts_a_collection(
    timers: shmlock.TimerQueue, monkeypatch: pytest.MonkeyPatch, handled: list[list[int]]
) -> None:
    """It gets [] when it collects, and does not acknowledge what its own thread has not seen yet."""
    for timer_id in range(100):
        timers.schedule(timer_id, timer_id)
    timers.wake_expired(-1)
    collect, coming_up = timers._collect, timers._table.coming_up

    def interrupted_before_and_after(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        collect(*arguments)
        os.kill(os.getpid(), signal.SIGUSR1)

    def interrupted(_: Any, *arguments: int) -> list[int]:
        os.kill(os.getpid(), signal.SIGUSR1)
        return coming_up(*arguments)

    monkeypatch.setattr(timers, "_collect", interrupted_before_and_after)
    monkeypatch.setattr(type(timers._table), "coming_up", interrupted)
    assert timers.wake_expired() == [*range(100)]
    assert handled == [[]] * 6
    assert timers._batches.any()


def test_a_signal_handler_that_interrupts_a_look(timers: shmlock.TimerQueue, handled: list[list[int]]) -> None:
    """What its own thread is looking at is not changed under its eyes: nothing comes, and a change is an error."""
    timers.schedule(1, 0)
    timers._read(os.kill, os.getpid(), signal.SIGUSR1)
    assert handled == [[]]
    with pytest.raises(shmlock.WouldDeadlock, match=timers.name):
        timers._read(timers.schedule, 1, -1)
    assert timers._words[timers._engine.me().base + READS] == 0
    assert timers.wake_expired() == [1]
