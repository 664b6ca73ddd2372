"""The robust mutex: what the kernel says of its holder."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from errno import EBUSY, ENOTRECOVERABLE, EOWNERDEAD, EPERM, ETIMEDOUT
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._kernel import robust, shm
from tests.surroundings import in_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start

HANG = 30.0
MOMENT = 0.05  # seconds: long enough to be told from "at once", short enough to wait for


def shared(count: int = 1) -> list[int]:
    """The addresses of mutexes in memory that forked children share. Never unmapped, as everywhere here."""
    size = count * robust.MUTEX_SPACE
    descriptor = os.memfd_create("mutexes")
    os.ftruncate(descriptor, size)
    start = shm.map_shared(descriptor, size)
    os.close(descriptor)
    addresses = list(range(start, start + size, robust.MUTEX_SPACE))
    robust.initialise(addresses)
    return addresses


@pytest.fixture
def mutex() -> int:
    """A free mutex."""
    return shared()[0]


@pytest.fixture(params=[True, False], ids=["clocklock", "knocking"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `pthread_mutex_clocklock` (glibc from 2.30 on), and without it."""
    if request.param and not robust._HAS_CLOCKLOCK:
        pytest.skip("this C library has no pthread_mutex_clocklock")
    monkeypatch.setattr(robust, "_HAS_CLOCKLOCK", request.param)


def in_thread(function: Callable[[], int]) -> int:
    """What the function answers in another thread, which ends with it."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def holder(start: Start, mutex: int) -> Child:
    """A child that holds the mutex, until it is told to release it."""

    def hold(peer: Peer) -> None:
        peer.say(robust.trylock(mutex))
        peer.hear()
        peer.say(robust.unlock(mutex))
        peer.hear()

    child = start(hold)
    assert child.hear() == 0
    return child


def test_one_at_a_time(mutex: int, start: Start) -> None:
    """Free for one; then busy for its own thread, for another thread, and for another process, until unlocked."""
    assert robust.trylock(mutex) == 0
    assert robust.trylock(mutex) == EBUSY
    assert in_thread(lambda: robust.trylock(mutex)) == EBUSY
    child = start(lambda peer: peer.say(robust.trylock(mutex)))
    assert child.hear() == EBUSY
    assert robust.unlock(mutex) == 0
    holder(start, mutex)
    assert robust.trylock(mutex) == EBUSY


def test_unlock_of_another_ones(mutex: int, start: Start) -> None:
    """Unlocking what is not ours answers EPERM and changes nothing: free, another thread's, the parent's."""
    assert robust.unlock(mutex) == EPERM
    assert robust.trylock(mutex) == 0
    assert in_thread(lambda: robust.unlock(mutex)) == EPERM
    child = start(lambda peer: peer.say(robust.unlock(mutex)))
    assert child.hear() == EPERM
    assert robust.trylock(mutex) == EBUSY
    assert robust.unlock(mutex) == 0
    assert robust.unlock(mutex) == EPERM


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_killed_holder(mutex: int, start: Start, reap: bool) -> None:
    """A SIGKILLed holder is known to be dead at once, also while it is a zombie; then the mutex is as good as new."""
    child = holder(start, mutex)
    assert robust.trylock(mutex) == EBUSY
    child.kill(reap=reap)
    assert robust.trylock(mutex) == EOWNERDEAD
    assert robust.consistent(mutex) == 0
    assert robust.unlock(mutex) == 0
    assert robust.trylock(mutex) == 0
    assert robust.unlock(mutex) == 0


def test_unlocked_without_consistent(mutex: int, start: Start) -> None:
    """Whoever unlocks after a death without `consistent` makes the mutex unusable for ever: what the guard avoids."""
    holder(start, mutex).kill()
    assert robust.trylock(mutex) == EOWNERDEAD
    assert robust.unlock(mutex) == 0
    assert robust.trylock(mutex) == ENOTRECOVERABLE


@pytest.mark.usefixtures("either")
def test_ended_thread(mutex: int) -> None:
    """A thread that ends while it holds the mutex is dead, although its process lives."""
    assert in_thread(lambda: robust.trylock(mutex)) == 0
    # Python's join may come back before the thread has ended for the kernel.
    assert robust.lock_within(mutex, HANG) == EOWNERDEAD


@pytest.mark.usefixtures("either")
def test_exec(mutex: int, start: Start) -> None:
    """A process that executes another program is dead as a holder, although it lives."""

    def become_another(peer: Peer) -> None:
        peer.say(robust.trylock(mutex))
        os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])

    child = start(become_another)
    assert child.hear() == 0
    assert robust.lock_within(mutex, HANG) == EOWNERDEAD
    assert child.alive()


@pytest.mark.usefixtures("either")
def test_stopped_holder(mutex: int, start: Start) -> None:
    """A stopped holder lives: busy, however long one waits. When it goes on, it finds the mutex its own."""
    child = holder(start, mutex)
    child.stop()
    assert robust.trylock(mutex) == EBUSY
    assert robust.lives(mutex)
    assert robust.lock_within(mutex, MOMENT) == ETIMEDOUT
    child.cont()
    child.say("release it")
    assert child.hear() == 0
    assert robust.lock_within(mutex, HANG) == 0


def test_lives(mutex: int, start: Start) -> None:
    """Somebody lives who holds it, be it ourselves; nobody does when it is free or its holder is dead."""
    assert not robust.lives(mutex)
    assert robust.trylock(mutex) == 0
    assert robust.lives(mutex)
    assert robust.unlock(mutex) == 0
    child = holder(start, mutex)
    assert robust.lives(mutex)
    child.kill(reap=False)
    assert not robust.lives(mutex)
    # It is left free, and usable.
    assert not robust.lives(mutex)
    assert robust.trylock(mutex) == 0


@pytest.mark.usefixtures("either")
def test_lock_within_time(mutex: int, start: Start) -> None:
    """A wait in vain ends with ETIMEDOUT, not before its time, and takes nothing."""
    child = holder(start, mutex)
    began = time.monotonic()
    assert robust.lock_within(mutex, MOMENT) == ETIMEDOUT
    assert time.monotonic() - began >= MOMENT
    assert robust.lock_within(mutex, 0) == ETIMEDOUT
    child.say("release it")
    assert child.hear() == 0
    assert robust.lock_within(mutex, 0) == 0


def test_lock_within_goes_by_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is given a moment of CLOCK_MONOTONIC, so that a step of the time of day changes nothing."""
    given: list[tuple[int, int, int]] = []

    def clocklock(address: int, clock: int, until: Any) -> int:
        moment = until._obj  # what ctypes.byref keeps
        given.append((address, clock, moment.seconds * 1_000_000_000 + moment.nanoseconds))
        return 0

    monkeypatch.setattr(robust, "_HAS_CLOCKLOCK", True)
    monkeypatch.setattr(robust, "_clocklock", clocklock)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before = time.monotonic_ns()
    assert robust.lock_within(4096, 1.5) == 0
    after = time.monotonic_ns()
    [(address, clock, moment)] = given
    assert (address, clock) == (4096, time.CLOCK_MONOTONIC)
    assert before + 1_500_000_000 <= moment <= after + 1_500_000_000


