"""What is checked while it runs, by those who are in the middle of it, with plain loads of what others noted.

Whoever finds something wrong is alive and inside, so nothing depends on when somebody was killed: a check may miss a
fault in the moment of a kill, and never sees one that is none.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from shmlock._engine.modes import MODE_BITS, MODE_MASK, NAMES, QUEUES, READ, SEEK, WRITE
from shmlock._segment.layout import GATE, GATE_CLOSED, REPAIRS, SEQUENCE, WANT, slot
from tests.soak.board import (
    CALL,
    COUNT,
    COUNTED,
    DOING,
    LEFT,
    LOCKS,
    PHASES,
    RECOVERED_AT,
    RIGHT,
    TIMERS,
    Board,
    Fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import shmlock

_32_BITS: Final = (1 << 32) - 1


class Desk:
    """One thread's own place at the board."""

    def __init__(self, board: Board, number: int, life: int) -> None:
        self.board = board
        self.words = board.words
        self.number = number
        self.base = board.desk(number)
        self.life = life

    def sit(self) -> None:
        """Nothing of those that have sat here before is ours, but for what is counted on."""
        words, base = self.words, self.base
        for field in (Fields.HOLDING, Fields.HOLDING + 1, Fields.HOLDING + 2, Fields.SLOT, Fields.SLOT + 1):
            words[base + field] = 0
        for field in (Fields.ASKS, Fields.ASKS + 1):
            words[base + field] += words[base + field] & 1
        words[base + Fields.LIFE] = self.life
        words[base + Fields.PID] = os.getpid()
        words[base + Fields.DOING] = 0
        words[base + Fields.BEAT] = time.monotonic_ns()

    def begins(self, step: str) -> None:
        """A step."""
        self.words[self.base + Fields.DOING] = DOING.index(step)
        self.words[self.base + Fields.BEAT] = time.monotonic_ns()

    def leave(self) -> None:
        """Nobody sits here any more."""
        self.words[self.base + Fields.BEAT] = 0

    def add(self, field: int, more: int = 1) -> int:
        """To a word that nobody else stores; its new value."""
        value = self.words[self.base + field] = self.words[self.base + field] + more
        return value

    def meant(self, what: str) -> int:
        """One more is about to be done; which."""
        return self.add(Fields.MEANT + COUNTED.index(what))

    def done(self, what: str) -> None:
        """It is."""
        self.add(Fields.DONE + COUNTED.index(what))

    def fault(self, kind: str, what: str) -> None:
        """Tell the conductor."""
        self.board.fault(kind, f"{what}, at desk {self.number}")


