"""Another thread comes in at every place where CPython may switch to one, which are those of test_every_check."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import shmlock
from shmlock._engine.modes import WRITE
from shmlock._kernel.deadline import NOW, Deadline
from shmlock._segment.layout import ABANDONED, DIRTY, WANT
from tests.conftest import HANG, Child
from tests.crash import situations, uses
from tests.crash.situations import nothing, what_is_held
from tests.crash.test_every_check import Tracer, counted, traced
from tests.ending import close_all
from tests.order import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock._engine.engine import Engine
    from shmlock._segment.segment import Segment
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


def used_anew(segment: Segment) -> shmlock.SeekLock:
    """With all handles closed, a new one, which this thread has used."""
    close_all(segment)
    lock = shmlock.SeekLock(segment.name)
    uses.read(lock)
    return lock


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
        closing[:] = [used_anew(segment)]

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


@pytest.mark.parametrize("mode", ["R", "S", "W"])
def test_nobody_keeps_what_it_gets_by_a_handle_that_is_being_closed(name: str, mode: str) -> None:
    """Wherever the other thread is with it: the hold goes with the last handle, or is refused."""
    closing = [shmlock.SeekLock(name, max_participants=8)]
    segment = closing[0]._segment

    def anew() -> None:
        closing[:] = [used_anew(segment)]
        situations.open_gate(closing[0])

    def come() -> bool:
        held = False
        with suppress(shmlock.ClosedError):
            held = situations.face(closing[0], mode).acquire(timeout=0)
        return held

    got = 0
    for _, held in met(lambda: closing[0].close(), come, anew):  # noqa: PLW0108  another one each time
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
        situations.open_gate(locks[0])
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


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that both run switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def is_free(engine: Engine) -> bool:
    """Whether another thread can have it all to itself."""

    def take() -> bool:
        held = engine.acquire(WRITE, Deadline.after(HANG))
        if held:
            engine.end(WRITE, vouch=True)
        return held

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(take).result()


@pytest.mark.parametrize("use", [uses.read, uses.write, uses.upgrade, convert, vouch])
def test_a_handler_may_take_part_anew_where_another_thread_has_closed(
    name: str, use: Callable[[shmlock.SeekLock], object]
) -> None:
    """It gets what is free; and what it interrupts goes on with the slot that it had, to its end."""
    locks = [shmlock.SeekLock(name, max_participants=8)]
    segment = locks[0]._segment
    came: list[threading.Thread] = []
    got = 0

    def anew() -> None:
        close_all(segment)
        locks[:] = [shmlock.SeekLock(name)]
        came.clear()

    def use_it() -> None:
        with suppress(shmlock.ClosedError, shmlock.NotHeld):
            use(locks[0])

    def handle() -> None:
        nonlocal got
        closing = threading.Thread(target=locks[0].close)
        closing.start()
        closing.join(0.02)  # it may also wait for us
        came.append(closing)
        ours = shmlock.SeekLock(name)
        with suppress(shmlock.WouldDeadlock):
            if ours.writer.acquire(timeout=0):
                ours.writer.release()
                got += 1

    for place in counted(use_it, anew):
        anew()
        tracer = Tracer(*place, handle)
        with traced(tracer):
            use_it()
        for closing in came:
            closing.join()
        with shmlock.SeekLock(name) as after:
            situations.nothing_left(after)
            assert after.statistics().evictions == 0
    assert got


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


def record(metrics: shmlock.RTMetrics) -> None:
    """The same, without a look."""
    metrics.record(200, 0.1)


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


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("last", [True, False], ids=["last", "one of two"])
@pytest.mark.parametrize(
    ("kind", "use"),
    [(shmlock.SeekLock, use) for use in (uses.read, uses.write, uses.upgrade, convert, vouch)]
    + [(kind, record if change is change_metrics else change) for kind, change in KINDS[2:]],
)
def test_a_handle_may_be_closed_beside_another_thread(
    name: str, kind: Any, use: Callable[[Any], object], last: bool
) -> None:
    """Neither waits for the other: it has done what it was about to do, or gets an error, and has nothing after both.

    But what it has got by a lock of which another handle is open, which may be more than that: until that is closed.
    """
    dice = random.Random(name)
    kept = kind(name)
    segment = kept._segment
    handles: list[Any] = []
    closed = 0
    expected = (shmlock.ClosedError, shmlock.NotHeld) if kind is shmlock.SeekLock else shmlock.ClosedError

    def anew() -> None:
        close_all(segment)
        handles[:] = [kind(name)] if last else [kind(name), kind(name)]
        dice.choice([situations.open_gate, situations.rest])(handles[0])

    def use_it() -> None:
        nonlocal closed
        try:
            use(handles[0])
        except expected:
            closed += 1

    for place in counted(use_it, anew) * 2:
        anew()
        begun = threading.Event()

        def close(begun: threading.Event = begun) -> None:
            begun.set()
            handles[0].close()

        closing = threading.Thread(target=close)

        def switch(closing: threading.Thread = closing, begun: threading.Event = begun) -> None:
            closing.start()
            begun.wait()
            time.sleep(dice.choice([0, 1e-5, 1e-4, 3e-4]))

        tracer = Tracer(*place, switch)
        with traced(tracer):
            use_it()
        if tracer.where:
            closing.join()
        if kind is shmlock.SeekLock:
            close_all(segment)
        after = kind(name)
        assert is_free(after._engine), tracer.where
        assert after._engine.words[DIRTY] == 0
    assert closed


@pytest.mark.parametrize("handler", [True, False], ids=["a handler", "another thread"])
def test_no_writer_comes_in_while_a_queue_is_looked_at_that_is_closed(name: str, handler: bool) -> None:
    """Until the look is over: what is stored in it would go wherever the writer has moved other things to."""
    timers = shmlock.TimerQueue(name)
    engine = timers._engine
    with ThreadPoolExecutor(1) as pool:

        def look() -> bool:
            if handler:
                timers.close()
            else:
                pool.submit(timers.close).result()
            return pool.submit(engine.acquire, WRITE, NOW).result()

        assert not timers._read(look)
    assert is_free(engine)


def test_a_look_that_waits_asks_for_nothing_any_more_when_its_queue_is_closed(name: str) -> None:
    """At once, and not when the next one looks for what was abandoned."""
    timers = shmlock.TimerQueue(name)
    engine = timers._engine
    with ThreadPoolExecutor(1) as holding, ThreadPoolExecutor(1) as looking:
        assert holding.submit(engine.acquire, WRITE, NOW).result()
        look = looking.submit(len, timers)
        until(lambda: any(engine.state.column(WANT)))
        timers.close()
        assert isinstance(look.exception(HANG), shmlock.ClosedError)
        assert not any(engine.state.column(WANT))
        assert not any(engine.state.column(ABANDONED))
    assert is_free(engine)


@pytest.mark.parametrize("kind", [shmlock.SharedConfig, shmlock.TimerQueue])
def test_who_reads_in_an_object_that_another_thread_closes_is_told_so(name: str, kind: Any) -> None:
    """And not that it did not read, though its R was given up for it."""
    handle = kind(name)
    with pytest.raises(shmlock.ClosedError), handle._reader, ThreadPoolExecutor(1) as pool:
        pool.submit(handle.close).result()


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