@pytest.fixture
def long_turns() -> Iterator[None]:
    """Threads are not switched unless one gives the interpreter away."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(HANG)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("long_turns", "either")
def test_lock_within_lets_other_threads_run(mutex: int) -> None:
    """Who waits gives the interpreter away: the holder may be a thread of this process."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        robust.trylock(mutex)
        held.set()
        go.wait()
        robust.unlock(mutex)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    go.set()
    assert robust.lock_within(mutex, HANG) == 0
    thread.join()


def test_as_many_as_we_allow(start: Start) -> None:
    """A thread that dies with as many mutexes as we allow it is seen to be dead by each of them."""
    mutexes = shared(robust.MOST_PER_THREAD)

    def hold_all(peer: Peer) -> None:
        peer.say({robust.trylock(mutex) for mutex in mutexes})
        peer.hear()

    child = start(hold_all)
    assert child.hear() == {0}
    assert {robust.trylock(mutex) for mutex in mutexes} == {EBUSY}
    child.kill()
    assert {robust.trylock(mutex) for mutex in mutexes} == {EOWNERDEAD}


# --- noise


def spoil(mutex: int, word: int, value: int) -> None:
    """Write into the mutex what does not belong there."""
    ctypes.c_uint64.from_address(mutex + 8 * word).value = value


def left(mutex: int) -> int:
    """As whoever holds one for long leaves it."""
    return robust.unlock(mutex) if robust.can_be_left(mutex) else EPERM


