"""Timers that many processes set, and that whichever of them looks first collects, once.

How to collect (after HAProxy's wake_expired_tasks, which has let readers and seekers in together since 2020):

    look, under R           nothing due: leave
    R to S, a try           somebody else seeks: leave at once, that one collects
    walk, under S           what is due; readers go on
    S to W                  take a few out, place the postponed ones anew
    W to S                  and walk on
    leave                   only now is anybody woken

The payload: the timetable, then the batches. What a collector takes out stays in the segment, as a batch in its
hands, until it asks again or leaves; so when it is killed, whoever comes next takes the batch back. Nothing depends
on what kind of interruption it was: a change that was cut off leaves the timetable dirty, a batch that was never
seen is an orphan, and both are found and mended by the next one.
"""

from __future__ import annotations

import functools
import operator
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, TypeVarTuple

from shmlock._batches import Batches
from shmlock._engine.bias import Reader
from shmlock._engine.engine import engine_of
from shmlock._engine.handle import DEFAULT_PARTICIPANTS, Handle
from shmlock._engine.stats import LockStatistics, read_statistics
from shmlock._kernel.deadline import FOREVER
from shmlock._segment import noise
from shmlock._segment.header import Kind
from shmlock._segment.layout import READS, SEEKER
from shmlock._segment.noise import Sound
from shmlock._segment.words import WORD
from shmlock._timetable import DIRTY, Timetable
from shmlock.errors import QueueFull, SegmentCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.engine import Engine
    from shmlock._engine.participant import Participant

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

DEFAULT_CAPACITY: Final = 4096  # timers
MOST_CAPACITY: Final = 1 << 24
_BATCH: Final = 32  # timers that are taken out in one write phase: what a reader waits for, about a third of a ms
_PATROL: Final = 100_000_000  # ns between two looks whether one that has a batch in its hands is dead
_SIGN: Final = 1 << 63
_64_BITS: Final = (1 << 64) - 1


class _Calls(threading.local):
    collecting = False  # whether this thread is inside wake_expired, also for a signal handler that it runs


