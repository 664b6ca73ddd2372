"""Signal handlers that raise, at random moments, thousands of times: nothing is left behind, not even a hold.

    pytest tests/crash/test_interruptions.py --times 5000    # signals a test; more than 50,000 in all

How many there are by default is enough to find, each time, what is left by one in a thousand.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._kernel import process
from shmlock._segment.layout import ABANDONED, READS, SEEKER, WANT, WRITER
from tests.order import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start


class Interrupted(TimeoutError):  # noqa: N818  it is no error
    """What the handler raises: an OSError, which must not be taken for an answer of the kernel's."""


@pytest.fixture
def times(pytestconfig: pytest.Config) -> int:
    """How many signals come in a test."""
    number: int = pytestconfig.getoption("times")
    return number


@pytest.fixture
def interrupted() -> Iterator[Callable[..., None]]:
    """`interrupted(function)` runs it again and again until a signal comes, 1 to 60 us (`longest`) after the start.

    Without the garbage collector, in whose callbacks, of other libraries, exceptions are printed and forgotten.
    """
    dice = random.Random(7)
    came = False

    def handler(*_: object) -> None:
        nonlocal came
        came = True
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)

    def again_and_again(function: Callable[[], None]) -> None:
        """On its own, for in 3.12 and 3.13 a `try` does not hold an exception that comes at a loop's backward jump."""
        while not came:
            function()

    def run(function: Callable[[], None], longest: float = 60e-6) -> None:
        nonlocal came
        came = False
        gc.disable()
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, longest))
            again_and_again(function)
            pytest.fail("what the handler raised has been swallowed")
        except Interrupted:
            pass
        except BaseException:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            raise
        finally:
            gc.enable()

    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def churning(name: str) -> Callable[[Peer], None]:
    """A child that keeps the lock busy until it is killed."""

    def churn(_: Peer) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        lock = shmlock.RWLock(name)
        while True:
            with lock.writer:
                pass
            with lock.reader:
                pass

    return churn


def settled(lock: shmlock.RWLock) -> bool:
    """Whether what was abandoned is carried out. On a busy machine the other one may be in the guard for long."""
    if lock._words[lock._engine.me().base + ABANDONED]:
        with suppress(shmlock.errors.LockTimeout):
            lock._engine.prepare()
    return not lock._words[lock._engine.me().base + ABANDONED]


def nothing_held(lock: shmlock.RWLock) -> None:
    """Nor wanted, by the calling thread, when it has carried out what it walked away from."""
    words, me = lock._words, lock._engine.me()
    if me.number < 0:
        return
    assert words[me.base + WANT] == 0
    until(lambda: settled(lock))
    assert words[me.base + READS] == 0
    assert me.number + 1 not in {words[WRITER], words[SEEKER]}


class Trip:
    """`-trip` sends this process a signal within an operation after which CPython does not look for one."""

    __neg__ = staticmethod(functools.partial(ctypes.PyDLL(None)["raise"], int(signal.SIGUSR1)))


USES: dict[str, Callable[[shmlock.SeekLock], Any]] = {
    "reader": lambda lock: lock.reader,
    "writer": lambda lock: lock.writer,
    "seeker": lambda lock: lock.seeker,
    "read_lock": lambda lock: lock.read_lock(timeout=30),
    "write_lock": lambda lock: lock.write_lock(timeout=30),
    "seek_lock": lambda lock: lock.seek_lock(timeout=30),
}


@pytest.mark.parametrize("ends", ["normally", "with an error"])
@pytest.mark.parametrize("statistics", ["slow", "full"])
@pytest.mark.parametrize("use", USES)
def test_a_signal_at_the_very_end_of_a_with(name: str, use: str, statistics: Any, ends: str) -> None:
    """It comes after the last look for signals inside, and the hold has ended when its handler raises."""
    lock = shmlock.SeekLock(name, max_participants=4, statistics=statistics)
    mode, trip = USES[use](lock), Trip()

    def handler(*_: object) -> None:
        raise Interrupted

    def once() -> None:
        with mode:
            _ = -trip
            if ends == "with an error":
                raise KeyError

    with mode:
        pass
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with suppress(KeyError):
            once()
        time.monotonic()  # CPython looks for signals now, if it has not before
    except Interrupted:
        pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    nothing_held(lock)
    assert lock.writer.acquire_nowait()
    lock.writer.release()
    lock.close()


def test_a_mutex_is_free_after_a_signal_at_the_very_end_of_its_with(name: str) -> None:
    """As above."""
    mutex, trip = shmlock.Mutex(name), Trip()

    def handler(*_: object) -> None:
        raise Interrupted

    def once() -> None:
        with mutex:
            _ = -trip

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Interrupted):
            once()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not mutex.locked()


