"""Every situation in which what a process does with an object can be interrupted, and what must hold afterwards.

A situation is made of a name, and of `start` for the other processes in it: what is done `before` each use, the `use`,
and the `check` after it, whether it came to its end or not.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from errno import EOWNERDEAD
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest

import shmlock
from shmlock._engine.modes import MODE_BITS, WRITE
from shmlock._kernel import membarrier, robust
from shmlock._kernel.deadline import Deadline
from shmlock._segment.layout import (
    ABANDONED,
    DIRTY,
    GATE,
    GATE_CLOSED,
    GATE_OPEN,
    GATE_SLOW,
    HIGH_WATER,
    IN_USE,
    OWNER_DIED,
    READS,
    RESTING,
    SEEKER,
    WANT,
    WRITER,
    slot,
)
from shmlock.errors import LockTimeout, NotHeld, OwnerDied, WouldDeadlock
from tests.crash import uses
from tests.order import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child, Peer, Start

SHORT = 0.013  # seconds: the first in the queue looks for the dead once, and then its time is over


class Situation(NamedTuple):
    """What is run in it."""

    before: Callable[[], object]
    use: Callable[[], object]
    check: Callable[[], object]


Maker: TypeAlias = "Callable[[str, Start], Situation]"


def nothing() -> None:
    """What is done where there is nothing to do."""


def face(lock: shmlock.SeekLock, mode: str) -> Any:
    """The face of R, S or W."""
    return {"R": lock.reader, "S": lock.seeker, "W": lock.writer}[mode]


# --- what must hold


def what_is_held(lock: shmlock.RWLock) -> set[str]:
    """By the calling thread, or left of what it did."""
    words, me = lock._words, lock._engine.me()
    if me.number < 0:
        return set()
    if words[me.base + ABANDONED]:
        lock._engine.prepare()
    ours = me.number + 1
    return {
        name
        for name, there in (
            ("W", words[WRITER] == ours),
            ("S", words[SEEKER] == ours),
            ("R", words[me.base + READS]),
            ("a want", words[me.base + WANT]),
            ("something abandoned", words[me.base + ABANDONED]),
            ("busy", me.busy),
            ("a slot that is not its own", not words[me.base + IN_USE]),
        )
        if there
    }


def free_for_another_thread(lock: shmlock.RWLock) -> bool:
    """Whether a thread that has nothing to do with it can write."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.writer.acquire(timeout=30))
        lock.mark_consistent()
        lock.writer.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got == [True]


def nothing_left(lock: shmlock.RWLock) -> None:
    """Nothing is held or wanted by the calling thread, nothing is half done, and the accounts say so."""
    held = what_is_held(lock)
    assert not held, held
    assert free_for_another_thread(lock)
    assert lock._words[DIRTY] == 0


def nothing_left_of_the_dead(lock: shmlock.RWLock) -> None:
    """As above, when they have been taken out."""
    lock.reap()
    nothing_left(lock)


def rest(lock: Any) -> None:
    """Leave the gate as after writes in a row: the next reader asks. Otherwise it is 33 times open, and then rests."""
    words = lock._segment.words
    words[GATE], words[RESTING] = GATE_SLOW, 1


def open_gate(lock: Any) -> None:
    """Have the next reader take the fast path, if there is one, whatever was written before. Nobody may hold it."""
    words, header = lock._segment.words, lock._segment.header
    words[GATE], words[RESTING] = GATE_OPEN if header.fast else GATE_SLOW, 0


# --- alone


def alone(use: Callable[[Any], object], **options: Any) -> Maker:
    """One who is alone with a seek lock."""

    def make(name: str, _: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4, **options)
        use(lock)
        return Situation(functools.partial(rest, lock), functools.partial(use, lock), lambda: nothing_left(lock))

    return make


def timed(lock: shmlock.SeekLock) -> None:
    """All modes, with a time-out."""
    with lock.read_lock(timeout=30):
        pass
    with lock.write_lock(timeout=30):
        pass
    with lock.seek_lock(timeout=30), lock.upgraded(timeout=30):
        pass


