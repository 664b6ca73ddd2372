"""A process is killed before its nth step (a shared store, or a call into the kernel), for every n of every operation.

Whatever step it was, the survivors go on, and nothing is held, wanted, lost or half done.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine.modes import MODE_BITS, READ, SEEK
from shmlock._engine.modes import WRITE as W
from shmlock._kernel import robust, shm
from shmlock._segment.layout import (
    ABANDONED,
    DIRTY,
    GATE,
    GATE_CLOSED,
    GATE_SLOW,
    HIGH_WATER,
    OWED,
    OWNER_DIED,
    READS,
    RESTING,
    SEEKER,
    SEQUENCE,
    WANT,
    WRITER,
)
from tests.crash import uses
from tests.crash.mortal import RECORDS, every_step, mortal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Peer, Start


def sound(lock: shmlock.RWLock, living: int = 1) -> None:
    """Everybody can go on, and nothing is left of the dead."""
    assert lock.writer.acquire(timeout=30)
    assert lock._words[SEQUENCE] & 1
    lock.writer.release()
    assert lock.reader.acquire(timeout=30)
    lock.reader.release()
    lock.reap()
    found = lock._words
    assert found[GATE] != GATE_CLOSED
    assert [found[word] for word in (DIRTY, WRITER, SEEKER, OWED)] == [0] * 4
    assert found[SEQUENCE] & 1 == 0
    assert found[HIGH_WATER] == living
    assert "free" in repr(lock)


CONVERSIONS = [
    *(uses.seek, uses.upgrade, uses.seek_to_read, uses.seek_to_write_to_read, uses.write_to_seek),
    *(uses.read_to_seek_and_back, uses.read_to_write_and_back, uses.write_nowait),
]


@pytest.mark.parametrize("use", CONVERSIONS)
def test_seeking_alone(name: str, start: Start, use: Callable[[shmlock.SeekLock], None]) -> None:
    """Seeking, and every conversion, can be cut off at every store."""
    lock = shmlock.SeekLock(name, max_participants=4)
    uses.write(lock)

    stores = every_step(start, lambda _: use(shmlock.SeekLock(name)), lambda _: sound(lock))
    assert stores >= 10
    lock.close()


@pytest.mark.parametrize("patient", [False, True], ids=["gives up", "waits"])
def test_an_upgrade_that_waits(name: str, start: Start, patient: bool) -> None:
    """Waiting for a reader, with a writer and a reader behind, can be cut off at every store."""
    lock = shmlock.SeekLock(name, max_participants=4)

    def behind(face: str) -> Callable[[Peer], None]:
        def wait(peer: Peer) -> None:
            ours = shmlock.SeekLock(name)
            while peer.hear():
                peer.say("ready")
                assert getattr(ours, face).acquire(timeout=30)
                peer.say("in")
                getattr(ours, face).release()

        return wait

    others = [start(behind(face)) for face in ("writer", "reader")]
    last, code = 0, -signal.SIGKILL
    while code:
        lock.reader.acquire()

        def seek(_: Peer, last: int = last) -> None:
            mortal(last)
            with shmlock.SeekLock(name).seeker:
                shmlock.SeekLock(name).seek_to_write(timeout=None if patient else 0.005)

        mine = start(seek)
        end = time.monotonic() + 30
        while "waiting" not in repr(lock) and mine.alive():
            assert time.monotonic() < end
            time.sleep(0.0005)
        for other in others:
            other.say("again")
            assert other.hear() == "ready"
        lock.reader.release()
        for other in others:
            assert other.hear() == "in"
        code = mine.join()
        assert code in {0, -signal.SIGKILL}
        last += 1
    assert last > 15 or RECORDS
    for other in others:
        other.say("")
        assert other.join() == 0
    sound(lock)
    lock.close()


@pytest.mark.parametrize("use", [uses.read, uses.write, uses.write_and_read_on, uses.write_and_close])
def test_alone(name: str, start: Start, use: Callable[[shmlock.RWLock], None]) -> None:
    """Claiming a slot, reading, writing, downgrading and closing can be cut off at every store."""
    lock = shmlock.RWLock(name, max_participants=4)
    uses.write(lock)

    stores = every_step(start, lambda _: use(shmlock.RWLock(name)), lambda _: sound(lock))
    assert stores >= 8
    lock.close()


@pytest.mark.parametrize("held", ["reader", "writer"])
@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_giving_up_a_wait(name: str, start: Start, held: str, mode: str) -> None:
    """Asking for what another holds, and giving up after a while, can be cut off at every store."""
    lock = shmlock.RWLock(name, max_participants=4)
    getattr(lock, held).acquire()

    def give_up(_: Peer) -> None:
        ours = shmlock.RWLock(name)
        assert getattr(ours, mode).acquire(timeout=0.005) == (held == mode == "reader")

    def check(_: int) -> None:
        getattr(lock, held).release()
        sound(lock)
        getattr(lock, held).acquire()

    every_step(start, give_up, check)
    getattr(lock, held).release()
    lock.close()


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_a_wait_that_is_granted(name: str, start: Start, mode: str) -> None:
    """Waiting, being granted, using and releasing can be cut off at every store, with others waiting behind."""
    lock = shmlock.RWLock(name, max_participants=4)

    def behind(peer: Peer) -> None:
        ours = shmlock.RWLock(name)
        uses.read(ours)
        peer.say("has a slot")
        while peer.hear():
            peer.say("ready")
            for face in (ours.reader, ours.writer):
                assert face.acquire(timeout=30)
                face.release()
            peer.say("done")

    uses.read(lock)
    other = start(behind)
    assert other.hear() == "has a slot"
    last, code = 0, -signal.SIGKILL
    while code:
        lock.writer.acquire()
        other.say("again")
        assert other.hear() == "ready"
        mine = start(_granted(name, mode, last))
        # It dies while it claims or asks, or it waits for us to leave.
        end = time.monotonic() + 30
        while "2 waiting" not in repr(lock) and mine.alive():
            assert time.monotonic() < end
            time.sleep(0.0005)
        lock.writer.release()
        assert other.hear() == "done"
        code = mine.join()
        assert code in {0, -signal.SIGKILL}
        sound(lock, living=2)
        last += 1
    assert last > 12 or RECORDS
    other.say("")
    lock.close()


def _granted(name: str, mode: str, last: int) -> Callable[[Peer], None]:
    def wait(_: Peer) -> None:
        mortal(last)
        with getattr(shmlock.RWLock(name), mode):
            pass

    return wait


def test_reaping(name: str, start: Start) -> None:
    """Evicting a dead writer, and adding its account to the departed ones', can be cut off at every store."""
    lock = shmlock.RWLock(name, max_participants=4)
    uses.write(lock)
    locks = lock.statistics().write.locks

    def leave_a_corpse(_: Peer) -> None:
        ours = shmlock.RWLock(name)
        uses.write(ours)
        ours.writer.acquire()
        ours._words[SEEKER] = ours._words[WRITER]  # as if it had been a seeker before

    last, code = 0, -signal.SIGKILL
    while code:
        assert start(leave_a_corpse).join() == 0
        locks += 2

        def reap(_: Peer, last: int = last) -> None:
            mortal(last)
            shmlock.RWLock(name).reap()

        code = start(reap).join()
        assert lock.writer.acquire(timeout=30)
        assert lock.writer.owner_died
        lock.writer.release()
        locks += 1
        lock.reap()
        assert lock.statistics().write.locks == locks, f"counted wrongly after store {last}"
        assert lock._words[HIGH_WATER] == 1
        last += 1
    assert last > 40 or RECORDS
    lock.close()


