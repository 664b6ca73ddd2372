"""Deciders with a fault, each of which the searches of the other files must find."""

# ruff: noqa: D102  what each class does wrong is said at its head

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from shmlock._engine import state as room
from shmlock._engine.modes import MODE_MASK, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.phases import next_turn
from shmlock._engine.state import State
from shmlock._segment.layout import (
    ABANDONED,
    ACCOUNT,
    ACCOUNT_AT,
    FOLD,
    GATE,
    GATE_CLOSED,
    OWED,
    OWNER_DIED,
    READS,
    SEEKER,
    SEQUENCE,
    TICKET,
    WANT,
    WRITER,
    slot,
)
from tests.engine.plain_lock import stop_after, stores_of
from tests.engine.reference import explore
from tests.engine.test_state import SEARCH, Machine
from tests.engine.test_state_stops import Deaths, totals, with_accounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.engine.plain_lock import Move


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

    def try_seek(self, number: int) -> bool:
        if self._words[SEEKER] or self._words[WRITER]:
            return False
        self._words[SEEKER] = number + 1
        self.decide()
        return True


class OpensTooEarly(State):
    """W to R that opens the gate before its own read is stored, so that the next W gets in."""

    __slots__ = ()

    def release_upgraded(self, number: int, vouch: bool) -> None:
        reads = self._words[slot(number) + READS]
        self._words[slot(number) + READS] = 0
        super().release_upgraded(number, vouch)
        self._words[slot(number) + READS] = reads


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


# It ends with the first find; the rarest of them takes some hundred examples.
QUICK = settings(SEARCH, max_examples=5000, phases=[Phase.generate], print_blob=False)


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
        run_state_machine_as_test(wrong, settings=QUICK)
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

    monkeypatch.setattr(room, "next_turn", wrong_turn)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=QUICK)
    with pytest.raises(AssertionError):
        explore(3, fast=True)


class NeverCloses(State):
    """Readers flow past a writer that is next."""

    __slots__ = ()

    def _close(self) -> None:
        pass


class ServesTheLastFirst(State):
    """Each ask gets a lower ticket than the one before."""

    __slots__ = ()

    def ask(self, number: int, mode: int) -> bool:
        self._words[TICKET] = 1000 - 2 * sum(want > 0 for want in self.column(WANT))
        return super().ask(number, mode)


class OnlyFairness(Machine):
    """Moves that are compared with nothing: fairness alone is looked at."""

    def make(self, move: Move) -> None:
        before = self.lock.picture()
        self.lock.play(move)
        gone = move[1] if move[0] in {"die", "close"} else None
        unfair = self.fairness.wrong(before, self.lock.picture(), gone, self.lock.halfway)
        assert not unfair, unfair[0].translate(NO_DIGITS)


NO_DIGITS = str.maketrans("", "", "0123456789")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OwesNothing, "not let in when the write phase|second write phase"),
        (NeverCloses, "passed a writer that is next"),
        (ServesTheLastFirst, "was overtaken by a later writer"),
    ],
)
def test_fairness_alone_catches(kind: type[State], said: str) -> None:
    """Counting phases finds what is unfair without any reference to compare with."""
    wrong = type("Wrong", (OnlyFairness,), {"kind": kind})
    with pytest.raises(AssertionError, match=said):
        run_state_machine_as_test(wrong, settings=QUICK)


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