def refused(lock: shmlock.SeekLock) -> None:
    """All that is an error: it changes nothing."""
    for face in (lock.reader, lock.writer, lock.seeker):
        with pytest.raises(NotHeld):
            face.release()
    for name in ("write_to_read", "write_to_seek", "seek_to_read", "seek_to_write", "read_to_seek", "read_to_write"):
        with pytest.raises(NotHeld):
            getattr(lock, name)()
    with lock.seeker:
        with pytest.raises(WouldDeadlock):
            lock.writer.acquire()
        with lock.upgraded(), pytest.raises(WouldDeadlock):
            lock.seek_to_write()
        with lock.upgraded(), pytest.raises(NotHeld):
            lock.seeker.release()


def inside_a_write(lock: shmlock.SeekLock) -> None:
    """R within W, nested, and a look at it."""
    with lock.writer as hold, lock.reader, lock.reader:
        assert not hold.owner_died
        assert not lock.reader.owner_died


def consistent(lock: shmlock.SeekLock) -> None:
    """Optimistic reads, and those that find a writer; and all is vouched for."""
    assert lock.read_consistent(lambda: 1) == 1
    with lock.writer:
        assert lock.read_consistent(lambda: 2) == 2
    lock.mark_consistent()
    lock.reap()


def nowait(lock: shmlock.SeekLock) -> None:
    """All faces, without waiting."""
    for face in (lock.reader, lock.writer, lock.seeker):
        assert face.acquire(timeout=0)
        face.release()


def after_a_death(use: Callable[[Any], object], policy: Any) -> Maker:
    """One who comes after a writer was killed inside, and whose handle has a policy."""

    def make(name: str, _: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4, on_owner_died=policy, statistics="full")
        uses.write(lock)

        def before() -> None:
            lock._words[OWNER_DIED] = 1

        def check() -> None:
            assert not what_is_held(lock)
            lock.mark_consistent()
            nothing_left(lock)

        return Situation(before, functools.partial(use, lock), check)

    return make


def told(lock: shmlock.SeekLock) -> None:
    """With `on_owner_died="raise"`, whoever asks is told, and then holds what it held before."""
    for face in (lock.reader, lock.writer, lock.seeker):
        with pytest.raises(OwnerDied), face:
            pass
        with pytest.raises(OwnerDied):
            face.acquire()
    with pytest.raises(OwnerDied):
        lock.writer.acquire_nowait()
    for conversion in (lock.read_to_seek, lock.read_to_write):
        lock._words[OWNER_DIED] = 0
        with pytest.raises(OwnerDied), lock.reader:
            lock._words[OWNER_DIED] = 1
            conversion()
    lock._words[OWNER_DIED] = 0
    with lock.seeker:
        lock._words[OWNER_DIED] = 1
        with pytest.raises(OwnerDied):
            lock.seek_to_write()


def mended(lock: shmlock.SeekLock) -> None:
    """With a function that mends, in all modes."""
    for face in (lock.reader, lock.writer, lock.seeker):
        lock._words[OWNER_DIED] = 1
        with face:
            assert not lock._words[OWNER_DIED]
    with lock.seeker:
        lock._words[OWNER_DIED] = 1
        with lock.upgraded():
            assert not lock._words[OWNER_DIED]


def vouched(lock: shmlock.SeekLock) -> None:
    """The first that leaves cleanly vouches for the data."""
    with lock.writer as hold:
        assert hold.owner_died
    assert not lock._words[OWNER_DIED]


# --- others


def deaths(die: Callable[[], object]) -> Callable[[], None]:
    """Each call has a thread of its own run this, and end: it has released nothing.

    To the kernel, and so to all others, that is the death of a process. Those are forked in test_death_at_every_store;
    here there would be thousands more.
    """

    def one() -> None:
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()  # Python's thread; up to 3.12 the kernel's may not have ended yet
        until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())

    return one


def holders(lock: shmlock.RWLock, mode: str) -> Callable[[], None]:
    """Each call leaves one that died while it held the lock."""
    return deaths(getattr(lock, mode).acquire)


def beside_the_dead(mode: str, use: Callable[[Any], object]) -> Maker:
    """One who finds that a holder was killed."""

    def make(name: str, _: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4)
        use(lock)
        return Situation(holders(lock, mode), functools.partial(use, lock), lambda: nothing_left_of_the_dead(lock))

    return make


