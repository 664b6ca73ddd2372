"""Another thread comes in at every place where CPython may switch to one, which are those of test_every_check."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import shmlock
from shmlock._segment.layout import DIRTY
from tests.conftest import Child
from tests.crash import situations, uses
from tests.crash.situations import nothing, what_is_held
from tests.crash.test_every_check import Tracer, counted, traced
from tests.ending import close_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer

T = TypeVar("T")


def met(
    use: Callable[[], object], come: Callable[[], T], prepare: Callable[[], object] = nothing
) -> Iterator[tuple[ThreadPoolExecutor, T]]:
    """Run the use again and again, each time with a new thread that comes in at another of its places.

    The thread, which is there until the next one comes, and what it returned. Places that were not there this time are
    left out: what is to be done depends on who has come before.
    """
    for place in counted(use, prepare):
        prepare()
        with ThreadPoolExecutor(1) as pool:
            coming: list[Future[T]] = []

            def switch(pool: ThreadPoolExecutor = pool, coming: list[Future[T]] = coming) -> None:
                coming.append(pool.submit(come))
                wait(coming, timeout=0.02)  # it is done, or waits for the one that it has come upon

            with traced(Tracer(*place, switch)):
                use()
            for each in coming:
                yield pool, each.result()


def convert(lock: shmlock.SeekLock) -> None:
    """R to W and back, unless another seeks just then."""
    with lock.reader:
        if lock.read_to_write():
            lock.write_to_read()


@pytest.mark.parametrize("opened", [True, False], ids=["used before", "first use"])
@pytest.mark.parametrize("use", [uses.read, uses.write, uses.upgrade, convert, uses.write_and_close])
def test_a_thread_may_begin_wherever_another_is(
    name: str, use: Callable[[shmlock.SeekLock], object], opened: bool
) -> None:
    """It gets each mode, or not at once; what the other does goes on as if nothing was; and no slots are lost."""
    lock = shmlock.SeekLock(name, max_participants=8)
    segment = lock._segment

    def come() -> int:
        ours = shmlock.SeekLock(name)  # not closed: that would wait for the other, should it be in the guard
        for number, mode in enumerate("RSW"):
            if not situations.face(ours, mode).acquire(timeout=0):
                return number
            situations.face(ours, mode).release()
        return 3

    def anew() -> None:
        nonlocal lock
        if not opened:
            close_all(segment)
        lock = shmlock.SeekLock(name)

    got = set()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(uses.read, lock).result()  # one more is there all the time
        for _, modes in met(lambda: use(lock), come, anew):
            after = shmlock.SeekLock(name)
            assert not what_is_held(after)
            assert after._words[DIRTY] == 0
            got.add(modes)
            close_all(segment)
    with shmlock.SeekLock(name) as lock:
        situations.nothing_left(lock)
    assert 3 in got or use is uses.read


def go(ours: shmlock.SeekLock, mode: str, held: bool) -> None:
    """What the thread has got, if so, it has still. Leave; closing would give up what others hold, too."""
    assert what_is_held(ours) == ({mode} if held else set())
    if held:
        situations.face(ours, mode).release()


@pytest.mark.parametrize("mode", ["R", "S", "W"])
def test_who_opens_it_wherever_another_closes_it_keeps_what_it_gets(name: str, mode: str) -> None:
    """Until it leaves: the other's holds go with its last handle, those of a handle that is open do not."""
    closing = [shmlock.SeekLock(name, max_participants=8)]
    segment = closing[0]._segment

    def anew() -> None:
        close_all(segment)
        closing[:] = [shmlock.SeekLock(name)]
        uses.read(closing[0])

    def come() -> tuple[shmlock.SeekLock, bool]:
        ours = shmlock.SeekLock(name)
        return ours, situations.face(ours, mode).acquire(timeout=0)

    got = 0
    for pool, (ours, held) in met(lambda: closing[0].close(), come, anew):  # noqa: PLW0108  another one each time
        pool.submit(go, ours, mode, held).result()
        with shmlock.SeekLock(name) as after:
            situations.nothing_left(after)
        got += held
    assert got


