"""What happens to a lock when its holders and waiters die, stop, exec or are merely slow."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._engine import acquire, membership
from shmlock._engine.modes import UPGRADE
from shmlock._kernel.deadline import FOREVER
from shmlock._segment.layout import (
    ABANDONED,
    DIRTY,
    GATE,
    GATE_CLOSED,
    GATE_OPEN,
    OWNER_DIED,
    PID,
    READS,
    STARTED,
    TID,
    WRITER,
    slot,
)
from tests.order import guard_held, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start


@pytest.fixture
def lock(name: str) -> Iterator[shmlock.RWLock]:
    """A fresh lock, closed at the end."""
    with shmlock.RWLock(name, max_participants=16) as made:
        yield made


def holding(lock: shmlock.RWLock, start: Start, mode: str) -> Child:
    """A child that holds the lock in this mode, for ever."""

    def hold(peer: Peer) -> None:
        getattr(type(lock)(lock.name), mode).acquire()
        peer.say("in")
        peer.hear()

    child = start(hold)
    assert child.hear() == "in"
    return child


def waiting(lock: shmlock.RWLock, start: Start, mode: str) -> Child:
    """A child that waits for the lock, says when it is in, and leaves when it hears something."""
    before = waiters(lock)

    def wait(peer: Peer) -> None:
        with getattr(type(lock)(lock.name), mode) as hold:
            peer.say(("in", hold.owner_died))
            peer.hear()
        peer.say("out")
        peer.hear()

    child = start(wait)
    until(lambda: waiters(lock) == before + 1)
    return child


def waiters(lock: shmlock.RWLock) -> int:
    """How many participants wait."""
    description = repr(lock)
    return int(description.split(" waiting")[0].split()[-1]) if "waiting" in description else 0


def test_a_killed_writer_is_evicted_and_the_next_is_told(lock: shmlock.RWLock, start: Start) -> None:
    """SIGKILL inside W: every holder is told until a writer has left without an exception."""
    holding(lock, start, "writer").kill()
    with lock.read_lock(timeout=30) as hold:
        assert hold.owner_died
    with pytest.raises(ZeroDivisionError), lock.writer as hold:
        assert hold.owner_died
        raise ZeroDivisionError  # mended nothing
    with lock.writer as hold:
        assert hold.owner_died
    with lock.writer as hold:
        assert not hold.owner_died
    assert lock.statistics().owner_deaths == 1


@pytest.mark.parametrize("mode", ["reader", "writer"])
@pytest.mark.parametrize("waits_for", ["reader", "writer"])
def test_a_waiter_gets_what_a_killed_holder_held(lock: shmlock.RWLock, start: Start, mode: str, waits_for: str) -> None:
    """Whoever waits when a holder is killed gets the lock; what a reader leaves behind is whole."""
    if mode == waits_for == "reader":
        return
    child = holding(lock, start, mode)
    waiter = waiting(lock, start, waits_for)
    child.kill()
    assert waiter.hear() == ("in", mode == "writer")


def test_a_zombie_is_dead(lock: shmlock.RWLock, start: Start) -> None:
    """A killed holder that nobody has reaped yet is evicted all the same, also by an attempt that never waits."""
    holding(lock, start, "writer").kill(reap=False)
    assert lock.writer.acquire(blocking=False)
    lock.writer.release()


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_a_stopped_holder_lives(lock: shmlock.RWLock, start: Start, mode: str) -> None:
    """Nothing is taken from a stopped holder, however long it takes; its late release disturbs nobody."""
    child = holding(lock, start, mode)
    child.stop()
    assert not lock.writer.acquire(timeout=0.3)
    assert lock.reap() == 0
    waiter = waiting(lock, start, "writer")
    child.cont()
    child.kill()  # it never released; only now is it gone
    assert waiter.hear()[0] == "in"
    assert not lock.reader.acquire(timeout=0)


def test_a_waiter_killed_while_it_sleeps_is_skipped(lock: shmlock.RWLock, start: Start) -> None:
    """A waiter that is killed in the queue, also at its head, holds up nobody behind it."""
    lock.writer.acquire()
    first = waiting(lock, start, "writer")
    second = waiting(lock, start, "writer")
    first.kill()
    lock.writer.release()
    assert second.hear()[0] == "in"


def test_a_waiter_killed_just_after_it_was_granted_is_evicted(lock: shmlock.RWLock, start: Start) -> None:
    """A grant to a waiter that can't take it any more counts as held by the dead."""
    lock.writer.acquire()
    first = waiting(lock, start, "writer")
    second = waiting(lock, start, "writer")
    first.stop()
    lock.writer.release()
    assert waiters(lock) == 1  # the stopped one was granted it, and has it
    first.signal(signal.SIGKILL)
    assert second.hear()[0] == "in"


