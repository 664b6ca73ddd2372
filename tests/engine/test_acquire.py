"""The loop that waits, where it must not be misled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine.modes import MODE_BITS, READ, SEEK, WRITE
from shmlock._kernel import parker, shm
from shmlock._kernel.deadline import Deadline
from shmlock._segment.layout import WANT
from shmlock.errors import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shmlock._engine.participant import Participant
    from tests.conftest import Child, Peer, Start


@pytest.fixture
def lock(name: str) -> Iterator[shmlock.RWLock]:
    """A fresh lock, closed at the end."""
    with shmlock.RWLock(name) as made:
        yield made


def test_a_handler_s_timeout_is_not_a_lack_of_semaphores(
    lock: shmlock.RWLock, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError that a signal handler raises while the bed is made goes on to the caller; no want is left."""

    def hold(peer: Peer) -> None:
        with shmlock.RWLock(lock.name).writer:
            peer.say("in")
            peer.hear()

    def interrupted(*_: object, **__: object) -> None:
        raise TimeoutError("from a handler")

    child = start(hold)
    assert child.hear() == "in"
    for place, function in ((parker, "_create"), (shm, "identity")):
        with monkeypatch.context() as patched:
            patched.setattr(place, function, interrupted)
            for face in (lock.reader, lock.writer):
                with pytest.raises(TimeoutError, match="from a handler"):
                    face.acquire()
        assert "waiting" not in repr(lock)
    child.say("leave")


def test_a_grant_that_comes_while_we_look_is_taken(lock: shmlock.RWLock) -> None:
    """However late it comes before we lie down: nobody sleeps for less than no time, and the lock is ours."""
    with lock.reader:
        pass
    engine = lock._engine
    me = engine.me()
    words, want = engine.words, me.base + WANT
    naps: list[float] = []

    class Granting:
        """A deadline that is asked for when the want has just been seen."""

        def left(self) -> float:
            words[want] = 0
            return 100.0

    class Bed:
        def wait(self, seconds: float) -> bool:
            naps.append(seconds)
            return False

    bed: Any = Bed()
    deadline: Any = Granting()
    me.parker = bed
    words[want] = 7 << MODE_BITS | WRITE
    assert engine._wait(me, WRITE, deadline) is True
    assert naps
    assert min(naps) >= 0


def test_those_that_wait_look_one_after_the_other(lock: shmlock.RWLock) -> None:
    """Readers with the same ticket are in one order, too: one alone is the first, and looks for the dead most often."""
    with ThreadPoolExecutor(4) as threads:
        together = threading.Barrier(4)

        def participant(_: int) -> Participant:
            with lock.reader:
                together.wait()
                return lock._engine.me()

        waiting = sorted(threads.map(participant, range(4)), key=lambda me: me.number)
        engine = lock._engine
        writer, *readers = waiting  # in the slot before theirs, but it came later
        wants = dict.fromkeys(readers, 7 << MODE_BITS | READ) | {writer: 8 << MODE_BITS | WRITE}
        try:
            for me, want in wants.items():
                engine.words[me.base + WANT] = want
            slices = [engine._slice(me, want) for me, want in wants.items()]
        finally:
            for me in wants:
                engine.words[me.base + WANT] = 0
    assert slices == pytest.approx([0.01, 0.02, 0.03, 0.04])


class Over:
    """A deadline that is over at the moment when somebody else lets us in."""

    waits = True

    def __init__(self, child: Child) -> None:
        self._child = child

    def left(self) -> float:
        """Nothing; but the lock is ours by now."""
        self._child.say("leave")
        assert self._child.hear() == "left"
        return 0.0

    def passed(self) -> bool:
        """Only asked while the guard is not to be had."""
        return True


@pytest.mark.parametrize("where", ["at the last look at the clock", "while the guard is waited for"])
@pytest.mark.parametrize("mode", ["reader", "seeker", "writer", "upgrade"])
def test_a_grant_that_comes_when_the_time_is_over_is_taken(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch, mode: str, where: str
) -> None:
    """Whoever is let in after the last look, and before it gives up, has the lock and is told so: no ghost holds it."""

    def hold(peer: Peer) -> None:
        theirs = shmlock.SeekLock(name)
        with theirs.reader if mode == "upgrade" else theirs.writer:
            peer.say("in")
            peer.hear()
        peer.say("left")
        peer.hear()

    lock = shmlock.SeekLock(name)
    engine = lock._engine
    if mode == "upgrade":
        lock.seeker.acquire()
    child = start(hold)
    assert child.hear() == "in"
    over = Over(child)
    deadline: Any = over
    if where == "while the guard is waited for":
        deadline = Deadline.after(30)

        def not_to_be_had(*_: object) -> bool:
            over.left()
            raise LockTimeout("the guard")

        monkeypatch.setattr(engine, "_wait", not_to_be_had)
    if mode == "reader":
        engine.prepare()
        assert engine.acquire_read(deadline)
        lock.reader.release()
    elif mode == "upgrade":
        assert engine.upgrade(deadline)
        lock.write_to_seek()
        lock.seeker.release()
    else:
        assert engine.acquire({"seeker": SEEK, "writer": WRITE}[mode], deadline)
        getattr(lock, mode).release()
    assert "free" in repr(lock)
    lock.close()