@pytest.mark.parametrize("use", ["reader", "writer", "timeout", "first use"])
def test_a_lock_survives_exceptions_at_any_moment(
    name: str, start: Start, interrupted: Callable[[Callable[[], None]], None], times: int, use: str
) -> None:
    """With another process in between, no hold, no want, no abandoned grant, no broken guard, no lost slot is left."""
    lock = shmlock.RWLock(name, max_participants=4)
    start(churning(name))
    process.identity()  # reads files, once; an interrupted open() of another library is not ours to judge

    def once() -> None:
        if use == "timeout":
            if lock.writer.acquire(timeout=0.0005):
                lock.writer.release()
        else:
            with lock.writer if use == "writer" else lock.reader:
                pass

    for _ in range(times // 10 if use == "first use" else times):
        interrupted(once)
        nothing_held(lock)
        if use == "first use":
            lock.close()
            lock = shmlock.RWLock(name)
    with lock.write_lock(timeout=30):
        assert not lock.writer.owner_died
    lock.close()


def seeking(name: str) -> Callable[[Peer], None]:
    """A child that keeps the lock busy in all modes until it is killed."""

    def churn(_: Peer) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        lock = shmlock.SeekLock(name)
        while True:
            for face in (lock.writer, lock.reader, lock.seeker):
                with face:
                    pass

    return churn


def _seek(lock: shmlock.SeekLock) -> None:
    with lock.seeker:
        lock.seek_to_read()


def _upgrade(lock: shmlock.SeekLock) -> None:
    with lock.seeker, lock.upgraded(timeout=0.001):
        pass


def _from_read(lock: shmlock.SeekLock) -> None:
    with lock.reader:
        if lock.read_to_seek():
            lock.seek_to_read()


def _from_write(lock: shmlock.SeekLock) -> None:
    with lock.writer:
        lock.write_to_seek()
        lock.seek_to_read()


def _read_to_write(lock: shmlock.SeekLock) -> None:
    with lock.reader:
        if lock.read_to_write():
            lock.write_to_read()


CONVERSIONS = {
    "seek": _seek,
    "upgrade": _upgrade,
    "from read": _from_read,
    "from write": _from_write,
    "read to write": _read_to_write,
}


@pytest.mark.parametrize("use", CONVERSIONS)
def test_a_seek_lock_survives_exceptions_at_any_moment(
    name: str, start: Start, interrupted: Callable[[Callable[[], None]], None], times: int, use: str
) -> None:
    """Every conversion, with another process in between: the hold ends with its `with`, whatever it was just then."""
    lock = shmlock.SeekLock(name, max_participants=4)
    process.identity()

    start(seeking(name))
    once = CONVERSIONS[use]
    for _ in range(times):
        interrupted(lambda: once(lock))
        nothing_held(lock)
    with lock.write_lock(timeout=30):
        assert not lock.writer.owner_died
    lock.close()


def test_a_mutex_survives_exceptions_at_any_moment(
    name: str, interrupted: Callable[[Callable[[], None]], None], times: int
) -> None:
    """Whatever was interrupted, the mutex is free."""
    mutex = shmlock.Mutex(name)

    def once() -> None:
        with mutex:
            pass

    for _ in range(times):
        interrupted(once)
        assert not mutex.locked()
        assert not mutex._engine.holds()
    assert not mutex.owner_died


def test_a_publisher_survives_exceptions_at_any_moment(
    name: str, interrupted: Callable[[Callable[[], None]], None], times: int
) -> None:
    """An interrupted publish has published all or nothing, and the next one is not in its way."""
    config = shmlock.SharedConfig(name, capacity=100)
    turn = 0

    def once() -> None:
        nonlocal turn
        turn += 1
        config.publish([turn] * 10)

    for _ in range(times // 3):
        interrupted(once)
        seen = config.get([turn] * 10)
        assert seen == [seen[0]] * 10
    assert config.publish([]) == config.version
    config.close()


@pytest.mark.parametrize("use", ["collect", "schedule", "look"])
def test_timers_survive_exceptions_at_any_moment(
    name: str, start: Start, interrupted: Callable[..., None], times: int, use: str
) -> None:
    """Whatever was interrupted, nothing is held afterwards, and each timer that was not returned comes later, once."""
    timers = shmlock.TimerQueue(name, capacity=256, max_participants=4)

    def churn(_: Peer) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        ours = shmlock.TimerQueue(name)
        while True:
            ours.schedule(-1, 10**15)
            ours.postpone(-1, 10**16)
            ours.cancel(-1)

    start(churn)
    timers.wake_expired()
    words, me = timers._words, timers._engine.me()
    turn, orphans = 0, 0
    scheduled: list[int] = []
    seen: list[int] = []

    def schedule() -> None:
        nonlocal turn
        turn += 1
        timers.schedule(turn, 0)
        scheduled.append(turn)

    def once() -> None:
        if use == "schedule":
            schedule()
        elif use == "look":
            timers.next_expiry()
            timers.postpone(turn, 1)
        else:
            seen.extend(timers.wake_expired(limit=2))

    for _ in range(times // 2):
        while len(timers) < 20:
            schedule()
        interrupted(once, 300e-6)
        assert words[me.base + READS] == words[me.base + WANT] == 0
        assert me.number + 1 not in {words[WRITER], words[SEEKER]}
        orphans += len(timers._batches.orphans())
        if len(timers) > 40:
            seen.extend(timers.wake_expired())
    while found := timers.wake_expired():
        seen.extend(found)
    assert len(set(seen)) == len(seen)
    assert set(scheduled) <= set(seen)
    assert bool(orphans) == (use == "collect")
    timers.close()