def test_publishing(name: str, start: Start) -> None:
    """Whatever store a publisher dies at, readers see the old or the new value, whole; the next publish works."""
    config = shmlock.SharedConfig(name, capacity=1000, max_participants=4)
    config.publish({"turn": -1, "filler": "x" * 500})
    seen: list[int] = []

    def publish(_: Peer) -> None:
        ours = shmlock.SharedConfig(name)
        turn = ours.get()["turn"] + 1
        ours.publish({"turn": turn, "filler": chr(ord("a") + turn % 26) * 500})

    def check(_: int) -> None:
        snapshot = config.snapshot()
        turn = snapshot.value["turn"]
        assert snapshot.value["filler"] == ("x" if turn < 0 else chr(ord("a") + turn % 26)) * 500
        assert snapshot.version == turn + 2
        assert turn - (seen[-1] if seen else -1) in {0, 1}
        seen.append(turn)

    stores = every_step(start, publish, check)
    assert stores > 30
    assert seen[0] == -1
    assert config.publish({"turn": 0, "filler": ""}) == seen[-1] + 3
    assert config.reap() >= 0
    config.close()


def test_recording(name: str, start: Start) -> None:
    """Killed at any store of a record, also of one that turns to a new second: it counts, or not, or the half of it."""
    now = [1000.0]
    metrics = shmlock.RTMetrics(name, max_participants=2, clock=lambda: now[0])
    metrics.record(200, 0.5)
    seen = [metrics.totals()]

    def record(_: Peer) -> None:
        shmlock.RTMetrics(name, clock=lambda: now[0]).record(404, 0.5)

    def check(_: int) -> None:
        totals, codes = metrics.totals(), metrics.status_codes_counts()
        latencies = metrics.latency_histogram().total_count
        assert totals[200] == seen[0][200]
        assert totals.get(404, 0) - seen[0].get(404, 0) in {0, 1}
        assert codes.get(404, 0) in {0, 1}
        assert latencies - codes.get(200, 0) in {0, 1}
        metrics.reset()
        metrics.record(200, 0.5)
        assert metrics.status_codes_counts() == {200: 1}
        assert metrics.latency_histogram().total_count == 1
        metrics.reset()
        seen[0] = metrics.totals()
        now[0] += 1

    stores = every_step(start, record, check)
    assert stores > 20
    metrics.close()


