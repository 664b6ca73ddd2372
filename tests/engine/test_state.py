"""The decider on plain words: against a reference, over small tables, and stopped at every store.

`Reference` is section 6 of docs/protocol.md written down a second time, in sets and queues instead of words
and tickets. `Lock` drives the real `State`; its moves are the reference's, by the same names. After each move
both must show the same `Picture`, in which nothing may be wrong.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import permutations, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from shmlock._engine import state as room
from shmlock._engine.modes import MODE_BITS, MODE_MASK, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.state import State
from shmlock._engine.stats import read_statistics
from shmlock._segment.layout import (
    ABANDONED,
    ACCOUNT,
    ACCOUNT_AT,
    BANKS,
    FOLD,
    GATE,
    GATE_CLOSED,
    GATE_OPEN,
    GATE_SLOW,
    HIGH_WATER,
    IN_USE,
    MAXIMA,
    OWED,
    OWNER_DIED,
    READS,
    REPAIRS,
    SEEKER,
    SEQUENCE,
    SLOT,
    TICKET,
    WANT,
    WATCH,
    WRITER,
    payload_at,
    slot,
)
from shmlock._segment.words import WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

Move: TypeAlias = tuple[str, int]
"""The name of a method that `Lock` and `Reference` share, and the slot of the participant that moves."""


# --- what is to be seen, and what may not be


@dataclass
class Picture:
    """A lock as section 6 speaks of it."""

    reads: list[int]  # how deep, by slot
    wants: list[int]  # the mode, by slot; 0: nothing
    line: list[int] = field(default_factory=list)  # who waits for S or W, in the order of asking
    writer: int | None = None
    seeker: int | None = None
    owed: bool = False  # the readers that a write phase made wait have not been let in yet
    closed: bool = False
    owner_died: bool = False

    def facts(self) -> tuple[object, ...]:
        """All of it, to compare."""
        return (
            *(self.reads, self.wants, self.line),
            *(self.writer, self.seeker, self.owed, self.closed, self.owner_died),
        )

    def drained(self, but: int | None = None) -> bool:
        """Whether nobody reads, save one."""
        return not any(depth for number, depth in enumerate(self.reads) if number != but)

    def writer_is_next(self) -> bool:
        """A seeker upgrades, or the head of the queue is a W and no S is held: what closes the gate."""
        if self.seeker is not None:
            return self.wants[self.seeker] == UPGRADE
        return bool(self.line) and self.wants[self.line[0]] == WRITE

    def may(self, number: int) -> bool:
        """Whether what this participant wants is to be had now: the table."""
        mode = self.wants[number]
        if not mode or self.writer is not None:
            return False
        if mode == READ:
            return not self.writer_is_next()
        if mode == UPGRADE:
            return self.drained(but=number)
        first = self.seeker is None and self.line[0] == number
        return first and (mode == SEEK or self.drained())

    def wrong(self, halfway: Collection[int] = ()) -> list[str]:
        """Say what must never be seen. `halfway`: readers that have stored, but not looked at the gate yet."""
        found = []
        inside = [number for number, depth in enumerate(self.reads) if depth and number not in halfway]
        if self.writer is not None and set(inside) - {self.writer}:
            found.append(f"{inside} read while {self.writer} writes")
        if self.writer is not None and self.seeker not in {None, self.writer}:
            found.append(f"{self.seeker} seeks while {self.writer} writes")
        if self.closed != (self.writer is not None or self.writer_is_next()):
            found.append(f"the gate is {'closed' if self.closed else 'open'}, which it may not be")
        if self.owed != (self.writer is not None):
            found.append("owed is not what it should be")
        for number, mode in enumerate(self.wants):
            if self.may(number):
                found.append(f"{number} waits for {mode} and could have it")
            if (mode == UPGRADE) != (mode != 0 and self.seeker == number) or (mode and self.writer == number):
                found.append(f"{number} wants {mode}, which its holds do not allow")
            if mode in {READ, SEEK, WRITE} and self.reads[number] and number not in halfway:
                found.append(f"{number} waits for {mode} while it reads")
        return found


# --- the reference


class Reference(Picture):
    """What each move does, by section 6."""

    def __init__(self, slots: int, *, fast: bool) -> None:
        super().__init__([0] * slots, [0] * slots)
        self.fast = fast
        self.sequence = 2
        self.granted: set[int] = set()
        self.abandoned: dict[int, set[int]] = {}

    def copy(self) -> Reference:
        """Another one in the same state."""
        other = Reference.__new__(Reference)
        other.__dict__.update({name: copy(value) for name, value in self.__dict__.items()})
        return other

    def settle_down(self) -> None:
        """Let in whoever may come in; then see to the gate."""
        if self.writer is None:
            if self.owed:
                for number, mode in enumerate(self.wants):
                    if mode == READ:
                        self._grant(number)
                self.owed = False
            while welcome := [number for number in range(len(self.wants)) if self.may(number)]:
                self._grant(welcome[0])
        self.closed = self.writer is not None or self.writer_is_next()

    def _grant(self, number: int) -> None:
        mode, self.wants[number] = self.wants[number], 0
        self.granted.add(number)
        if mode == READ:
            self.reads[number] = 1
        elif mode == SEEK:
            self.line.remove(number)
            self.seeker = number
        else:
            if mode == WRITE:
                self.line.remove(number)
            self._write(number)

    def _write(self, number: int) -> None:
        self.writer = number
        self.owed = True
        self.sequence += 1

    def _ask(self, number: int, mode: int) -> bool:
        self.wants[number] = mode
        if mode in {SEEK, WRITE}:
            self.line.append(number)
        self.settle_down()
        self.granted.discard(number)
        return not self.wants[number]

    def _drop_want(self, number: int) -> None:
        self.wants[number] = 0
        if number in self.line:
            self.line.remove(number)

    def _end_write(self) -> None:
        self.writer = None
        self.sequence += 1

    def enter(self, number: int) -> bool:
        nested = self.reads[number] > 0
        if nested or self.writer == number or (self.fast and not self.closed):
            self.reads[number] += 1
            return True
        return self._ask(number, READ)

    def leave(self, number: int) -> None:
        self.reads[number] -= 1
        if not self.reads[number] and (self.closed or not self.fast) and self.writer != number:
            self.settle_down()

    def half_enter(self, number: int) -> None:
        self.reads[number] = 1

    def look(self, number: int) -> bool:
        self.reads[number] = 0
        return self.enter(number)

    def half_leave(self, number: int) -> None:
        self.reads[number] = 0

    def finish_leaving(self, _number: int) -> None:
        if self.closed or not self.fast:
            self.settle_down()

    def ask_seek(self, number: int) -> bool:
        return self._ask(number, SEEK)

    def ask_write(self, number: int) -> bool:
        return self._ask(number, WRITE)

    def upgrade(self, number: int) -> bool:
        return self._ask(number, UPGRADE)

    def withdraw(self, number: int) -> bool:
        self._drop_want(number)
        self.settle_down()
        return False

    def release_write(self, _number: int) -> None:
        self.owner_died = False
        self._end_write()
        self.settle_down()

    def release_write_in_doubt(self, _number: int) -> None:
        self._end_write()
        self.settle_down()

    def release_seek(self, _number: int) -> None:
        self.seeker = None
        self.settle_down()

    def release_upgraded(self, number: int) -> None:
        self.seeker = None
        self.release_write(number)

    def write_to_seek(self, number: int) -> None:
        self.seeker = number
        self.release_write(number)

    def write_to_read(self, number: int) -> None:
        self.reads[number] += 1
        if self.seeker == number:
            self.seeker = None
        self.release_write(number)

    def seek_to_read(self, number: int) -> None:
        self.reads[number] += 1
        self.release_seek(number)

    def read_to_seek(self, number: int) -> bool:
        if self.seeker is not None or self.writer is not None or self.line:
            return False
        self.reads[number] -= 1
        self.seeker = number
        self.settle_down()
        return True

    def _try_write(self, number: int) -> bool:
        free = self.seeker is None and self.writer is None and not self.line and self.drained(but=number)
        if free:
            self._write(number)
        return free

    def read_to_write(self, number: int) -> bool:
        done = self._try_write(number)
        self.reads[number] -= done
        self.settle_down()
        return done

    def try_write(self, number: int) -> bool:
        done = self._try_write(number)
        self.settle_down()
        return done

    def abandon(self, number: int) -> None:
        self.abandoned[number] = walked_away_from(self, number)

    def settle(self, number: int) -> None:
        modes = self.abandoned.pop(number)
        if self.wants[number] in modes:
            self._drop_want(number)
        if READ in modes:
            self.reads[number] = 0
        if modes & {WRITE, UPGRADE} and self.writer == number:
            self._end_write()
        if SEEK in modes and self.seeker == number:
            self.seeker = None
        self.settle_down()

    def die(self, number: int) -> None:
        self.owner_died |= self.writer == number
        self.close(number)

    def close(self, number: int) -> None:
        self.abandoned.pop(number, None)
        self._drop_want(number)
        self.reads[number] = 0
        if self.seeker == number:
            self.seeker = None
        if self.writer == number:
            self._end_write()
        self.settle_down()

    def join(self, number: int) -> None:
        """Take a free slot: nothing is held or wanted in it."""

    def vouch(self, _number: int) -> None:
        self.owner_died = False

    def decide(self, _number: int) -> None:
        self.settle_down()

    def repair(self, _number: int) -> None:
        self.settle_down()


def walked_away_from(picture: Picture, number: int) -> set[int]:
    """The modes that an interrupted call of this participant would mark as abandoned, most of all at once."""
    if picture.wants[number]:
        return {picture.wants[number]}
    if picture.seeker == number:
        return {SEEK, WRITE}
    return {WRITE} if picture.writer == number else {READ}


# --- the real thing


class Stopped(BaseException):
    """The process that was storing has ended."""


class EndingWords(array):  # type: ignore[type-arg]  its arguments exist for type checkers only before 3.12
    """Words whose storer ends after so many stores; it keeps the index of each."""

    left = -1  # negative: it goes on for ever

    def __init__(self, *_: object) -> None:
        self.stored: list[int] = []

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1
        self.stored.append(index)
        super().__setitem__(index, value)


class Unfenced:
    """As in slow mode: there is nothing to fence."""

    after_closing = before_writing = before_opening = None


class Lock:
    """A `State`, and what its participants do without the guard."""

    def __init__(self, slots: int, *, fast: bool = True, kind: type[State] = State) -> None:
        self.slots = slots
        self.fast = fast
        self.kind = kind
        self.halfway: dict[int, str] = {}  # the move that must come next, by slot
        self.bind(array("Q", bytes(payload_at(slots) * WORD)))
        self.words[SEQUENCE] = 2
        self.words[GATE] = GATE_OPEN if fast else GATE_SLOW
        for number in range(slots):
            self.join(number)

    def bind(self, words: array[int]) -> None:
        """Go on with these words. A negative number, or one beyond 64 bits, is an OverflowError in them."""
        self.words = words
        self.state = self.kind(words, Unfenced, fast=self.fast)

    def copy(self) -> Lock:
        """Another one in the same state."""
        other = Lock.__new__(Lock)
        other.__dict__.update(self.__dict__, halfway=dict(self.halfway))
        other.bind(array("Q", self.words))
        return other

    def picture(self) -> Picture:
        """What the words say."""
        words = self.words
        raw = self._column(WANT)
        return Picture(
            reads=self._column(READS),
            wants=[want & MODE_MASK for want in raw],
            line=sorted((n for n, want in enumerate(raw) if want & MODE_MASK in {SEEK, WRITE}), key=raw.__getitem__),
            writer=words[WRITER] - 1 if words[WRITER] else None,
            seeker=words[SEEKER] - 1 if words[SEEKER] else None,
            owed=words[OWED] == 1,
            closed=words[GATE] == GATE_CLOSED,
            owner_died=words[OWNER_DIED] == 1,
        )

    def _column(self, offset: int) -> list[int]:
        return self.words[slot(0) + offset :: SLOT.size].tolist()

    def wrong(self) -> list[str]:
        """Say what must never be seen, of the words as well as of the picture that they give."""
        words = self.words
        found = self.picture().wrong([number for number, step in self.halfway.items() if step == "look"])
        if words[SEQUENCE] & 1 != (words[WRITER] != 0):
            found.append("the sequence is odd without a writer, or even with one")
        if words[GATE] not in {GATE_CLOSED, GATE_OPEN if self.fast else GATE_SLOW}:
            found.append(f"the gate is {words[GATE]}")
        tickets = [want >> MODE_BITS for want in self._column(WANT) if want]
        if len(set(tickets)) < len(tickets) or any(ticket >= words[TICKET] for ticket in tickets):
            found.append(f"tickets {tickets}, and the next is {words[TICKET]}")
        if words[FOLD] >> 1:
            found.append("an account is in the bank and in its slot")
        for number in range(self.slots):
            at = slot(number)
            if words[at + IN_USE] and number >= words[HIGH_WATER]:
                found.append(f"{number} is in use above the high water")
            if not words[at + IN_USE] and (words[at + READS] or words[at + WANT] or words[at + ABANDONED]):
                found.append(f"{number} is not in use, and not empty")
        return found

    def moves(self) -> Iterator[Move]:
        """Everything that may happen next."""
        now = self.picture()
        for number in range(self.slots):
            base = slot(number)
            if not self.words[base + IN_USE]:
                yield "join", number
                continue
            yield "die", number
            if self.words[base + ABANDONED]:
                yield "settle", number
            elif number in self.halfway:
                yield self.halfway[number], number
            else:
                yield "close", number
                for name in self._own_moves(now, number):
                    yield name, number

    def _own_moves(self, now: Picture, number: int) -> list[str]:
        if now.wants[number]:
            return ["withdraw", "abandon"]
        depth = now.reads[number]
        seeks, writes = now.seeker == number, now.writer == number
        names = ["enter"] if depth < 2 else []
        if seeks or writes or depth == 1:
            names.append("abandon")
        if depth:
            names += ["leave", "read_to_seek", "read_to_write"] if not seeks and not writes else ["leave"]
        elif not writes:
            names.append("half_enter")
        if depth == 1 and not writes:
            names.append("half_leave")
        if writes:
            names += ["release_write", "release_write_in_doubt", "write_to_seek", "write_to_read"]
        elif seeks:
            names += ["upgrade", "release_seek", "seek_to_read"]
        elif not depth:
            names += ["ask_seek", "ask_write", "try_write"]
        return [*names, "release_upgraded"] if seeks and writes else names

    def play(self, move: Move) -> bool | None:
        """Make a move; `state.woken` has whom it woke."""
        self.state.woken = []
        name, number = move
        result: bool | None = getattr(self, name)(number)
        return result

    def _slow_reader(self, number: int) -> bool:
        if self.words[WRITER] == number + 1:
            self.words[slot(number) + READS] = 1
            return True
        return self.state.ask(number, READ)

    def enter(self, number: int) -> bool:
        at = slot(number) + READS
        depth = self.words[at]
        self.words[at] = depth + 1
        if self.words[GATE] and not depth:
            self.words[at] = 0
            return self._slow_reader(number)
        return True

    def leave(self, number: int) -> None:
        at = slot(number) + READS
        self.words[at] -= 1
        if self.words[GATE] and not self.words[at] and self.words[WRITER] != number + 1:
            self.state.decide()

    def half_enter(self, number: int) -> None:
        self.words[slot(number) + READS] = 1
        self.halfway[number] = "look"

    def look(self, number: int) -> bool:
        del self.halfway[number]
        if not self.words[GATE]:
            return True
        self.words[slot(number) + READS] = 0
        return self._slow_reader(number)

    def half_leave(self, number: int) -> None:
        self.words[slot(number) + READS] = 0
        self.halfway[number] = "finish_leaving"

    def finish_leaving(self, number: int) -> None:
        del self.halfway[number]
        if self.words[GATE]:
            self.state.decide()

    def ask_seek(self, number: int) -> bool:
        return self.state.ask(number, SEEK)

    def ask_write(self, number: int) -> bool:
        return self.state.ask(number, WRITE)

    def upgrade(self, number: int) -> bool:
        return self.state.ask(number, UPGRADE)

    def withdraw(self, number: int) -> bool:
        return self.state.withdraw(number)

    def release_write(self, number: int) -> None:
        self.state.release_write(number, True)

    def release_write_in_doubt(self, number: int) -> None:
        self.state.release_write(number, False)

    def release_seek(self, number: int) -> None:
        self.state.release_seek(number)

    def release_upgraded(self, number: int) -> None:
        self.state.release_upgraded(number)

    def write_to_seek(self, number: int) -> None:
        self.state.write_to_seek(number)

    def write_to_read(self, number: int) -> None:
        self.state.write_to_read(number)

    def seek_to_read(self, number: int) -> None:
        self.state.seek_to_read(number)

    def read_to_seek(self, number: int) -> bool:
        return self.state.try_read_to_seek(number)

    def read_to_write(self, number: int) -> bool:
        return self.state.try_write(number, converting=True)

    def try_write(self, number: int) -> bool:
        return self.state.try_write(number, converting=False)

    def abandon(self, number: int) -> None:
        modes = walked_away_from(self.picture(), number)
        self.words[slot(number) + ABANDONED] = sum(1 << mode for mode in modes)

    def settle(self, number: int) -> None:
        self.state.settle(number)

    def die(self, number: int) -> None:
        self.halfway.pop(number, None)
        self.state.evict([number])

    def close(self, number: int) -> None:
        self.state.clear(number, died=False)
        self.state.depart(number)
        self.state.decide()

    def join(self, number: int) -> None:
        words, base = self.words, slot(number)
        for offset in range(IN_USE + 1, SLOT.size):
            if words[base + offset]:
                words[base + offset] = 0
        words[HIGH_WATER] = max(words[HIGH_WATER], number + 1)
        words[base + IN_USE] = 1

    def vouch(self, _number: int) -> None:
        self.state.vouch()

    def decide(self, _number: int) -> None:
        self.state.decide()

    def repair(self, _number: int) -> None:
        self.state.repair()


# --- against the reference


class Fairness:
    """Counts phases, from one picture to the next, and says what is unfair."""

    def __init__(self) -> None:
        self.write_phases: dict[int, int] = {}  # by waiting reader, those that it has waited for
        self.writers_ahead: dict[int, int] = {}  # by waiting writer, the grants that may still come first

    def wrong(self, before: Picture, after: Picture, gone: int | None, halfway: Collection[int]) -> list[str]:
        """`gone`: who died or closed in this move. `halfway`: who has not looked at the gate yet."""
        found = []
        writers = {number for number, mode in enumerate(after.wants) if mode == WRITE}
        readers = {number for number, mode in enumerate(after.wants) if mode == READ}
        ended = before.writer is not None and after.writer != before.writer
        began = after.writer is not None and after.writer != before.writer
        upgraded = began and after.seeker == after.writer
        for number in readers:
            asked_in_one = int(before.writer is not None)
            self.write_phases[number] = self.write_phases.get(number, asked_in_one) + began
            if self.write_phases[number] > 1:
                found.append(f"reader {number} waits for a second write phase")
        for number in writers:
            last = self.writers_ahead.get(number)
            self.writers_ahead[number] = len(writers) - 1 if last is None else last - (began and not upgraded)
            if self.writers_ahead[number] < 0:
                found.append(f"writer {number} was overtaken by a later writer")
        self.write_phases = {number: self.write_phases[number] for number in readers}
        self.writers_ahead = {number: self.writers_ahead[number] for number in writers}
        if ended:
            late = [n for n, mode in enumerate(before.wants) if mode == READ and after.wants[n] == READ]
            if late:
                found.append(f"readers {late} were not let in when the write phase that they waited for ended")
        elif before.writer_is_next() and after.writer_is_next() and gone is None and before.line == after.line:
            excused = {*halfway, after.writer}
            entered = [n for n, depth in enumerate(after.reads) if depth > before.reads[n] == 0 and n not in excused]
            if entered:
                found.append(f"readers {entered} passed a writer that is next")
        return found


RARE = {"die", "close", "join"}
ANYTIME: list[Move] = [("decide", 0), ("repair", 0), ("vouch", 0)]


def play_both(lock: Lock, reference: Reference, move: Move) -> None:
    """Make the move in both; they must agree on its result, on whom it woke, and on what is to be seen then."""
    stamp = lock.words[SEQUENCE]
    reference.granted = set()
    result = lock.play(move)
    assert result == getattr(reference, move[0])(move[1]), move
    assert lock.picture().facts() == reference.facts(), move
    assert lock.words[SEQUENCE] == reference.sequence >= stamp, move
    assert sorted(lock.state.woken) == sorted(reference.granted), move
    if "finish_leaving" not in lock.halfway.values():  # until then there may be something to decide
        assert not lock.wrong(), move


class Machine(RuleBasedStateMachine):
    """Random moves by five participants, some of them only half done before others move."""

    SLOTS: ClassVar = 5
    kind: ClassVar[type[State]] = State

    @initialize(fast=st.booleans())
    def begin(self, fast: bool) -> None:
        """Make the lock, fast or slow."""
        self.lock = Lock(self.SLOTS, fast=fast, kind=self.kind)
        self.reference = Reference(self.SLOTS, fast=fast)
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


SEARCH = settings(max_examples=150, stateful_step_count=80, deadline=None, derandomize=True, database=None)


def test_random_moves() -> None:
    """Whatever five participants do, in whatever order: the state is what section 6 says, and fair."""
    run_state_machine_as_test(Machine, settings=SEARCH)  # type: ignore[no-untyped-call]


def reachable(slots: int, *, fast: bool, kind: type[State] = State) -> list[Lock]:
    """All states that whole moves of the living lead to; of those that differ in slot numbers alone, one."""
    return [lock for lock, _ in explore(slots, fast=fast, kind=kind, without={*RARE, "half_enter", "half_leave"})]


def explore(
    slots: int, *, fast: bool, kind: type[State] = State, without: Collection[str] = ()
) -> list[tuple[Lock, Reference]]:
    """All states that these moves lead to, of those that differ in slot numbers alone one; in step with the reference."""
    found = [(Lock(slots, fast=fast, kind=kind), Reference(slots, fast=fast))]
    seen = {signature(found[0][0])}
    for lock, reference in found:  # which grows
        for move in [*lock.moves(), *ANYTIME]:
            if move[0] not in without:
                after, expected = lock.copy(), reference.copy()
                play_both(after, expected, move)
                key = signature(after)
                if key not in seen:
                    seen.add(key)
                    found.append((after, expected))
    return found


@pytest.mark.parametrize("fast", [True, False])
def test_every_move_from_every_state(fast: bool) -> None:
    """All that three participants can do, halves of moves included: the state is what section 6 says."""
    assert len(explore(3, fast=fast)) > 1000


def signature(lock: Lock) -> object:
    """What tells one state from another: not which slot is whose, nor counters."""
    now = lock.picture()
    return tuple(sorted(parts(lock))), now.owed, now.closed, now.owner_died


def parts(lock: Lock) -> list[tuple[object, ...]]:
    """The part that each participant has in it, by slot."""
    now = lock.picture()
    return [
        (
            now.reads[number],
            now.wants[number],
            now.line.index(number) if number in now.line else -1,
            number == now.writer,
            number == now.seeker,
            lock.words[slot(number) + ABANDONED],
            lock.words[slot(number) + IN_USE],
            lock.halfway.get(number, ""),
        )
        for number in range(lock.slots)
    ]


def kept(before: Picture, after: Picture, but: int) -> list[str]:
    """Say what others than `but` have lost or got twice: a hold stays, and a want stays or becomes a hold."""
    found = []
    for number, mode in enumerate(before.wants):
        if number == but:
            continue
        granted = mode != 0 and not after.wants[number]
        if after.wants[number] not in {0, mode}:
            found.append(f"{number} wanted {mode} and now wants {after.wants[number]}")
        if after.reads[number] != before.reads[number] + (granted and mode == READ):
            found.append(f"{number} read {before.reads[number]} deep and now {after.reads[number]}")
        if (after.seeker == number) != (before.seeker == number or (granted and mode == SEEK)):
            found.append(f"{number} lost S, or got it for nothing")
        if (after.writer == number) != (before.writer == number or (granted and mode in {WRITE, UPGRADE})):
            found.append(f"{number} lost W, or got it for nothing")
    return found


def drain(lock: Lock) -> None:
    """Have all that hold something leave, until nobody is left: all that waited must have been let in."""
    for _ in range(8 * lock.slots):
        now = lock.picture()
        if now.writer is not None:
            move = ("release_upgraded" if now.seeker == now.writer else "release_write", now.writer)
        elif any(now.reads):
            move = "leave", next(number for number, depth in enumerate(now.reads) if depth)
        elif now.seeker is not None:
            move = "release_seek", now.seeker
        else:
            break
        lock.play(move)
        assert not kept(now, lock.picture(), move[1]), (now, move)
        assert not lock.wrong(), (now, move)
    assert not any(lock.picture().wants), "somebody waits, and nobody holds anything"


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
    """Beside 0 to 3 readers at most S is let in; the first W waits for exactly all of them; then each gets his turn once."""
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
    """Readers that a W made wait enter together when it ends, before all other W, and the next W waits for all of them."""
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


# --- words of its own: watching, the account


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


def with_accounts(slots: int) -> Lock:
    """A lock in which every counter of every account, and of the departed, has a value of its own."""
    lock = Lock(slots)
    starts = [BANKS[0], *(slot(number) + ACCOUNT_AT for number in range(slots))]
    for factor, start in enumerate(starts, 1):
        for offset in range(ACCOUNT.size):
            lock.words[start + offset] = factor * 1_000_003 + offset * (7 - factor)
    return lock


def totals(lock: Lock) -> object:
    """All counters summed up, as a reader does that does not take the guard."""
    segment: Any = SimpleNamespace(words=lock.words, header=SimpleNamespace(option=1), name="any")
    seen = read_statistics(segment)
    return seen.write, seen.seek, seen.read, seen.timeouts, seen.wait_histogram


def expected_totals(lock: Lock) -> dict[int, int]:
    """The sum, or for the longest waits the maximum, of all accounts, by offset."""
    starts = [BANKS[0], *(slot(number) + ACCOUNT_AT for number in range(lock.slots))]
    columns = {offset: [lock.words[start + offset] for start in starts] for offset in range(ACCOUNT.size)}
    return {offset: max(values) if offset in MAXIMA else sum(values) for offset, values in columns.items()}


def test_totals_sum_up() -> None:
    """The statistics are the sums over all accounts, and the maxima of the longest waits."""
    lock = with_accounts(3)
    expected = expected_totals(lock)
    segment: Any = SimpleNamespace(words=lock.words, header=SimpleNamespace(option=1), name="any")
    seen = read_statistics(segment)
    for mode in ("write", "seek", "read"):
        for shown, offset in (
            ("locks", "locks"),
            ("unlocks", "unlocks"),
            ("waits", "waits"),
            ("wait_ns", "wait_ns"),
            ("longest_wait_ns", "longest_ns"),
        ):
            assert getattr(getattr(seen, mode), shown) == expected[ACCOUNT[f"{mode}_{offset}"]]
    assert seen.timeouts == expected[ACCOUNT["timeouts"]]
    first = ACCOUNT["wait_histogram"]
    assert list(seen.wait_histogram) == [expected[offset] for offset in range(first, ACCOUNT.size)]


@pytest.mark.parametrize("again", [False, True])
def test_fold_is_exactly_once(again: bool) -> None:
    """A departed one's numbers count once, at whichever store its eviction stops, and the repair of that, too."""
    lock = with_accounts(3)
    if again:  # from the second bank to the first
        lock.play(("die", 2))
        lock.play(("join", 2))
    before = totals(lock)
    for stop in range(len(stores_of(lock, ("die", 1))) + 1):
        stopped = stop_after(lock, ("die", 1), stop)
        assert totals(stopped) == before, f"stopped after store {stop}"
        repaired = stopped.copy()
        repaired.play(("repair", 0))
        assert not repaired.wrong()
        for second in range(len(stores_of(stopped, ("repair", 0))) + 1):
            twice = stop_after(stopped, ("repair", 0), second)
            assert totals(twice) == before, f"stopped after store {stop}, and its repair after store {second}"
        repaired.play(("die", 1))
        assert totals(repaired) == before
        assert not any(repaired.words[slot(1) + ACCOUNT_AT : slot(2)])
        assert not repaired.words[slot(1) + IN_USE]


