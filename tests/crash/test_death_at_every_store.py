"""A process is killed before its nth store to shared memory, for every n of every operation.

All shared stores go through the room `_segment.words`; here its views are replaced by ones that count, in the
child alone. Whatever store it was, the survivors go on, and nothing is held, wanted, lost or half done.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine import engine
from shmlock._segment import segment as segments
from shmlock._segment import words
from shmlock._segment.layout import DIRTY, GATE, GATE_CLOSED, HIGH_WATER, OWED, SEEKER, SEQUENCE, WRITER
from tests.crash import uses

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Peer, Start


class Mortal:
    """A view that kills the process instead of making its nth store."""

    stores = 0
    last = -1

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getitem__(self, index: Any) -> Any:
        found = self._view[index]
        return Mortal(found) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        if Mortal.stores == Mortal.last:
            os.kill(os.getpid(), signal.SIGKILL)
        Mortal.stores += 1
        self._view[index] = value

    def __bytes__(self) -> bytes:
        return bytes(self._view)

    def cast(self, kind: str) -> Mortal:
        """As a memoryview's."""
        return Mortal(self._view.cast(kind))

    def tolist(self) -> list[int]:
        """As a memoryview's."""
        found: list[int] = self._view.tolist()
        return found


def mortal(last: int) -> None:
    """Make this process one that dies before store `last`, by starting its bookkeeping anew."""
    view, payload = words.view, words.payload
    segments._mapped.clear()
    engine._engines.clear()
    Mortal.last = last
    words.view = lambda *where: Mortal(view(*where))  # type: ignore[assignment]
    words.payload = lambda *where: Mortal(payload(*where))  # type: ignore[assignment]


def every_store(start: Start, operation: Callable[[Peer], None], check: Callable[[int], None]) -> int:
    """Run the operation in children that die before store 0, 1, 2, ..., until one survives; check after each."""
    last = 0
    while True:

        def die(peer: Peer, last: int = last) -> None:
            mortal(last)
            operation(peer)

        code = start(die).join()
        check(last)
        if code == 0:
            return last
        assert code == -signal.SIGKILL
        last += 1


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

    stores = every_store(start, lambda _: use(shmlock.SeekLock(name)), lambda _: sound(lock))
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
    assert last > 15
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

    stores = every_store(start, lambda _: use(shmlock.RWLock(name)), lambda _: sound(lock))
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

    every_store(start, give_up, check)
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
    assert last > 12
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
    assert last > 40
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

    stores = every_store(start, publish, check)
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

    stores = every_store(start, record, check)
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
    stores = every_store(start, lambda _: shmlock.RTMetrics(name, clock=lambda: 1000.0).reset(), check)
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
        assert codes.get(404, 0) - before in range(6)
        assert metrics.latency_histogram().total_count >= 5
        metrics.reset()
        assert metrics.total_count() == metrics.latency_histogram().total_count == 0
        for _ in range(5):
            metrics.record(200, 0.5)
        before = 0

    stores = every_store(start, lambda _: shmlock.RTMetrics(name, clock=lambda: 1000.0).append(exported), check)
    assert stores > 20
    other.unlink()
    other.close()
    metrics.close()