def after_half_a_change(use: Callable[[Any], object]) -> Maker:
    """One who takes the guard after somebody who was cut off in it: a grant of W, all but its last store."""

    def make(name: str, _: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4)
        uses.read(lock)
        die = holders(lock, "writer")

        def before() -> None:
            die()
            lock._words[slot(lock._words[WRITER] - 1) + WANT] = 1 << MODE_BITS | WRITE
            lock._words[DIRTY] = 1

        return Situation(before, functools.partial(use, lock), lambda: nothing_left_of_the_dead(lock))

    return make


def holding(name: str, start: Start, face: str) -> Child:
    """A process that holds the lock when it is told to, and until somebody waits for it, or it is told to leave."""

    def hold(peer: Peer) -> None:
        lock = shmlock.SeekLock(name)
        while peer.hear():
            with getattr(lock, face):
                peer.say("in")
                until(lambda: "waiting" in repr(lock) or peer.said())
            assert peer.hear() == "leave"
            peer.say("out")

    return start(hold)


def granted(held: str, use: Callable[[Any], object]) -> Maker:
    """One who waits until another, who is in, has left."""

    def make(name: str, start: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4)
        use(lock)
        holder = holding(name, start, held)

        def before() -> None:
            rest(lock)
            holder.say("hold")
            assert holder.hear() == "in"

        def check() -> None:
            holder.say("leave")
            assert holder.hear() == "out"
            nothing_left(lock)

        return Situation(before, functools.partial(use, lock), check)

    return make


def in_vain(held: str, use: Callable[[Any], object]) -> Maker:
    """One who waits for a process that stays, and gives up."""

    def make(name: str, start: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4)

        def stay(peer: Peer) -> None:
            ours = shmlock.SeekLock(name)
            while True:
                with getattr(ours, held):
                    peer.say("in")
                    peer.hear()
                peer.say("out")
                peer.hear()

        holder = start(stay)
        assert holder.hear() == "in"

        def check() -> None:
            assert not what_is_held(lock)
            holder.say("leave")
            assert holder.hear() == "out"
            nothing_left(lock)
            holder.say("again")
            assert holder.hear() == "in"

        return Situation(nothing, functools.partial(use, lock), check)

    return make


def give_up_reading(lock: shmlock.SeekLock) -> None:
    """R is not to be had."""
    assert not lock.reader.acquire(timeout=SHORT)
    assert not lock.reader.acquire(blocking=False)
    with pytest.raises(LockTimeout), lock.read_lock(timeout=0):
        pass


def give_up_writing(lock: shmlock.SeekLock) -> None:
    """W is not to be had."""
    assert not lock.writer.acquire(timeout=SHORT)
    assert not lock.writer.acquire(blocking=False)
    assert not lock.writer.acquire_nowait()
    with lock.read_lock(timeout=30):
        assert not lock.read_to_write()


def give_up_seeking(lock: shmlock.SeekLock) -> None:
    """S is not to be had, but R is."""
    assert not lock.seeker.acquire(timeout=SHORT)
    with lock.reader:
        assert not lock.read_to_seek()


def give_up_upgrading(lock: shmlock.SeekLock) -> None:
    """S stays S."""
    with lock.seeker:
        assert not lock.seek_to_write(timeout=SHORT)
        with pytest.raises(LockTimeout), lock.upgraded(timeout=0):
            pass


def behind_another(name: str, start: Start) -> Situation:
    """One who waits where another is the first in the queue, and gives up."""
    situation = in_vain("writer", give_up_reading)(name, start)
    lock = shmlock.SeekLock(name)

    def wait(peer: Peer) -> None:
        ours = shmlock.SeekLock(name)
        while peer.hear():
            with ours.writer:
                peer.say("in")

    first = start(wait)

    def before() -> None:
        first.say("wait")
        until(lambda: "1 waiting" in repr(lock))

    def check() -> None:
        situation.check()
        assert first.hear() == "in"

    return situation._replace(before=before, check=check)


# --- what the dead and the interrupted have left


def with_words(spoil: Callable[[shmlock.SeekLock], None], use: Callable[[Any], object]) -> Maker:
    """One who comes upon words as somebody who was cut off has left them."""

    def make(name: str, _: Start) -> Situation:
        lock = shmlock.SeekLock(name, max_participants=4)
        use(lock)
        return Situation(lambda: spoil(lock), functools.partial(use, lock), lambda: nothing_left(lock))

    return make