# --- stopped at every store


def stop_after(lock: Lock, move: Move, stores: int) -> Lock:
    """A copy in which the move ended after so many stores."""
    other = lock.copy()
    words = EndingWords("Q", lock.words)
    words.left = stores
    other.bind(words)
    with suppress(Stopped):
        other.play(move)
    other.bind(array("Q", words))
    return other


def stores_of(lock: Lock, move: Move) -> list[int]:
    """The index of each store of the move."""
    other = lock.copy()
    words = EndingWords("Q", lock.words)
    other.bind(words)
    other.play(move)
    return words.stored


def in_an_account(index: int) -> bool:
    """Whether the word belongs to an account: what happens between those stores is tested above, once."""
    if index >= slot(0):
        return (index - slot(0)) % SLOT.size > ACCOUNT_AT
    return any(bank < index < bank + ACCOUNT.size for bank in BANKS)


def stops(lock: Lock, move: Move) -> Iterator[tuple[list[int], Lock]]:
    """What has been stored and the lock as it is when the move stops, for each store after which it may."""
    stored = stores_of(lock, move)
    for stores in range(len(stored) + 1):
        if not (stores and in_an_account(stored[stores - 1])):
            yield stored[:stores], stop_after(lock, move, stores)


ASKED = {
    "enter": 1 << READ,
    "ask_seek": 1 << SEEK,
    "ask_write": 1 << WRITE,
    "try_write": 1 << WRITE,
    "upgrade": 1 << UPGRADE,
    "release_write": 1 << WRITE,
    "release_write_in_doubt": 1 << WRITE,
    "write_to_seek": 1 << WRITE,
    "write_to_read": 1 << WRITE,
    "release_seek": 1 << SEEK,
    "seek_to_read": 1 << SEEK,
    "read_to_seek": 1 << SEEK,
    "read_to_write": 1 << WRITE,
    "release_upgraded": 1 << UPGRADE | 1 << SEEK,
    "leave": 0,
}
"""By move, the modes that an asynchronous exception in the middle of it leaves abandoned."""


