"""The loop: ask under the guard, sleep in slices until the want is gone, look for the dead, give up in time.

An asynchronous exception may come at any call or backward jump here. Nothing it interrupts may leave a ghost:
whoever is interrupted on the way in marks what it asked for as abandoned, in its own slot and with a plain
store, and then carries that out under the guard. If even that is interrupted, or the guard is not to be had,
the mark stays, and the next one to look under the guard carries it out.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, TypeVarTuple

from shmlock._engine import modes
from shmlock._engine.bias import Here
from shmlock._engine.guard import Guard
from shmlock._engine.modes import MODE_BITS, MODE_MASK, QUEUES, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.participant import Participant
from shmlock._engine.recovery import Recovery
from shmlock._engine.state import State
from shmlock._kernel import parker, process
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.forks import in_child
from shmlock._kernel.membarrier import Fences, fence_here
from shmlock._segment import participants
from shmlock._segment.layout import (
    ABANDONED,
    GATE,
    GATE_CLOSED,
    HIGH_WATER,
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
from shmlock.errors import LockTimeout, NotHeld, ParticipantsExhausted, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.recovery import Death
    from shmlock._segment.segment import Segment

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_HEAD_SLICE: Final = 0.010  # seconds; how long a dead holder stays unnoticed, at most
_LONGEST_SLICE: Final = 0.100
_GRACE: Final = 0.25  # seconds for the guard when the time asked for is over; then others settle it


class Engine:
    """One segment's lock in one process, shared by all handles and threads."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.words = segment.words
        self.here = Here()
        fences = Fences(fast=segment.header.fast)
        self.state = State(segment.words, fences, fast=segment.header.fast)
        self.guard = Guard(segment, self.state, self._post)
        self.recovery = Recovery(segment, self.state)
        self._posts: dict[int, Callable[[], None]] = {}
        self._participants: dict[int, Participant] = {}
        # Told under the guard of each participant that leaves of its own accord, before its slot is free.
        self.parting: Callable[[int], None] | None = None

    # --- being a participant

    def _slowly(self, path: Callable[[Participant, *Ts], T], *args: *Ts, deadline: Deadline = FOREVER) -> T:
        """Run a slow path as this thread's participant, with the fast path forbidden meanwhile.

        Interrupted, it has nothing of what it asked for, or gave back. Raises WouldDeadlock in a signal handler or
        finalizer that interrupted a slow path of this very thread.
        This is the outermost frame that an exception can hit before a public method returns: CPython makes no check
        between the return of one Python function and the return of its caller. The `finally` makes no call, so that
        no handler can run in it.
        """
        me = self.me()
        if me.busy:
            raise WouldDeadlock(
                f"{self.segment.name}: this thread was interrupted in the middle of taking or leaving the same "
                "lock; a signal handler can't use a lock that its own thread is busy with"
            )
        me.asked = 0
        try:
            me.busy = True
            at, me.at = me.at, None
            try:
                if at is None:
                    self._enable(me, deadline)
                return path(me, *args)
            finally:
                me.busy = False
                if me.number >= 0 and not self.words[me.base + ABANDONED]:
                    me.at = me.base + READS
        except BaseException:
            if me.asked:
                me.at = None
                self.words[me.base + ABANDONED] = me.asked
                with suppress(LockTimeout):
                    self._slowly(_index_of_reads)  # settles it first
            raise

    def _enable(self, me: Participant, deadline: Deadline) -> None:
        """See that this thread has a slot, and that nothing is left to be settled in it."""
        if me.number < 0:
            self._claim(me, deadline)
        elif self.words[me.base + ABANDONED]:
            self.guard.run(Deadline.after(_GRACE), self.state.settle, me.number)

    def me(self) -> Participant:
        """The calling thread, with or without a slot."""
        try:
            return self.here.me
        except AttributeError:
            me = self.here.me = Participant()
            return me

    def prepare(self, deadline: Deadline = FOREVER) -> int:
        """See that the calling thread has a slot and may take the fast path: the index of its reads word.

        Raises LockTimeout when there is none to be had before the deadline.
        """
        return self._slowly(_index_of_reads, deadline=deadline)

    def _claim(self, me: Participant, deadline: Deadline) -> None:
        ours = [
            mine.number
            for mine in self._participants.values()
            if not mine.present and mine.is_caller() and participants.still_latched(self.segment, mine.number)
        ]
        deaths = self.guard.run(deadline, self._claim_slot, me, process.identity(), ours)
        self.here.leaver = _Leaver(self, me)
        self.recovery.report(deaths)

    def _claim_slot(self, me: Participant, identity: tuple[int, int, int, int], ours: list[int]) -> list[Death]:
        """Under the guard: a free slot; else one of the dead's; else a new one at the end of the table."""
        segment = self.segment
        deaths: list[Death] = []
        if me.claiming >= 0:  # the last attempt was interrupted
            participants.abort(segment, me.claiming)
        claim = functools.partial(participants.claim, segment, identity, ours=ours, trying=me.trying)
        number = claim(limit=self.words[HIGH_WATER])
        if number is None:
            deaths = self.recovery.sweep()
            number = claim(limit=segment.header.participants)
        if number is None:
            raise ParticipantsExhausted(
                f"{segment.name}: all {segment.header.participants} slots belong to threads that live; "
                "create it with a larger max_participants, or share it among fewer threads"
            )
        self._participants[number] = me
        me.claimed(number, self.words)
        return deaths

    def depart(self, me: Participant) -> None:
        """The calling thread ends: free its slot. A hold that it leaves behind is for the others to evict."""
        words = self.words
        holds = words[me.base + READS] or words[me.base + WANT] or me.number + 1 in {words[WRITER], words[SEEKER]}
        if me.is_caller() and me.present and not holds and not me.busy:
            self._aside(me, self._give_up, [me])

    def leave(self) -> None:
        """Give up all that this process's threads hold here, and their slots."""
        pid = os.getpid()
        leaving = [
            mine for mine in self._participants.values() if mine.pid == pid and mine.present and mine.number >= 0
        ]
        self._aside(self.me(), self._give_up, leaving)
        self.here = Here()

    def _aside(self, me: Participant, action: Callable[[*Ts], T], *args: *Ts, deadline: Deadline = FOREVER) -> T:
        """Run an action under the guard for which the calling thread needs no slot."""
        if me.busy:
            self.prepare()  # which says why not
        at, me.at = me.at, None
        me.busy = True
        try:
            return self.guard.run(deadline, action, *args)
        finally:
            me.busy = False
            me.at = at if me.present else None

    def _give_up(self, leaving: list[Participant]) -> None:
        """Under the guard. A latch can only be given back by the thread that holds it."""
        for mine in leaving:
            mine.present = False
            if self.parting is not None:
                self.parting(mine.number)
            self.state.clear(mine.number, died=False)
            self.state.depart(mine.number)
            if mine.is_caller():
                self._participants.pop(mine.number, None)
                participants.unlatch(self.segment, mine.number)
        self.state.decide()

    def forget(self) -> None:
        """In a forked child: nothing of the parent's is ours."""
        self.here.__dict__.clear()
        self._participants.clear()

    def reap(self, deadline: Deadline) -> list[Death]:
        """Evict the dead now, instead of when somebody waits for them."""
        deaths = self._aside(self.me(), self.recovery.sweep, deadline=deadline)
        self.recovery.report(deaths)
        return deaths

    def _post(self, number: int) -> None:
        post = self._posts.get(number) or parker.opened(self.segment.semaphore(number))
        if post is not None:
            self._posts[number] = post
            post()

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

    def upgrade(self, deadline: Deadline) -> bool:
        """S to W: goes before all that waits, and waits for the other readers. False leaves S."""
        return self._slowly(self._upgrade, deadline)

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
        self.guard.run(FOREVER, self.state.release_upgraded, me.number)
        me.account.unlocked(WRITE)
        me.account.unlocked(SEEK)

    def change(self, commit: Callable[[], T]) -> T:
        """Run `commit` as a writer, alone. Interrupted anywhere, this thread holds nothing afterwards."""
        return self._slowly(self._change, commit)

    def _change(self, me: Participant, commit: Callable[[], T]) -> T:
        self._acquire_exclusive(me, WRITE, FOREVER)
        result = commit()
        self.guard.run(FOREVER, self.state.release_write, me.number, True)
        me.account.unlocked(WRITE)
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
        words = self.words
        me.asked = 1 << SEEK | 1 << UPGRADE
        if not self.guard.run(FOREVER, self._turn_to_seek, me.number):
            return
        if words[me.base + WANT]:
            self._wait(me, SEEK, FOREVER)
        me.account.locked(SEEK)
        words[SEEKER_SINCE] = time.monotonic_ns()
        while walk():
            self._acquire(me, UPGRADE, FOREVER)
            commit()
            self.guard.run(FOREVER, self.state.write_to_seek, me.number)
            me.account.unlocked(WRITE)
            if any(want & QUEUES for want in self.state.column(WANT)):
                self.guard.run(FOREVER, self.state.release_seek, me.number)
                me.account.unlocked(SEEK)
                self._acquire(me, SEEK, FOREVER)
        self.guard.run(FOREVER, self.state.release_seek, me.number)
        me.account.unlocked(SEEK)

    def _turn_to_seek(self, number: int) -> bool:
        """Under the guard: R to S, at once or by a want that writers are ahead of; False when others seek.

        Also when this thread reads outside: in a signal handler that it runs, what it looks at must not change.
        """
        words, state = self.words, self.state
        if words[slot(number) + READS] > 1:
            return False
        if state.try_read_to_seek(number):
            return True
        if words[SEEKER] or any(want & MODE_MASK == SEEK for want in state.column(WANT)):
            return False
        words[slot(number) + READS] -= 1
        state.ask(number, SEEK)
        return True

    def _acquire_exclusive(self, me: Participant, mode: int, deadline: Deadline) -> bool:
        words = self.words
        reads, seeks, writes = words[me.base + READS], words[SEEKER] == me.number + 1, words[WRITER] == me.number + 1
        if reads or seeks or writes:
            conflict = modes.conflict(mode, reads=reads > 0, seeks=seeks, writes=writes)
            raise WouldDeadlock(f"{self.segment.name}: {conflict}")
        return self._acquire(me, mode, deadline)

    def _upgrade(self, me: Participant, deadline: Deadline) -> bool:
        if self.words[SEEKER] != me.number + 1:
            raise self._not_held(modes.DOING[SEEK])
        if self.words[WRITER] == me.number + 1:
            raise WouldDeadlock(f"{self.segment.name}: {modes.conflict(WRITE, reads=False, seeks=True, writes=True)}")
        return self._acquire(me, UPGRADE, deadline)

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
            me.account.locked(mode)
            if mode != READ:
                words[SEEKER_SINCE if mode == SEEK else WRITER_SINCE] = time.monotonic_ns()
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
        while words[want]:
            left = deadline.left()
            if not left:
                return False
            if not bed.wait(min(left, self._slice(words[want]))) and words[want]:
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
            return self.guard.run(Deadline.after(_GRACE), self.state.withdraw, me.number)
        except LockTimeout:
            self.words[me.base + ABANDONED] = 1 << mode
            return False

    # --- giving back

    def release_write(self, *, vouch: bool) -> None:
        """Raises NotHeld when this thread, in this process, does not write."""
        self._slowly(self._release, WRITE, self.state.release_write, vouch)

    def release_seek(self) -> None:
        """Raises NotHeld when this thread, in this process, does not seek."""
        self._slowly(self._release, SEEK, self.state.release_seek)

    def write_to_seek(self) -> None:
        """W to S, without waiting."""
        self._slowly(self._release, WRITE, self.state.write_to_seek)

    def _release(self, me: Participant, mode: int, action: Callable[[int, *Ts], None], *args: *Ts) -> None:
        if self.words[SEEKER if mode == SEEK else WRITER] != me.number + 1:
            raise self._not_held(modes.DOING[mode])
        me.asked = 1 << mode
        self.guard.run(FOREVER, action, me.number, *args)
        me.account.unlocked(mode)

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

    def refuse_release(self, doing: str) -> NoReturn:
        """Say why there is nothing to release: the fast path is not allowed now, or there is no hold."""
        if self.me().busy:
            self.prepare()  # which says so
        raise self._not_held(doing)

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


def _index_of_reads(me: Participant) -> int:
    return me.base + READS


class _Leaver:
    """Collected with the thread that it belongs to, whose slot it frees. Silent: nobody could be told."""

    __slots__ = ("_engine", "_me")

    def __init__(self, engine: Engine, me: Participant) -> None:
        self._engine = engine
        self._me = me

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with suppress(Exception):
                self._engine.depart(self._me)


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
