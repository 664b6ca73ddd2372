"""The loop: ask under the guard, sleep in slices until the want is gone, look for the dead, give up in time.

Also what ends a hold, or turns it into another. Whatever is asked for or given up is noted in `Participant.asked` just
before: should an exception come, `Membership._slowly` sees to it that this thread has none of it.
"""

from __future__ import annotations

import atexit
import os
import time
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from shmlock._engine import modes
from shmlock._engine.membership import GRACE, Membership
from shmlock._engine.modes import MODE_BITS, MODE_MASK, QUEUES, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.stats import FULL
from shmlock._kernel import parker
from shmlock._kernel.deadline import FOREVER, NOW, Deadline
from shmlock._kernel.forks import in_child
from shmlock._kernel.membarrier import fence_here
from shmlock._segment.header import Kind
from shmlock._segment.layout import (
    ABANDONED,
    GATE,
    GATE_CLOSED,
    PID,
    READS,
    SEEKER,
    SEEKER_SINCE,
    SINCE,
    TICKET,
    WANT,
    WRITER,
    WRITER_SINCE,
    slot,
)
from shmlock.errors import LockTimeout, NotHeld, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.participant import Participant
    from shmlock._segment.segment import Segment

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_HEAD_SLICE: Final = 0.010  # seconds; how long a dead holder stays unnoticed, at most
_LONGEST_SLICE: Final = 0.100