@pytest.mark.parametrize("value", [0, 1, 64, 0x20, 0xC0, 0xFFFF_FFFF_FFFF_FFFF])
def test_noise_in_the_kind(mutex: int, value: int) -> None:
    """A mutex of another kind is not one of ours: it is not touched, and nobody is called dead for it."""
    assert robust.sound(mutex)
    assert robust.trylock(mutex) == 0
    spoil(mutex, robust.KIND, value)
    assert not robust.sound(mutex)
    assert robust.lives(mutex)
    assert left(mutex) == EPERM
    spoil(mutex, robust.KIND, robust.kind())
    assert left(mutex) == 0
    assert not robust.lives(mutex)


@pytest.mark.parametrize("word", [robust.BEFORE, robust.AFTER])
@pytest.mark.parametrize("value", [0, 8, 1 << 47, (1 << 64) - 1])
def test_noise_in_the_links(start: Start, word: int, value: int) -> None:
    """What is held is left only if its links lead to its neighbours; the process goes on, and so do the neighbours."""
    mutexes = shared(3)

    def leave(peer: Peer) -> None:
        for mutex in mutexes:
            assert robust.trylock(mutex) == 0
        assert all(robust.linked(mutex) for mutex in mutexes)
        spoil(mutexes[1], word, value)
        assert left(mutexes[1]) == EPERM
        peer.say(robust.trylock(mutexes[1]))

    assert start(leave).hear() == EBUSY


def test_links_of_what_is_not_held(mutex: int, start: Start) -> None:
    """A free mutex is in no list, and one that another holds is not left."""
    assert not robust.linked(mutex)
    assert left(mutex) == EPERM
    child = holder(start, mutex)
    assert left(mutex) == EPERM
    child.say("release it")
    assert child.hear() == 0


# --- pid namespaces


def test_across_pid_namespaces(mutex: int, start: Start) -> None:
    """A holder in another pid namespace, whose thread id may be anybody's here, is neither taken for dead nor for us.

    And its death is seen.
    """

    def hold_elsewhere(peer: Peer) -> None:
        peer.hear()
        peer.say((os.getpid(), robust.trylock(mutex)))
        peer.hear()

    child, inner = in_namespace(start, hold_elsewhere)
    child.say("begin")
    assert child.hear() == (1, 0)
    assert robust.trylock(mutex) == EBUSY
    assert robust.lives(mutex)
    os.kill(inner, 9)
    assert child.hear() == "it has ended"
    assert robust.trylock(mutex) == EOWNERDEAD


def seen_from_here(mutex: int) -> int:
    """What trying it answers; it is left as it was."""
    status = robust.trylock(mutex)
    if status == EOWNERDEAD:
        robust.consistent(mutex)
    if status != EBUSY:
        robust.unlock(mutex)
    return status


def test_giving_up_in_another_pid_namespace(name: str, start: Start) -> None:
    """Who gives up waiting does not unlock a mutex that somebody holds who lives, and has his thread id elsewhere.

    The C library takes an equal thread id for its own: unlocking in vain is harmless in one pid namespace only.
    """
    lock = shmlock.RWLock(name)
    guard = lock._segment.guard_address

    def give_up(peer: Peer) -> None:
        with lock.reader:
            pass
        peer.say("it takes part")
        peer.hear()
        peer.say((os.getpid(), lock.writer.acquire(timeout=MOMENT)))
        peer.hear()

    def hold(peer: Peer) -> None:
        peer.hear()
        peer.say((os.getpid(), robust.trylock(guard)))
        peer.hear()
        peer.say(robust.unlock(guard))
        peer.hear()

    (waiter, inner), (holder, _) = (in_namespace(start, function) for function in (give_up, hold))
    assert waiter.hear() == "it takes part"
    holder.say("take the guard")
    assert holder.hear() == (1, 0)
    waiter.say("ask for the lock")
    assert waiter.hear() == (1, False)
    assert seen_from_here(guard) == EBUSY
    # The kernel, too, goes by the thread id, in the list of a thread that ends, and its last wait is on that.
    os.kill(inner, 9)
    assert waiter.hear() == "it has ended"
    assert seen_from_here(guard) == EBUSY
    holder.say("leave it")
    assert holder.hear() == 0
