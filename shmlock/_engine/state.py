"""The state of a lock, and every change to it. Pure: it knows words, fences, and nothing of who sleeps.

Ground truth is in each slot's `reads` and `want` and in writer, seeker and owed. What to do next is a
function of that state alone (`decide`), with no memory of which event came last; so repair after a death is
the same function. Every method is called under the guard with `dirty` set. Each is a few stores in such an
order that after every one of them the state is the old one, the new one, or one that `repair` finishes.
Slots that were granted something are in `woken` afterwards; the caller posts them when it has left the guard.
"""

from __future__ import annotations

import time
from itertools import compress, count
from typing import TYPE_CHECKING, Final, Protocol, overload

from shmlock._engine.modes import MODE_BITS, MODE_MASK, QUEUES, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.phases import next_turn
from shmlock._segment.layout import (
    ABANDONED,
    ACCOUNT,
    ACCOUNT_AT,
    BANKS,
    EVICTIONS,
    FOLD,
    GATE,
    GATE_CLOSED,
    GATE_OPEN,
    GATE_SLOW,
    HIGH_WATER,
    IN_USE,
    MAXIMA,
    OPENINGS,
    OWED,
    OWNER_DEATHS,
    OWNER_DIED,
    READS,
    REPAIRS,
    RESTING,
    REVOCATION_NS,
    REVOCATIONS,
    SEEKER,
    SEQUENCE,
    SLOT,
    TICKET,
    WANT,
    WATCH,
    WRITER,
    slot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Words(Protocol):
    """A memoryview of shared words, or in tests a list that can `tolist`."""

    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> Words: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def tolist(self) -> list[int]: ...


class Fencing(Protocol):
    """What `_kernel.membarrier.Fences` is; this room does not know the kernel. None: not needed here."""

    @property
    def after_closing(self) -> Callable[[], None] | None: ...
    @property
    def before_writing(self) -> Callable[[], None] | None: ...
    @property
    def before_opening(self) -> Callable[[], None] | None: ...
    @property
    def here(self) -> Callable[[], None] | None: ...


OPENINGS_A_REST: Final = 32  # so that a reader in between two writes takes the guard once in 33 times at most
_FIRST_SLOT = slot(0)
_STRIDE = SLOT.size


class State:
    """All words of one lock that are changed under the guard."""

    __slots__ = (
        "_after_closing",
        "_before_opening",
        "_before_writing",
        "_here",
        "_open",
        "_openings",
        "_words",
        "woken",
    )

    def __init__(self, words: Words, fences: Fencing, *, fast: bool, openings: int = OPENINGS_A_REST) -> None:
        """`openings`: after how many revocations the gate opens at once, when a reader had to ask."""
        self._words = words
        self._openings = openings
        self._after_closing = fences.after_closing
        self._before_writing = fences.before_writing
        self._before_opening = fences.before_opening
        self._here = fences.here
        self._open = GATE_OPEN if fast else GATE_SLOW
        self.woken: list[int] = []

    def column(self, field: int) -> list[int]:
        """One field of every slot below the high-water mark. Cost: one load a slot."""
        words = self._words
        start = _FIRST_SLOT + field
        return words[start : start + words[HIGH_WATER] * _STRIDE : _STRIDE].tolist()

    # --- asking and withdrawing

    def ask(self, number: int, mode: int) -> bool:
        """Queue a want; True when it was granted at once."""
        words = self._words
        # What decide would come to, without queueing first.
        if (mode == UPGRADE or (mode == WRITE and self._is_free())) and self._write_now(number):
            return True
        if mode == READ and words[RESTING]:
            words[OPENINGS] = self._openings
            words[RESTING] = 0
        ticket = words[TICKET]
        words[TICKET] = ticket + 1
        at = slot(number) + WANT
        words[at] = ticket << MODE_BITS | mode
        self.decide()
        if words[at]:
            return False
        self.woken.remove(number)
        return True

    def _write_now(self, number: int) -> bool:
        """Close the gate; W, if nobody else reads. An own R, or S, is no obstacle."""
        self._close()
        reads = self.column(READS)
        reads[number] = 0
        if any(reads):
            return False
        self._grant_write(number)
        return True

    def try_seek(self, number: int) -> bool:
        """S for one that reads, unless somebody seeks, writes or waits to; its R is its own to give up.

        A waiting W refuses it, too: readers that keep seeking would starve it.
        """
        words = self._words
        if words[SEEKER] or words[WRITER] or any(want & QUEUES for want in self.column(WANT)):
            return False
        words[SEEKER] = number + 1
        self.decide()
        return True

    def try_write(self, number: int) -> bool:
        """W, at once or not at all, for one that may read; its R is its own to give up.

        Looks before it closes the gate: a reader that is in would have paid for nothing.
        """
        if not self._is_free():
            return False
        reads = self.column(READS)
        reads[number] = 0
        if any(reads):
            return False
        done = self._write_now(number)
        if not done:  # a reader came in before the gate was closed
            self.decide()
        return done

    def _is_free(self) -> bool:
        """Whether nobody seeks, writes or waits."""
        words = self._words
        return not words[WRITER] and not words[SEEKER] and not any(self.column(WANT))

    def withdraw(self, number: int) -> bool:
        """Take the want back; True when the grant came first, and is the asker's to keep or give back."""
        words = self._words
        at = slot(number) + WANT
        if not words[at]:
            return True
        words[at] = 0
        self.decide()
        return False

    # --- waiting for a change

    def watch(self, number: int) -> None:
        """From now on `wake_watchers` wakes this slot."""
        self._words[slot(number) + WATCH] = 1

    def unwatch(self, number: int) -> None:
        """By the slot's owner; the guard is not needed, for a post too many does no harm."""
        self._words[slot(number) + WATCH] = 0

    def wake_watchers(self) -> None:
        self.woken.extend(number for number, watches in enumerate(self.column(WATCH)) if watches)

    # --- giving back and converting

    def release_write(self, vouch: bool) -> None:
        """W ends: to S if the holder seeks, to R if it reads, else altogether.

        `vouch`: the holder says that the data are whole, whatever an earlier writer's death left behind.
        """
        words = self._words
        if self._before_opening is not None:
            self._before_opening()
        if vouch:
            words[OWNER_DIED] = 0
        self._end_write()
        self.decide()

    def vouch(self) -> None:
        """The data are whole again."""
        self._words[OWNER_DIED] = 0

    def _end_write(self) -> None:
        words = self._words
        words[SEQUENCE] += 1
        words[WRITER] = 0

    def release_seek(self) -> None:
        self._words[SEEKER] = 0
        self.decide()

    def release_upgraded(self, number: int, vouch: bool) -> None:
        """W ends, and the S that it may come from."""
        words = self._words
        if words[SEEKER] == number + 1:
            words[SEEKER] = 0
        self.release_write(vouch)

    def write_to_seek(self, number: int, vouch: bool) -> None:
        """W to S, in place: nobody gets in between."""
        self._words[SEEKER] = number + 1
        self.release_write(vouch)

    # --- the decision

    def decide(self) -> None:
        """Bring the gate and the grants up to what the state asks for. Idempotent."""
        words = self._words
        if words[WRITER]:
            return
        if self._here is not None:
            self._here()  # our stores first: a reader may be storing its want without the guard (see bias)
        wants = self.column(WANT)
        if not any(wants):
            words[OWED] = 0
            self._flow(wants)
            return
        if words[OWED]:
            self._admit(wants)
            words[OWED] = 0
        mode, number = next_turn(words[SEEKER], wants)
        if mode == READ:
            self._flow(wants)
        elif mode == SEEK:
            words[SEEKER] = number + 1
            self._granted(number)
            self._flow(wants)
        else:
            self._close()
            reads = self.column(READS)
            if mode == UPGRADE:
                reads[number] = 0  # a seeker may read inside; it does not wait for itself
            if not any(reads):
                self._grant_write(number)
                self._granted(number)

    def _close(self) -> None:
        """Keep readers out from now on: a revocation, if they were on their fast path."""
        words = self._words
        gate = words[GATE]
        if gate != GATE_CLOSED:
            words[GATE] = GATE_CLOSED
        if gate == GATE_OPEN:
            self._revoke()

    def _revoke(self) -> None:
        words = self._words
        words[REVOCATIONS] += 1
        if self._after_closing is not None:
            began = time.monotonic_ns()
            self._after_closing()
            words[REVOCATION_NS] += time.monotonic_ns() - began
        if words[OPENINGS]:
            words[OPENINGS] -= 1
        else:
            words[RESTING] = 1

    def _flow(self, wants: list[int]) -> None:
        """Open the gate, at least for readers who ask, and let in all that wait.

        Opening it for those who don't has its price: the next writer's revocation. So it is not done before somebody
        has asked: writes in a row revoke once. But once somebody has, the gate opens after each of the next 32
        revocations, or readers who come after each write would take the guard each time. (BRAVO has this, too: Dice
        and Kogan, 2019; it measures the rest in time. Why not here: bench/README.md.)
        """
        words = self._words
        gate = GATE_SLOW if words[RESTING] else self._open
        if words[GATE] != gate:
            if self._before_opening is not None:
                self._before_opening()
            words[GATE] = gate
            if self._here is not None:
                self._here()
                wants = self.column(WANT)  # one that stored its want and still saw the gate closed is seen now
        if any(wants):
            self._admit(wants)

    def _grant_write(self, number: int) -> None:
        words = self._words
        words[WRITER] = number + 1
        words[SEQUENCE] += 1
        words[OWED] = 1
        if self._before_writing is not None:
            self._before_writing()

    def _granted(self, number: int) -> None:
        """The last store of a grant: the waiter sees its want gone, and owns the lock."""
        self._words[slot(number) + WANT] = 0
        self.woken.append(number)

    def _admit(self, wants: list[int]) -> None:
        """Let in these readers that wait."""
        words = self._words
        for number in compress(count(), wants):
            if wants[number] & MODE_MASK == READ:
                words[slot(number) + READS] = 1
                self._granted(number)
                wants[number] = 0

    # --- those that are gone

    def settle(self, number: int) -> None:
        """Carry out what the owner of the slot has walked away from."""
        words = self._words
        base = slot(number)
        modes = words[base + ABANDONED]
        want = words[base + WANT]
        if want and modes >> (want & MODE_MASK) & 1:
            words[base + WANT] = 0
        if modes >> READ & 1:
            words[base + READS] = 0
        # An upgrade that was granted after its asker left is a W to end; the S was not given up.
        if modes & (1 << WRITE | 1 << UPGRADE) and words[WRITER] == number + 1:
            if self._before_opening is not None:
                self._before_opening()
            self._end_write()
        if modes >> SEEK & 1 and words[SEEKER] == number + 1:
            words[SEEKER] = 0
        words[base + ABANDONED] = 0
        self.decide()

    def clear(self, number: int, *, died: bool) -> None:
        """Take a participant that is gone out of the state, all but its account and its slot.

        `died`: inside, so that what it was writing may be half done; the next holders are told.
        """
        words = self._words
        base = slot(number)
        words[base + READS] = 0
        words[base + WANT] = 0
        words[base + ABANDONED] = 0
        words[base + WATCH] = 0
        if words[SEEKER] == number + 1:
            words[SEEKER] = 0
        if words[WRITER] == number + 1:
            if died:
                words[OWNER_DIED] = 1
                words[OWNER_DEATHS] += 1
            if self._before_opening is not None:
                self._before_opening()
            self._end_write()

    def depart(self, number: int) -> None:
        """Free the slot of a participant that has been cleared; its account goes to the departed ones'."""
        words = self._words
        self._fold(number)
        words[slot(number) + IN_USE] = 0
        self._lower_high_water()

    def _lower_high_water(self) -> None:
        words = self._words
        high = words[HIGH_WATER]
        while high and not words[slot(high - 1) + IN_USE]:
            high -= 1
        words[HIGH_WATER] = high

    def evict(self, numbers: Sequence[int]) -> None:
        """Remove participants that are proven dead."""
        for number in numbers:
            self.clear(number, died=True)
            self.depart(number)
            self._words[EVICTIONS] += 1
        self.decide()

    def _fold(self, number: int) -> None:
        """Add the slot's account to the departed ones', exactly once whenever we are killed.

        The sum goes to the bank that is not in force; one store puts it in force and says whose account it
        holds; only then is that account cleared, by us or by `repair`.
        """
        words = self._words
        old = words[FOLD] & 1
        source, target = BANKS[old], BANKS[1 - old]
        start = slot(number) + ACCOUNT_AT
        ours = words[start : start + ACCOUNT.size].tolist()
        for offset, value in enumerate(words[source : source + ACCOUNT.size].tolist()):
            words[target + offset] = max(value, ours[offset]) if offset in MAXIMA else value + ours[offset]
        words[FOLD] = 1 - old | (number + 1) << 1
        self._finish_fold()

    def _finish_fold(self) -> None:
        words = self._words
        fold = words[FOLD]
        if fold >> 1:
            start = slot((fold >> 1) - 1) + ACCOUNT_AT
            for offset in range(ACCOUNT.size):
                words[start + offset] = 0
            words[FOLD] = fold & 1

    def repair(self) -> None:
        """Finish what the last one in the guard left half done. Idempotent, and safe to be killed in."""
        words = self._words
        self._finish_fold()
        self._lower_high_water()  # a claim raises it first, a departure lowers it last
        writer, seeker = words[WRITER], words[SEEKER]
        if writer:
            words[OWED] = 1
        if words[SEQUENCE] & 1 != (writer != 0):
            words[SEQUENCE] += 1
        if writer and self._before_writing is not None:
            self._before_writing()  # it may be that W was granted, and the fence not yet made
        wants = self.column(WANT)
        reads = self.column(READS)
        for number, want in enumerate(wants):
            mode = want & MODE_MASK
            # A grant's stores were under way: the want goes last, so the rest is there.
            if (
                (mode == READ and reads[number])
                or (mode == SEEK and seeker == number + 1)
                or (mode in {WRITE, UPGRADE} and writer == number + 1)
            ):
                self._granted(number)
        words[TICKET] = max(words[TICKET], (max(wants, default=0) >> MODE_BITS) + 1)
        if words[GATE] == GATE_CLOSED and self._after_closing is not None:
            self._after_closing()  # it may be that the gate was closed, and the fence not yet made
        words[REPAIRS] += 1
        self.decide()
