"""Slots: claimed, given back, taken from the dead, and from nobody else."""

from __future__ import annotations

import dataclasses
import os
import threading
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._kernel import process, robust
from shmlock._segment import participants
from shmlock._segment.layout import (
    ACCOUNT_AT,
    HIGH_WATER,
    IN_USE,
    NAMESPACE,
    PID,
    READS,
    SLOT,
    STARTED,
    TID,
    WRITER,
    slot,
)
from shmlock.errors import ParticipantsExhausted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock._segment.segment import Segment
    from tests.conftest import Child, Peer, Start

HANG = 30.0
FIELDS = (PID, TID, STARTED, NAMESPACE)


@pytest.fixture
def segment(name: str) -> Segment:
    """A segment for three, in which nobody takes part yet."""
    return shmlock.RWLock(name, max_participants=3)._segment


def claim(segment: Segment, limit: int = 3) -> int | None:
    """Claim a slot for the calling thread."""
    return participants.claim(segment, process.identity(), limit=limit, trying=lambda _: None)


def fields(segment: Segment, number: int) -> tuple[int, ...]:
    """The identity in a slot."""
    return tuple(segment.words[slot(number) + field] for field in FIELDS)


class Threads:
    """Threads that claim a slot and keep it until they are told to end."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._threads: dict[int, tuple[threading.Thread, threading.Event]] = {}

    def claim(self) -> int | None:
        """Have one more claim a slot."""
        claimed: list[int | None] = []
        done, end = threading.Event(), threading.Event()

        def run() -> None:
            claimed.append(claim(self._segment))
            done.set()
            end.wait()

        thread = threading.Thread(target=run)
        thread.start()
        done.wait()
        [number] = claimed
        self._threads[-1 - len(self._threads) if number is None else number] = thread, end
        return number

    def end(self, number: int) -> None:
        """End the thread with this slot, for the kernel as well as for Python."""
        thread, end = self._threads.pop(number)
        end.set()
        thread.join()
        address = self._segment.latch_address(number)
        if robust.lock_within(address, HANG) != 0:  # as it is after a death, so that the next one finds it so
            robust.consistent(address)
        robust.unlock(address)

    def end_all(self) -> None:
        """End what is left."""
        for thread, end in self._threads.values():
            end.set()
            thread.join()


@pytest.fixture
def threads(segment: Segment) -> Iterator[Threads]:
    """Threads that end with the test."""
    threads = Threads(segment)
    yield threads
    threads.end_all()


def test_a_claim(segment: Segment) -> None:
    """A claim takes the first free slot: its latch is held, its owner stands in it, and all else in it is 0."""
    words = segment.words
    for field in range(IN_USE + 1, SLOT.size):
        words[slot(0) + field] = 0xDEAD
    assert claim(segment) == 0
    assert robust.lives(segment.latch_address(0))
    assert words[slot(0) + IN_USE] == 1
    assert words[HIGH_WATER] == 1
    assert fields(segment, 0) == process.identity()
    assert not any(words[slot(0) + NAMESPACE + 1 : slot(1)])
    assert participants.find_dead(segment) == []


def test_tells_what_it_tries(segment: Segment, threads: Threads) -> None:
    """Whoever claims is told of each slot before its latch is touched, so that an interruption can be undone."""
    assert threads.claim() == 0
    tried: list[int] = []

    def note(number: int) -> None:
        tried.append(number)
        assert not robust.lives(segment.latch_address(number))

    assert participants.claim(segment, process.identity(), limit=3, trying=note) == 1
    assert tried == [1]


def test_exhausted(segment: Segment, threads: Threads) -> None:
    """There are as many slots as there are; then None, until one is given back."""
    assert [threads.claim() for _ in range(4)] == [0, 1, 2, None]
    assert claim(segment) is None
    assert participants.find_dead(segment) == []
    threads.end(1)
    assert participants.find_dead(segment) == [1]
    segment.words[slot(1) + IN_USE] = 0  # which an eviction does
    assert claim(segment) == 1


def test_limit(segment: Segment, threads: Threads) -> None:
    """No slot from the limit on is taken."""
    assert claim(segment, limit=0) is None
    assert threads.claim() == 0
    assert claim(segment, limit=1) is None
    assert claim(segment, limit=2) == 1


def test_latch_that_is_held_is_not_taken(segment: Segment, start: Start) -> None:
    """A slot that is not in use, but whose latch somebody holds who lives, is passed over: he is just claiming it."""

    def begin(peer: Peer) -> None:
        robust.trylock(segment.latch_address(0))
        peer.say("half way")
        peer.hear()

    child = start(begin)
    child.hear()
    assert claim(segment) == 1
    child.kill()
    assert participants.find_dead(segment) == []


def test_unlatch(segment: Segment, threads: Threads) -> None:
    """Only the thread that claimed a slot can give its latch back, and once."""
    assert threads.claim() == 0
    assert participants.unlatch(segment, 0) is False
    assert claim(segment) == 1
    assert participants.unlatch(segment, 1) is True
    assert participants.unlatch(segment, 1) is False


def test_abort(segment: Segment, threads: Threads) -> None:
    """A claim that was interrupted is undone if it had got the latch, and else nothing is touched."""
    assert threads.claim() == 0
    participants.abort(segment, 0)
    assert segment.words[slot(0) + IN_USE] == 1
    assert robust.lives(segment.latch_address(0))
    assert claim(segment) == 1
    participants.abort(segment, 1)
    assert segment.words[slot(1) + IN_USE] == 0
    assert not robust.lives(segment.latch_address(1))


def test_dead_or_alive(segment: Segment, start: Start) -> None:
    """Dead is whose latch the kernel has marked, be he a zombie; not who is stopped, or has claimed nothing."""

    def take_part(peer: Peer) -> None:
        peer.say(claim(segment))
        peer.hear()

    killed, stopped, living = (start(take_part) for _ in range(3))
    assert sorted(child.hear() for child in (killed, stopped, living)) == [0, 1, 2]
    slots = {segment.words[slot(number) + PID]: number for number in range(3)}
    assert participants.find_dead(segment) == []
    stopped.stop()
    killed.kill(reap=False)
    assert participants.find_dead(segment) == [slots[killed.pid]]
    assert participants.is_dead(segment, slots[killed.pid])
    assert not participants.is_dead(segment, slots[stopped.pid])
    segment.words[slot(slots[killed.pid]) + IN_USE] = 0
    assert participants.find_dead(segment) == []


class EndingWords:
    """Words whose process ends after so many stores."""

    def __init__(self, words: memoryview[int], stores: int) -> None:
        self._words = words
        self._left = stores

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        if not self._left:
            os._exit(3)
        self._left -= 1
        self._words[index] = value


def claim_that_ends_after(segment: Segment, stores: int) -> Callable[[Peer], None]:
    """A child that claims a slot, and does not live to store more than that."""
    words: Any = EndingWords(segment.words, stores)

    def run(_: Peer) -> None:
        claim(dataclasses.replace(segment, words=words))

    return run


@pytest.mark.parametrize("dirty", [False, True])
def test_killed_while_claiming(segment: Segment, start: Start, dirty: bool) -> None:
    """Whoever dies at any store of a claim leaves a slot that the next one can have, as good as new, or evict."""
    words = segment.words
    for stores in count():
        if dirty:
            words[slot(0) + READS] = words[slot(0) + ACCOUNT_AT] = 9
        words[slot(0) + PID] = 12345
        words[HIGH_WATER] = 0
        code = start(claim_that_ends_after(segment, stores)).join()
        if code == 0:
            assert participants.find_dead(segment) == [0]
            break
        assert code == 3
        assert words[slot(0) + IN_USE] == 0, "which is stored last"
        assert participants.find_dead(segment) == []
        assert claim(segment) == 0
        assert fields(segment, 0) == process.identity()
        assert not any(words[slot(0) + NAMESPACE + 1 : slot(1)])
        assert words[HIGH_WATER] == 1
        participants.abort(segment, 0)
    assert stores >= len(FIELDS) + 1


# --- the same, as users meet it


def hold(name: str, how: str) -> Callable[[Peer], None]:
    """A child that takes part, and holds the lock for reading or writing, or not at all."""

    def run(peer: Peer) -> None:
        lock = shmlock.RWLock(name)
        with lock.reader:
            pass
        if how:
            getattr(lock, how).acquire()
        peer.say(os.getpid())
        peer.hear()

    return run


def started(start: Start, name: str, how: str = "") -> Child:
    """Such a child, when it has got so far."""
    child = start(hold(name, how))
    assert child.hear() == child.pid
    return child


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_slots_of_the_dead_are_used_again(name: str, start: Start, reap: bool) -> None:
    """When all slots are taken the next one is refused; as soon as one of the owners is dead it is let in."""
    lock = shmlock.RWLock(name, max_participants=2)
    children = [started(start, name, "reader") for _ in range(2)]
    with pytest.raises(ParticipantsExhausted, match=f"{name}: all 2 slots"), lock.reader:
        pass
    children[0].stop()
    with pytest.raises(ParticipantsExhausted):
        lock.writer.acquire(blocking=False)
    children[1].kill(reap=reap)
    with lock.reader:
        pass
    assert lock.statistics().evictions == 1
    with pytest.raises(ParticipantsExhausted):
        started_refused(start, name)


def started_refused(start: Start, name: str) -> None:
    """Raise here what another process meets."""

    def try_to_take_part(peer: Peer) -> None:
        try:
            shmlock.RWLock(name).reader.acquire()
        except ParticipantsExhausted as error:
            peer.say(error)
        peer.hear()

    error = start(try_to_take_part).hear()
    raise error


def test_restarts_use_no_more_slots(name: str, start: Start) -> None:
    """20 workers that are killed and replaced, two at a time, need two slots in all."""
    lock = shmlock.RWLock(name, max_participants=8)
    workers = [started(start, name) for _ in range(2)]
    for number in range(20):
        workers[number % 2].kill()
        workers[number % 2] = started(start, name)
    assert lock._words[HIGH_WATER] <= 3
    with lock.writer:
        pass


def forge(lock: shmlock.RWLock, child: Child, identity: tuple[int, ...]) -> None:
    """Write somebody else's identity into the child's slot."""
    words = lock._words
    [number] = [n for n in range(words[HIGH_WATER]) if words[slot(n) + PID] == child.pid]
    for field, value in zip(FIELDS, identity, strict=True):
        words[slot(number) + field] = value


@pytest.mark.parametrize("how", ["reader", "writer"])
def test_forged_identity_does_not_keep_the_dead_alive(name: str, start: Start, how: str) -> None:
    """A dead holder whose words are those of a process that lives, a reused pid for one, is evicted all the same."""
    lock = shmlock.RWLock(name)
    child = started(start, name, how)
    forge(lock, child, process.identity())
    assert not lock.writer.acquire(blocking=False)
    child.kill(reap=False)
    assert lock.writer.acquire(timeout=HANG)
    assert lock.writer.owner_died == (how == "writer")
    lock.writer.release()


@pytest.mark.parametrize("how", ["reader", "writer"])
@pytest.mark.parametrize("identity", [(2**22 + 1, 2**22 + 1, 1, 1), (0, 0, 0, 0), (1, 1, 0, 0)])
def test_forged_identity_does_not_kill_the_living(name: str, start: Start, how: str, identity: tuple[int, ...]) -> None:
    """A living holder whose words are those of nobody, or of another namespace, keeps what it holds."""
    lock = shmlock.RWLock(name)
    child = started(start, name, how)
    forge(lock, child, identity)
    assert not lock.writer.acquire(timeout=0.1)
    assert lock.reap() == 0
    assert lock.statistics().evictions == 0
    assert bool(lock._words[WRITER]) == (how == "writer")
    assert lock.reader.acquire(blocking=False) == (how == "reader")


def test_newcomer_gives_up_in_time(name: str, start: Start) -> None:
    """A thread whose first use of a lock meets a guard that a stopped process holds gives up as it was told to."""
    lock = shmlock.RWLock(name)

    def hold_guard(peer: Peer) -> None:
        peer.say(robust.trylock(lock._segment.guard_address))
        peer.hear()

    def come(peer: Peer) -> None:
        peer.say([face.acquire(timeout=0.05) for face in (lock.writer, lock.reader)])

    holder = start(hold_guard)
    assert holder.hear() == 0
    holder.stop()
    assert start(come).hear(timeout=10)[0] is False
    holder.kill()
    assert lock.writer.acquire(timeout=HANG)
    lock.writer.release()


# --- how many segments one thread can be in


@pytest.fixture
def few_latches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three more are allowed to this thread, whatever it has held before."""
    monkeypatch.setattr(robust, "MOST_PER_THREAD", len(participants._latches.held) + 3)


