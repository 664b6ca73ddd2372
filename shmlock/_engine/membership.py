"""Taking part: who the calling thread is in a segment, its slot from claim to departure, and its slow paths.

An asynchronous exception may come at any call or backward jump here. Nothing it interrupts may leave a ghost:
whoever is interrupted on the way in marks what it asked for as abandoned, in its own slot and with a plain
store, and then carries that out under the guard. If even that is interrupted, or the guard is not to be had,
the mark stays, and the next one to look under the guard carries it out.
"""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from shmlock._engine.bias import Here
from shmlock._engine.guard import Guard
from shmlock._engine.participant import Participant
from shmlock._engine.recovery import Recovery
from shmlock._engine.state import State
from shmlock._kernel import parker, process
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.membarrier import Fences
from shmlock._segment import noise, participants
from shmlock._segment.layout import ABANDONED, HIGH_WATER, READS, SEEKER, WANT, WRITER
from shmlock._segment.segment import opening
from shmlock.errors import ClosedError, LockTimeout, ParticipantsExhausted, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shmlock._engine.recovery import Death
    from shmlock._segment.segment import Segment

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

GRACE: Final = 0.25  # seconds for the guard when the time asked for is over; then others settle it


class Membership:
    """The threads of this process in one segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.words = segment.words
        self.here = Here()
        fences = Fences(fast=segment.header.fast)
        self.state = State(segment.words, fences, fast=segment.header.fast)
        self.guard = Guard(segment, self.state, self._post)
        self.recovery = Recovery(segment, self.state)
        self._posts: dict[int, Callable[[], None]] = {}
        # Whose each slot is that this process has claimed. Iterated as a list: other threads claim and leave meanwhile.
        self._participants: dict[int, Participant] = {}
        self._leaving: set[Participant] = set()  # those of a `here` that was, until they have given up their slots
        # Told of each participant that leaves of its own accord, by itself or under the guard, before its slot is free.
        self.parting: Callable[[int], None] | None = None

    def _slowly(self, path: Callable[[Participant, *Ts], T], *args: *Ts, deadline: Deadline = FOREVER) -> T:
        """Run a slow path as this thread's participant, with the fast path forbidden meanwhile.

        Interrupted, it has nothing of what it asked for, or gave back. Raises WouldDeadlock in a signal handler or
        finalizer that interrupted a slow path of this very thread; LockTimeout when not even a slot in order is to be
        had before the deadline; ClosedError when another thread has closed the last handle meanwhile.
        This is the outermost frame that an exception can hit before a public method returns: CPython makes no check
        between the return of one Python function and the return of its caller. The `finally` makes no call, so that
        no handler can run in it.
        """
        here = self.here
        try:
            me = here.me
        except AttributeError:
            me = self.participant(here)
        if me.busy:
            self._check_idle()
        me.asked = 0
        try:
            me.busy = True
            at, here.at = here.at, None
            try:
                if at is None:
                    self._enable(here, me, deadline)
                # Not before `busy`, nor before the claim: who has exchanged `here` looks at those that have a slot, and
                # tells those that are busy, so that they don't wait.
                if self.here is not here:
                    raise self.closed()
                result = path(me, *args)
            finally:
                me.busy = False
                if me.number >= 0 and not self.words[me.base + ABANDONED]:
                    here.at = me.base + READS
            if self.here is here:
                return result
            raise self.closed()
        except BaseException as error:
            if self.here is not here:
                here.at = None
                self._withdraw_all(me)
            elif me.asked:
                here.at = None
                self.words[me.base + ABANDONED] = me.asked
                with suppress(LockTimeout):
                    self._slowly(_index_of_reads, deadline=Deadline.after(GRACE))  # settles it first
            noise.check(self.segment.name, error)
            raise

    def _check_idle(self) -> None:
        if self.me().busy:
            raise WouldDeadlock(
                f"{self.segment.name}: this thread was interrupted in the middle of taking or leaving the same "
                "lock; a signal handler can't use a lock that its own thread is busy with"
            )

    def _enable(self, here: Here, me: Participant, deadline: Deadline) -> None:
        """See that this thread has a slot, and that nothing is left to be settled in it.

        Raises LockTimeout when the guard is not to be had before the deadline.
        """
        if me.number < 0:
            self._claim(here, me, deadline)
        elif self.words[me.base + ABANDONED]:
            self.guard.run(deadline, self.state.settle, me.number)

    def closed(self) -> ClosedError:
        """What to raise when another thread has closed the last handle."""
        return ClosedError(f"{self.segment.name}: it was closed while this thread was about to use it")

    def _withdraw_all(self, me: Participant) -> None:
        """What was asked for meanwhile, or even granted, by a thread of a `here` that was. Its slot is free then."""
        words = self.words
        if me.asked and self._participants.get(me.number) is me:
            words[me.base + ABANDONED] = me.asked
        with suppress(LockTimeout):
            self.guard.run(Deadline.after(GRACE), self._give_up, [me], None)

    def me(self) -> Participant:
        """The calling thread, with or without a slot."""
        return self.participant(self.here)

    def participant(self, here: Here) -> Participant:
        """The same, in a `here` that may be one that was."""
        try:
            return here.me
        except AttributeError:
            me = Participant(id(here))
            try:
                return here.me  # a handler that has run in that call is somebody here, and may hold something
            except AttributeError:
                here.me = me
                here.at = None
                return me

    def prepare(self, deadline: Deadline = FOREVER) -> int:
        """See that the calling thread has a slot and may take the fast path: the index of its reads word.

        Raises LockTimeout when there is none to be had before the deadline.
        """
        return self._slowly(_index_of_reads, deadline=deadline)

    def take_part(self) -> int:
        """The same, to do without the fast path: the number of the slot."""
        return self._slowly(_number)

    def _claim(self, here: Here, me: Participant, deadline: Deadline) -> None:
        # Those of this thread that another one's close() has left, but what this is a handler in the middle of.
        left = [
            mine
            for mine in list(self._participants.values())
            if not mine.present and not mine.busy and mine.is_caller()
        ]
        deaths = self.guard.run(deadline, self._claim_slot, me, process.identity(), left)
        here.leaver = _Leaver(self, me)
        self.recovery.report(deaths)

    def _claim_slot(self, me: Participant, identity: tuple[int, int, int, int], left: list[Participant]) -> list[Death]:
        """Under the guard: a free slot; else one of the dead's; else a new one at the end of the table."""
        segment = self.segment
        deaths: list[Death] = []
        self._abort_claim(me)
        if left:
            self._give_up(left, None)
        claim = functools.partial(participants.claim, segment, identity, trying=me.trying)
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

    def _abort_claim(self, me: Participant) -> None:
        """Under the guard: free what an attempt that was interrupted may have taken."""
        if me.claiming >= 0:
            participants.abort(self.segment, me.claiming)
            me.claiming = -1

    def depart(self, me: Participant) -> None:
        """The calling thread ends: free its slot. A hold that it leaves behind is for the others to evict.

        So is the slot, if the guard is not to be had: a process that is stopped in it must not keep others from ending.
        That it leaves of its own accord is told first, without the guard, for it must not look like a death then.
        """
        words = self.words
        holds = words[me.base + READS] or words[me.base + WANT] or me.number + 1 in {words[WRITER], words[SEEKER]}
        if me.is_caller() and self._participants.get(me.number) is me and not holds and not me.busy:
            parting = self.parting if me.present else None
            if parting is not None:
                parting(me.number)
            # Not `_aside`: what the thread had in `here` is gone, and what it got there now nobody would drop.
            self.guard.run(Deadline.after(GRACE), self._give_up, [me], parting)

    def leave(self) -> None:
        """Give up all that this process's threads hold here, unless somebody has it open still.

        And the calling thread's slot; the others' when they end, or take part anew. Interrupted, it goes on when it is
        called again.
        """
        left, new = self.here, Here()
        me = self.participant(left)
        if me.busy:
            self._check_idle()
        with opening():
            leaving = self._leaving.union([me])
            # Who opens it anew takes part anew, and keeps what it gets: either it was there when we looked, or it has
            # the new `here`, which is none of those that leave. No call in between: a signal handler may open it, too.
            if not self.segment.handles:
                self.here, self._leaving = new, leaving
                if not me.looking:
                    left.at = None
        if self._leaving:
            # Only now: whoever claims a slot of a `here` that was after this finds that out, and gives it up itself.
            home = id(self.here)
            self._leaving.update([mine for mine in list(self._participants.values()) if mine.home != home])
            self._aside(self.here, self._give_up, self._leaving, self.parting)
            for other in list(self._participants.values()):
                if not other.present and other.here is None:  # which nothing else would keep, and so its `leaver`
                    other.here = left

    def _aside(self, here: Here, action: Callable[[*Ts], T], *args: *Ts, deadline: Deadline = FOREVER) -> T:
        """Run an action under the guard for which the calling thread needs no slot."""
        me = self.participant(here)
        if me.busy:
            self._check_idle()
        at, here.at = here.at, None
        me.busy = True
        try:
            return self.guard.run(deadline, action, *args)
        except BaseException as error:
            noise.check(self.segment.name, error)
            raise
        finally:
            me.busy = False
            here.at = at if me.present else None
            if self.here is not here:
                self._withdraw_all(me)

    def _give_up(self, leaving: Iterable[Participant], parting: Callable[[int], None] | None) -> None:
        """Under the guard: what they hold; and its slot, if it is the calling thread's.

        Other threads keep their slots, for nobody else can give back their latches. Who is on a slow path, or looks at
        something (which this may be a handler in the middle of), relies on what it holds, and gives that up itself.
        """
        identity = process.identity()
        for mine in list(leaving):
            number = mine.number
            caller = mine.is_caller()
            ours = caller and not mine.looking
            mine.present = False
            if caller:
                self._abort_claim(mine)
            if self._participants.get(number) is mine:  # else it was given up before, and may be a later one's by now
                if not mine.busy and participants.is_of(self.segment, number, identity):
                    if mine.looking:
                        self.state.settle(number)  # what it waited for; the R that it may be in stays
                    else:
                        if parting is not None:
                            parting(number)
                        self.state.clear(number, died=False)
                    if ours:
                        self.state.depart(number)
                if ours:
                    participants.unlatch(self.segment, number)
                    self._participants.pop(number, None)
            self._leaving.discard(mine)
        self.state.decide()

    def forget(self) -> None:
        """In a forked child: nothing of the parent's is ours."""
        self.here.__dict__.clear()
        self._participants.clear()
        self._leaving.clear()

    def reap(self, deadline: Deadline) -> list[Death]:
        """Evict the dead now, instead of when somebody waits for them."""
        deaths = self._aside(self.here, self.recovery.sweep, deadline=deadline)
        self.recovery.report(deaths)
        return deaths

    def _post(self, number: int) -> None:
        post = self._posts.get(number) or parker.opened(self.segment.semaphore(number))
        if post is not None:
            self._posts[number] = post
            post()


def _index_of_reads(me: Participant) -> int:
    return me.base + READS


def _number(me: Participant) -> int:
    return me.number


class _Leaver:
    """Collected with the thread that it belongs to, whose slot it frees. Silent: nobody could be told."""

    __slots__ = ("_engine", "_me")

    def __init__(self, engine: Membership, me: Participant) -> None:
        self._engine = engine
        self._me = me

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with suppress(Exception):
                self._engine.depart(self._me)
