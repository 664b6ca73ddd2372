"""Signal handlers that raise, at random moments, thousands of times: nothing is left behind but what is reported.

One window is known and allowed here: CPython may run a handler at the very start of `__exit__`, before any code
of ours. The hold then stays, the thread still has it, and can release it. (A `with` whose body ends with a call
hardly ever meets it: the handler runs at the end of that call, inside the body.)
"""

from __future__ import annotations

import gc
import random
import signal
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._engine.modes import WRITE
from shmlock._kernel import process
from shmlock._segment.layout import ABANDONED, READS, SEEKER, WANT, WRITER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock._engine.participant import Participant
    from tests.conftest import Peer, Start

TIMES = 3000


class Interrupted(TimeoutError):  # noqa: N818  it is no error
    """What the handler raises: an OSError, which must not be taken for an answer of the kernel's."""


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


def settled(lock: shmlock.RWLock) -> Participant:
    """The calling thread, which wants nothing any more, and has carried out what it walked away from."""
    me = lock._engine.me()
    if me.number >= 0:
        assert lock._words[me.base + WANT] == 0
        if lock._words[me.base + ABANDONED]:
            lock._engine.prepare()
    return me


@pytest.mark.parametrize("use", ["reader", "writer", "timeout", "first use"])
def test_a_lock_survives_exceptions_at_any_moment(
    name: str, start: Start, interrupted: Callable[[Callable[[], None]], None], use: str
) -> None:
    """With another process in between, no want, no abandoned grant, no broken guard, no lost slot is left."""
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

    words = lock._words
    for _ in range(TIMES // 10 if use == "first use" else TIMES):
        interrupted(once)
        me = settled(lock)
        if me.number < 0:
            continue
        if words[WRITER] == me.number + 1:
            lock.writer.release()
        while words[me.base + READS]:
            lock.reader.release()
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
    name: str, start: Start, interrupted: Callable[[Callable[[], None]], None], use: str
) -> None:
    """Every conversion, with another process in between: the hold ends with its `with`, whatever it was just then."""
    lock = shmlock.SeekLock(name, max_participants=4)
    process.identity()

    start(seeking(name))
    once = CONVERSIONS[use]
    words = lock._words
    left = 0
    for _ in range(TIMES):
        interrupted(lambda: once(lock))
        me = settled(lock)
        if me.number < 0:
            continue
        holds = (words[WRITER] == me.number + 1, words[SEEKER] == me.number + 1, words[me.base + READS])
        if any(holds):  # the window at the start of `__exit__`
            left += 1
            lock._engine.end(WRITE, vouch=False)
            if holds[0] or holds[1]:
                assert words[me.base + READS] == holds[2]
            while words[me.base + READS]:
                lock.reader.release()
        assert "1 reading" not in repr(lock) or words[me.base + READS] == 0
    assert left < TIMES / 10
    with lock.write_lock(timeout=30):
        assert not lock.writer.owner_died
    lock.close()


def test_a_mutex_survives_exceptions_at_any_moment(
    name: str, interrupted: Callable[[Callable[[], None]], None]
) -> None:
    """Whatever was interrupted, the mutex is free, or held and reported held."""
    mutex = shmlock.Mutex(name)

    def once() -> None:
        with mutex:
            pass

    for _ in range(TIMES):
        interrupted(once)
        assert mutex.locked() == mutex._engine.holds()
        if mutex.locked():
            mutex.release()
    assert not mutex.owner_died


def test_a_publisher_survives_exceptions_at_any_moment(
    name: str, interrupted: Callable[[Callable[[], None]], None]
) -> None:
    """An interrupted publish has published all or nothing, and the next one is not in its way."""
    config = shmlock.SharedConfig(name, capacity=100)
    turn = 0

    def once() -> None:
        nonlocal turn
        turn += 1
        config.publish([turn] * 10)

    for _ in range(TIMES // 3):
        interrupted(once)
        seen = config.get([turn] * 10)
        assert seen == [seen[0]] * 10
    assert config.publish([]) == config.version
    config.close()


@pytest.mark.parametrize("use", ["collect", "schedule", "look"])
def test_timers_survive_exceptions_at_any_moment(
    name: str, start: Start, interrupted: Callable[..., None], use: str
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

    for _ in range(TIMES // 2):
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