class Exclusion:
    """Who is in with whom, by what each has noted; and the data that the lock protects."""

    def __init__(self, desk: Desk, lock: int) -> None:
        self._desk = desk
        self._words = desk.words
        self._name = LOCKS[lock]
        self._field = Fields.HOLDING + lock
        self._at = desk.base + self._field
        self._place = desk.board.place(lock)
        self._mode = 0

    def entered(self, mode: int, asked_at: int) -> None:
        """This thread is in. Noted before anybody is looked for: of two that come in at once one sees the other."""
        self.turned(mode)
        self._look(asked_at)

    def turned(self, mode: int) -> None:
        """The hold is another one now: stored after it has become more, before it becomes less."""
        self._mode = mode
        self._words[self._at] = self._desk.life << 2 | mode

    def leaving(self) -> None:
        """It is about to be given up."""
        self._look()
        self._words[self._at] = self._mode = 0

    def _look(self, asked_at: int = 0) -> None:
        """Who else is in: it must go together with us, or be dead. The dead stay as they were when they died."""
        board, mode = self._desk.board, self._mode
        for number, held in enumerate(board.column(self._field)):
            if not held or number == self._desk.number:
                continue
            life, other = held >> 2, held & 3
            killed_at = board.was_killed(life)
            if WRITE not in {mode, other} and (mode, other) != (SEEK, SEEK):
                if not killed_at:
                    self._desk.add(Fields.TOGETHER)
            elif not killed_at:
                modes = f"{NAMES[mode]} beside {NAMES[other]}"
                self._desk.fault("exclusion", f"{self._name}: {modes}, of the living desk {number}")
            elif asked_at < killed_at and asked_at and not self._words[board.life(life) + RECOVERED_AT]:
                self._words[board.life(life) + RECOVERED_AT] = time.monotonic_ns()

    def look_at_data(self, owner_died: bool, pause: Callable[[], None]) -> None:
        """As R, S or W: the two words are equal, or a writer's death was told; and nobody changes them."""
        place, words = self._place, self._words
        seen = words[place : place + PHASES + 1].tolist()
        self._expect_whole(owner_died)
        pause()
        now = words[place : place + PHASES + 1].tolist()
        if seen != now:
            self._desk.fault("exclusion", f"{self._name}: {seen} became {now} during a {NAMES[self._mode]}")

    def _expect_whole(self, owner_died: bool) -> None:
        place, words = self._place, self._words
        if owner_died:
            self._desk.add(Fields.TOLD)
        elif words[place + LEFT] != words[place + RIGHT]:
            self._desk.fault("owner died", f"{self._name}: a half-done write, and nobody was told of a death")

    def mend(self) -> None:
        """As W: what a writer left half done."""
        self._words[self._place + RIGHT] = self._words[self._place + LEFT]

    def write(self, owner_died: bool, pause: Callable[[], None]) -> None:
        """As W: make the two words differ, and be equal again, and count it."""
        place, words = self._place, self._words
        self._expect_whole(owner_died)
        self.mend()
        left, count = words[place + LEFT], words[place + COUNT]
        self._desk.meant(self._name)
        words[place + LEFT] = left + 1
        pause()
        if (words[place + LEFT], words[place + RIGHT], words[place + COUNT]) != (left + 1, left, count):
            self._desk.fault("exclusion", f"{self._name}: somebody else writes, too")
        words[place + COUNT] = count + 1
        words[place + RIGHT] = left + 1
        self._desk.done(self._name)

    def look_beside(self, lock: shmlock.RWLock, pause: Callable[[], None]) -> None:
        """Without a hold: what was validated is whole, or a death was told before the stamp's end."""
        place, words = self._place, self._words
        stamp = lock.optimistic_stamp()
        if not stamp:
            return
        owner_died = lock.reader.owner_died
        left = words[place + LEFT]
        pause()
        right = words[place + RIGHT]
        if lock.validate(stamp):
            self._desk.add(Fields.OPTIMISTIC)
            if left != right and not owner_died:
                self._desk.fault("exclusion", f"{self._name}: a validated optimistic read saw a half-done write")


class _Waiting(NamedTuple):
    """A writer that was seen in the queue, with the gate closed for it."""

    desk: int
    ask: int
    want: int