def weakly_ordered(make: Maker) -> Maker:
    """On a machine whose writers need all three fences."""

    def made(name: str, start: Start) -> Situation:
        situation = make(name, start)
        state = shmlock.SeekLock(name)._engine.state
        state._before_writing = state._before_opening = membarrier.fence
        return situation

    return made


def in_a_handler(name: str, _: Start) -> Situation:
    """In a signal handler that runs in the middle of a slow path of its own thread: all is refused."""
    lock = shmlock.SeekLock(name, max_participants=4)
    uses.read(lock)
    me = lock._engine.me()

    def before() -> None:
        me.busy, lock._engine.here.at = True, None

    def use() -> None:
        for ask in (lock.reader.acquire, lock.writer.acquire, lock.reader.release, lock.reap, lock._engine.leave):
            with pytest.raises(WouldDeadlock):
                ask()
        with pytest.raises(WouldDeadlock):
            lock.reader.__exit__(None, None, None)

    def check() -> None:
        me.busy, lock._engine.here.at = False, me.base + READS
        nothing_left(lock)

    return Situation(before, use, check)


def everything(lock: shmlock.SeekLock) -> None:
    """All that opens the gate."""
    uses.write(lock)
    assert lock.writer.acquire_nowait()
    lock.writer.release()
    uses.read(lock)
    uses.upgrade(lock)


def shut_gate(lock: shmlock.SeekLock) -> None:
    """By a writer that was killed before it was in."""
    lock._words[GATE] = GATE_CLOSED


def walk_away(lock: shmlock.SeekLock) -> None:
    """From a W, as one that is interrupted and can't have the guard."""
    assert lock.writer.acquire()
    me = lock._engine.me()
    lock._engine.here.at = None
    lock._words[me.base + ABANDONED] = 1 << WRITE


def guard_of_the_dead(name: str, _: Start) -> Situation:
    """The guard's last owner was killed in it."""
    lock = shmlock.SeekLock(name, max_participants=4)

    def die() -> None:
        assert robust.trylock(lock._segment.guard_address) == 0

    return Situation(deaths(die), functools.partial(uses.write, lock), lambda: nothing_left(lock))


def guard_of_the_stopped(name: str, start: Start) -> Situation:
    """The guard's owner does not go on, in any time that we have."""
    lock = shmlock.SeekLock(name, max_participants=4)
    uses.read(lock)

    def stay(peer: Peer) -> None:
        address = shmlock.SeekLock(name)._segment.guard_address
        while True:
            assert robust.trylock(address) == 0
            peer.say("in")
            peer.hear()
            robust.unlock(address)
            peer.say("out")
            peer.hear()

    holder = start(stay)
    assert holder.hear() == "in"

    def use() -> None:
        assert not lock.writer.acquire(timeout=SHORT)
        assert not lock.writer.acquire_nowait()
        assert not lock._engine.watch(bool, Deadline.after(SHORT))

    def check() -> None:
        holder.say("leave")
        assert holder.hear() == "out"
        nothing_left(lock)
        holder.say("again")
        assert holder.hear() == "in"

    return Situation(nothing, use, check)


def without_a_name(name: str, start: Start) -> Situation:
    """One who waits where no semaphore can be had any more, for the names are gone."""
    situation = in_vain("writer", lambda lock: lock.reader.acquire(timeout=SHORT))(name, start)
    shmlock.unlink(name)
    return situation


# --- slots


def first_use(name: str, start: Start, slots: int = 1) -> Situation:
    """The first use of a thread, which claims a slot; and the last, which gives it back."""
    locks: list[shmlock.RWLock] = []

    def before() -> None:
        locks[:] = [shmlock.RWLock(name, max_participants=4, statistics="full")]

    def use() -> None:
        with pytest.raises(NotHeld):
            locks[0].reader.__exit__(None, None, None)
        with locks[0].writer:
            pass
        locks[0].close()

    def check() -> None:
        locks[0].close()
        again = shmlock.RWLock(name)
        uses.read(again)
        nothing_left(again)
        again.reap()
        assert again._words[HIGH_WATER] <= slots, "a slot was lost"
        again.close()

    del start
    return Situation(before, use, check)


