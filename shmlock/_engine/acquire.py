"""The loop: ask under the guard, sleep in slices until the want is gone, look for the dead, give up in time."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVarTuple

from shmlock._engine import modes, phases
from shmlock._engine.membership import GRACE, Membership
from shmlock._engine.modes import MODE_BITS, READ, SEEK, WRITE
from shmlock._engine.stats import FULL
from shmlock._kernel import parker
from shmlock._kernel.deadline import NOW, Deadline
from shmlock._kernel.libc import check_refusal
from shmlock._kernel.membarrier import fence_here
from shmlock._segment.layout import (
    ABANDONED,
    GATE,
    GATE_CLOSED,
    READS,
    SEEKER,
    SEEKER_SINCE,
    SINCE,
    TICKET,
    WANT,
    WRITER,
    WRITER_SINCE,
)
from shmlock.errors import LockTimeout, NotHeld, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.participant import Participant
    from shmlock._segment.segment import Segment

Ts = TypeVarTuple("Ts")

_HEAD_SLICE: Final = 0.010  # seconds; how long a dead holder stays unnoticed, at most
LONGEST_SLICE: Final = 0.100


class Acquisition(Membership):
    """How a thread of this process comes by R, S and W. Whatever it asks for is in `Participant.asked` before."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._full = bool(segment.header.option & FULL)

    def acquire(self, mode: int, deadline: Deadline) -> bool:
        """S or W. Raises WouldDeadlock when the wait could only end by what this thread holds."""
        try:
            return self._slowly(self._acquire_exclusive, mode, deadline, deadline=deadline)
        except LockTimeout:  # not even a slot in order was to be had
            return False

    def acquire_read(self, deadline: Deadline) -> bool:
        """R, when the fast path met a closed gate (and has stored 0 again)."""
        me = self.me()
        if me.number >= 0 and self.words[WRITER] == me.number + 1:
            self.words[me.base + READS] = 1
            return True
        return self._slowly(self._acquire, READ, deadline)

    def _acquire_exclusive(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        self._refuse(me, mode, reads=self.words[me.base + READS] > 0)
        me.downgraded = False
        return self._acquire(me, mode, deadline)

    def _refuse(self, me: Participant, mode: int, *, reads: bool) -> None:
        """Raise WouldDeadlock when this thread holds what it would wait for."""
        words = self.words
        seeks, writes = words[SEEKER] == me.number + 1, words[WRITER] == me.number + 1
        if reads or seeks or writes:
            raise WouldDeadlock(f"{self.segment.name}: {modes.conflict(mode, reads=reads, seeks=seeks, writes=writes)}")

    def try_write(self) -> bool:
        """W, if it is to be had without anybody's waiting: not even the gate is closed for it while a reader is in."""
        return self._at_once(self._try_write)

    def _at_once(self, path: Callable[[Participant, *Ts], bool], *args: *Ts) -> bool:
        """Run a slow path that waits for nothing, not even for a slot in order."""
        try:
            return self._slowly(path, *args, deadline=NOW)
        except LockTimeout:
            return False

    def _try_write(self, me: Participant) -> bool:
        self._refuse(me, WRITE, reads=self.words[me.base + READS] > 0)
        return self._try(me, WRITE, self.state.try_write)

    def _try(self, me: Participant, mode: int, attempt: Callable[[int], bool]) -> bool:
        me.asked = 1 << mode
        try:
            granted = self.guard.run(NOW, attempt, me.number)
        except LockTimeout:  # a process that was stopped in the middle of a change
            granted = False
        if granted:
            self._granted(me, mode)
        return granted

    def _granted(self, me: Participant, mode: int) -> None:
        if mode != READ or not self._full:  # then the reader's face counts them all
            me.account.locked(mode)
        if mode != READ:
            self.words[SEEKER_SINCE if mode == SEEK else WRITER_SINCE] = time.monotonic_ns()

    def _acquire(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        me.asked |= 1 << mode
        try:
            granted = self._ask(me, mode, deadline)
        except LockTimeout:  # the guard was not to be had, so nothing was asked for
            granted = False
        else:
            granted = granted or self._await(me, mode, deadline) or self._withdraw(me, mode)
        if granted:
            self._granted(me, mode)
        else:
            me.account.timed_out()
        return granted

    def _ask(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        """Queue a want; True when it was granted at once."""
        words = self.words
        if mode != READ or words[GATE] != GATE_CLOSED:
            return self.guard.run(deadline, self.state.ask, me.number, mode)
        # With many readers the guard would be the bottleneck, and whoever is preempted in it holds up all. A
        # reader can do without (see bias): no order among waiting readers matters, so the ticket is not taken.
        want = me.base + WANT
        words[want] = words[TICKET] << MODE_BITS | READ
        if not self._others_decide():
            with suppress(LockTimeout):  # it was asked for all the same
                self.guard.run(deadline, self.state.decide)
        return not words[want]

    def _await(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        """Wait for what was asked for, or only look; False when the time is over, and then it may be granted yet."""
        try:
            return self._wait(me, mode, deadline) if deadline.waits else self._look(me, deadline)
        except LockTimeout:
            return False

    def _look(self, me: Participant, deadline: Deadline) -> bool:
        """Look for the dead; True when that got us the lock."""
        self.recovery.report(self.guard.run(deadline, self.recovery.look, me.number))
        return not self.words[me.base + WANT]

    def _wait(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        """Sleep until the want is gone (granted) or the deadline has passed."""
        words = self.words
        want = me.base + WANT
        began = time.monotonic_ns()
        words[me.base + SINCE] = began
        # Made after the want was stored: a granter that finds no semaphore has cleared the want already.
        bed = self._bed(me)
        while asked := words[want]:
            left = deadline.left()
            if not left:
                return False
            if not me.present:
                raise self.closed()
            if not bed.wait(min(left, self._slice(me, asked))) and words[want]:
                self._look(me, deadline)
        me.account.waited(mode, time.monotonic_ns() - began)
        return True

    def _slice(self, me: Participant, want: int) -> float:
        """The nearer to the head of the queue, the shorter: 10 ms for the first, at most 100."""
        # Readers may have the same ticket, and must not all take themselves for the first: 80 that waited for a second
        # used 1.4 s of CPU when they did, and 0.26 s when they don't.
        ahead = phases.ahead(me.number, want, self.state.column(WANT))
        return min(_HEAD_SLICE * (1 + ahead), LONGEST_SLICE)

    def _bed(self, me: Participant) -> parker.Parker | parker.Napper:
        if me.parker is None:
            me.parker = self._made_bed(me)
        return me.parker or parker.Napper()

    def _made_bed(self, me: Participant) -> parker.Parker | parker.Napper | None:
        """A semaphore, where the name of one would not be left behind; None when it can't be had now."""
        segment = self.segment
        if segment.is_stale():
            return parker.Napper()
        name = segment.semaphore(me.number)
        try:
            bed = parker.Parker(name, mode=segment.mode, owner=segment.owner)
        except OSError as error:
            check_refusal(error)
            return None
        if segment.is_gone():  # unlinked since we looked
            parker.unlink(name)
        return bed

    def _withdraw(self, me: Participant, mode: int) -> bool:
        """The time is over. True when the grant came first, be it after the last look."""
        try:
            deadline = Deadline.after(GRACE)
            return not self.words[me.base + WANT] or self.guard.run(deadline, self.state.withdraw, me.number)
        except LockTimeout:
            self.words[me.base + ABANDONED] = 1 << mode
            return False

    def left_read(self) -> None:
        """A reader has left and found the gate closed: a writer may have counted it."""
        here = self.here
        if self.words[WRITER] != self.participant(here).number + 1 and not self._others_decide():
            self._aside(here, self.state.decide)

    def _others_decide(self) -> bool:
        """Whether somebody else is sure to decide after what this thread has just stored (see bias)."""
        words = self.words
        if not self.segment.header.fast:
            return False
        fence_here()
        if words[GATE] != GATE_CLOSED:
            return False
        if words[WRITER]:
            return True
        reads = self.state.column(READS)
        seeker = words[SEEKER]
        if seeker:
            reads[seeker - 1] = 0  # it does not wait for itself when it upgrades
        return any(reads)

    def _not_held(self, mode: int) -> NotHeld:
        return NotHeld(f"{self.segment.name}: this thread of process {os.getpid()} is not {modes.DOING[mode]}")

    def holds(self, word: int) -> bool:
        """Whether the calling thread is the one in the writer or seeker word, and has not walked away from it."""
        me = self.me()
        return me.number >= 0 and self.words[word] == me.number + 1 and not self.words[me.base + ABANDONED]