class Fairness:
    """The bounds on what a waiting thread sees pass, counted in phases, by those that pass.

    A waiting thread can't count: between its last look and its being in the queue anything may happen to it. But
    whoever holds W can say for sure that somebody is in the queue *now*: its slot has a want, and its ask is the same
    before and after that was seen. Each writer, when it comes in, counts a phase, and then:

    - Readers. It notes each reader's ask that waits. The readers that wait in one write phase are let in before the
      next. So no writer may find an ask waiting that was noted in an earlier phase.
    - Writers (rw; on seek an S may upgrade again and again). It notes for each writer's ask that waits the phase in
      which that one is in at the latest: one phase for each that is ahead of it in the queue. So no writer may find an
      ask waiting in a later phase than the one noted first.
    - Read phases (rw). A reader that is in and finds a writer in the queue, and the gate closed for it, notes that.
      When it has left, and asked again, it may not be in before a writer has been, unless that writer has given up. So
      a writer sees one read phase at most. (It may see two, when a process was killed between letting readers in and
      noting that, and a repair lets readers in again: then the lock has counted a repair, and nothing is said.)

    A killed thread's want stays until it is evicted, and its slot may be another's then: so whoever was killed is
    passed over, and that is asked after its want was loaded. A thread that gives up leaves the phases to those behind
    it, and one that is killed in W may not have counted its phase: both only make the bounds wider than they are.
    """

    def __init__(self, desk: Desk, lock: int, opened: shmlock.RWLock) -> None:
        self._desk = desk
        self._words = desk.words
        self._lock = lock
        self._opened = opened
        self._segment = opened._words
        self._column = opened._engine.state.column
        self._phases = desk.board.place(lock) + PHASES
        self._seen: list[_Waiting] = []
        self._when = (0, 0)  # SEQUENCE and REPAIRS then

    def asks(self) -> None:
        """This thread is about to ask."""
        self._desk.add(Fields.ASKS + self._lock)

    def asked(self) -> None:
        """It has got it, or given up."""
        self._desk.add(Fields.ASKS + self._lock)
        at = self._desk.base + Fields.SLOT + self._lock
        if not self._words[at]:
            self._words[at] = self._opened._engine.me().number + 1

    def leaves(self) -> None:
        """Its slot will be another's."""
        self._words[self._desk.base + Fields.SLOT + self._lock] = 0

    def _waiting(self) -> list[tuple[int, int, int]]:
        """Desk, ask and want of the living who wait."""
        board, segment, words = self._desk.board, self._segment, self._words
        asks = board.column(Fields.ASKS + self._lock)
        found = []
        for number, place in enumerate(board.column(Fields.SLOT + self._lock)):
            if not (place and asks[number] & 1):
                continue
            desk = board.desk(number)
            life = words[desk + Fields.LIFE]
            want = segment[slot(place - 1) + WANT]
            same = words[desk + Fields.ASKS + self._lock] == asks[number] and words[desk + Fields.LIFE] == life
            if want and same and not board.was_killed(life):
                found.append((number, asks[number], want))
        return found

    def wrote(self) -> None:
        """This thread holds W: count the phase, and see who waits."""
        words, board = self._words, self._desk.board
        phase = words[self._phases] = words[self._phases] + 1
        waiting = self._waiting()
        # Afterwards: whoever asks between the two looks, and before one of those, would not be among the ones ahead.
        queue = [want for want in self._column(WANT) if want & QUEUES]
        for number, ask, want in waiting:
            desk = board.desk(number)
            if want & MODE_MASK == READ:
                at = desk + Fields.SEEN_READ + self._lock
                if self._note(at, ask, phase, keep=False) < phase:
                    self._desk.fault("fairness", f"the reader at desk {number} waits for a second write phase")
            elif want & MODE_MASK == WRITE and LOCKS[self._lock] == "rw":
                ahead = sum(other >> MODE_BITS < want >> MODE_BITS for other in queue)
                at = desk + Fields.SEEN_WRITE + self._lock
                if self._note(at, ask, phase + ahead, keep=True) < phase:
                    self._desk.fault("fairness", f"the writer at desk {number} was passed by one that was not ahead")

    def _note(self, at: int, ask: int, phase: int, *, keep: bool) -> int:
        """Note the phase of an ask, unless one was; the phase that was noted first, or this one."""
        ask &= _32_BITS
        seen = self._words[at]
        if seen >> 32 != ask:
            self._words[at] = ask << 32 | phase & _32_BITS
            return phase
        if not keep:
            self._words[at] = ask << 32 | phase & _32_BITS
        return seen & _32_BITS

    def read(self) -> None:
        """This thread holds R, and nothing else, and has asked for it."""
        words, segment = self._words, self._segment
        for waiting in self._seen:
            still = words[self._desk.board.desk(waiting.desk) + Fields.ASKS + self._lock] == waiting.ask
            if still and waiting in self._writers() and self._when == (segment[SEQUENCE], segment[REPAIRS]):
                self._desk.fault("fairness", f"a second read phase passes the writer at desk {waiting.desk}")
        self._when = segment[SEQUENCE], segment[REPAIRS]
        writers = self._writers()
        self._seen = writers if segment[GATE] == GATE_CLOSED else []

    def _writers(self) -> list[_Waiting]:
        return [_Waiting(*one) for one in self._waiting() if one[2] & MODE_MASK == WRITE]