class Engine(Membership):
    """Acquiring and giving back, by the threads of this process, in one segment; shared by all handles."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._full = bool(segment.header.option & FULL)
        self._converts = segment.header.kind == Kind.SeekLock

    # --- asking

    def acquire(self, mode: int, deadline: Deadline) -> bool:
        """S or W. Raises WouldDeadlock when the wait could only end by what this thread holds."""
        try:
            return self._slowly(self._acquire_exclusive, mode, deadline, deadline=deadline)
        except LockTimeout:  # not even a slot was to be had
            return False

    def acquire_read(self, deadline: Deadline) -> bool:
        """R, when the fast path met a closed gate (and has stored 0 again)."""
        me = self.here.me
        if self.words[WRITER] == me.number + 1:
            self.words[me.base + READS] = 1
            return True
        return self._slowly(self._acquire, READ, deadline)

    def update(self, prepare: Callable[[], None], commit: Callable[[], None]) -> None:
        """Run `prepare` as a seeker, beside the readers; then `commit` as a writer, alone; then leave.

        Interrupted anywhere, also by an exception of theirs, this thread holds nothing afterwards.
        """
        self._slowly(self._update, prepare, commit)

    def _update(self, me: Participant, prepare: Callable[[], None], commit: Callable[[], None]) -> None:
        self._acquire_exclusive(me, SEEK, FOREVER)
        prepare()
        self._acquire(me, UPGRADE, FOREVER)
        commit()
        self._end_write(me, True, True)

    def change(self, commit: Callable[[], T]) -> T:
        """Run `commit` as a writer, alone. Interrupted anywhere, this thread holds nothing afterwards."""
        return self._slowly(self._change, commit)

    def _change(self, me: Participant, commit: Callable[[], T]) -> T:
        self._acquire_exclusive(me, WRITE, FOREVER)
        result = commit()
        self._end_write(me, False, True)
        return result

    def seek(self, walk: Callable[[], bool], commit: Callable[[], None]) -> None:
        """R to S; then, as long as `walk` finds something, as a seeker, `commit` it as a writer, alone; then leave.

        If somebody else seeks, or is in the queue for it, do nothing and keep the R: seekers never wait for each
        other. If only writers are in the queue, wait for our turn, or nobody would get to seek while they come and
        come; and those that have come meanwhile have theirs after each commit.
        Interrupted anywhere, this thread seeks and writes no more, and may have the R or not.
        """
        self._slowly(self._seek, walk, commit)

    def _seek(self, me: Participant, walk: Callable[[], bool], commit: Callable[[], None]) -> None:
        me.asked = 1 << SEEK
        if not self.guard.run(FOREVER, self._turn_to_seek, me.number):
            return
        if self.words[me.base + WANT]:
            self._wait(me, SEEK, FOREVER)
        self._granted(me, SEEK)
        while walk():
            self._acquire(me, UPGRADE, FOREVER)
            commit()
            self.guard.run(FOREVER, self.state.write_to_seek, me.number, True)
            me.account.unlocked(WRITE)
            if any(want & QUEUES for want in self.state.column(WANT)):
                self._end_seek(me)
                self._acquire(me, SEEK, FOREVER)
        self._end_seek(me)

    def _turn_to_seek(self, number: int) -> bool:
        """Under the guard: R to S, at once or by a want that writers are ahead of; False when others seek.

        Also when this thread reads outside: in a signal handler that it runs, what it looks at must not change.
        """
        words, state = self.words, self.state
        reads = slot(number) + READS
        if words[reads] > 1:
            return False
        if state.try_seek(number):
            words[reads] -= 1
            return True
        if words[SEEKER] or any(want & MODE_MASK == SEEK for want in state.column(WANT)):
            return False
        words[reads] -= 1
        state.ask(number, SEEK)
        return True

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
        return self._slowly(self._try_write)

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
        words = self.words
        want = me.base + WANT
        me.asked |= 1 << mode
        try:
            granted = self._ask(me, mode, deadline)
            if not granted:
                granted = self._wait(me, mode, deadline) if deadline.waits else self._look(me, deadline)
        except LockTimeout:
            granted = False
        if not granted and words[want]:
            granted = self._withdraw(me, mode)
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
            self.guard.run(deadline, self.state.decide)
        return not words[want]

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
            if not bed.wait(min(left, self._slice(asked))) and words[want]:
                self._look(me, deadline)
        me.account.waited(mode, time.monotonic_ns() - began)
        return True

    def _slice(self, want: int) -> float:
        """The nearer to the head of the queue, the shorter: 10 ms for the first, at most 100."""
        wants = sorted(self.state.column(WANT))
        ahead = bisect_left(wants, want) - bisect_left(wants, 1)
        return min(_HEAD_SLICE * (1 + ahead), _LONGEST_SLICE)

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
        except OSError:
            return None
        if segment.is_gone():  # unlinked since we looked
            parker.unlink(name)
        return bed

    def _withdraw(self, me: Participant, mode: int) -> bool:
        """The time is over. True when the grant came first."""
        try:
            return self.guard.run(Deadline.after(GRACE), self.state.withdraw, me.number)
        except LockTimeout:
            self.words[me.base + ABANDONED] = 1 << mode
            return False

    # --- converting

    def read_to_seek(self) -> bool:
        """R to S, at once or not at all. False leaves R, and so does an exception."""
        return self._slowly(self._convert_read, SEEK, self.state.try_seek)

    def read_to_write(self) -> bool:
        """R to W, at once or not at all. False leaves R, and so does an exception."""
        return self._slowly(self._convert_read, WRITE, self.state.try_write)

    def _convert_read(self, me: Participant, mode: int, attempt: Callable[[int], bool]) -> bool:
        reads = me.base + READS
        if not self.words[reads]:
            raise self._not_held(modes.DOING[READ])
        self._refuse(me, mode, reads=False)
        if not self._try(me, mode, attempt):
            return False
        me.account.unlocked(READ)
        self.words[reads] -= 1  # goes last, so that whoever is interrupted on the way has R, and nothing else
        return True

    def upgrade(self, deadline: Deadline) -> bool:
        """S to W: goes before all that waits, and waits for the other readers. False leaves S."""
        return self._slowly(self._upgrade, deadline)

    def _upgrade(self, me: Participant, deadline: Deadline) -> bool:
        if self.words[SEEKER] != me.number + 1:
            raise self._not_held(modes.DOING[SEEK])
        if self.words[WRITER] == me.number + 1:
            raise WouldDeadlock(f"{self.segment.name}: {modes.conflict(WRITE, reads=False, seeks=True, writes=True)}")
        return self._acquire(me, UPGRADE, deadline)

    def write_to_seek(self, *, vouch: bool) -> None:
        """W to S, without waiting. Interrupted, a W that was an S before is that S again; another one is gone."""
        self._slowly(self._write_to_seek, vouch)

    def _write_to_seek(self, me: Participant, vouch: bool) -> None:
        upgraded = self._check_writes(me)
        me.asked = 1 << WRITE if upgraded else 1 << WRITE | 1 << SEEK
        self.guard.run(FOREVER, self.state.write_to_seek, me.number, vouch)
        me.account.unlocked(WRITE)
        if not upgraded:
            self._granted(me, SEEK)

    def write_to_read(self, *, vouch: bool) -> None:
        """W, and the S that it may come from, to R, without waiting. Interrupted, it is W still or R already."""
        self._slowly(self._write_to_read, vouch)

    def _write_to_read(self, me: Participant, vouch: bool) -> None:
        upgraded = self._check_writes(me)
        self.words[me.base + READS] += 1  # before the gate can open, and before anything is given up
        me.downgraded = True
        self._end_write(me, upgraded, vouch)
        me.account.locked(READ)

    def seek_to_read(self) -> None:
        """S to R, without waiting. Interrupted, it is S still or R already."""
        self._slowly(self._seek_to_read)

    def _seek_to_read(self, me: Participant) -> None:
        self._check_seeks(me)
        self.words[me.base + READS] += 1
        me.downgraded = True
        self._end_seek(me)
        me.account.locked(READ)

    # --- giving back

    def release_write(self, *, vouch: bool) -> None:
        """To S, if W was an S before. Raises NotHeld when this thread, in this process, does not write."""
        self._slowly(self._release_write, vouch)

    def _release_write(self, me: Participant, vouch: bool) -> None:
        self._check_writes(me)
        me.asked = 1 << WRITE
        self.guard.run(FOREVER, self.state.release_write, vouch)
        me.account.unlocked(WRITE)

    def release_seek(self) -> None:
        """Raises NotHeld when this thread, in this process, does not seek, or has upgraded."""
        self._slowly(self._release_seek)

    def _release_seek(self, me: Participant) -> None:
        self._check_seeks(me)
        self._end_seek(me)

    def end(self, doing: str, *, vouch: bool) -> None:
        """The end of a `with` that began with S or W: give up what this thread holds, whatever that has become.

        Raises NotHeld if that is nothing; but not in place of an exception that is on its way (then `vouch` is False).
        """
        self._slowly(self._end, doing, vouch)

    def _end(self, me: Participant, doing: str, vouch: bool) -> None:
        words = self.words
        reads = me.base + READS
        if words[WRITER] == me.number + 1:
            self._end_write(me, words[SEEKER] == me.number + 1, vouch)
        elif words[SEEKER] == me.number + 1:
            self._end_seek(me)
        elif words[reads] and me.downgraded:
            words[reads] -= 1
            me.downgraded = False
            me.account.unlocked(READ)
            if not self._others_decide():
                self.guard.run(FOREVER, self.state.decide)
        elif vouch or not self._converts:
            raise self._not_held(doing)

    def end_read(self, *, vouch: bool) -> None:
        """The end of a `with` that began with R, and finds none: the same, if the lock is one that converts."""
        if not self._converts or self.me().number < 0:
            self._check_idle()
            raise self._not_held(modes.DOING[READ])
        self.end(modes.DOING[READ], vouch=vouch)

    def must_end(self) -> bool:
        """Whether there is something for `end` to give up."""
        return self.holds(WRITER) or self.holds(SEEKER) or self.me().downgraded

    def _end_write(self, me: Participant, upgraded: bool, vouch: bool) -> None:
        me.asked = 1 << WRITE | upgraded << SEEK
        self.guard.run(FOREVER, self.state.release_upgraded, me.number, vouch)
        me.account.unlocked(WRITE)
        if upgraded:
            me.account.unlocked(SEEK)

    def _end_seek(self, me: Participant) -> None:
        me.asked = 1 << SEEK
        self.guard.run(FOREVER, self.state.release_seek)
        me.account.unlocked(SEEK)

    def _check_writes(self, me: Participant) -> bool:
        """Whether W was an S before. Raises NotHeld when this thread does not write."""
        if self.words[WRITER] != me.number + 1:
            raise self._not_held(modes.DOING[WRITE])
        return self.words[SEEKER] == me.number + 1

    def _check_seeks(self, me: Participant) -> None:
        if self.words[SEEKER] != me.number + 1:
            raise self._not_held(modes.DOING[SEEK])
        if self.words[WRITER] == me.number + 1:
            raise NotHeld(f"{self.segment.name}: this thread has upgraded its seek to a write: write_to_seek() first")

    def left_read(self) -> None:
        """A reader has left and found the gate closed: a writer may have counted it."""
        me = self.here.me
        if self.words[WRITER] != me.number + 1 and not self._others_decide():
            self._aside(me, self.state.decide)

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

    def check_reads(self) -> None:
        """Raises NotHeld when this thread, in this process, does not read."""
        self._check_idle()
        me = self.me()
        if me.number < 0 or not self.words[me.base + READS]:
            raise self._not_held(modes.DOING[READ])

    def _not_held(self, doing: str) -> NotHeld:
        return NotHeld(f"{self.segment.name}: this thread of process {os.getpid()} is not {doing}")

    def holds(self, word: int) -> bool:
        """Whether the calling thread is the one in the writer or seeker word, and has not walked away from it."""
        me = self.me()
        return me.number >= 0 and self.words[word] == me.number + 1 and not self.words[me.base + ABANDONED]

    def vouch(self) -> None:
        """The data are whole, whatever a writer's death left behind."""
        self._aside(self.me(), self.state.vouch)

    def describe(self) -> str:
        """Who holds it, as far as loads without the guard can tell."""
        words = self.words
        parts = []
        for word, doing in ((WRITER, "written"), (SEEKER, "sought in")):
            number = words[word]
            if number:
                parts.append(f"{doing} by process {words[slot(number - 1) + PID]}")
        readers = sum(reads > 0 for reads in self.state.column(READS))
        waiters = sum(want > 0 for want in self.state.column(WANT))
        parts += [f"{readers} reading"] if readers else []
        parts += [f"{waiters} waiting"] if waiters else []
        return ", ".join(parts) or "free"

    # --- waiting for a change

    def watch(self, changed: Callable[[], bool], deadline: Deadline) -> bool:
        """Sleep until `changed()`, woken by `wake_watchers`; False when the deadline came first."""
        return self._slowly(self._watch, changed, deadline)

    def _watch(self, me: Participant, changed: Callable[[], bool], deadline: Deadline) -> bool:
        bed = self._bed(me)
        try:
            self.guard.run(deadline, self.state.watch, me.number)
            while not changed():
                left = deadline.left()
                if not left:
                    return False
                bed.wait(min(left, _LONGEST_SLICE))
        except LockTimeout:
            return changed()
        finally:
            self.state.unwatch(me.number)
        return True

    def wake_watchers(self) -> None:
        """Have all that `watch` look again."""
        self._aside(self.me(), self.state.wake_watchers)


_engines: dict[tuple[int, int], Engine] = {}


def engine_of(segment: Segment) -> Engine:
    """The one engine of a segment in this process."""
    return _engines.get(segment.identity) or _engines.setdefault(segment.identity, Engine(segment))


@in_child
def _forget_parent() -> None:
    for engine in _engines.values():
        engine.forget()


@atexit.register
def _leave_quietly() -> None:
    """Spare the others the search for this thread's slots."""
    for engine in _engines.values():
        with suppress(Exception):
            engine.here.__dict__.clear()