def beside_half_claims(name: str, start: Start) -> Situation:
    """A claim that meets one of a process that has just taken a latch, and one of a process that was killed there."""
    first = first_use(name, start, slots=2)

    lock = shmlock.RWLock(name, max_participants=4, statistics="full")
    latches = [lock._segment.latch_address(number) for number in range(2)]
    lock.close()

    def take(number: int) -> None:
        assert robust.trylock(latches[number]) in {0, EOWNERDEAD}

    def stay(peer: Peer) -> None:
        take(0)
        peer.say("has it")
        peer.hear()

    assert start(stay).hear() == "has it"
    die = deaths(lambda: take(1))

    def before() -> None:
        first.before()
        die()

    return first._replace(before=before)


def given_up(name: str, start: Start) -> Situation:
    """A claim of a thread whose slot another thread's close() gave up, so that it has the latch still."""
    first = first_use(name, start)

    def before() -> None:
        lock = shmlock.RWLock(name, max_participants=4, statistics="full")
        uses.read(lock)
        closing = threading.Thread(target=lock.close)
        closing.start()
        closing.join()
        first.before()

    return first._replace(before=before)


def beside_the_absent(name: str, start: Start) -> Situation:
    """One who waits for a hold that its owner, which lives, has walked away from."""
    lock = shmlock.SeekLock(name, max_participants=4)

    def leave(peer: Peer) -> None:
        ours = shmlock.SeekLock(name)
        while True:
            walk_away(ours)
            peer.say("away")
            peer.hear()
            uses.read(ours)

    owner = start(leave)

    def before() -> None:
        assert owner.hear() == "away"

    def check() -> None:
        nothing_left(lock)
        owner.say("again")

    return Situation(before, functools.partial(uses.write, lock), check)


def full_table(name: str, start: Start) -> Situation:
    """A claim that finds all slots taken, one of them by the dead."""
    locks: list[shmlock.RWLock] = []

    def hold_a_slot(peer: Peer) -> None:
        lock = shmlock.SeekLock(name)
        uses.read(lock)
        peer.say("has one")
        peer.hear()

    shmlock.SeekLock(name, max_participants=2).close()
    other = start(hold_a_slot)
    assert other.hear() == "has one"

    def before() -> None:
        locks[:] = [shmlock.SeekLock(name)]
        holders(locks[0], "reader")()

    def use() -> None:
        with locks[0].reader:
            pass

    def check() -> None:
        lock = locks[0]
        assert not what_is_held(lock)
        uses.write(lock)
        assert lock._words[HIGH_WATER] == 2
        lock.close()

    return Situation(before, use, check)


ALONE = [
    *(uses.seek, uses.write, uses.read, uses.upgrade, uses.seek_to_read, uses.seek_to_write_to_read),
    *(uses.write_to_seek, uses.read_to_seek, uses.read_to_seek_and_back, uses.read_to_write_and_back),
    *(uses.write_nowait, timed, refused, inside_a_write, consistent, nowait),
]

LOCKS: dict[str, Maker] = {
    **{f"alone: {use.__name__}": alone(use) for use in ALONE},
    **{f"counted: {use.__name__}": alone(use, statistics="full") for use in ALONE},
    "after a death: told": after_a_death(told, "raise"),
    "after a death: mended": after_a_death(mended, nothing),
    "after a death: mended, by a function of the lock": after_a_death(mended, lambda _: None),
    "after a death: vouched for": after_a_death(vouched, "flag"),
    "a dead reader: write": beside_the_dead("reader", uses.write),
    "a dead seeker: seek": beside_the_dead("seeker", uses.seek),
    "a dead writer: read": beside_the_dead("writer", uses.read),
    "half a change": after_half_a_change(uses.write),
    **{f"granted by a {held}: {use.__name__}": granted(held, use)
       for held, use in (("writer", uses.read), ("writer", uses.write), ("writer", uses.seek), ("reader", uses.write),
                         ("seeker", uses.seek), ("reader", uses.upgrade))},
    **{f"in vain: {use.__name__}": in_vain(held, use)
       for held, use in (("writer", give_up_reading), ("reader", give_up_writing), ("seeker", give_up_seeking),
                         ("reader", give_up_upgrading))},
    "in vain: behind another": behind_another,
    "a gate that the dead have shut": with_words(shut_gate, uses.read),
    "a hold that was abandoned": with_words(walk_away, uses.write),
    "weak order, half a change": weakly_ordered(after_half_a_change(everything)),
    "weak order, a hold that was abandoned": weakly_ordered(with_words(walk_away, uses.read)),
    "in a signal handler": in_a_handler,
    "a guard of the dead": guard_of_the_dead,
    "a guard of the stopped": guard_of_the_stopped,
    "without a name": without_a_name,
    "first use": first_use,
    "a full table": full_table,
    "half a claim": beside_half_claims,
    "a slot that another thread gave up": given_up,
    "a hold that another has abandoned": beside_the_absent,
}  # fmt: skip