def test_a_dead_head_of_the_queue_with_a_dead_holder(lock: shmlock.RWLock, start: Start) -> None:
    """When the holder and the first in the queue are killed, the second finds out."""
    child = holding(lock, start, "writer")
    first = waiting(lock, start, "writer")
    second = waiting(lock, start, "writer")
    first.stop()  # so that it can't evict the holder itself
    child.kill()
    first.kill()
    assert second.hear() == ("in", True)


@pytest.mark.parametrize("ahead", ["reader", "writer"])
def test_a_stopped_head_of_the_queue_with_a_dead_holder(lock: shmlock.RWLock, start: Start, ahead: str) -> None:
    """When the holder is killed and the first in the queue stands still, readers behind it find out and are in."""
    child = holding(lock, start, "writer")
    first = waiting(lock, start, ahead)
    second = waiting(lock, start, "reader")
    with guard_held(lock, start):  # it may be in the middle of a look, but not of a change
        first.stop()
    child.kill()
    assert second.hear() == ("in", True)
    first.cont()
    second.say("leave")
    assert first.hear() == ("in", True)


def test_an_upgrade_with_a_stopped_head_of_the_queue_and_a_dead_reader(name: str, start: Start) -> None:
    """An upgrade goes before the first in the queue, and does not need it to find that the last reader is dead."""

    def upgrade(peer: Peer) -> None:
        ours = shmlock.SeekLock(name)
        with ours.seeker:
            peer.say("seeks")
            peer.hear()
            with ours.upgraded():
                peer.say("writes")
                peer.hear()

    with shmlock.SeekLock(name, max_participants=16) as lock:
        reader = holding(lock, start, "reader")
        seeker = start(upgrade)
        assert seeker.hear() == "seeks"
        first = waiting(lock, start, "writer")
        seeker.say("upgrade")
        until(lambda: waiters(lock) == 2)
        with guard_held(lock, start):
            first.stop()
        reader.kill()
        assert seeker.hear() == "writes"
        first.cont()
        seeker.say("leave")
        assert first.hear() == ("in", False)


def test_exec_is_a_death(lock: shmlock.RWLock, start: Start) -> None:
    """A holder that replaces itself with another program is gone, although its pid goes on."""

    def hold(peer: Peer) -> None:
        shmlock.RWLock(lock.name).writer.acquire()
        peer.say("in")
        peer.hear()
        os.execv(sys.executable, [sys.executable, "-c", "input()"])

    child = start(hold)
    assert child.hear() == "in"
    child.say("exec")
    with lock.write_lock(timeout=30) as writer:
        assert writer.owner_died


def test_only_the_latch_decides_who_is_dead(lock: shmlock.RWLock, start: Start) -> None:
    """Forged identities (a living pid for a dead holder, a dead one for a living) change nothing."""
    words = lock._words
    child = holding(lock, start, "writer")
    base = slot(words[WRITER] - 1)
    dead = start(lambda _: None)
    dead.join()
    words[base + PID] = words[base + TID] = dead.pid
    words[base + STARTED] = 1
    assert not lock.writer.acquire(timeout=0.1)
    words[base + PID] = words[base + TID] = os.getpid()
    child.kill()
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()


def test_a_death_in_the_guard_is_repaired(lock: shmlock.RWLock, start: Start) -> None:
    """A process killed under the guard, with its changes half made, holds up nobody; the repair is counted."""

    def die_inside(_: Peer) -> None:
        engine = shmlock.RWLock(lock.name)._engine

        def action() -> None:
            engine.words[GATE] = GATE_CLOSED  # a gate that nobody will open
            os.kill(os.getpid(), signal.SIGKILL)

        engine.guard.run(FOREVER, action)

    assert start(die_inside).join() == -signal.SIGKILL
    assert lock._words[DIRTY] == 1
    assert lock.reader.acquire(timeout=30)
    lock.reader.release()
    assert lock._words[DIRTY] == 0
    assert lock._words[GATE] != GATE_CLOSED
    assert lock.statistics().repairs == 1


