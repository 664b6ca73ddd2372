"""What RWLock promises, and SeekLock, too: exclusion, fairness, time-outs, nesting, threads, forks, handles."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from tests.conftest import HANG
from tests.order import until, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start


@pytest.fixture(params=[shmlock.RWLock, shmlock.SeekLock])
def kind(request: pytest.FixtureRequest) -> type[shmlock.RWLock]:
    """What holds for either."""
    which: type[shmlock.RWLock] = request.param
    return which


@pytest.fixture
def lock(name: str, kind: type[shmlock.RWLock]) -> Iterator[shmlock.RWLock]:
    """A fresh lock, closed at the end."""
    with kind(name, max_participants=16) as made:
        yield made


def write_once(lock: shmlock.RWLock) -> None:
    """Enter and leave as a writer."""
    with lock.writer:
        pass


def holder(lock: shmlock.RWLock, mode: str) -> Callable[[Peer], None]:
    """A child that says when it is in, and leaves when it hears something."""

    def hold(peer: Peer) -> None:
        ours = type(lock)(lock.name)
        peer.say("ready")
        peer.hear()
        with getattr(ours, mode):
            peer.say("in")
            peer.hear()
        peer.say("out")
        peer.hear()

    return hold


# --- exclusion and sharing


def test_readers_share(lock: shmlock.RWLock, start: Start) -> None:
    """Readers in different processes are in at the same time."""
    children = [start(holder(lock, "reader")) for _ in range(3)]
    for child in children:
        child.hear()
        child.say("go")
        assert child.hear() == "in"
    with lock.reader:
        pass


@pytest.mark.parametrize(("first", "second"), [("writer", "writer"), ("writer", "reader"), ("reader", "writer")])
def test_a_writer_is_alone(lock: shmlock.RWLock, start: Start, first: str, second: str) -> None:
    """A writer keeps both sides out, and is kept out by both, until the holder has left."""
    child = start(holder(lock, first))
    child.hear()
    child.say("go")
    child.hear()
    face = getattr(lock, second)
    assert not face.acquire(blocking=False)
    assert not face.acquire(timeout=0.02)
    child.say("leave")
    assert child.hear() == "out"
    assert face.acquire(timeout=30)
    face.release()


@pytest.mark.parametrize("readers", range(4))
@pytest.mark.parametrize("writers", range(1, 5))
def test_every_small_crowd_gets_through(lock: shmlock.RWLock, start: Start, readers: int, writers: int) -> None:
    """With 0 to 3 readers and 1 to 4 writers waiting behind a writer, everyone gets in once it leaves."""
    with lock.writer:
        children = [start(holder(lock, mode)) for mode in ["reader"] * readers + ["writer"] * writers]
        for count, child in enumerate(children, 1):
            child.hear()
            child.say("go")
            until(waiting(lock, count))
    for child in children:
        child.say("leave")  # as soon as it is in
    for child in children:
        assert [child.hear(), child.hear()] == ["in", "out"]


def test_the_data_stay_whole_under_a_crowd(lock: shmlock.RWLock, start: Start) -> None:
    """With processes and threads reading and writing, nobody ever sees half a write, and no write is lost."""
    data = shmlock.SharedConfig(f"{lock.name}.data", capacity=64, codec="bytes")  # just for its shared bytes
    memory = data._segment.payload.cast("Q")

    def work(peer: Peer) -> None:
        peer.hear()
        ours = type(lock)(lock.name)

        def turns() -> None:
            for turn in range(150):
                if turn % 3:
                    with ours.reader:
                        assert memory[-1] == memory[-2]
                else:
                    with ours.writer:
                        memory[-1] += 1
                        memory[-2] += 1

        threads = [threading.Thread(target=turns) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [start(work) for _ in range(4)]
    for child in children:
        child.say("go")
    assert [child.join() for child in children] == [0] * 4
    assert memory[-1] == memory[-2] == 4 * 2 * 50
    data.unlink()


# --- fairness


def test_readers_that_overlap_do_not_starve_a_writer(lock: shmlock.RWLock, start: Start) -> None:
    """While a writer waits for a reader, a new reader waits, too; it enters after that one write phase."""
    first, writer, second = (start(holder(lock, mode)) for mode in ("reader", "writer", "reader"))
    for child in (first, writer, second):
        child.hear()
    first.say("go")
    assert first.hear() == "in"
    writer.say("go")
    until(waiting(lock, 1))
    second.say("go")
    until(waiting(lock, 2))
    first.say("leave")
    assert first.hear() == "out"
    assert writer.hear() == "in"
    assert waiting(lock, 1)()
    writer.say("leave")
    assert writer.hear() == "out"
    assert second.hear() == "in"


def test_writers_in_a_row_do_not_starve_a_reader(lock: shmlock.RWLock, start: Start) -> None:
    """Readers that wait while one writes enter, all of them, before the writer that waits, whoever came first."""
    with lock.writer:
        writer, *readers = (start(holder(lock, mode)) for mode in ("writer", "reader", "reader"))
        for count, child in enumerate((writer, *readers), 1):
            child.hear()
            child.say("go")
            until(waiting(lock, count))
    for reader in readers:
        assert reader.hear() == "in"
    assert waiting(lock, 1)()
    for reader in readers:
        reader.say("leave")
    assert writer.hear() == "in"


def test_a_nested_read_never_waits_behind_a_writer(lock: shmlock.RWLock, start: Start) -> None:
    """A thread that reads may read again although a writer waits; both leave before the writer enters."""
    writer = start(holder(lock, "writer"))
    writer.hear()
    with lock.reader:
        writer.say("go")
        until(waiting(lock, 1))
        with lock.reader, lock.read_lock(timeout=0):
            pass
        assert waiting(lock, 1)()
    assert writer.hear() == "in"


# --- time


def test_a_timeout_ends_the_wait_and_leaves_no_trace(lock: shmlock.RWLock, start: Start) -> None:
    """A wait that times out is neither early nor in the others' way; write_lock says it with LockTimeout."""
    child = start(holder(lock, "reader"))
    child.hear()
    child.say("go")
    child.hear()
    began = time.monotonic()
    with (
        pytest.raises(shmlock.LockTimeout, match=r"write lock was not to be had within 0\.05 s"),
        lock.write_lock(0.05),
    ):
        pass
    assert time.monotonic() - began >= 0.05
    with lock.read_lock(timeout=0):  # the gate is open again
        pass
    assert lock.statistics().timeouts == 1