class Publications:
    """What `SharedConfig` says: whole, never backwards, none lost."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._words = desk.words
        self._newest = 0

    def publish(self, config: shmlock.SharedConfig, size: int) -> None:
        """A value that can be told from all others, and checked by itself."""
        desk = self._desk
        serial = desk.meant("publish")
        version = config.publish(
            {"desk": desk.number, "serial": serial, "fill": _fill(desk.number, serial, size), "again": serial}
        )
        desk.done("publish")
        # Together, for one that loads the version, then the serial number, then the version again.
        self._words[desk.base + Fields.VERSION] = 0
        self._words[desk.base + Fields.SERIAL] = serial
        self._words[desk.base + Fields.VERSION] = version

    def newest(self) -> int:
        """The latest version that anybody has surely published by now."""
        self._newest = max(self._newest, *self._desk.board.column(Fields.VERSION))
        return self._newest

    def check(self, snapshot: shmlock.Snapshot, newest: int) -> None:
        """`newest`: what `newest()` said before the snapshot was asked for."""
        desk, value, version = self._desk, snapshot.value, snapshot.version
        if version < newest:
            desk.fault("config", f"version {version} was got after {newest} had been published")
        self._newest = max(self._newest, version)
        if not isinstance(value, dict) or set(value) != {"desk", "serial", "fill", "again"}:
            desk.fault("config", f"version {version} is torn: {str(value)[:200]}")
            return
        whole = value["serial"] == value["again"]
        if not whole or value["fill"] != _fill(value["desk"], value["serial"], len(value["fill"])):
            desk.fault("config", f"version {version} is torn: {str(value)[:200]}")
        at = desk.board.desk(value["desk"])
        published, serial = self._words[at + Fields.VERSION], self._words[at + Fields.SERIAL]
        same = self._words[at + Fields.VERSION] == published != 0
        if same and (published == version) != (serial == value["serial"]):
            desk.fault(
                "config",
                f"version {version} has number {value['serial']} of desk {value['desk']}, "
                f"which published number {serial} as version {published}",
            )


def _fill(desk: int, serial: int, size: int) -> str:
    return chr(97 + (desk + serial) % 26) * size


# The first word of a timer: its serial number << 2, and what its owner knows.
_OPEN, _SET, _CANCELLED = 1, 2, 3  # it may come or not (somebody was killed in asking), it must come, it must not
_ASKED, _BECAME, _DUE = range(3)
_FINAL: Final = (1 << 64) - 1  # of _BECAME: handed out, and seen; else life << 24 | call of its collector; 0: to come
_CALL_BITS: Final = 24


class Timers:
    """What `TimerQueue` hands out: each timer once, none before its time, none lost."""

    def __init__(self, desk: Desk, opened: shmlock.TimerQueue) -> None:
        self._desk = desk
        self._words = desk.words
        self._timers = opened
        self._batch: list[int] = []
        self._call = desk.board.life(desk.life) + CALL
        self.open: list[int] = []  # the serial numbers of ours that were to come

    def _ident(self, serial: int) -> int:
        return self._desk.number << 40 | serial

    def _at(self, serial: int) -> int:
        return self._desk.board.timer(self._desk.number, serial)

    def set(self, delay: int) -> None:
        """A new one, in so many nanoseconds."""
        words = self._words
        serial = self._desk.add(Fields.TIMER)
        at = self._at(serial)
        if words[at] & 3 in {_OPEN, _SET} and words[at + _BECAME] != _FINAL:
            return  # the one that had this place has not come to its end
        words[at + _ASKED] = 0
        words[at + _BECAME] = 0
        due = words[at + _DUE] = time.monotonic_ns() + delay
        words[at + _ASKED] = serial << 2 | _OPEN
        self._timers.schedule(self._ident(serial), due)
        words[at + _ASKED] = serial << 2 | _SET
        self.open = [*self.open[-15:], serial]

    def postpone(self, serial: int, delay: int) -> None:
        """It does not come before so many nanoseconds from now, if it has not come already."""
        due = time.monotonic_ns() + delay
        at = self._at(serial)
        if self._timers.postpone(self._ident(serial), due):
            self._words[at + _DUE] = due

    def cancel(self, serial: int) -> None:
        """It does not come, if it has not come already."""
        words, at = self._words, self._at(serial)
        if words[at] != serial << 2 | _SET:
            return
        words[at] = serial << 2 | _OPEN
        if self._timers.cancel(self._ident(serial)):
            words[at] = serial << 2 | _CANCELLED
        self.open.remove(serial)

    def collect(self, limit: int | None) -> int:
        """Those that are due: how many."""
        words = self._words
        call = words[self._call] = words[self._call] + 1
        found = self._timers.wake_expired(limit=limit)
        now = time.monotonic_ns()
        self.seen()
        for ident in found:
            self._came(ident, call, now)
        self._desk.add(Fields.HANDED, len(found))
        return len(found)

    def seen(self) -> None:
        """Those of the last call will not come again, whatever becomes of us."""
        for at in self._batch:
            self._words[at + _BECAME] = _FINAL
        self._batch = []

    def _came(self, ident: int, call: int, now: int) -> None:
        words, board = self._words, self._desk.board
        number, serial = ident >> 40, ident & (1 << 40) - 1
        at = board.timer(number, serial)
        asked, became = words[at + _ASKED], words[at + _BECAME]
        which = f"timer {serial} of desk {number}"
        if asked >> 2 != serial:
            self._desk.fault("timers", f"{which} came, and had come to its end before")
            return
        if asked & 3 == _CANCELLED:
            self._desk.fault("timers", f"{which} came, and was cancelled")
        if words[at + _DUE] > now:
            self._desk.fault("timers", f"{which} came {(words[at + _DUE] - now) / 1e6:.3f} ms too early")
        life, last = became >> _CALL_BITS, became & (1 << _CALL_BITS) - 1
        # Of a collector that was killed in a call, those of the call before may be acknowledged or not.
        if became and (became == _FINAL or not board.was_killed(life) or words[board.life(life) + CALL] - last > 1):
            self._desk.fault("timers", f"{which} came twice, the first time in call {last} of life {life}")
        words[at + _BECAME] = self._desk.life << _CALL_BITS | call
        self._batch.append(at)


def lost_timers(board: Board) -> list[tuple[int, int]]:
    """Desk and serial number of each timer that was set, and has not come."""
    lost: list[tuple[int, int]] = []
    for number in range(board.desks):
        start, size = board.timer(number, 0), board.timer(0, 1) - board.timer(0, 0)
        used = min(board.words[board.desk(number) + Fields.TIMER] + 1, TIMERS)
        block = board.words[start : start + used * size].tolist()
        places = range(0, len(block), size)
        lost += [(number, block[at] >> 2) for at in places if block[at] & 3 == _SET and not block[at + _BECAME]]
    return lost


def counted(board: Board, said: Callable[[], dict[str, int]]) -> list[str]:
    """What an object says that can't be, going by what was done, and meant: at any moment, whoever was killed."""
    done = board.sums(Fields.DONE)
    now = said()
    meant = board.sums(Fields.MEANT)
    return [
        f"{name}: {value}, but {done[name]} have been done, and {meant[name]} were begun"
        for name, value in now.items()
        if not done[name] <= value <= meant[name]
    ]