# --- other objects


def mutex(name: str, _: Start) -> Situation:
    """A mutex, after a death and alone."""
    ours = shmlock.Mutex(name)

    die = deaths(ours.acquire)
    died = 0

    def before() -> None:
        nonlocal died
        die()
        died += 1

    def use() -> None:
        for told in (True, False):
            with ours:
                assert ours.owner_died == told
        assert not ours.locked()
        assert ours.acquire(timeout=0)
        ours.release()
        with pytest.raises(NotHeld):
            ours.release()
        assert ours.reap() == 0

    def check() -> None:
        assert ours.locked() == ours._engine.holds()
        assert not ours._engine.holds()
        assert ours.statistics().owner_deaths == died, "each death is told, once"
        with ours:
            pass

    return Situation(before, use, check)


def mutex_that_is_held(name: str, start: Start) -> Situation:
    """A mutex that another holds: in vain, and a look at it."""
    ours = shmlock.Mutex(name)

    def hold(peer: Peer) -> None:
        theirs = shmlock.Mutex(name)
        with theirs:
            peer.say("in")
            peer.hear()

    assert start(hold).hear() == "in"

    def use() -> None:
        assert ours.locked()
        assert not ours.acquire(timeout=SHORT)
        assert not ours.acquire(blocking=False)

    def check() -> None:
        assert ours.locked()
        assert not ours._engine.holds()

    return Situation(nothing, use, check)


def mutex_beside_another(name: str, start: Start) -> Situation:
    """A mutex beside which its thread takes another one, so that its links are others when it is left."""
    ours = shmlock.Mutex(name)
    space = ctypes.create_string_buffer(robust.MUTEX_SPACE)
    other = ctypes.addressof(space)
    robust.initialise([other])
    del start

    def use() -> None:
        with ours:
            robust.trylock(other)
        robust.unlock(other)

    def check() -> None:
        robust.unlock(ctypes.addressof(space))
        assert not ours.locked()

    return Situation(nothing, use, check)


def publishing(name: str, start: Start) -> Situation:
    """All that an updater does, and those that read: a publish is all or nothing."""
    config = shmlock.SharedConfig(name, capacity=100, max_participants=4)
    turn = 0
    del start

    def use() -> None:
        nonlocal turn
        turn += 1
        assert config.take_seat()
        config.publish([turn] * 10)
        config.confirm()
        assert config.get() == [turn] * 10
        assert config.wait(after=0) == config.snapshot()
        assert config.wait(timeout=SHORT) is None
        assert config.encoded()
        config.leave_seat()

    def check() -> None:
        assert config.get([turn] * 10) in ([turn] * 10, [turn - 1] * 10)
        seat = config._seat
        seat.leave()
        assert not config.updater_alive()
        config.publish([turn] * 10)
        assert not config._engine.me().busy
        words, me = config._engine.words, config._engine.me()
        assert words[me.base + READS] == words[me.base + WANT] == words[WRITER] == words[SEEKER] == 0

    return Situation(nothing, use, check)


def recording(name: str, start: Start) -> Situation:
    """A record that is interrupted counts or not; a reset is done or not; what comes next counts."""
    small: dict[str, Any] = {"max_participants": 4, "buckets": 1, "windows": 1, "figures": 1, "clock": lambda: 1000.0}
    metrics, other = shmlock.RTMetrics(name, **small), shmlock.RTMetrics(f"{name}.other", **small)
    other.record(404, 0.1)
    exported = other.export()
    shmlock.unlink(f"{name}.other")
    del start

    def use() -> None:
        metrics.record(200, 0.1)
        metrics.append(exported)
        metrics.reset()

    def check() -> None:
        before = metrics.total_count()
        metrics.record(200, 0.1)
        assert metrics.total_count() == before + 1
        metrics.reset()
        assert metrics.total_count() == metrics.latency_histogram().total_count == 0

    return Situation(nothing, use, check)