def test_a_guard_held_by_a_stopped_process_keeps_nobody_for_ever(lock: shmlock.RWLock, start: Start) -> None:
    """While a process is stopped in the middle of a change, time-outs hold, readers pass, and nothing is lost after."""

    def open_the_gate(ours: shmlock.RWLock) -> None:
        with ours.writer:
            pass
        while ours._words[GATE] != GATE_OPEN:  # some readers have to ask first, if the fence took long
            with ours.reader:
                pass

    with lock.reader:
        pass
    with guard_held(lock, start, open_the_gate) as child:
        child.stop()
        assert not lock.writer.acquire(timeout=0.05)
        assert not lock.writer.acquire(blocking=False)
        with lock.reader:  # the fast path needs no guard
            pass
        assert "RWLock" in repr(lock)
        assert lock.statistics().timeouts == 2
        child.cont()
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()


def test_a_waiter_whose_time_ends_while_the_guard_is_held_leaves_no_ghost(lock: shmlock.RWLock, start: Start) -> None:
    """It returns in time; what it had asked for is settled by the others, and granted to it never."""
    holder = holding(lock, start, "writer")

    def give_up(peer: Peer) -> None:
        peer.say("ready")
        peer.say(shmlock.RWLock(lock.name).writer.acquire(timeout=2))  # over after the guard is taken, not before
        peer.hear()  # and does nothing more

    waiter = start(give_up)
    waiter.hear()
    until(lambda: waiters(lock) == 1)

    with guard_held(lock, start):
        assert waiter.hear() is False
    holder.kill()
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()
    assert waiters(lock) == 0