def test_resetting(name: str, start: Start) -> None:
    """Killed at any store of a reset: it is done or not, and the next one is."""
    metrics = shmlock.RTMetrics(name, max_participants=2, clock=lambda: 1000.0)
    counted = 0

    def check(_: int) -> None:
        nonlocal counted
        metrics.record(200, 0.5)
        found = metrics.total_count()
        assert found in {counted + 1, 1}
        assert metrics.latency_histogram().total_count == found
        counted = found

    metrics.record(200, 0.5)
    counted = 1
    stores = every_step(start, lambda _: shmlock.RTMetrics(name, clock=lambda: 1000.0).reset(), check)
    assert stores > 20
    assert counted == 1, "the last one was not killed"
    metrics.close()


def test_appending(name: str, start: Start) -> None:
    """Killed at any store: what both had is there, and of what is added no more than all, and no baseline is broken."""
    metrics = shmlock.RTMetrics(name, max_participants=2, clock=lambda: 1000.0)
    other = shmlock.RTMetrics(f"{name}.other", max_participants=2, clock=lambda: 1000.0)
    for _ in range(5):
        metrics.record(200, 0.5)
        other.record(404, 0.25)
    exported = other.export()
    before = metrics.status_codes_counts().get(404, 0)

    def check(_: int) -> None:
        nonlocal before
        codes = metrics.status_codes_counts()
        assert codes[200] == 5
        assert codes.get(404, 0) - before in range(11)
        assert metrics.latency_histogram().total_count >= 5
        metrics.reset()
        assert metrics.total_count() == metrics.latency_histogram().total_count == 0
        for _ in range(5):
            metrics.record(200, 0.5)
        before = 0

    def append(_: Peer) -> None:
        ours = shmlock.RTMetrics(name, clock=lambda: 1000.0)
        ours.append(exported)
        ours.append(exported)  # to rows that are there already

    stores = every_step(start, append, check)
    assert stores > 20
    other.unlink()
    other.close()
    metrics.close()


def test_creating(name: str, start: Start) -> None:
    """Killed anywhere: there is no such name, or it means a whole segment; and nothing else is left."""

    def check(_: int) -> None:
        assert [entry for entry in shm.names() if name in entry] in ([], [f"shmlock.{name}"])
        with shmlock.SeekLock(name, max_participants=4) as lock:
            sound(lock)
        shmlock.unlink(name)

    assert every_step(start, lambda _: uses.read(shmlock.SeekLock(name, max_participants=4)), check) > 10


def test_unlinking(name: str, start: Start) -> None:
    """Killed anywhere: what is left of the names is removed by whoever does it again."""
    shmlock.SeekLock(name, max_participants=4).close()

    def unlink(_: Peer) -> None:
        ours = shmlock.SeekLock(name)
        uses.read(ours)
        ours._engine._bed(ours._engine.me())
        ours.unlink()

    def check(_: int) -> None:
        shmlock.unlink(name)
        for entry in shm.names():  # of a killed one's semaphore there may be no segment that says so any more
            if name in entry:
                shm.unlink(entry)
        with shmlock.SeekLock(name, max_participants=4) as lock:
            sound(lock)

    assert every_step(start, unlink, check) > 20


def test_a_mutex(name: str, start: Start) -> None:
    """Killed anywhere while it takes, holds and gives back: the next one has it at once, and is told of a holder."""
    mutex = shmlock.Mutex(name)

    def use(_: Peer) -> None:
        ours = shmlock.Mutex(name)
        with ours:
            pass
        assert not ours.locked()

    def check(_: int) -> None:
        assert mutex.acquire(timeout=30)
        assert mutex.statistics().owner_deaths >= mutex.owner_died
        mutex.release()
        assert not mutex.owner_died

    def wait_in_vain(_: Peer) -> None:
        assert not shmlock.Mutex(name).acquire(timeout=0.005)

    def still_ours(_: int) -> None:
        mutex.release()
        check(0)
        mutex.acquire()

    mutex.acquire()
    assert every_step(start, wait_in_vain, still_ours) > 3
    mutex.release()

    def corpse(_: Peer) -> None:
        shmlock.Mutex(name).acquire()

    assert every_step(start, use, check) > 8

    def take_over(_: Peer) -> None:
        with shmlock.Mutex(name) as ours:
            assert ours.owner_died

    def check_and_die(_: int) -> None:
        check(0)
        assert start(corpse).join() == 0

    check_and_die(0)
    assert every_step(start, take_over, check_and_die) > 8


