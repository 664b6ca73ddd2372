"""The loop that waits, where it must not be misled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine.modes import MODE_BITS, READ, WRITE
from shmlock._kernel import parker, shm
from shmlock._segment.layout import WANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Peer, Start


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


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_a_grant_that_comes_when_the_time_is_over_is_taken(lock: shmlock.RWLock, start: Start, mode: int) -> None:
    """Between the last look at the want and the end of the time, too: else a hold would stay that nobody gives up."""
    with lock.reader:
        pass
    engine = lock._engine
    words, want = engine.words, engine.me().base + WANT

    def hold(peer: Peer) -> None:
        with shmlock.RWLock(lock.name) as mine:
            with mine.writer:
                peer.say("in")
                peer.hear()
            peer.say("left")

    child = start(hold)
    assert child.hear() == "in"

    class Late:
        """A deadline that has passed when the want has just been seen, and granted."""

        waits = True

        def left(self) -> float:
            assert words[want]
            child.say("leave")
            assert child.hear() == "left"
            assert not words[want]
            return 0.0

        def passed(self) -> bool:
            return False

    deadline: Any = Late()
    assert engine.acquire_read(deadline) if mode == READ else engine.acquire(WRITE, deadline)
    if mode == READ:
        lock.reader.release()
    else:
        engine.release_write(vouch=True)
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()