def timing(name: str, start: Start) -> Situation:
    """No timer is lost, none comes twice."""
    timers = shmlock.TimerQueue(name, capacity=8, max_participants=4)
    timers.wake_expired(0)
    del start

    def before() -> None:
        timers.schedule(1, 10)
        timers.schedule(2, 20)
        timers._patrol_at = 0

    def use() -> None:
        timers.schedule(2, 22)
        timers.schedule(1, 5)
        timers.postpone(2, 23)
        timers.schedule(3, 100)
        timers.cancel(3)
        assert timers.next_expiry() == 5
        assert timers.expiry(2) == 23
        assert 2 in timers
        assert len(timers) == 2
        assert timers.wake_expired(7, limit=1) == [1]

    def check() -> None:
        timers.cancel(3)
        for timer_id in (1, 2):
            timers.cancel(timer_id)
        before()
        assert timers.wake_expired(9) == []
        assert sorted(timers.wake_expired(25)) == [1, 2]
        assert timers.wake_expired(25) == []

    return Situation(before, use, check)


def looking_at_a_mutex(name: str, start: Start) -> Situation:
    """A mutex whose owner is dead: a look at it tells, too."""
    situation = mutex(name, start)
    ours = shmlock.Mutex(name)

    def use() -> None:
        assert not ours.locked()
        with ours:
            assert ours.owner_died

    return situation._replace(use=use)


def waiting_for_a_mutex(name: str, start: Start) -> Situation:
    """A mutex that another gives back after a moment."""
    ours = shmlock.Mutex(name)

    def hold(peer: Peer) -> None:
        theirs = shmlock.Mutex(name)
        while peer.hear():
            with theirs:
                peer.say("in")
                time.sleep(0.003)  # who waits for a mutex can't be seen from outside

    holder = start(hold)

    def before() -> None:
        holder.say("hold")
        assert holder.hear() == "in"

    def use() -> None:
        with ours:
            pass

    def check() -> None:
        assert not ours._engine.holds()
        with ours:
            assert not ours.owner_died

    return Situation(before, use, check)


def closing_timers(name: str, start: Start) -> Situation:
    """The first use of a queue by a thread, and its last."""
    queues: list[shmlock.TimerQueue] = []
    del start

    def before() -> None:
        queues[:] = [shmlock.TimerQueue(name, capacity=8, max_participants=4)]

    def use() -> None:
        queues[0].schedule(1, 10)
        assert queues[0].wake_expired(10) == [1]
        queues[0].close()

    def check() -> None:
        queues[0].close()
        with shmlock.TimerQueue(name) as again:
            again.wake_expired(10)  # which may be there, once more
            assert again.wake_expired(10) == []
            assert again._words[HIGH_WATER] <= 1, "a slot was lost"

    return Situation(before, use, check)


def closing_timers_in_a_look(name: str, start: Start) -> Situation:
    """As a signal handler can. The look gives back what it has; the slot stays until this thread takes part anew."""
    queues: list[shmlock.TimerQueue] = []
    del start

    def before() -> None:
        queues[:] = [shmlock.TimerQueue(name, capacity=8, max_participants=4)]

    def use() -> None:
        queues[0]._read(queues[0].close)

    def check() -> None:
        queues[0].close()
        with shmlock.TimerQueue(name) as again:
            again.schedule(1, 10)  # which a reader would keep out
            assert again.wake_expired(10) == [1]
            assert again._words[HIGH_WATER] <= 1, "a slot was lost"
            assert not any(again._engine.state.column(ABANDONED))

    return Situation(before, use, check)


SITUATIONS: dict[str, Maker] = LOCKS | {
    "a mutex": mutex,
    "a mutex that is held": mutex_that_is_held,
    "a mutex beside another": mutex_beside_another,
    "a configuration": publishing,
    "metrics": recording,
    "timers": timing,
    "a mutex of the dead that is looked at": looking_at_a_mutex,
    "a mutex that is waited for": waiting_for_a_mutex,
    "a queue of timers that is closed": closing_timers,
    "a queue of timers that is closed in a look": closing_timers_in_a_look,
}