class Deaths:
    """Every move from every reachable state, stopped at every store, by death or by an exception; and its repair."""

    def __init__(self, slots: int, *, fast: bool = True, kind: type[State] = State) -> None:
        self.states = reachable(slots, fast=fast, kind=kind)
        self._drained: set[object] = set()
        self._repaired: set[object] = set()
        self.count = 0

    def check(self) -> None:
        """Raise AssertionError with the state, the move, and what was wrong."""
        for lock in self.states:
            part = parts(lock)
            # Of two participants with the same part, one will do.
            moves = {(name, part[number]): (name, number) for name, number in lock.moves()}
            for move in moves.values():
                if move[0] in ASKED or move[0] in {"withdraw", "settle", "die", "close"}:
                    for stored, stopped in stops(lock, move):
                        self.count += 1
                        self._go_on(lock, move, stored, stopped)

    def _go_on(self, lock: Lock, move: Move, stored: list[int], stopped: Lock) -> None:
        name, number = move
        before = lock.picture()
        where = (before, move, stored)
        if name in {"enter", "leave"} and {slot(number) + READS}.issuperset(stored):
            # Not under the guard yet: nobody sees that there is anything to repair.
            self._dies(before, stopped, number, where)
            return
        self._repair_at_every_store(stopped, where)
        stopped.play(("repair", 0))
        self._see(before, stopped, number, where)
        if name == "settle":
            if stopped.words[slot(number) + ABANDONED]:
                stopped.play(move)
            self._ends_as(lock, move, stopped, where)
        elif name in {"die", "close"}:
            if stopped.words[slot(number) + IN_USE]:
                stopped.play(move)
            self._ends_as(lock, move, stopped, where)
        else:
            self._is_interrupted(before, stopped.copy(), move, where)
            self._dies(before, stopped, number, where)

    def _see(self, before: Picture, lock: Lock, actor: int, where: object) -> None:
        assert not lock.wrong(), (where, lock.wrong())
        lost = kept(before, lock.picture(), actor)
        assert not lost, (where, lost)

    def _dies(self, before: Picture, lock: Lock, number: int, where: object) -> None:
        wrote = lock.words[WRITER] == number + 1
        lock.play(("die", number))
        self._see(before, lock, number, where)
        now = lock.picture()
        assert not now.reads[number], where
        assert not now.wants[number], where
        assert number not in {now.writer, now.seeker}, where
        assert now.owner_died or not wrote, where
        self._drain(lock)

    def _is_interrupted(self, before: Picture, lock: Lock, move: Move, where: object) -> None:
        name, number = move
        asked = 1 << before.wants[number] if name == "withdraw" else ASKED[name]
        if asked:
            lock.words[slot(number) + ABANDONED] = asked
            lock.play(("settle", number))
        self._see(before, lock, number, where)
        now = lock.picture()
        assert not asked & (1 << WRITE | 1 << UPGRADE) or now.writer != number, where
        assert not asked & 1 << SEEK or now.seeker != number, where
        assert not now.wants[number], where
        self._drain(lock)

    def _ends_as(self, lock: Lock, move: Move, stopped: Lock, where: object) -> None:
        whole = lock.copy()
        whole.play(move)
        assert signature(stopped) == signature(whole), where
        assert stopped.picture().facts() == whole.picture().facts(), where
        assert not stopped.wrong(), where
        self._drain(stopped)

    def _drain(self, lock: Lock) -> None:
        key = signature(lock)
        if key not in self._drained:
            self._drained.add(key)
            drain(lock.copy())

    def _repair_at_every_store(self, stopped: Lock, where: object) -> None:
        words = stopped.words
        key = signature(stopped), words[SEQUENCE] & 1, words[FOLD] >> 1 > 0, words[HIGH_WATER]
        if key in self._repaired:
            return
        self._repaired.add(key)
        whole = stopped.copy()
        whole.play(("repair", 0))
        facts = whole.picture().facts()
        again = whole.copy()
        again.play(("repair", 0))
        changed = [index for index, word in enumerate(again.words) if word != whole.words[index]]
        assert changed == [REPAIRS], (where, changed)
        for _, twice in stops(stopped, ("repair", 0)):
            twice.play(("repair", 0))
            assert twice.picture().facts() == facts, where
            assert not twice.wrong(), (where, twice.wrong())