def test_timeout_zero_takes_what_is_free(lock: shmlock.RWLock) -> None:
    """A time-out of 0, like blocking=False, tries once and takes a free lock."""
    for face in (lock.reader, lock.writer):
        assert face.acquire(timeout=0)
        face.release()
        assert face.acquire(blocking=False)
        face.release()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), 1e300])
def test_bad_timeouts_are_refused(lock: shmlock.RWLock, timeout: float) -> None:
    """Negative, NaN and absurd time-outs are errors before anything is held, also on a free lock."""
    for wrong in (
        lambda: lock.reader.acquire(timeout=timeout),
        lambda: lock.writer.acquire(timeout=timeout),
        lambda: lock.read_lock(timeout=timeout),
        lambda: lock.write_lock(timeout=timeout),
        lambda: lock.writer.acquire(False, 1),
    ):
        with pytest.raises((ValueError, OverflowError)):
            wrong()
    assert lock.writer.acquire(blocking=False)
    lock.writer.release()


def test_signals_during_a_timed_wait_change_nothing(lock: shmlock.RWLock, start: Start) -> None:
    """With a signal every 5 ms a wait of 0.3 s is neither shorter, nor twice as long, nor an error."""
    child = start(holder(lock, "writer"))
    child.hear()
    child.say("go")
    child.hear()
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        began = time.monotonic()
        assert not lock.writer.acquire(timeout=0.3)
        assert time.monotonic() - began >= 0.3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
    assert waiting(lock, 0)() or "waiting" not in repr(lock)


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_a_waiter_leaves_on_a_signal_that_raises(lock: shmlock.RWLock, start: Start, mode: str) -> None:
    """Ctrl-C ends a wait at once, also behind a dead-locked holder, and leaves no ghost in the queue."""
    child = start(holder(lock, "writer"))
    child.hear()
    child.say("go")
    child.hear()

    def interrupted(peer: Peer) -> None:
        ours = type(lock)(lock.name)
        try:
            peer.say("ready")
            getattr(ours, mode).acquire()
        except KeyboardInterrupt:
            peer.say("left")
            peer.hear()
        with ours.writer:
            peer.say("in")

    waiter = start(interrupted)
    waiter.hear()
    until(waiting(lock, 1))
    waiter.signal(signal.SIGINT)
    assert waiter.hear() == "left"
    assert "waiting" not in repr(lock)
    child.say("leave")
    waiter.say("go on")
    assert waiter.hear() == "in"


