"""Section 6 of docs/protocol.md written down a second time: sets and queues instead of words and tickets."""

# ruff: noqa: D102  the moves say by their names what they do

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from shmlock._engine.modes import READ, SEEK, UPGRADE, WRITE
from shmlock._engine.state import State
from shmlock._segment.layout import SEQUENCE
from tests.engine.plain_lock import NEVER_RESTS, Lock, Move, Picture, signature, walked_away_from

if TYPE_CHECKING:
    from collections.abc import Collection


class Reference(Picture):
    """What each move does, by section 6."""

    def __init__(self, slots: int, *, fast: bool, openings: int = NEVER_RESTS) -> None:
        super().__init__([0] * slots, [0] * slots)
        self.fast = fast
        self.after_a_rest = self.openings = openings  # revocations that are followed by no rest
        self.resting = False
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
        was_open = self.fast and not self.closed and not self.resting
        self.closed = self.writer is not None or self.writer_is_next()
        if self.closed and was_open:
            self.resting = self.openings == 0
            self.openings = max(self.openings - 1, 0)

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
        if nested or self.writer == number or (self.fast and not self.closed and not self.resting):
            self.reads[number] += 1
            return True
        if not self.closed:
            if self.resting:
                self.resting, self.openings = False, self.after_a_rest
            return self._ask(number, READ)
        self.half_ask(number)
        return self.finish_asking(number)

    def half_ask(self, number: int) -> None:
        self.reads[number] = 0
        self.wants[number] = READ

    def finish_asking(self, number: int) -> bool:
        self._settle_unless_others_do()
        return not self.wants[number]

    def _settle_unless_others_do(self) -> None:
        others = self.fast and self.closed and (self.writer is not None or not self.drained(but=self.seeker))
        if not others:
            self.settle_down()

    def leave(self, number: int) -> None:
        self.reads[number] -= 1
        if not self.reads[number] and self.writer != number:
            self.finish_leaving(number)

    def half_enter(self, number: int) -> None:
        self.reads[number] = 1

    def look(self, number: int) -> bool:
        self.reads[number] = 0
        return self.enter(number)

    def half_leave(self, number: int) -> None:
        self.reads[number] = 0

    def finish_leaving(self, _number: int) -> None:
        if self.closed or not self.fast or self.resting:
            self._settle_unless_others_do()

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

    def try_write(self, number: int) -> bool:
        free = self.seeker is None and self.writer is None and not any(self.wants) and self.drained(but=number)
        if free:
            self._write(number)
            self.settle_down()
        return free

    def read_to_write(self, number: int) -> bool:
        done = self.try_write(number)
        self.reads[number] -= done
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
    if not {"finish_leaving", "finish_asking"} & set(lock.halfway.values()):  # until then there may be something to do
        assert not lock.wrong(), move


def explore(
    slots: int, *, fast: bool, openings: int = NEVER_RESTS, kind: type[State] = State, without: Collection[str] = ()
) -> list[tuple[Lock, Reference]]:
    """All states that these moves lead to, in step with the reference; of those that differ in slots alone, one."""
    found = [(Lock(slots, fast=fast, openings=openings, kind=kind), Reference(slots, fast=fast, openings=openings))]
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


def reachable(slots: int, *, fast: bool, kind: type[State] = State) -> list[Lock]:
    """All states that whole moves of the living lead to; of those that differ in slot numbers alone, one."""
    return [lock for lock, _ in explore(slots, fast=fast, kind=kind, without={*RARE, "half_enter", "half_leave"})]


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