class TimerQueue(Handle):
    """Timers among all processes that open it by name; each is collected by one of them, once.

    >>> import shmlock, time
    >>> timers = shmlock.TimerQueue("docs.timers")
    >>> timers.schedule(7, time.monotonic_ns())
    >>> timers.wake_expired()
    [7]
    >>> timers.wake_expired()
    []
    >>> timers.unlink()

    A timer is an id, an integer of 64 bits with a sign, and a time in nanoseconds of `time.monotonic_ns()`: Linux
    gives all processes of a machine the same one, and nobody can step it. A time that is past is due at once.

    `wake_expired` hands out each timer once, never before its time. It is in the collector's hands then, until that
    thread calls `wake_expired` again, or closes the queue, or ends without being killed. If it is killed before, the
    timers of its last call are handed out once more, by somebody else's `wake_expired`; so call it once a second or
    so, also when `next_expiry` says that there is time. No timer is ever lost, and nothing else is handed out twice.
    A collector that is merely slow, or stopped, keeps what it has.

    `capacity`: how many timers, with those in somebody's hands, there can be; fixed at creation, 4096 if not given.
    The other arguments as for `RWLock`.
    """

    _kind: ClassVar[Kind] = Kind.TimerQueue

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
        max_participants: int | None = None,
        capacity: int | None = None,
    ) -> None:
        if capacity is not None and not (isinstance(capacity, int) and 1 <= capacity <= MOST_CAPACITY):
            raise ValueError(f"capacity must be a number of timers from 1 to {MOST_CAPACITY}, not {capacity!r}")
        super().__init__(
            name,
            create=create,
            mode=mode,
            owner=owner,
            max_participants=max_participants,
            capacity=capacity,
            defaults=(DEFAULT_CAPACITY, 0),
            payload_size=lambda capacity: _payload_size(capacity, max_participants or DEFAULT_PARTICIPANTS),
        )
        self._engine: Engine = engine_of(self._segment)
        self._words, self._here = self._engine.words, self._engine.here
        header = self._segment.header
        self._payload = self._segment.payload.cast("Q")
        middle = Timetable.words_for(header.capacity)
        self._table = Timetable(self._payload[:middle], header.capacity)
        self._batches = Batches(self._payload[middle:], self._words)
        self._reader = Reader(self._engine)
        self._engine.parting = self._batches.acknowledge
        self._calls = _Calls()
        self._patrol_at = 0  # of `time.monotonic_ns`
        self._orphaned = False  # whether the last patrol saw an orphan

    # --- setting timers

    def schedule(self, timer_id: int, expires_ns: int) -> None:
        """Have the timer come at `expires_ns`: a new one, or one that is moved, be it earlier or later.

        One that was handed out is a new one. Raises QueueFull, ValueError for an id or a time of more than 64 bits,
        TypeError for one that is no integer; then nothing is changed.
        Cost: one store, under R, when the timer is moved to a later time; else a write phase.
        """
        ident, expires = self._ident(timer_id), self._moment(expires_ns, "expires_ns")
        # Without the lock this is no more than a guess, of which way is the shorter one; the longer is always right.
        with Sound(self._name):
            known = self._table.find(ident) >= 0
        if known and self._read(self._table.reset, ident, expires):
            return
        if not self._change(self._table.schedule, ident, expires, self._batches):
            raise QueueFull(
                f"{self._name}: all {self.capacity} places are taken by timers that are to come, or that collectors "
                f"have in their hands; stop all that use it, shmlock.unlink({self._name!r}), and create it with a "
                "larger capacity"
            )

    def postpone(self, timer_id: int, expires_ns: int) -> bool:
        """See that the timer does not come before `expires_ns`; False when no timer of this id is to come (any more).

        It never comes earlier by it: of several times the latest counts (of two processes that postpone the same timer
        at the very same moment, one). Errors as for `schedule`.
        Cost: a store, under R. The timer is only placed anew when it comes up.
        """
        return self._read(self._table.postpone, self._ident(timer_id), self._moment(expires_ns, "expires_ns"))

    def cancel(self, timer_id: int) -> bool:
        """Forget the timer. True when it was to come, and now will not; False when there is none, or it was handed out.

        One that was handed out is not handed out once more, whatever becomes of its collector.
        """
        return self._change(self._table.cancel, self._ident(timer_id))

    # --- looking

    def expiry(self, timer_id: int) -> int | None:
        """When the timer is to come, or None when no timer of this id is."""
        expires = self._read(self._table.expires, self._ident(timer_id))
        return None if expires is None else expires - _SIGN

    def next_expiry(self) -> int | None:
        """No timer comes before this moment; None when none is to come.

        It is the first one's time, but it may be early by what timers were postponed. It can be past.
        """
        expires = self._read(self._table.earliest)
        return None if expires is None else expires - _SIGN

    def __contains__(self, timer_id: object) -> bool:
        """Whether a timer of this id is to come."""
        try:
            ident = self._ident(timer_id)
        except (TypeError, ValueError):
            return False
        return self._read(self._table.expires, ident) is not None

    def __len__(self) -> int:
        """How many timers are to come."""
        return self._read(len, self._table)

    @property
    def capacity(self) -> int:
        """How many timers it was created for."""
        return self._table.capacity

    # --- collecting

    def wake_expired(self, now_ns: int | None = None, limit: int | None = None) -> list[int]:
        """Take out the timers that are due, and return their ids, those of earlier times first.

        [] at once when nothing is due, or another participant is collecting already. By the call this thread says
        that it has seen those of its last one. `now_ns`: the time to go by, if not the clock's. `limit`: at most so
        many; ValueError if that is less than 1.
        Cost when nothing is due: a read lock and some loads.
        """
        clock = time.monotonic_ns()
        now = clock + _SIGN if now_ns is None else self._moment(now_ns, "now_ns")
        most = self.capacity if limit is None else self._number(limit, "limit")
        if most < 1:
            raise ValueError(f"{self._name}: limit must be None or from 1 up, not {limit!r}")
        calls, batches, me = self._calls, self._batches, self._engine.participant(self._here)
        if calls.collecting:
            return []
        if me.number >= 0:
            batches.acknowledge(me.number)
        found: list[tuple[int, int]] = []
        try:
            calls.collecting = True
            if clock >= self._patrol_at:
                self._patrol(clock)
            if not self._words[SEEKER]:
                self._read(self._collect, me, now, most, found)
            if not found:
                return []
            found.sort()
            return [ident - ((ident & _SIGN) << 1) for _, ident in found]
        except BaseException:
            # Nobody will see them: they are the next one's, who is to look at once.
            self._patrol_at = 0
            if me.number >= 0:
                batches.abandon(me.number)
            raise
        finally:
            calls.collecting = False

    def _patrol(self, clock: int) -> None:
        """See that those who seek or have timers in their hands are alive, or evicted."""
        if self._words[SEEKER] or self._batches.any():
            self._engine.reap(FOREVER)
        self._orphaned = bool(self._batches.orphans())
        self._patrol_at = clock + _PATROL

    def _collect(self, me: Participant, now: int, most: int, found: list[tuple[int, int]]) -> None:
        """Under R, which may be gone afterwards."""
        table, batches = self._table, self._batches
        if not (table.comes_up(now) or self._orphaned):
            return
        entries: list[int] = []
        tag = 0

        def walk() -> bool:
            nonlocal entries
            if len(found) >= most:
                return False
            entries = [] if table.dirty else table.coming_up(now, min(_BATCH, most - len(found)))
            return table.dirty or bool(entries or batches.orphans())

        def take_out() -> None:
            nonlocal tag
            for orphan in batches.orphans():
                table.take_back(orphan)
                batches.close(orphan)
            if entries and not tag:
                tag = batches.open(me.number)
            for entry in entries:
                taken = table.hand_out(entry, now, tag)
                if taken is not None:
                    found.append(taken)

        self._engine.seek(walk, functools.partial(table.change, take_out))
        self._orphaned = False

    # --- under the lock

    def _change(self, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Change the timetable under W."""
        return self._engine.change(functools.partial(self._table.change, action, *args))

    def _read(self, look: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `look`, which may give the R away, under R, and never leave the R behind.

        As `with self._reader:`, which an exception at the very start of `__exit__` leaves to the thread: nobody could
        release this one.
        """
        words, me = self._words, self._engine.participant(self._here)
        depth = words[me.base + READS] if me.number >= 0 else 0  # more in a signal handler in the middle of a look
        looking = me.looking
        try:
            try:
                me.looking = True  # what another thread closes meanwhile is no reason to let a writer in
                self._reader.__enter__()
                if not self._payload[DIRTY]:
                    return look(*args)
            finally:
                if me.number >= 0 and words[me.base + READS] > depth:
                    self._reader.__exit__(None, None, None)
                me.looking = looking
        except BaseException as error:
            me.looking = looking
            if me.number >= 0 and words[me.base + READS] > depth:
                self._reader.__exit__(None, None, None)
            if isinstance(error, IndexError | SegmentCorrupt):  # the table contradicts itself: the next one mends it
                self._payload[DIRTY] = 1  # noise
            noise.check(self._name, error)
            raise
        self._change(_nothing)  # which mends
        return self._read(look, *args)

    # --- arguments: in words, times with a bias that keeps their order

    def _ident(self, timer_id: object) -> int:
        return self._number(timer_id, "timer_id") & _64_BITS

    def _moment(self, moment: object, what: str) -> int:
        return self._number(moment, what) + _SIGN

    def _number(self, number: Any, what: str) -> int:
        try:
            value = operator.index(number)
        except TypeError:
            raise TypeError(f"{self._name}: {what} must be an integer, not {number!r}") from None
        if not -_SIGN <= value < _SIGN:
            raise ValueError(f"{self._name}: {what} must be from -2**63 to 2**63 - 1, not {value}")
        return value

    # --- as every shared object

    def statistics(self) -> LockStatistics:
        """The counters of the lock below: `seek` counts collections, `write` the changes."""
        return read_statistics(self._segment)

    def _shut(self, closed: Any) -> None:
        # Not the reader: whoever is in it gives back the R with it.
        self._words = self._payload = self._table = self._batches = self._here = closed
        super()._shut(closed)

    def _describe(self) -> str:
        count = len(self)
        return f"{count} timer{'s' * (count != 1)}"


def _nothing() -> None:
    pass


def _payload_size(capacity: int, participants: int) -> int:
    return (Timetable.words_for(capacity) + Batches.words_for(participants)) * WORD
