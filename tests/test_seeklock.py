"""SeekLock as its users meet it: who goes together with whom, every conversion, and what an interruption leaves."""

from __future__ import annotations

import pickle
import signal
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import shmlock
from tests.order import until, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start

Other: TypeAlias = "Callable[..., Any]"
"""`other("reader.acquire", timeout=0)`: what a second process gets for it, or the name of the error."""


@pytest.fixture
def lock(name: str) -> Iterator[shmlock.SeekLock]:
    """A fresh lock, closed at the end."""
    with shmlock.SeekLock(name, max_participants=16) as made:
        yield made


class Obedient:
    """A process that uses the lock as it is told to."""

    def __init__(self, lock: shmlock.SeekLock, start: Start) -> None:
        def obey(peer: Peer) -> None:
            ours = shmlock.SeekLock(lock.name)
            while True:
                what, arguments = peer.hear()
                try:
                    peer.say(attrgetter(what)(ours)(**arguments))
                except shmlock.ShmlockError as error:
                    peer.say(type(error).__name__)

        self.child: Child = start(obey)

    def begin(self, what: str, **arguments: object) -> None:
        """Have it begin something that may have to wait."""
        self.child.say((what, arguments))

    def end(self) -> Any:
        """What came of it."""
        return self.child.hear()

    def __call__(self, what: str, **arguments: object) -> Any:
        """Have it do something, and wait for what comes of it."""
        self.begin(what, **arguments)
        return self.end()

    def hold(self, mode: str) -> None:
        """R, S or W, which must be to be had."""
        assert self(f"{FACES[mode]}.acquire", timeout=30) is True

    def may(self, mode: str) -> bool:
        """Whether a mode is to be had now; it is given back."""
        held = self(f"{FACES[mode]}.acquire", timeout=0)
        assert isinstance(held, bool), held
        if held:
            self(f"{FACES[mode]}.release")
        return held

    def may_all(self) -> str:
        """The modes that are to be had now."""
        return "".join(mode for mode in "RSW" if self.may(mode))


FACES = {"R": "reader", "S": "seeker", "W": "writer"}


@pytest.fixture
def others(lock: shmlock.SeekLock, start: Start) -> Callable[[], Obedient]:
    """Makes other processes."""
    return lambda: Obedient(lock, start)


def wait_for_waiters(lock: shmlock.SeekLock, number: int) -> None:
    """Go on when so many wait."""
    until(waiting(lock, number))


# --- together


@pytest.mark.parametrize(("held", "free"), [("R", "RS"), ("S", "R"), ("W", "")])
def test_who_goes_together(lock: shmlock.SeekLock, others: Callable[[], Obedient], held: str, free: str) -> None:
    """Beside R: R and S. Beside S: R. Beside W: nobody. And afterwards everything."""
    other = others()
    with getattr(lock, FACES[held]):
        assert other.may_all() == free
    assert other.may_all() == "RSW"


def test_readers_flow_past_a_writer_that_waits_for_a_seeker(
    lock: shmlock.SeekLock, others: Callable[[], Obedient]
) -> None:
    """A W that is queued behind an S holds up no reader, but the next seeker."""
    writer, reader = others(), others()
    with lock.seeker:
        writer.begin("writer.acquire")
        wait_for_waiters(lock, 1)
        assert reader.may_all() == "R"
    assert writer.end() is True
    assert reader.may_all() == ""