def test_waiting_for_a_version(name: str, start: Start) -> None:
    """Killed anywhere while it watches, is woken, confirms or has the seat: publishers and others that wait go on."""
    config = shmlock.SharedConfig(name, capacity=100, max_participants=4)
    config.publish(0)

    def watch(_: Peer) -> None:
        ours = shmlock.SharedConfig(name)
        assert ours.take_seat()
        assert ours.wait(timeout=0.002) is None
        ours.confirm()
        ours.leave_seat()

    def check(_: int) -> None:
        version = config.version
        assert config.publish(version) == version + 1
        assert config.snapshot().value == version
        assert not config.updater_alive()
        config.reap()
        assert config._engine.words[HIGH_WATER] == 1

    assert every_step(start, watch, check) > 15
    config.close()


def full(name: str, policy: Any) -> shmlock.SeekLock:
    """One that counts all reads, after a writer's death."""
    lock = shmlock.SeekLock(name, statistics="full", on_owner_died=policy)
    lock._words[OWNER_DIED] = 1
    return lock


def walk_away(lock: shmlock.SeekLock) -> None:
    """From a W, as one that is interrupted and can't have the guard; and settle it."""
    lock.writer.acquire()
    me = lock._engine.me()
    lock._engine.here.at = None
    lock._words[me.base + ABANDONED] = 1 << W
    uses.read(lock)


def walk_away_from_all(lock: shmlock.SeekLock) -> None:
    """From R and S, and from a want; and settle them."""
    uses.read(lock)
    words, me = lock._words, lock._engine.me()
    lock.seeker.acquire()
    words[me.base + READS] = 1
    lock._engine.here.at = None
    words[me.base + WANT] = 1 << MODE_BITS | W
    words[me.base + ABANDONED] = 1 << READ | 1 << SEEK | 1 << W
    uses.read(lock)


def fail(lock: shmlock.SeekLock) -> None:
    """In the middle of a write, which is abandoned, and settled at once."""

    def commit() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        lock._engine.change(commit)


def wake_the_gate(lock: shmlock.SeekLock) -> None:
    """As the first reader after a write that found the gate open."""
    uses.read(lock)
    lock._words[GATE], lock._words[RESTING] = GATE_SLOW, 1
    uses.read(lock)


SPECIAL: dict[str, Callable[[str], None]] = {
    "counted, and mended": lambda name: uses.read(full(name, lambda: None)),
    "sought, and mended": lambda name: uses.upgrade(full(name, lambda: None)),
    "vouched for": lambda name: full(name, "flag").mark_consistent(),
    "abandoned": lambda name: walk_away(shmlock.SeekLock(name)),
    "all abandoned": lambda name: walk_away_from_all(shmlock.SeekLock(name)),
    "a change that fails": lambda name: fail(shmlock.SeekLock(name)),
    "a gate at rest": lambda name: wake_the_gate(shmlock.SeekLock(name)),
}


@pytest.mark.parametrize("what", SPECIAL)
def test_what_is_rare(name: str, start: Start, what: str) -> None:
    """What follows a death or an interruption can be cut off at every step."""
    lock = shmlock.SeekLock(name, max_participants=4, statistics="full")
    uses.write(lock)

    def check(_: int) -> None:
        lock.mark_consistent()
        sound(lock)

    assert every_step(start, lambda _: SPECIAL[what](name), check) > 10
    lock.close()


def test_mending_what_another_left(name: str, start: Start) -> None:
    """Who takes the guard after one that was killed in it, in the middle of a grant, can be killed in the repair."""
    lock = shmlock.SeekLock(name, max_participants=4)
    uses.write(lock)
    words = lock._words

    def leave_a_half_grant(_: Peer) -> None:
        ours = shmlock.SeekLock(name)
        ours.writer.acquire()
        me = ours._engine.me()
        words[SEQUENCE] += 1  # odd no more
        words[me.base + WANT] = 1 << MODE_BITS | W
        words[HIGH_WATER] += 1
        words[DIRTY] = 1
        assert robust.trylock(ours._segment.guard_address) == 0  # and the guard is the dead one's

    def check(_: int) -> None:
        sound(lock)
        assert start(leave_a_half_grant).join() == 0

    check(0)
    assert every_step(start, lambda _: uses.write(shmlock.SeekLock(name)), check) > 30
    sound(lock)
    lock.close()