def vouch(lock: shmlock.SeekLock) -> None:
    """W, and a change that takes the guard alone."""
    with lock.writer:
        lock.mark_consistent()


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "free"])
@pytest.mark.parametrize("opened", [True, False], ids=["used before", "first use"])
@pytest.mark.parametrize("use", [uses.read, uses.write, uses.upgrade, convert, vouch])
def test_a_lock_may_be_closed_wherever_another_thread_is(
    name: str, use: Callable[[shmlock.SeekLock], object], opened: bool, taken: bool
) -> None:
    """The other has done what it was about to do, or gets an error, and has nothing; what is free then may be taken."""
    locks = [shmlock.SeekLock(name, max_participants=8)]
    segment = locks[0]._segment
    used = threading.Event()
    closed = 0

    def anew() -> None:
        close_all(segment)
        locks[:] = [shmlock.SeekLock(name)]
        used.clear()
        if opened:
            uses.read(locks[0])

    def use_it() -> None:
        nonlocal closed
        try:
            use(locks[0])
        except (shmlock.ClosedError, shmlock.NotHeld):
            closed += 1
        finally:
            used.set()

    def come() -> None:
        locks[0].close()
        if not taken:
            return
        ours = shmlock.SeekLock(name)
        held = ours.writer.acquire(timeout=0)
        used.wait(0.05)  # it may also wait for us
        go(ours, "W", held)

    for _ in met(use_it, come, anew):
        with shmlock.SeekLock(name) as after:
            situations.nothing_left(after)
            assert after.statistics().evictions == 0
    assert closed or (use is uses.read and opened)


def change_mutex(mutex: shmlock.Mutex) -> None:
    """Take it once."""
    with mutex:
        pass


def change_config(config: shmlock.SharedConfig) -> None:
    """Publish, and see a version at least as new."""
    version = config.publish({"n": 1})
    assert config.snapshot().version >= version
    assert config.get() == {"n": 1}


def change_metrics(metrics: shmlock.RTMetrics) -> None:
    """Count one more."""
    before = metrics.total_count()
    metrics.record(200, 0.1)
    assert metrics.total_count() > before


def change_timers(timers: shmlock.TimerQueue) -> None:
    """Schedule one, and collect all."""
    timers.schedule(threading.get_native_id(), 0)
    timers.wake_expired()


KINDS = [
    (shmlock.SeekLock, uses.upgrade),
    (shmlock.Mutex, change_mutex),
    (shmlock.SharedConfig, change_config),
    (functools.partial(shmlock.RTMetrics, clock=lambda: 1000.0), change_metrics),
    (shmlock.TimerQueue, change_timers),
]


@pytest.mark.parametrize(("kind", "change"), KINDS)
def test_every_kind_is_first_used_by_two_at_once(name: str, kind: Any, change: Callable[[Any], None]) -> None:
    """Wherever one is when the other begins: both open it, change it and close it."""

    def use() -> None:
        ours = kind(name)
        change(ours)
        ours.close()

    assert list(met(use, use))


@pytest.mark.parametrize(("kind", "change"), KINDS)
def test_a_child_is_forked_wherever_another_thread_is(name: str, kind: Any, change: Callable[[Any], None]) -> None:
    """It uses what it has inherited and what it opens itself, and waits for nothing that its parent was about to do."""
    inherited = kind(name)

    def live(peer: Peer) -> None:
        change(inherited)
        change(kind(name))
        peer.say("done")

    def use() -> None:
        change(kind(name))
        change(inherited)

    def come() -> Child:
        return Child(live)  # which ends with this thread, at the latest

    for _, child in met(use, come):
        try:
            assert child.hear() == "done"
        finally:
            child.end()