def test_a_signal_handler_gets_an_error_and_no_deadlock(lock: shmlock.RWLock, start: Start) -> None:
    """A handler that asks for the lock that its own thread waits for raises WouldDeadlock; the wait goes on."""
    child = start(holder(lock, "writer"))
    child.hear()
    child.say("go")
    child.hear()
    caught: list[BaseException] = []

    def handler(*_: object) -> None:
        if caught or not waiting(lock, 1)():
            return  # before it asks, the handler would wait as well, and for ever
        for face in (lock.reader, lock.writer):
            try:
                face.acquire()
            except shmlock.WouldDeadlock as error:
                caught.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        assert not lock.reader.acquire(timeout=0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(caught) == 2
    assert "in the middle of" in str(caught[0])


# --- one participant


def test_what_one_thread_may_hold_together(lock: shmlock.RWLock) -> None:
    """R in R and R in W nest; W in R and W in W raise WouldDeadlock at once, and what was held stays held."""
    with lock.reader, pytest.raises(shmlock.WouldDeadlock, match="only a try"):
        lock.writer.acquire()
    with lock.writer, lock.reader, pytest.raises(shmlock.WouldDeadlock, match="for writing"):
        lock.writer.acquire(blocking=False)
    with lock.writer:
        assert "written by process" in repr(lock)
    assert "free" in repr(lock)


def test_leaving_w_first_leaves_r(lock: shmlock.RWLock, start: Start) -> None:
    """A writer that reads and then leaves W is a reader: others read, none writes, until it leaves R."""
    lock.writer.acquire()
    lock.reader.acquire()
    lock.writer.release()
    child = start(holder(lock, "reader"))
    child.hear()
    child.say("go")
    assert child.hear() == "in"
    child.say("leave")
    child.hear()

    def write(peer: Peer) -> None:
        peer.say(type(lock)(lock.name).writer.acquire(timeout=0))

    assert start(write).hear() is False
    lock.reader.release()
    assert start(write).hear() is True


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_a_release_without_a_hold_is_an_error(lock: shmlock.RWLock, mode: str) -> None:
    """Releasing what this thread does not hold raises NotHeld, before the first use and after the last."""
    face = getattr(lock, mode)
    with pytest.raises(shmlock.NotHeld, match=str(os.getpid())):
        face.release()
    with face:
        pass
    with pytest.raises(shmlock.NotHeld):
        face.release()


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_another_thread_can_not_release(lock: shmlock.RWLock, mode: str) -> None:
    """A hold belongs to a thread: another one's release raises NotHeld, and the hold stays."""
    caught: list[Exception] = []

    def release() -> None:
        try:
            getattr(lock, mode).release()
        except shmlock.NotHeld as error:
            caught.append(error)

    with getattr(lock, mode):
        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert len(caught) == 1


def test_threads_of_one_process_exclude_each_other_across_handles(lock: shmlock.RWLock) -> None:
    """Two handles of one name are one lock, also for the threads of one process."""
    other = type(lock)(lock.name)
    got: list[bool] = []
    with lock.writer:
        thread = threading.Thread(target=lambda: got.append(other.writer.acquire(timeout=0)))
        thread.start()
        thread.join()
        with pytest.raises(shmlock.WouldDeadlock):
            other.writer.acquire()
    assert got == [False]


def test_closing_one_handle_keeps_what_another_holds(lock: shmlock.RWLock, start: Start) -> None:
    """Holds are given up with the last handle of the process, not with any; then others get in."""
    other = type(lock)(lock.name)
    lock.writer.acquire()
    other.close()

    def write(peer: Peer) -> None:
        peer.say(type(lock)(lock.name).writer.acquire(timeout=0))

    assert start(write).hear() is False
    lock.close()
    assert start(write).hear() is True


@pytest.mark.parametrize("last", [True, False], ids=["the last", "one of two"])
@pytest.mark.parametrize("mode", ["reader", "writer"])
@pytest.mark.parametrize("use", ["with", "acquire"])
def test_a_handle_that_is_closed_while_a_thread_waits(
    lock: shmlock.RWLock, start: Start, use: str, mode: str, last: bool
) -> None:
    """The thread gets ClosedError, at once or when it would be its turn, and has nothing: nobody waits for it."""
    child = start(holder(lock, "writer"))
    assert child.hear() == "ready"
    child.say("go")
    assert child.hear() == "in"
    closing = lock if last else type(lock)(lock.name)
    face = getattr(closing, mode)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(face.acquire if use == "acquire" else face.__enter__)
        until(waiting(lock, 1))
        closing.close()
        if last:
            assert isinstance(entering.exception(HANG), shmlock.ClosedError)
        child.say("leave")
        assert isinstance(entering.exception(HANG), shmlock.ClosedError)
        with type(lock)(lock.name) as again:
            assert child.hear() == "out"
            assert again.writer.acquire(timeout=HANG)
            again.writer.release()
            assert pool.submit(again.writer.acquire, timeout=HANG).result() is True


def test_every_use_after_close_is_an_error(lock: shmlock.RWLock) -> None:
    """After close(), every method raises ClosedError naming the object; closing again is nothing."""
    lock.close()
    lock.close()
    for use in (
        lock.reader.acquire,
        lock.reader.release,
        lock.reader.__enter__,
        lock.writer.acquire,
        lock.writer.release,
        lock.writer.__enter__,
        lock.statistics,
        lock.unlink,
        lock.is_stale,
        lock.optimistic_stamp,
        lock.mark_consistent,
        lock.reap,
        lambda: lock.validate(2),
        lambda: pickle.dumps(lock),
        lock.__enter__,
    ):
        with pytest.raises(shmlock.ClosedError, match=lock.name):
            use()
    assert "closed" in repr(lock)


def test_a_thread_that_ends_frees_its_slot(name: str, kind: type[shmlock.RWLock]) -> None:
    """Far more threads than slots may use a lock one after the other."""
    with kind(name, max_participants=3) as lock:
        for _ in range(20):
            thread = threading.Thread(target=write_once, args=(lock,))
            thread.start()
            thread.join()
        assert lock.statistics().write.locks == 20
        assert lock.statistics().evictions == 0


def test_a_thread_takes_part_anew_after_another_has_closed(name: str, kind: type[shmlock.RWLock]) -> None:
    """In the slot that it had, and with nothing of what it held: there is room for no other."""
    lock = kind(name, max_participants=1)
    lock.reader.acquire()
    closing = threading.Thread(target=lock.close)
    closing.start()
    closing.join()
    with kind(name) as again:
        assert again.writer.acquire(timeout=HANG)
        again.writer.release()


def test_a_hold_of_an_ended_thread_is_evicted(lock: shmlock.RWLock) -> None:
    """A thread that ends inside W has died as a holder: the next one gets the lock and is told."""
    thread = threading.Thread(target=lock.writer.acquire)
    thread.start()
    thread.join()
    with lock.write_lock(timeout=30) as hold:
        assert hold.owner_died


def test_a_full_table_is_an_error_that_says_the_way_out(name: str, kind: type[shmlock.RWLock]) -> None:
    """When all slots belong to the living, a further thread gets ParticipantsExhausted and can try again."""
    with kind(name, max_participants=1) as lock:
        caught: list[Exception] = []

        def attempt() -> None:
            try:
                with lock.reader:
                    pass
            except shmlock.ParticipantsExhausted as error:
                caught.append(error)

        with lock.reader:
            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()
        assert "max_participants" in str(caught[0])


# --- forks and pickles


def test_a_forked_child_has_none_of_its_parent_s_holds(lock: shmlock.RWLock, start: Start) -> None:
    """Its release raises NotHeld, its end gives up nothing, its own holds are its own."""

    def child(peer: Peer) -> None:
        for face in (lock.reader, lock.writer):
            with pytest.raises(shmlock.NotHeld):
                face.release()
        gc.collect()
        peer.say(lock.writer.acquire(timeout=0))
        with lock.reader:
            peer.say("reads")

    with lock.reader:
        forked = start(child)
        assert forked.hear() is False
        assert forked.hear() == "reads"
        assert forked.join() == 0
        with pytest.raises(shmlock.WouldDeadlock):  # still held
            lock.writer.acquire()
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()


def test_a_fork_while_another_thread_is_inside_the_lock(lock: shmlock.RWLock, start: Start) -> None:
    """Whatever the other threads do at the moment of a fork, the child can use the lock."""
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            with lock.writer:
                pass
            with type(lock)(lock.name).reader:
                pass

    thread = threading.Thread(target=churn)
    thread.start()
    try:

        def child(_: Peer) -> None:
            with lock.write_lock(timeout=30), lock.reader:
                pass
            with type(lock)(lock.name).read_lock(timeout=30):
                pass

        for _ in range(30):
            assert start(child).join() == 0
    finally:
        done.set()
        thread.join()


def test_a_pickle_attaches_by_name(lock: shmlock.RWLock) -> None:
    """A pickled lock is a handle on the same lock; when its name is gone, unpickling says so."""
    data = pickle.dumps(lock)
    with lock.writer:
        copy = pickle.loads(data)
        with pytest.raises(shmlock.WouldDeadlock):
            copy.writer.acquire()
    copy.close()
    lock.unlink()
    with pytest.raises(shmlock.SegmentNotFound, match=lock.name):
        pickle.loads(data)


def test_a_name_that_was_unlinked_goes_on_and_says_so(lock: shmlock.RWLock, start: Start) -> None:
    """Those attached go on among themselves after unlink(); is_stale and repr say it; the new name is another lock."""
    lock.unlink()
    lock.unlink()
    assert lock.is_stale()
    assert "name is gone" in repr(lock)

    def child(peer: Peer) -> None:
        peer.say("ready")
        with lock.writer:
            peer.say("in")

    with lock.writer:
        waiter = start(child)
        waiter.hear()
        until(waiting(lock, 1))
        with type(lock)(lock.name) as other:
            assert other.writer.acquire(timeout=0)
    assert waiter.hear() == "in"


# --- optimistic reads


def test_a_stamp_is_good_until_somebody_writes(lock: shmlock.RWLock) -> None:
    """A stamp validates until the next write begins; there is none while somebody writes; 0 never validates."""
    stamp = lock.optimistic_stamp()
    assert stamp
    assert lock.validate(stamp)
    with lock.writer:
        assert lock.optimistic_stamp() == 0
        assert not lock.validate(stamp)
    assert not lock.validate(stamp)
    assert not lock.validate(0)
    assert lock.validate(lock.optimistic_stamp())


def test_read_consistent_throws_torn_reads_away(lock: shmlock.RWLock) -> None:
    """What was read while somebody wrote is not returned, and what it raised is not raised; at last R is taken."""
    calls: list[bool] = []

    def read() -> str:
        held = "1 reading" in repr(lock)
        calls.append(held)
        if not held:
            with lock.writer:
                pass  # each optimistic run is disturbed
            raise LookupError("torn")
        return "whole"

    assert lock.read_consistent(read) == "whole"
    assert calls[-1]
    assert not any(calls[:-1])
    with pytest.raises(KeyError):
        lock.read_consistent(lambda: os.environ["AN ERROR OF AN UNDISTURBED RUN"])


def test_an_optimistic_read_stores_nothing(lock: shmlock.RWLock) -> None:
    """When nobody writes, the segment is the same afterwards, to the bit."""
    with lock.reader:
        pass
    before = bytes(lock._segment.words)
    for _ in range(100):
        stamp = lock.optimistic_stamp()
        assert lock.validate(stamp)
        assert lock.read_consistent(lambda: 7) == 7
    assert bytes(lock._segment.words) == before


def test_optimistic_reads_while_a_writer_is_stopped(lock: shmlock.RWLock, start: Start) -> None:
    """There is no stamp, at once; read_consistent waits for it, as a reader does, and gets what it has written."""

    def write(peer: Peer) -> None:
        ours = type(lock)(lock.name)
        with ours.writer:
            peer.say("in")
            peer.hear()

    def read(peer: Peer) -> None:
        ours = type(lock)(lock.name)
        peer.say(ours.optimistic_stamp())
        peer.say(ours.read_consistent(lambda: "read"))

    stamp = lock.optimistic_stamp()
    writer = start(write)
    assert writer.hear() == "in"
    writer.stop()
    reader = start(read)
    assert reader.hear() == 0
    until(waiting(lock, 1))
    assert not lock.validate(stamp)
    writer.cont()
    writer.say("go on")
    assert reader.hear() == "read"


def test_optimistic_reads_after_a_writer_was_killed(lock: shmlock.RWLock, start: Start) -> None:
    """The sequence stays odd until it is evicted, which read_consistent sees to; older stamps are not good any more."""

    def die(_: Peer) -> None:
        type(lock)(lock.name).writer.acquire()

    stamp = lock.optimistic_stamp()
    assert start(die).join() == 0
    assert lock.optimistic_stamp() == 0
    assert not lock.validate(stamp)
    assert lock.read_consistent(lambda: lock.reader.owner_died) is True
    assert lock.optimistic_stamp() > stamp
    assert not lock.validate(stamp)


# --- statistics


def test_statistics_count_and_print(lock: shmlock.RWLock) -> None:
    """Locks, unlocks and their difference, in the table's form; counters of ended threads are kept."""
    with lock.writer:
        table = str(lock.statistics())
        assert f"Stats about Lock {lock.name}:" in table
        assert "write lock  : 1" in table
        assert "write unlock: 0 (1)" in table
    thread = threading.Thread(target=write_once, args=(lock,))
    thread.start()
    thread.join()
    seen = lock.statistics()
    assert (seen.write.locks, seen.write.unlocks, seen.write.waits) == (2, 2, 0)
    assert pickle.loads(pickle.dumps(seen)) == seen


def test_full_statistics_count_fast_reads(name: str, kind: type[shmlock.RWLock]) -> None:
    """statistics="full" counts every read, and attaching with another setting is refused."""
    with kind(name, statistics="full") as lock:
        for _ in range(3):
            with lock.reader:
                pass
        lock.reader.acquire()
        assert (lock.statistics().read.locks, lock.statistics().read.unlocks) == (4, 3)
        lock.reader.release()
        with pytest.raises(shmlock.LayoutMismatch, match="statistics is 'full' in the segment and 'slow'"):
            kind(name, statistics="slow")


def test_waits_are_counted(lock: shmlock.RWLock, start: Start) -> None:
    """A wait is counted with its time, its longest and its place in the histogram."""
    child = start(holder(lock, "writer"))
    child.hear()
    with lock.writer:
        child.say("go")
        until(waiting(lock, 1))
    assert child.hear() == "in"
    seen = lock.statistics()
    assert seen.write.waits == 1
    assert 0 < seen.write.longest_wait_ns == seen.write.wait_ns
    assert sum(seen.wait_histogram) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_participants": 0},
        {"max_participants": "many"},
        {"mode": 0o4755},
        {"owner": (0,)},
        {"owner": "root"},
        {"on_owner_died": "ignore"},
        {"statistics": "some"},
    ],
)
def test_bad_arguments_create_nothing(name: str, kind: type[shmlock.RWLock], wrong: dict[str, Any]) -> None:
    """A bad argument is a ValueError that names it, and no segment is left behind."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kind(name, **wrong)
    with pytest.raises(shmlock.SegmentNotFound):
        kind(name, create=False)
