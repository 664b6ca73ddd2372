"""A lock on plain words: the real `State`, what its participants do without the guard, and where they may stop."""

# ruff: noqa: D102  the moves say by their names what they do

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from shmlock._engine.modes import MODE_BITS, MODE_MASK, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.state import State
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
    OPENINGS,
    OWED,
    OWNER_DIED,
    READS,
    RESTING,
    SEEKER,
    SEQUENCE,
    SLOT,
    TICKET,
    WANT,
    WRITER,
    payload_at,
    slot,
)
from shmlock._segment.words import WORD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Move: TypeAlias = tuple[str, int]
"""The name of a method that `Lock` and `Reference` share, and the slot of the participant that moves."""


NEVER_RESTS = 1 << 40


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


def walked_away_from(picture: Picture, number: int) -> set[int]:
    """The modes that an interrupted call of this participant would mark as abandoned, most of all at once."""
    if picture.wants[number]:
        return {picture.wants[number]}
    if picture.seeker == number:
        return {SEEK, WRITE}
    return {WRITE} if picture.writer == number else {READ}


if TYPE_CHECKING:
    _Array = array[int]
else:
    _Array = array  # takes arguments only from 3.12 on


class Stopped(BaseException):
    """The process that was storing has ended."""


class EndingWords(_Array):
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


class Slow:
    """In slow mode there is nothing to fence."""

    after_closing = before_writing = before_opening = here = None


class Fast:
    """All loads and stores have one order here, so that fences have nothing to do; but they are asked for."""

    after_closing = before_writing = before_opening = here = staticmethod(lambda: None)


class Lock:
    """A `State`, and what its participants do without the guard."""

    def __init__(
        self, slots: int, *, fast: bool = True, openings: int = NEVER_RESTS, kind: type[State] = State
    ) -> None:
        """`openings`: how many revocations are followed by no rest of the gate, now and after each rest."""
        self.slots = slots
        self.fast = fast
        self.openings = openings
        self.kind = kind
        self.halfway: dict[int, str] = {}  # the move that must come next, by slot
        self.bind(array("Q", bytes(payload_at(slots) * WORD)))
        self.words[SEQUENCE] = 2
        self.words[GATE] = GATE_OPEN if fast else GATE_SLOW
        self.words[OPENINGS] = openings
        for number in range(slots):
            self.join(number)

    def bind(self, words: array[int]) -> None:
        """Go on with these words. A negative number, or one beyond 64 bits, is an OverflowError in them."""
        self.words = words
        self.state = self.kind(words, Fast if self.fast else Slow, fast=self.fast, openings=self.openings)

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

    def rest(self) -> tuple[int, int]:
        """Whether the gate rests, and after how many revocations it will."""
        openings = self.words[OPENINGS]
        return self.words[RESTING], openings if self.openings < NEVER_RESTS else NEVER_RESTS

    def _column(self, offset: int) -> list[int]:
        return self.words[slot(0) + offset :: SLOT.size].tolist()

    def wrong(self) -> list[str]:
        """Say what must never be seen, of the words as well as of the picture that they give."""
        words = self.words
        found = self.picture().wrong([number for number, step in self.halfway.items() if step == "look"])
        if words[SEQUENCE] & 1 != (words[WRITER] != 0):
            found.append("the sequence is odd without a writer, or even with one")
        if words[GATE] not in {GATE_CLOSED, GATE_OPEN if self.fast and not words[RESTING] else GATE_SLOW}:
            found.append(f"the gate is {words[GATE]}")
        wants = [want for want in self._column(WANT) if want]
        tickets = [want >> MODE_BITS for want in wants if want & MODE_MASK != READ]  # readers take none of their own
        if len(set(tickets)) < len(tickets) or any(ticket >= words[TICKET] for ticket in tickets):
            found.append(f"tickets {tickets}, and the next is {words[TICKET]}")
        if any(want >> MODE_BITS > words[TICKET] for want in wants):
            found.append(f"wants {wants}, and the next ticket is {words[TICKET]}")
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
                if self.halfway[number] == "look" and self.words[GATE] == GATE_CLOSED:
                    yield "half_ask", number
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
        if self.words[GATE] != GATE_CLOSED:
            return self.state.ask(number, READ)
        self.half_ask(number)
        return self.finish_asking(number)

    def half_ask(self, number: int) -> None:
        self.words[slot(number) + READS] = 0
        self.words[slot(number) + WANT] = self.words[TICKET] << MODE_BITS | READ
        self.halfway[number] = "finish_asking"

    def finish_asking(self, number: int) -> bool:
        del self.halfway[number]
        self._decide_unless_others_do()
        return not self.words[slot(number) + WANT]

    def _decide_unless_others_do(self) -> None:
        """Without the guard: a writer that holds, or the last reader to leave, is sure to decide."""
        now = self.picture()
        others = self.fast and now.closed and (now.writer is not None or not now.drained(but=now.seeker))
        if not others:
            self.state.decide()

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
            self._decide_unless_others_do()

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
            self._decide_unless_others_do()

    def ask_seek(self, number: int) -> bool:
        return self.state.ask(number, SEEK)

    def ask_write(self, number: int) -> bool:
        return self.state.ask(number, WRITE)

    def upgrade(self, number: int) -> bool:
        return self.state.ask(number, UPGRADE)

    def withdraw(self, number: int) -> bool:
        return self.state.withdraw(number)

    def release_write(self, _number: int) -> None:
        self.state.release_write(True)

    def release_write_in_doubt(self, _number: int) -> None:
        self.state.release_write(False)

    def release_seek(self, _number: int) -> None:
        self.state.release_seek()

    def release_upgraded(self, number: int) -> None:
        self.state.release_upgraded(number, True)

    def write_to_seek(self, number: int) -> None:
        self.state.write_to_seek(number, True)

    def write_to_read(self, number: int) -> None:
        self.words[slot(number) + READS] += 1
        self.state.release_upgraded(number, True)

    def seek_to_read(self, number: int) -> None:
        self.words[slot(number) + READS] += 1
        self.state.release_seek()

    def read_to_seek(self, number: int) -> bool:
        return self._give_up_read(number, self.state.try_seek(number))

    def read_to_write(self, number: int) -> bool:
        return self._give_up_read(number, self.state.try_write(number))

    def _give_up_read(self, number: int, converted: bool) -> bool:
        self.words[slot(number) + READS] -= converted
        return converted

    def try_write(self, number: int) -> bool:
        return self.state.try_write(number)

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


def signature(lock: Lock) -> object:
    """What tells one state from another: not which slot is whose, nor counters."""
    now = lock.picture()
    return tuple(sorted(parts(lock))), now.owed, now.closed, now.owner_died, lock.rest()


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
    """What has been stored and the lock as it is when the move stops, for each store after which it may.

    A store of what was there already is left out: it can't be told from the one before.
    """
    stored = stores_of(lock, move)
    last = None
    for stores in range(len(stored) + 1):
        if stores and in_an_account(stored[stores - 1]):
            continue
        stopped = stop_after(lock, move, stores)
        if stopped.words != last:
            last = stopped.words[:]
            yield stored[:stores], stopped