@pytest.mark.parametrize(("slots", "fast"), [(3, True), (2, False)])
def test_stopped_at_every_store(slots: int, fast: bool) -> None:
    """Wherever an operation stops, by death or by an exception, nobody else loses anything, and all are let in.

    All operations, from all states that the participants can reach. What an eviction or a settlement was
    doing is finished by the next one, and a repair is finished by the next repair, to the same result.
    """
    deaths = Deaths(slots, fast=fast)
    deaths.check()
    assert deaths.count > 10_000


# --- fences


class Fences:
    """All three obligations, as on a machine with weak order; each fence is logged among the stores and loads."""

    def __init__(self, log: list[tuple[str, int]]) -> None:
        def fence(name: str) -> Callable[[], None]:
            return lambda: log.append((name, 0))

        self.after_closing = fence("after_closing")
        self.before_writing = fence("before_writing")
        self.before_opening = fence("before_opening")


class LoggedWords(EndingWords):
    """Words that also tell of the stores that matter here, and who looked at the readers' words."""

    log: list[tuple[str, int]]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step == SLOT.size and index.start == slot(0) + READS:
            self.log.append(("scan", 0))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        if index == GATE:
            self.log.append(("close" if value == GATE_CLOSED else "open", 0))
        elif index == SEQUENCE:
            self.log.append(("odd" if value & 1 else "even", 0))
        elif index == WRITER and value:
            self.log.append(("writer", value - 1))
        elif index >= slot(0) and (index - slot(0)) % SLOT.size == WANT and not value:
            self.log.append(("granted", (index - slot(0)) // SLOT.size))


def fenced_copy(lock: Lock) -> tuple[Lock, LoggedWords]:
    """The same lock on a weak machine, and its words, which log what happens to it."""
    other = lock.copy()
    words = LoggedWords("Q", lock.words)
    words.log = []
    other.bind(words)
    other.state = lock.kind(words, Fences(words.log), fast=True)
    return other, words


def unfenced(words: LoggedWords) -> list[str]:
    """Say which of the three obligations was not met between the steps of a log."""
    found = []
    steps = [step for step, _ in words.log]
    for position, (step, number) in enumerate(words.log):
        behind = steps[:position]
        if step == "writer" and "close" in behind and "after_closing" not in up_to("scan", since("close", behind)):
            found.append("the readers' words were looked at before the fence after closing")
        if step == "open" and "before_opening" not in behind:
            found.append("the gate was opened without a fence")
        if step == "even" and "before_opening" not in behind:
            found.append("the sequence was made even without a fence")
        if step == "granted" and words[WRITER] == number + 1 and "before_writing" not in since("writer", behind):
            found.append(f"{number} could write before the fence after the drain")
    if "odd" in steps and "before_writing" not in since("odd", steps):
        found.append("W was granted without a fence after the sequence became odd")
    return found


def since(step: str, steps: list[str]) -> list[str]:
    """What came after the last of these steps."""
    return steps[len(steps) - steps[::-1].index(step) :] if step in steps else steps


def up_to(step: str, steps: list[str]) -> list[str]:
    """What came before the last of these steps."""
    return steps[: len(steps) - 1 - steps[::-1].index(step)] if step in steps else []


def test_every_change_of_the_gate_is_fenced() -> None:
    """Where order is weak: a fence between closing and scanning, between drain and grant, and before opening."""
    for lock in reachable(3, fast=True):
        for move in lock.moves():
            other, words = fenced_copy(lock)
            other.play(move)
            assert not unfenced(words), (lock.picture(), move, words.log)


def test_repair_is_fenced() -> None:
    """The same when a granter is killed at any store, and another one repairs: no fence is left out."""
    for lock in reachable(2, fast=True):
        for move in lock.moves():
            for stores, index in enumerate(stores_of(lock, move)):
                if in_an_account(index):
                    continue
                other, words = fenced_copy(lock)
                words.left = stores
                with suppress(Stopped):
                    other.play(move)
                words.left = -1
                other.play(("repair", 0))
                assert not unfenced(words), (lock.picture(), move, stores, words.log)


# --- what all this must catch


class IgnoresOneReader(State):
    """A writer that waits for two readers, and not for one."""

    __slots__ = ()

    def column(self, field: int) -> list[int]:
        column = super().column(field)
        return [0] * len(column) if field == READS and sum(map(bool, column)) == 1 else column


class ForgetsToDecide(State):
    """A time-out that takes the want back, and leaves it at that."""

    __slots__ = ()

    def withdraw(self, number: int) -> bool:
        at = slot(number) + WANT
        granted = not self._words[at]
        self._words[at] = 0
        return granted


class ForgetsTheDead(State):
    """An eviction that does not decide anew."""

    __slots__ = ()

    def evict(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.clear(number, died=True)
            self.depart(number)


class OwesNothing(State):
    """The readers that a write phase made wait go on waiting for the next one."""

    __slots__ = ()

    def decide(self) -> None:
        if not self._words[WRITER]:
            self._words[OWED] = 0
        super().decide()


class ClosesForQueuedWriters(State):
    """A W queued behind an S closes the gate."""

    __slots__ = ()

    def decide(self) -> None:
        super().decide()
        if self._words[SEEKER] and any(want & MODE_MASK == WRITE for want in self.column(WANT)):
            self._words[GATE] = GATE_CLOSED


class StarvesWriters(State):
    """R to S although a W waits."""

    __slots__ = ()

    def try_read_to_seek(self, number: int) -> bool:
        if self._words[SEEKER] or self._words[WRITER]:
            return False
        self._words[SEEKER] = number + 1
        self._words[slot(number) + READS] -= 1
        self.decide()
        return True


class OpensTooEarly(State):
    """W to R that opens the gate before its own read is stored, so that the next W gets in."""

    __slots__ = ()

    def write_to_read(self, number: int) -> None:
        if self._words[SEEKER] == number + 1:
            self._words[SEEKER] = 0
        self.release_write(number, True)
        self._words[slot(number) + READS] += 1


class LeavesGhosts(State):
    """What an interrupted asker walked away from stays queued."""

    __slots__ = ()

    def settle(self, number: int) -> None:
        want = self._words[slot(number) + WANT]
        super().settle(number)
        self._words[slot(number) + WANT] = want


class WakesNobody(State):
    """A grant that is stored, and not posted."""

    __slots__ = ()

    def _granted(self, number: int) -> None:
        super()._granted(number)
        if self._words[slot(number) + READS]:
            self.woken.remove(number)


QUICK = settings(SEARCH, phases=[Phase.generate], print_blob=False)


@pytest.mark.parametrize(
    "kind",
    [
        IgnoresOneReader,
        ForgetsToDecide,
        ForgetsTheDead,
        OwesNothing,
        ClosesForQueuedWriters,
        StarvesWriters,
        OpensTooEarly,
        LeavesGhosts,
        WakesNobody,
    ],
)
def test_random_moves_catch(kind: type[State]) -> None:
    """A decider with this fault is found out, at random and by going through all that there is."""
    wrong = type("Wrong", (Machine,), {"kind": kind})
    with pytest.raises((AssertionError, ValueError)):
        run_state_machine_as_test(wrong, settings=QUICK)  # type: ignore[no-untyped-call]
    with pytest.raises((AssertionError, ValueError)):
        explore(3, fast=True, kind=kind)


@pytest.mark.parametrize("fault", ["upgrade", "order"])
def test_random_moves_catch_wrong_turns(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queued W that enters during an upgrade is found out, and so is a queue that serves its last one first."""

    def wrong_turn(seeker: int, wants: list[int]) -> tuple[int, int]:
        writers = [want for want in wants if want & MODE_MASK == WRITE]
        if fault == "upgrade" and seeker and wants[seeker - 1] & MODE_MASK == UPGRADE and writers:
            return WRITE, wants.index(min(writers))
        if fault == "order" and not seeker and writers:
            return WRITE, wants.index(max(writers))
        return next_turn(seeker, wants)

    next_turn = room.next_turn
    monkeypatch.setattr(room, "next_turn", wrong_turn)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=QUICK)  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError):
        explore(3, fast=True)


class GrantsBeforeItStores(State):
    """Readers see their want gone before their read is there."""

    __slots__ = ()

    def _admit(self, wants: list[int]) -> None:
        for number, want in enumerate(wants):
            if want & MODE_MASK == READ:
                self._granted(number)
                self._words[slot(number) + READS] = 1
                wants[number] = 0


class ForgetsHalfGrants(State):
    """A repair that leaves the wants of those that have been granted something."""

    __slots__ = ()

    def repair(self) -> None:
        self._finish_fold()
        if self._words[WRITER]:
            self._words[OWED] = 1
        if self._words[SEQUENCE] & 1 != (self._words[WRITER] != 0):
            self._words[SEQUENCE] += 1
        self.decide()


class EndsWritesBackwards(State):
    """The writer word goes before the sequence is even."""

    __slots__ = ()

    def _end_write(self) -> None:
        self._words[WRITER] = 0
        self._words[SEQUENCE] += 1

    def repair(self) -> None:
        sequence = self._words[SEQUENCE]
        super().repair()
        if not self._words[WRITER]:
            self._words[SEQUENCE] = sequence


class SettlesBackwards(State):
    """What was abandoned is forgotten before it is carried out."""

    __slots__ = ()

    def settle(self, number: int) -> None:
        base = slot(number)
        abandoned = self._words[base + ABANDONED]
        self._words[base + ABANDONED] = 0
        want = self._words[base + WANT]
        if want and abandoned >> (want & MODE_MASK) & 1:
            self._words[base + WANT] = 0
        if abandoned >> READ & 1:
            self._words[base + READS] = 0
        if abandoned & (1 << WRITE | 1 << UPGRADE) and self._words[WRITER] == number + 1:
            self._end_write()
        if abandoned >> SEEK & 1 and self._words[SEEKER] == number + 1:
            self._words[SEEKER] = 0
        self.decide()


class ReleasesAnybody(State):
    """The dead seeker's word is cleared without a look at whose it is."""

    __slots__ = ()

    def clear(self, number: int, *, died: bool) -> None:
        super().clear(number, died=died)
        self._words[SEEKER] = 0


class TellsNobody(State):
    """A writer's death is not remembered."""

    __slots__ = ()

    def clear(self, number: int, *, died: bool) -> None:
        super().clear(number, died=died)
        self._words[OWNER_DIED] = 0


@pytest.mark.parametrize(
    "kind",
    [
        GrantsBeforeItStores,
        ForgetsHalfGrants,
        EndsWritesBackwards,
        SettlesBackwards,
        ReleasesAnybody,
        TellsNobody,
        ForgetsTheDead,
    ],
)
def test_stops_catch(kind: type[State]) -> None:
    """A decider that dies badly is found out, with two participants."""
    with pytest.raises(AssertionError):
        Deaths(2, kind=kind).check()


class FoldsTwice(State):
    """The sum is put in force without saying whose account is in it."""

    __slots__ = ()

    def _finish_fold(self) -> None:
        words = self._words
        number = (words[FOLD] >> 1) - 1
        if number >= 0:
            words[FOLD] &= 1
            for offset in range(ACCOUNT.size):
                words[slot(number) + ACCOUNT_AT + offset] = 0


def test_folding_twice_is_caught() -> None:
    """An account that is cleared after the bank has forgotten whose it is gets counted twice."""
    lock = with_accounts(2)
    lock.kind = FoldsTwice
    lock.bind(lock.words)
    before = totals(lock)
    everywhere = range(len(stores_of(lock, ("die", 1))))
    assert any(totals(stop_after(lock, ("die", 1), stop)) != before for stop in everywhere)