@pytest.fixture
def locks(name: str) -> Iterator[list[shmlock.RWLock]]:
    """Some locks."""
    locks = [shmlock.RWLock(f"{name}.{number}", max_participants=4) for number in range(5)]
    yield locks
    for lock in locks:
        lock.close()
    for number in range(5):
        shmlock.unlink(f"{name}.{number}")


def take_part(lock: shmlock.RWLock) -> None:
    """Be a participant from now on."""
    with lock.reader:
        pass


@pytest.mark.usefixtures("few_latches")
def test_too_many_segments(locks: list[shmlock.RWLock]) -> None:
    """A thread in as many segments as the kernel would see it die in is refused the next; closing one makes room."""
    for lock in locks[:3]:
        take_part(lock)
    with pytest.raises(ParticipantsExhausted, match=locks[3].name):
        take_part(locks[3])
    take_part(locks[0])
    with locks[1].writer:
        pass
    locks[2].close()
    take_part(locks[3])
    with pytest.raises(ParticipantsExhausted):
        take_part(locks[4])


def test_an_interrupted_claim_leaves_the_count_right(
    locks: list[shmlock.RWLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception right after a latch was taken: it is given back before the next claim, and not counted twice."""
    held = len(participants._latches.held)

    def take_and_raise(address: int) -> int:
        assert robust.trylock(address) == 0
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(participants, "robust", SimpleNamespace(**{**vars(robust), "tried": take_and_raise}))
        for _ in range(3):
            with pytest.raises(InterruptedError):
                take_part(locks[0])
    take_part(locks[0])
    assert len(participants._latches.held) == held + 1
    locks[0].close()
    assert len(participants._latches.held) == held


@pytest.mark.usefixtures("few_latches")
def test_each_thread_has_its_own_limit(locks: list[shmlock.RWLock]) -> None:
    """Another thread may be in as many segments."""
    for lock in locks[:3]:
        take_part(lock)
    failed: list[Exception] = []

    def take_part_in_three() -> None:
        try:
            for lock in locks[2:]:
                take_part(lock)
        except ParticipantsExhausted as error:
            failed.append(error)

    thread = threading.Thread(target=take_part_in_three)
    thread.start()
    thread.join()
    assert not failed


@pytest.mark.usefixtures("few_latches")
def test_a_forked_child_starts_anew(locks: list[shmlock.RWLock], start: Start) -> None:
    """A child holds none of its parent's latches, and may be in as many segments as any other thread."""
    for lock in locks[:3]:
        take_part(lock)

    def take_part_in_three(peer: Peer) -> None:
        for lock in locks[:3]:
            take_part(lock)
        peer.say("in all of them")

    assert start(take_part_in_three).hear() == "in all of them"