def test_a_seeker_that_waits_holds_up_no_reader(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """Readers flow past a second S as well."""
    second, reader = others(), others()
    with lock.seeker:
        second.begin("seeker.acquire")
        wait_for_waiters(lock, 1)
        assert reader.may_all() == "R"
    assert second.end() is True


def test_seekers_and_writers_queue_first_come_first_served(
    lock: shmlock.SeekLock, others: Callable[[], Obedient]
) -> None:
    """S, W, S, W, in the order in which they asked, one after the other."""
    queue = [others() for _ in range(4)]
    with lock.writer:
        for number, other in enumerate(queue):
            other.begin("seeker.acquire" if number % 2 == 0 else "writer.acquire")
            wait_for_waiters(lock, number + 1)
    for number, other in enumerate(queue):
        assert other.end() is True
        wait_for_waiters(lock, 3 - number) if number < 3 else None
        other("seeker.release" if number % 2 == 0 else "writer.release")


SAME = {
    ("R", "R"): True,
    ("R", "S"): "read_to_seek",
    ("R", "W"): "read_to_write",
    ("S", "R"): True,
    ("S", "S"): "already",
    ("S", "W"): "upgrade",
    ("W", "R"): True,
    ("W", "S"): "for writing",
    ("W", "W"): "for writing",
}


@pytest.mark.parametrize(("held", "asked"), SAME)
def test_what_one_thread_may_hold_together(lock: shmlock.SeekLock, held: str, asked: str) -> None:
    """R nests in everything. Whatever would wait for itself is an error at once, and names the way out."""
    expected = SAME[held, asked]
    with getattr(lock, FACES[held]):
        face = getattr(lock, FACES[asked])
        if expected is True:
            assert face.acquire()
            face.release()
        else:
            with pytest.raises(shmlock.WouldDeadlock, match=str(expected)):
                face.acquire()
            with pytest.raises(shmlock.WouldDeadlock):
                face.acquire(blocking=False)
    assert "free" in repr(lock)


# --- read to seek, read to write


def test_read_to_seek(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """Beside other readers R becomes S, and no R is left; back again it is an R."""
    other = others()
    other.hold("R")
    assert lock.reader.acquire()
    assert lock.read_to_seek() is True
    with pytest.raises(shmlock.NotHeld):
        lock.reader.release()
    assert other("read_to_seek") is False
    lock.seek_to_read()
    with pytest.raises(shmlock.NotHeld):
        lock.seeker.release()
    assert other("read_to_seek") is True
    lock.reader.release()
    assert "free" not in repr(lock)
    other("seeker.release")
    assert "free" in repr(lock)


def test_read_to_seek_gives_way_to_a_writer_that_waits(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """Readers that seek again and again do not starve a W: with one waiting R stays R, and W has its turn."""
    writer = others()
    assert lock.reader.acquire()
    writer.begin("writer.acquire")
    wait_for_waiters(lock, 1)
    assert lock.read_to_seek() is False
    assert lock.read_to_write() is False
    lock.reader.release()
    assert writer.end() is True


def test_read_to_write(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """Alone, R becomes W at once; with another reader, or a seeker, it stays R."""
    other = others()
    assert lock.reader.acquire()
    for mode in "RS":
        other.hold(mode)
        assert lock.read_to_write() is False
        other(f"{FACES[mode]}.release")
    assert lock.read_to_write() is True
    assert other.may_all() == ""
    lock.write_to_read()
    assert other.may_all() == "RS"
    lock.reader.release()


def test_a_nested_read_converts_its_innermost(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """The outer R goes on beneath the S, or W, that the inner one has become."""
    other = others()
    for convert, back in (("read_to_seek", "seek_to_read"), ("read_to_write", "write_to_read")):
        with lock.reader:
            with lock.reader:
                assert getattr(lock, convert)() is True
                getattr(lock, back)()
            with lock.reader:
                assert getattr(lock, convert)() is True
            assert other.may_all() in {"R", ""}, "it ends with the outer one, since the inner one left the other R"
        assert other.may_all() == "RSW"


# --- seek to write and back


def test_an_upgrade_waits_for_readers_and_holds_up_new_ones(
    lock: shmlock.SeekLock, others: Callable[[], Obedient]
) -> None:
    """S to W waits until the readers that are in have left; readers that come meanwhile wait for it, then go on."""
    seeker, reader, late = others(), others(), others()
    seeker.hold("S")
    reader.hold("R")
    seeker.begin("seek_to_write")
    wait_for_waiters(lock, 1)
    late.begin("reader.acquire")
    wait_for_waiters(lock, 2)
    reader("reader.release")
    assert seeker.end() is True
    assert not reader.may("R")
    seeker("write_to_seek")
    assert late.end() is True
    assert reader.may_all() == "R"
    seeker("seeker.release")
    late("reader.release")


@pytest.mark.parametrize("number", range(4))
def test_an_upgrade_waits_for_every_reader(others: Callable[[], Obedient], number: int) -> None:
    """Of 0, 1, 2, 3 readers it waits for the last, whichever that is."""
    for last in range(max(number, 1)):
        seeker, readers = others(), [others() for _ in range(number)]
        for reader in readers:
            reader.hold("R")
        seeker.hold("S")
        for left, reader in enumerate(readers[last:] + readers[:last]):
            assert seeker("seek_to_write", timeout=0) is False, f"{number - left} are in"
            reader("reader.release")
        assert seeker("seek_to_write", timeout=0) is True
        seeker("writer.release")
        seeker("seeker.release")


def test_an_upgrade_goes_before_all_that_wait(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """A queued W gets in neither before the upgrade, nor between W and S again, but after the seek."""
    writer, other = others(), others()
    with lock.seeker:
        writer.begin("writer.acquire")
        wait_for_waiters(lock, 1)
        with lock.upgraded():
            assert other.may_all() == ""
        assert other.may_all() == "R"
        wait_for_waiters(lock, 1)
    assert writer.end() is True


def test_an_upgrade_whose_time_is_over_is_a_seek(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """False, or LockTimeout, leaves S, and readers flow again."""
    reader, other = others(), others()
    reader.hold("R")
    with lock.seeker:
        assert lock.seek_to_write(timeout=0) is False
        assert lock.seek_to_write(timeout=0.02) is False
        with pytest.raises(shmlock.LockTimeout, match="still held"), lock.upgraded(timeout=0.02):
            pytest.fail("a reader is in")
        assert lock.statistics().timeouts == 3
        assert other.may_all() == "R"
        reader("reader.release")
        assert lock.seek_to_write(timeout=0) is True
    assert other.may_all() == "RSW"


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_bad_timeouts_of_an_upgrade_change_nothing(lock: shmlock.SeekLock, timeout: float) -> None:
    """They are refused where they are written."""
    with lock.seeker:
        for upgrade in (lock.seek_to_write, lock.upgraded):
            with pytest.raises(ValueError, match="timeout"):
                upgrade(timeout=timeout)
        assert "sought" in repr(lock)
        assert "written" not in repr(lock)


def test_an_upgrade_while_reading_inside(lock: shmlock.SeekLock) -> None:
    """A seeker that reads inside does not wait for itself."""
    with lock.seeker, lock.reader, lock.upgraded(timeout=0):
        pass
    assert "free" in repr(lock)


def test_write_to_seek_and_write_to_read(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """W becomes S, or R, with nobody in between: the W that waits goes on waiting, the R that waits comes in."""
    for convert, face in ((lock.write_to_seek, lock.seeker), (lock.write_to_read, lock.reader)):
        writer, reader = others(), others()
        assert lock.writer.acquire()
        writer.begin("writer.acquire")
        wait_for_waiters(lock, 1)
        reader.begin("reader.acquire")
        wait_for_waiters(lock, 2)
        convert()
        assert reader.end() is True
        reader("reader.release")
        wait_for_waiters(lock, 1)
        face.release()
        assert writer.end() is True
        writer("writer.release")


def test_an_upgraded_write_to_read_ends_the_seek(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """S, W, R: one R is left."""
    other = others()
    assert lock.seeker.acquire()
    assert lock.seek_to_write()
    lock.write_to_read()
    assert other.may_all() == "RS"
    lock.reader.release()
    assert other.may_all() == "RSW"


def test_releasing_an_upgraded_write_leaves_the_seek(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """As documented; and a seek that is upgraded can't be released under it."""
    other = others()
    assert lock.seeker.acquire()
    assert lock.seek_to_write()
    for give_up in (lock.seeker.release, lock.seek_to_read):
        with pytest.raises(shmlock.NotHeld, match="write_to_seek"):
            give_up()
    with pytest.raises(shmlock.WouldDeadlock):
        lock.seek_to_write()
    lock.writer.release()
    assert other.may_all() == "R"
    lock.seeker.release()


# --- at once or not at all


def test_acquire_nowait(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """W if nobody is in or waits; with a reader in, the gate is not even closed."""
    other = others()
    for mode in "RSW":
        other.hold(mode)
        before = lock.statistics().revocations
        assert lock.writer.acquire_nowait() is False
        assert lock.statistics().revocations == before
        other(f"{FACES[mode]}.release")
    assert lock.writer.acquire_nowait() is True
    assert other.may_all() == ""
    lock.writer.release()
    with lock.reader, pytest.raises(shmlock.WouldDeadlock):
        lock.writer.acquire_nowait()


# --- what ends a hold


WAYS: dict[str, list[str]] = {
    "reader": ["", "read_to_seek", "read_to_write", "read_to_seek seek_to_write", "read_to_write write_to_seek"],
    "seeker": ["", "seek_to_write", "seek_to_read", "seek_to_write write_to_read", "seek_to_read read_to_write"],
    "writer": ["", "write_to_seek", "write_to_read", "write_to_seek seek_to_write", "write_to_seek seek_to_read"],
}


@pytest.mark.parametrize(("face", "way"), [(face, way) for face, ways in WAYS.items() for way in ways])
@pytest.mark.parametrize("fails", [False, True], ids=["", "and an exception"])
def test_a_hold_ends_with_its_with(
    lock: shmlock.SeekLock, others: Callable[[], Obedient], face: str, way: str, fails: bool
) -> None:
    """Whatever the hold has become inside, nothing is left of it after the `with`."""
    other = others()
    for _ in range(2):  # the second time with nothing to claim
        try:
            with getattr(lock, face):
                for step in way.split():
                    assert getattr(lock, step)() in {True, None}
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert fails
        assert "free" in repr(lock)
        assert other.may_all() == "RSW"
    seen = lock.statistics()
    assert seen.write.locks == seen.write.unlocks
    assert seen.seek.locks == seen.seek.unlocks


@pytest.mark.parametrize(
    "call",
    ["read_to_seek", "read_to_write", "seek_to_write", "seek_to_read", "write_to_seek", "write_to_read",
     "reader.release", "seeker.release", "writer.release"],
)  # fmt: skip
def test_there_must_be_a_hold(lock: shmlock.SeekLock, start: Start, call: str) -> None:
    """Without the hold that a call converts, or with one of another thread, or of the parent: NotHeld."""
    convert = attrgetter(call)(lock)
    with pytest.raises(shmlock.NotHeld, match=lock.name):
        convert()

    def child(peer: Peer) -> None:
        with pytest.raises(shmlock.NotHeld):
            convert()
        peer.say("refused")

    def thread() -> None:
        with pytest.raises(shmlock.NotHeld):
            convert()
        refused.append(True)

    refused: list[bool] = []
    face: Any = {"r": lock.reader, "s": lock.seeker, "w": lock.writer}[call[0]]
    assert face.acquire()
    assert start(child).hear() == "refused"
    other = threading.Thread(target=thread)
    other.start()
    other.join()
    assert refused
    face.release()
    with pytest.raises(shmlock.NotHeld), face:
        face.release()


def test_an_exception_in_an_upgrade_leaves_the_seek(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """Who catches it inside the seek still seeks."""
    other = others()
    with lock.seeker:
        with pytest.raises(ZeroDivisionError), lock.upgraded():
            raise ZeroDivisionError
        assert other.may_all() == "R"
        with lock.upgraded(timeout=0):
            pass


def test_a_signal_that_ends_an_upgrade_s_wait_leaves_the_seek(lock: shmlock.SeekLock, start: Start) -> None:
    """Interrupted while it waits for a reader: the seek is held, readers flow, and nobody waits any more."""

    def seek(peer: Peer) -> None:
        def handler(*_: object) -> None:
            raise InterruptedError

        signal.signal(signal.SIGUSR1, handler)
        ours = shmlock.SeekLock(lock.name)
        with ours.seeker:
            peer.say("in")
            try:
                ours.seek_to_write()
            except InterruptedError:
                peer.say("interrupted")
            peer.hear()
        peer.say("left")

    with lock.reader:
        child = start(seek)
        assert child.hear() == "in"  # who asks for the seek is seen to wait, too, for a moment
        wait_for_waiters(lock, 1)
        child.signal(signal.SIGUSR1)
        assert child.hear() == "interrupted"
        assert "sought" in repr(lock)
        assert "waiting" not in repr(lock)
        assert Obedient(lock, start).may_all() == "R"
    child.say("go on")
    assert child.hear() == "left"
    assert "free" in repr(lock)


# --- the dead


@pytest.mark.parametrize("way", ["seeker", "upgrade that waits", "upgrade", "converted read"])
def test_a_killed_seeker_holds_up_nobody(lock: shmlock.SeekLock, start: Start, way: str) -> None:
    """Killed in S, waiting for W, or in W: it is evicted, and only a W is said to have died inside."""

    def die(peer: Peer) -> None:
        ours = shmlock.SeekLock(lock.name)
        if way == "converted read":
            ours.reader.acquire()
            ours.read_to_seek()
        else:
            ours.seeker.acquire()
        if way == "upgrade":
            ours.seek_to_write()
        peer.say("in")
        if way == "upgrade that waits":
            ours.seek_to_write()
        peer.hear()

    if way == "upgrade that waits":
        assert lock.reader.acquire()
    child = start(die)
    assert child.hear() == "in"
    if way == "upgrade that waits":
        wait_for_waiters(lock, 1)
    child.kill()
    if way == "upgrade that waits":
        assert Obedient(lock, start)("reader.acquire", timeout=30) is True
        lock.reader.release()
        return
    assert lock.seeker.acquire(timeout=30)
    assert lock.seeker.owner_died == (way == "upgrade")
    with lock.upgraded(timeout=30) as hold:
        assert hold.owner_died == (way == "upgrade")
    assert not lock.seeker.owner_died
    lock.seeker.release()
    assert lock.statistics().evictions == 1


def killed_writer(lock: shmlock.SeekLock, start: Start) -> None:
    """Have a process be killed while it writes."""

    def die(peer: Peer) -> None:
        shmlock.SeekLock(lock.name).writer.acquire()
        peer.say("in")
        peer.hear()

    child = start(die)
    assert child.hear() == "in"
    child.kill()
    lock.reap()


def test_on_owner_died_raise(lock: shmlock.SeekLock, start: Start) -> None:
    """No mode is to be had until somebody has mended the data; what raises holds nothing, or what it held before."""
    killed_writer(lock, start)
    strict = shmlock.SeekLock(lock.name, on_owner_died="raise")
    for face in (strict.reader, strict.seeker, strict.writer):
        with pytest.raises(shmlock.OwnerDied):
            face.acquire()
        with pytest.raises(shmlock.OwnerDied), face:
            pytest.fail("the data may be torn")
    with pytest.raises(shmlock.OwnerDied):
        strict.writer.acquire_nowait()
    assert "free" in repr(lock)
    with lock.seeker:
        with pytest.raises(shmlock.OwnerDied):
            strict.seek_to_write()
        with pytest.raises(shmlock.OwnerDied), strict.upgraded():
            pytest.fail("the data may be torn")
        assert "sought" in repr(lock)
    with lock.reader:
        with pytest.raises(shmlock.OwnerDied):
            strict.read_to_write()
        assert "1 reading" in repr(lock)
    lock.mark_consistent()
    with strict.seeker, strict.upgraded():
        pass
    strict.close()


@pytest.mark.parametrize("face", ["reader", "seeker", "writer"])
def test_on_owner_died_callable(lock: shmlock.SeekLock, start: Start, face: str) -> None:
    """It runs alone, before the first holder in whatever mode, once; and if it raises, nothing is held."""
    other = Obedient(lock, start)
    killed_writer(lock, start)
    ran = []

    def fails() -> None:
        raise ZeroDivisionError

    with shmlock.SeekLock(lock.name, on_owner_died=fails) as failing:
        with pytest.raises(ZeroDivisionError):
            getattr(failing, face).acquire()
        assert "free" in repr(lock)
    with shmlock.SeekLock(lock.name, on_owner_died=lambda: ran.append(other.may_all())) as mending:
        for _ in range(2):
            with getattr(mending, face):
                assert other.may_all() == {"reader": "RS", "seeker": "R", "writer": ""}[face]
        assert ran == [""]
    assert "free" in repr(lock)


# --- optimistic reads, statistics, handles


def test_a_stamp_outlives_seekers_and_no_write(lock: shmlock.SeekLock) -> None:
    """Seeking changes nothing; an upgrade that changes nothing counts as a change."""
    stamp = lock.optimistic_stamp()
    with lock.seeker:
        assert lock.validate(stamp)
        with lock.upgraded():
            assert lock.optimistic_stamp() == 0
            assert not lock.validate(stamp)
        assert not lock.validate(stamp)
        assert lock.read_consistent(lambda: 7) == 7


@pytest.mark.parametrize("full", [False, True])
def test_statistics(name: str, start: Start, full: bool) -> None:
    """Each conversion counts as a lock and an unlock; the differences are what is held; the dead's are kept."""
    with shmlock.SeekLock(name, statistics="full" if full else "slow") as lock:
        with lock.seeker, lock.upgraded():
            pass
        with lock.reader:
            assert lock.read_to_seek()
            lock.seek_to_read()
        with lock.reader:
            assert lock.read_to_write()
            held = lock.statistics()
            assert (held.write.locks - held.write.unlocks, held.read.locks - held.read.unlocks) == (1, 0)

        def die(_: Peer) -> None:
            ours = shmlock.SeekLock(name)
            with ours.seeker, ours.upgraded():
                pass

        start(die).join()
        assert lock.reap() == 1
        seen = lock.statistics()
        assert (seen.write.locks, seen.write.unlocks) == (3, 3)
        assert (seen.seek.locks, seen.seek.unlocks) == (3, 3)
        assert seen.read.locks == seen.read.unlocks
        assert seen.read.locks >= (3 if full else 1)
        assert (seen.evictions, seen.owner_deaths, seen.timeouts) == (1, 0, 0)
        assert seen.revocation_ns > 0
        assert str(seen).count("lock  :") == 3
        assert "write unlock: 3 (0)" in str(seen)


def test_waits_are_counted_by_mode(lock: shmlock.SeekLock, others: Callable[[], Obedient]) -> None:
    """A seek that waited, and an upgrade that did: each in its mode, and both in the histogram."""
    other, reader = others(), others()
    with lock.seeker:
        other.begin("seeker.acquire")
        wait_for_waiters(lock, 1)
    assert other.end() is True
    reader.hold("R")
    other.begin("seek_to_write")
    wait_for_waiters(lock, 1)
    reader("reader.release")
    assert other.end() is True
    other("write_to_seek")
    other("seeker.release")
    seen = lock.statistics()
    assert (seen.seek.waits, seen.write.waits, seen.read.waits) == (1, 1, 0)
    assert seen.write.wait_ns >= seen.write.longest_wait_ns > 0
    assert sum(seen.wait_histogram) == 2


def test_a_pickle_is_a_seeklock_of_the_same_name(lock: shmlock.SeekLock) -> None:
    """It attaches, and means the same lock; another kind of lock does not attach to it."""
    with pickle.loads(pickle.dumps(lock)) as copy:
        assert isinstance(copy, shmlock.SeekLock)
        with lock.seeker, pytest.raises(shmlock.WouldDeadlock):
            copy.seeker.acquire()
    with pytest.raises(shmlock.LayoutMismatch, match="SeekLock"):
        shmlock.RWLock(lock.name)


def test_every_use_after_close_is_an_error(lock: shmlock.SeekLock) -> None:
    """Whatever it is, and it says so."""
    lock.close()
    for call in (lock.read_to_seek, lock.read_to_write, lock.seek_to_write, lock.seek_to_read, lock.write_to_seek,
                 lock.write_to_read, lock.seeker.acquire, lock.seeker.release, lock.writer.acquire_nowait,
                 lock.upgraded().__enter__, lock.seek_lock().__enter__):  # fmt: skip
        with pytest.raises(shmlock.ClosedError):
            call()


def test_timed_locks_raise_in_time_and_end_what_they_hold(
    lock: shmlock.SeekLock, others: Callable[[], Obedient]
) -> None:
    """`seek_lock(timeout)`, also when the hold was converted in it."""
    other = others()
    with lock.seek_lock(timeout=1):
        lock.seek_to_read()
    assert other.may_all() == "RSW"
    other.hold("S")
    with pytest.raises(shmlock.LockTimeout, match="seek"), lock.seek_lock(timeout=0.02):
        pytest.fail("another one seeks")