@pytest.mark.parametrize("mode", ["reader", "seeker", "writer"])
def test_nobody_enters_before_its_last_ask_is_settled(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A waiter that gave up while the guard was held, and asks again without a time-out, is in when it has the lock."""
    lock = shmlock.SeekLock(name)
    holder = holding(lock, start, "writer")
    monkeypatch.setattr(membership, "GRACE", 0.01)
    monkeypatch.setattr(acquire, "GRACE", 0.01)

    def ask_again(peer: Peer) -> None:
        ours = shmlock.SeekLock(name)
        peer.say(ours.writer.acquire(timeout=2))  # over after the guard is taken, not before
        with getattr(ours, mode):
            peer.say("in")
            peer.hear()

    waiter = start(ask_again)
    until(lambda: waiters(lock) == 1)
    with guard_held(lock, start):
        assert waiter.hear() is False
        assert waiters(lock) == 1  # what it has walked away from is still there
        assert not waiter.says_something(0.3)  # thirty times as long as it waits for the guard when it gives up
    assert not waiter.says_something(0)  # the writer is still in
    holder.kill()
    assert waiter.hear() == "in"


def test_time_outs_hold_while_the_last_ask_is_not_settled(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked for next, with a time-out or at once or not at all, is refused, and nothing is raised."""
    monkeypatch.setattr(acquire, "GRACE", 0.01)
    lock = shmlock.SeekLock(name)
    lock.seeker.acquire()
    reader = holding(lock, start, "reader")
    with guard_held(lock, start):
        assert not lock.seek_to_write(timeout=0.01)  # the guard was not even to be had to ask
        lock._words[lock._engine.me().base + ABANDONED] = 1 << UPGRADE  # as if it had been, before
        lock._engine.here.at = None
        assert not lock.seek_to_write(timeout=0.01)
        assert not lock.writer.acquire(timeout=0.01)
        assert not lock.writer.acquire_nowait()
        assert not lock.reader.acquire(timeout=0.01)
        assert not lock.read_to_seek()
        assert not lock.read_to_write()
    reader.kill()
    assert lock.seek_to_write(timeout=30)
    lock.write_to_seek()
    lock.seeker.release()
    assert "free" in repr(lock)


def test_waiting_for_a_configuration_ends_in_time_without_a_slot(name: str, start: Start) -> None:
    """A thread that has no slot, and gets none while the guard is held, waits no longer than it was told to."""
    config = shmlock.SharedConfig(name)
    config.publish(1)

    def wait(peer: Peer) -> None:
        peer.say(shmlock.SharedConfig(name).wait(timeout=0.05))

    with guard_held(config, start):
        assert start(wait).hear() is None


def _without_argument(function: Callable[[], None]) -> None:
    function()


def test_raise_policy(name: str, start: Start) -> None:
    """on_owner_died="raise": both sides raise OwnerDied and hold nothing, until mark_consistent()."""
    with shmlock.RWLock(name, on_owner_died="raise") as lock:
        with lock.reader, lock.reader:
            pass
        holding(lock, start, "writer").kill()
        assert lock.reap() == 1
        for face in (lock.writer, lock.reader, lock.write_lock(timeout=30), lock.read_lock(timeout=30)):
            with pytest.raises(shmlock.OwnerDied, match=name), face:
                pass
        assert "free" in repr(lock)
        lock.mark_consistent()
        with lock.reader:
            pass
        with lock.writer:
            pass


@pytest.mark.parametrize("mode", ["reader", "writer"])
@pytest.mark.parametrize("takes_lock", [True, False])
def test_repair_policy(name: str, start: Start, mode: str, *, takes_lock: bool) -> None:
    """A callable is run once, with W held, before its handle's user is in; if it raises, it is run again."""
    seen: list[str] = []

    def mend(*_: object) -> None:
        seen.append(repr(lock))
        if len(seen) == 1:
            raise LookupError("not yet")

    chosen: Callable[..., None] = mend if takes_lock else functools.partial(_without_argument, mend)
    with shmlock.RWLock(name, on_owner_died=chosen) as lock:
        holding(lock, start, "writer").kill()
        face = getattr(lock, mode)
        with pytest.raises(LookupError):
            face.acquire(timeout=30)
        assert "free" in repr(lock)
        with face:
            assert len(seen) == 2
            assert f"written by process {os.getpid()}" in seen[1]
            assert lock._words[OWNER_DIED] == 0
            assert ("reading" in repr(lock)) == (mode == "reader")
        with face:
            pass
        assert len(seen) == 2


def test_a_death_is_logged_once(lock: shmlock.RWLock, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever evicts a killed writer logs it, once, with its pid."""
    child = holding(lock, start, "writer")
    child.kill()
    with caplog.at_level(logging.WARNING, logger="shmlock"):
        for _ in range(2):
            with lock.writer:
                pass
    assert [str(child.pid) in message for message in caplog.messages] == [True]


def test_a_killed_crowd_leaves_a_working_lock_and_a_small_table(name: str, start: Start) -> None:
    """After many deaths in all roles a lock for 8 participants still takes new ones, and nothing is held."""
    with shmlock.RWLock(name, max_participants=8) as lock:
        for _ in range(5):
            children = [holding(lock, start, "reader") for _ in range(2)]
            children += [waiting(lock, start, mode) for mode in ("writer", "reader", "writer")]
            for child in children:
                child.kill()
        with lock.write_lock(timeout=30):
            pass
        assert "free" in repr(lock)
        assert lock.statistics().evictions == 25


def test_many_that_create_attach_and_die_at_once_bother_nobody(name: str, start: Start) -> None:
    """While processes come, use the lock and are killed at random, the others never see an error."""

    def work(peer: Peer) -> None:
        peer.hear()
        lock = shmlock.RWLock(name, max_participants=32)
        for _ in range(100):
            with lock.write_lock(timeout=30):
                pass
            with lock.read_lock(timeout=30):
                pass

    def suicide(peer: Peer) -> None:
        peer.hear()
        lock = shmlock.RWLock(name, max_participants=32)
        threading.Timer(int.from_bytes(os.urandom(1)) / 5000, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            with lock.writer:
                pass
            with lock.reader:
                pass

    workers = [start(work) for _ in range(4)]
    dying = [start(suicide) for _ in range(12)]
    for child in (*dying, *workers):
        child.say("go")
    assert [child.join() for child in workers] == [0] * 4
    assert [child.join() for child in dying] == [-signal.SIGKILL] * 12


def test_the_dead_are_counted_once(lock: shmlock.RWLock, start: Start) -> None:
    """The accounts of the dead are added to the lock's statistics exactly once."""

    def work(peer: Peer) -> None:
        ours = shmlock.RWLock(lock.name)
        for _ in range(10):
            with ours.writer:
                pass
        peer.say("done")
        peer.hear()

    for _ in range(20):
        child = start(work)
        child.hear()
        child.kill()
        assert lock.reap() == 1
    seen = lock.statistics()
    assert (seen.write.locks, seen.write.unlocks, seen.evictions) == (200, 200, 20)
    assert all(lock._words[slot(number) + READS] == 0 for number in range(16))
