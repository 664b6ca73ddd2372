"""Mutex: `threading.Lock`'s interface among processes, and what happens when its holder dies."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._engine import mutual
from shmlock._kernel import robust
from tests.conftest import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Child, Peer, Start


@pytest.fixture
def mutex(name: str) -> Iterator[shmlock.Mutex]:
    """A fresh mutex."""
    made = shmlock.Mutex(name)
    yield made
    made.close()


def holding(mutex: shmlock.Mutex, start: Start) -> Child:
    """A child that holds the mutex until it hears something."""

    def hold(peer: Peer) -> None:
        with shmlock.Mutex(mutex.name):
            peer.say("in")
            peer.hear()
        peer.say("out")
        peer.hear()

    child = start(hold)
    assert child.hear() == "in"
    return child


def test_it_excludes_and_says_so(mutex: shmlock.Mutex, start: Start) -> None:
    """One holder at a time; locked() and repr tell; release lets the next one in."""
    assert not mutex.locked()
    child = holding(mutex, start)
    assert mutex.locked()
    assert str(child.pid) in repr(mutex)
    assert not mutex.acquire(blocking=False)
    assert not mutex.acquire(timeout=0.02)
    child.say("leave")
    assert child.hear() == "out"
    assert mutex.acquire(timeout=30)
    mutex.release()
    assert "free" in repr(mutex)


def test_a_mutex_that_is_closed_while_a_thread_waits(
    mutex: shmlock.Mutex, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its turn comes the thread gets ClosedError, and does not have it."""
    waits = threading.Event()

    def lock_within(address: int, seconds: float) -> int:
        waits.set()
        return robust.lock_within(address, seconds)

    monkeypatch.setattr(mutual, "lock_within", lock_within)
    child = holding(mutex, start)
    closing = shmlock.Mutex(mutex.name)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(closing.acquire)
        assert waits.wait(HANG)
        closing.close()
        child.say("leave")
        assert isinstance(entering.exception(HANG), shmlock.ClosedError)
        assert mutex.acquire(timeout=HANG)
        mutex.release()


def test_a_killed_holder_hands_it_on_at_once(mutex: shmlock.Mutex, start: Start) -> None:
    """The next holder is told, until one has left without an exception."""
    child = holding(mutex, start)
    waiter = threading.Thread(target=mutex.acquire)
    waiter.start()
    child.kill(reap=False)
    waiter.join()  # which got it, and ended with it: a death as well
    with pytest.raises(ZeroDivisionError), mutex:
        assert mutex.owner_died
        raise ZeroDivisionError
    with mutex:
        pass
    assert not mutex.owner_died
    assert mutex.statistics().owner_deaths == 2


def test_locked_does_not_swallow_a_death(mutex: shmlock.Mutex, start: Start) -> None:
    """Asking whether a dead holder's mutex is locked says no, and the next holder is still told."""
    holding(mutex, start).kill()
    assert not mutex.locked()
    assert mutex.owner_died
    with mutex:
        assert mutex.owner_died
    assert not mutex.owner_died


def test_a_stopped_holder_keeps_it(mutex: shmlock.Mutex, start: Start) -> None:
    """Nothing is taken from a stopped holder."""
    child = holding(mutex, start)
    child.stop()
    assert not mutex.acquire(timeout=0.2)
    assert mutex.locked()
    child.cont()
    child.say("leave")
    assert child.hear() == "out"
    assert not mutex.owner_died


def test_only_the_holder_releases(mutex: shmlock.Mutex, start: Start) -> None:
    """NotHeld for a thread that does not hold it, and for a forked child of the one that does."""
    with pytest.raises(shmlock.NotHeld, match=str(os.getpid())):
        mutex.release()

    def child(peer: Peer) -> None:
        with pytest.raises(shmlock.NotHeld):
            mutex.release()
        peer.say(mutex.acquire(blocking=False))

    with mutex:
        assert start(child).hear() is False
        caught: list[bool] = []
        thread = threading.Thread(target=lambda: caught.append(mutex.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert caught == [False]
    assert not mutex.locked()


def test_taking_it_twice_is_an_error_and_no_deadlock(mutex: shmlock.Mutex) -> None:
    """Where threading.Lock would hang, WouldDeadlock; a try is simply False; also through another handle."""
    other = shmlock.Mutex(mutex.name)
    with mutex:
        assert not mutex.acquire(blocking=False)
        for handle in (mutex, other):
            with pytest.raises(shmlock.WouldDeadlock, match=mutex.name):
                handle.acquire()
        other.close()
        assert mutex.locked()
    assert not mutex.locked()


@pytest.mark.parametrize("timeout", [-2, float("nan"), float("inf")])
def test_bad_timeouts_are_refused(mutex: shmlock.Mutex, timeout: float) -> None:
    """Only -1 waits for ever; what is no time at all is an error, and nothing is held."""
    with pytest.raises((ValueError, OverflowError)):
        mutex.acquire(timeout=timeout)
    with pytest.raises(ValueError, match="blocking"):
        mutex.acquire(False, 1)
    assert mutex.acquire(timeout=-1)
    mutex.release()


def test_signals_neither_shorten_nor_break_a_wait(mutex: shmlock.Mutex, start: Start) -> None:
    """With a signal every 5 ms a wait of 0.2 s ends after 0.2 s; one that raises ends it at once."""
    holding(mutex, start)
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        began = time.monotonic()
        assert not mutex.acquire(timeout=0.2)
        assert time.monotonic() - began >= 0.2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen

    def interrupted(peer: Peer) -> None:
        try:
            peer.say("ready")
            shmlock.Mutex(mutex.name).acquire()
        except KeyboardInterrupt:
            peer.say("left")
            peer.hear()

    child = start(interrupted)
    child.hear()
    child.signal(signal.SIGINT)
    assert child.hear() == "left"


def test_exclusion_among_processes_and_threads(mutex: shmlock.Mutex, start: Start) -> None:
    """Counting without any other protection loses nothing."""
    memory = shmlock.SharedConfig(f"{mutex.name}.data", capacity=8, codec="bytes")._segment.payload.cast("Q")

    def count(_: Peer) -> None:
        def turns() -> None:
            for _ in range(300):
                with mutex:
                    memory[-1] += 1

        threads = [threading.Thread(target=turns) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [start(count) for _ in range(4)]
    assert [child.join() for child in children] == [0] * 4
    assert memory[-1] == 4 * 2 * 300
    shmlock.unlink(f"{mutex.name}.data")


def test_close_pickle_statistics(mutex: shmlock.Mutex) -> None:
    """A pickle attaches by name; statistics count; after close every use is an error, and the hold is given up."""
    copy = pickle.loads(pickle.dumps(mutex))
    mutex.acquire()
    assert copy.locked()
    assert "write lock  : 1" in str(mutex.statistics())
    copy.close()
    mutex.close()
    for use in (mutex.acquire, mutex.release, mutex.locked, mutex.__enter__, mutex.statistics, mutex.reap):
        with pytest.raises(shmlock.ClosedError, match=mutex.name):
            use()
    with shmlock.Mutex(mutex.name) as again:
        assert again.locked()
