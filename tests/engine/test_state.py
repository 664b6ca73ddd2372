"""The decider on plain words: against a reference, at random and exhaustively, and over small tables."""

from __future__ import annotations

from itertools import permutations, product
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from shmlock._engine.modes import READ, SEEK, WRITE
from shmlock._engine.state import State
from shmlock._segment.layout import GATE, GATE_OPEN, GATE_SLOW, OPENINGS, REVOCATIONS, WATCH, slot
from tests.engine.plain_lock import NEVER_RESTS, Lock, Move
from tests.engine.reference import ANYTIME, RARE, Fairness, Reference, explore, play_both, reachable


class Machine(RuleBasedStateMachine):
    """Random moves by five participants, some of them only half done before others move."""

    SLOTS: ClassVar = 5
    kind: ClassVar[type[State]] = State

    @initialize(fast=st.booleans(), openings=st.sampled_from([0, 1, 3, NEVER_RESTS]))
    def begin(self, fast: bool, openings: int) -> None:
        """Make the lock, fast or slow."""
        self.lock = Lock(self.SLOTS, fast=fast, openings=openings, kind=self.kind)
        self.reference = Reference(self.SLOTS, fast=fast, openings=openings)
        self.fairness = Fairness()

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Make one of the moves that are possible now."""
        moves = list(self.lock.moves())
        likely = [move for move in moves if move[0] not in RARE]
        rare = [*ANYTIME, *(move for move in moves if move[0] in RARE)]
        self.make(data.draw(st.sampled_from(likely * 5 + rare), label="move"))

    def make(self, move: Move) -> None:
        """Make the move in both, and compare."""
        before = self.lock.picture()
        play_both(self.lock, self.reference, move)
        gone = move[1] if move[0] in {"die", "close"} else None
        assert not self.fairness.wrong(before, self.lock.picture(), gone, self.lock.halfway)


SEARCH = settings(max_examples=100, stateful_step_count=80)


def test_random_moves() -> None:
    """Whatever five participants do, in whatever order: the state is what section 6 says, and fair."""
    run_state_machine_as_test(Machine, settings=SEARCH)


@pytest.mark.parametrize(
    ("fast", "openings", "without"),
    # With 1 the gate rests after one revocation and not after the next: all that 0, or no rest at all, would lead to.
    [(True, 1, []), (False, 0, ["half_enter", "half_leave"])],
)
def test_every_move_from_every_state(fast: bool, openings: int, without: list[str]) -> None:
    """All that three participants can do, halves of moves and deaths included: the state is what section 6 says."""
    assert len(explore(3, fast=fast, openings=openings, without=without)) > 1000


def test_the_gate_rests() -> None:
    """Writes in a row revoke once; when a reader has asked, the gate opens after each of so many revocations."""
    lock = Lock(2, openings=2)
    lock.words[OPENINGS] = 0

    def write() -> int:
        """How many revocations it takes."""
        before = lock.words[REVOCATIONS]
        lock.play(("ask_write", 0))
        lock.play(("release_write", 0))
        return lock.words[REVOCATIONS] - before

    def read() -> int:
        """What the gate was."""
        gate = lock.words[GATE]
        assert lock.play(("enter", 1))
        lock.play(("leave", 1))
        return gate

    assert read() == GATE_OPEN
    assert [write() for _ in range(3)] == [1, 0, 0]
    assert [read() for _ in range(3)] == [GATE_SLOW, GATE_OPEN, GATE_OPEN]
    for gate in (GATE_OPEN, GATE_OPEN, GATE_SLOW, GATE_OPEN, GATE_OPEN, GATE_SLOW):
        assert write() == 1
        assert read() == gate


def test_every_move_from_every_state_of_four() -> None:
    """The same for the whole moves of four that live."""
    assert len(reachable(4, fast=True)) > 5000


# --- tables over small numbers of everything


SMALL = list(product(range(4), range(5), range(3)))


def line_up(lock: Lock, writers: range, seekers: range, order: int) -> None:
    """Have them ask, the writers first, the seekers first, or by turns."""
    asks = [*(("ask_write", number) for number in writers), *(("ask_seek", number) for number in seekers)]
    if order == 1:
        asks.reverse()
    elif order == 2:
        asks.sort(key=lambda ask: ask[1] - (writers if ask[0] == "ask_write" else seekers).start)
    for ask in asks:
        lock.play(ask)


@pytest.mark.parametrize(("readers", "writers", "seekers"), SMALL)
@pytest.mark.parametrize("fast", [True, False])
def test_readers_hold(readers: int, writers: int, seekers: int, fast: bool) -> None:
    """Beside 0 to 3 readers only an S is let in; the first W waits for all of them; then each gets one turn."""
    for order, way_out in product(range(3), permutations(range(readers))):
        lock = Lock(readers + writers + seekers, fast=fast)
        for number in range(readers):
            assert lock.play(("enter", number))
        line_up(lock, range(readers, readers + writers), range(readers + writers, lock.slots), order)
        for left, number in enumerate(way_out):
            now = lock.picture()
            assert (now.writer is None) == (readers > left), f"{readers - left} readers are in"
            lock.play(("leave", number))
        assert not lock.wrong()
        each_gets_one_turn(lock, writers, seekers)


def each_gets_one_turn(lock: Lock, writers: int, seekers: int) -> None:
    """Those that wait for S and W are let in one by one, in order; each grant wakes exactly its waiter."""
    turns = {SEEK: 0, WRITE: 0}
    line = lock.picture().line
    while True:
        now = lock.picture()
        holder = now.seeker if now.writer is None else now.writer
        if holder is None:
            break
        turns[SEEK if now.writer is None else WRITE] += 1
        assert now.line == line
        lock.play(("release_seek" if now.writer is None else "release_write", holder))
        assert not lock.wrong()
        assert lock.state.woken == line[:1]
        line = line[1:]
    assert turns == {SEEK: seekers, WRITE: writers}
    assert not lock.picture().line


@pytest.mark.parametrize(("readers", "writers", "seekers"), SMALL)
@pytest.mark.parametrize("fast", [True, False])
def test_readers_wait(readers: int, writers: int, seekers: int, fast: bool) -> None:
    """Readers that a W made wait enter together when it ends, before the next W, which waits for all of them."""
    for order, way_out in product(range(3), permutations(range(readers))):
        lock = Lock(readers + writers + seekers + 1, fast=fast)
        first = lock.slots - 1
        assert lock.play(("ask_write", first))
        line_up(lock, range(readers, readers + writers), range(readers + writers, first), order)
        assert not any(lock.play(("enter", number)) for number in range(readers))
        lock.play(("release_write", first))
        now = lock.picture()
        assert now.reads[:readers] == [1] * readers
        assert set(lock.state.woken) >= set(range(readers))
        for left, number in enumerate(way_out):
            assert (lock.picture().writer is None) == (readers > left)
            lock.play(("leave", number))
        each_gets_one_turn(lock, writers, seekers)


@pytest.mark.parametrize(("readers", "writers", "seekers"), SMALL)
def test_upgrade_passes_all(readers: int, writers: int, seekers: int) -> None:
    """An upgrade waits for 0 to 3 readers and passes everybody in the queue; the readers it held up enter after it."""
    lock = Lock(readers + writers + seekers + 2)
    seeker, late = lock.slots - 2, lock.slots - 1
    assert lock.play(("ask_seek", seeker))
    for number in range(readers):
        assert lock.play(("enter", number))
    line_up(lock, range(readers, readers + writers), range(readers + writers, seeker), 2)
    assert lock.picture().closed is False, "a W queued behind an S does not close the gate"
    assert bool(lock.play(("upgrade", seeker))) == (readers == 0)
    assert not lock.play(("enter", late))
    for left in range(readers, 0, -1):
        assert lock.picture().writer is None, f"{left} readers are in"
        lock.play(("leave", left - 1))
        assert not lock.wrong()
    assert lock.picture().writer == seeker
    lock.play(("write_to_seek", seeker))
    now = lock.picture()
    assert (now.writer, now.seeker, now.closed) == (None, seeker, False)
    assert now.reads[late] == 1
    lock.play(("leave", late))
    lock.play(("release_seek", seeker))
    each_gets_one_turn(lock, writers, seekers)


@pytest.mark.parametrize("readers", range(1, 4))
def test_upgrade_timed_out(readers: int) -> None:
    """An upgrade that is withdrawn returns to S: the gate opens, those that waited are let in, readers flow."""
    lock = Lock(readers + 3)
    seeker, waiting, late = range(readers, readers + 3)
    lock.play(("ask_seek", seeker))
    for number in range(readers):
        lock.play(("enter", number))
    assert not lock.play(("upgrade", seeker))
    assert not lock.play(("enter", waiting))
    assert not lock.play(("withdraw", seeker))
    assert lock.state.woken == [waiting]
    assert lock.play(("enter", late))
    now = lock.picture()
    assert now.seeker == seeker
    assert now.reads == [1] * readers + [0, 1, 1]
    assert not lock.wrong()


def test_grant_before_withdrawal() -> None:
    """A grant that came before the withdrawal is the asker's, to keep or to give back: nothing is stored."""
    for mode, wants in (("enter", READ), ("ask_seek", SEEK), ("ask_write", WRITE)):
        lock = Lock(2)
        lock.play(("ask_write", 0))
        assert not lock.play((mode, 1))
        assert lock.picture().wants == [0, wants]
        lock.play(("release_write", 0))
        before = lock.words.tobytes()
        assert lock.play(("withdraw", 1)) is True
        assert lock.words.tobytes() == before
        now = lock.picture()
        assert (now.reads[1], now.seeker, now.writer) == {
            READ: (1, None, None),
            SEEK: (0, 1, None),
            WRITE: (0, None, 1),
        }[wants]


# --- watching


def test_watchers_are_woken() -> None:
    """`wake_watchers` wakes each slot that watches, and no other, and they go on watching until they stop."""
    lock = Lock(4)
    for number in (1, 3):
        lock.state.watch(number)
    for _ in range(2):
        lock.state.woken = []
        lock.state.wake_watchers()
        assert lock.state.woken == [1, 3]
    lock.state.unwatch(1)
    lock.play(("die", 3))
    lock.state.woken = []
    lock.state.wake_watchers()
    assert lock.state.woken == []
    assert not any(lock.words[slot(number) + WATCH] for number in range(4))
