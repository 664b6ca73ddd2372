"""The board: plain words beside the locks, on which everybody notes what is checked. In memory without a name.

What is killed leaves its notes as they are, so nothing here is ever taken back or put right:

- Each thread has a *desk*, and each thread's time there is a *life*: a number that no other one ever has. Whoever kills
  (or replaces itself with exec) first stores `killed_at` of the life. So a life without it is that of a thread that
  lives, or that has left in order.
- What is counted is counted twice at the desk: *meant* before it is done, *done* afterwards. A life that is killed in
  between leaves a difference of one, for good. So at any moment, whatever was killed when,

      sum of done, loaded before  <=  what the object says  <=  sum of meant, loaded after

  and `meant - done` is, when all is quiet, at most one for each that was killed.
- A timer's words say what its owner has asked for (stored by the owner), and what became of it (by the collector).
"""

from __future__ import annotations

import json
import mmap
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from shmlock._segment.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCKS: Final = ("rw", "seek", "mutex")
COUNTED: Final = (*LOCKS, "publish", "record")
DOING: Final = ["nothing yet"]
"""The names of the steps, by number. The roles add theirs."""

LIVES: Final = 8  # of one process: those of its threads, and of the children that it forks
MOST_LIVES: Final = 1 << 22
TIMERS: Final = 1 << 13  # of one desk

# warm: whether resources are to be looked at; before that everything is still growing to its size.
_HEAD: Final = Record("ending warm")
_PLACE: Final = Record(
    # left and right are equal unless somebody writes, or was killed in it; count: of all writes, by whoever writes.
    # phases: how many write phases there have been; the holder of W adds one when it comes in.
    "left right count phases",
)
_DESK: Final = Record(
    # life: of the one that sits here. beat: when it began its last step, ns; 0 when nobody sits here.
    "life pid beat doing steps",
    # Of rw and seek. asks: odd while this desk asks for R, S or W. slot: its slot in the lock plus one, 0 if unknown.
    "asks:2 slot:2",
    # What it holds: life << 2 | mode. Stored after it has it, cleared before it gives it up.
    "holding:3",
    f"meant:{len(COUNTED)} done:{len(COUNTED)}",
    # version: the last one that `publish` returned. serial: of the value that it published then.
    "version serial",
    # together: how often it has seen somebody else inside with it, as it may. told: of a writer's death.
    "together told optimistic handed",
    # Of what it alone knows: descriptors and private memory (KiB), at the first look and at the last.
    "files:2 memory:2",
    # timer: the serial number of the last one that it has set.
    "timer",
    # Written under W of rw or seek, about the ask that was seen to wait: see `Fairness`.
    "seen_read:2 seen_write:2",
)
_LIFE: Final = Record(
    # recovered_at: when one that waited for what this one held was in. call: the number of its last wake_expired.
    "killed_at recovered_at call"
)
LIFE_SIZE: Final = 4  # words; not a line, for there are many
TIMER_SIZE: Final = 3


class Fields:
    """Offsets within a desk."""

    LIFE = _DESK["life"]
    PID = _DESK["pid"]
    BEAT = _DESK["beat"]
    DOING = _DESK["doing"]
    STEPS = _DESK["steps"]
    ASKS = _DESK["asks"]
    SLOT = _DESK["slot"]
    HOLDING = _DESK["holding"]
    MEANT = _DESK["meant"]
    DONE = _DESK["done"]
    VERSION = _DESK["version"]
    SERIAL = _DESK["serial"]
    TOGETHER = _DESK["together"]
    TOLD = _DESK["told"]
    OPTIMISTIC = _DESK["optimistic"]
    HANDED = _DESK["handed"]
    FILES = _DESK["files"]
    MEMORY = _DESK["memory"]
    TIMER = _DESK["timer"]
    SEEN_READ = _DESK["seen_read"]
    SEEN_WRITE = _DESK["seen_write"]


LEFT, RIGHT, COUNT, PHASES = (_PLACE[name] for name in ("left", "right", "count", "phases"))
KILLED_AT, RECOVERED_AT, CALL = (_LIFE[name] for name in ("killed_at", "recovered_at", "call"))


class Fault(NamedTuple):
    """A promise that was broken: its kind, a word or two, and what was seen."""

    kind: str
    what: str


class Board:
    """All words, and the file that faults are written to; the same in all processes of a run."""

    def __init__(self, desks: int, files: tuple[int, int, int] | None = None) -> None:
        """`files`: the descriptors of a board that is there, in a process that was started by exec."""
        self.desks = desks
        self._desks_at = _HEAD.size + len(LOCKS) * _PLACE.size
        self._lives_at = self._desks_at + desks * _DESK.size
        self._timers_at = self._lives_at + MOST_LIVES * LIFE_SIZE
        size = 8 * (self._timers_at + desks * TIMERS * TIMER_SIZE)
        if files is None:
            files = os.memfd_create("soak"), _appended("soak-faults"), _appended("soak-printed")
            os.truncate(files[0], size)  # pages that nobody touches cost nothing
        self.files = files
        self.words = memoryview(mmap.mmap(files[0], size)).cast("Q")

    # --- where things are

    def place(self, lock: int) -> int:
        """The first word of a lock's payload."""
        return _HEAD.size + lock * _PLACE.size

    def desk(self, number: int) -> int:
        """The first word of a desk."""
        return self._desks_at + number * _DESK.size

    def life(self, number: int) -> int:
        """The first word of a life."""
        return self._lives_at + number * LIFE_SIZE

    def timer(self, desk: int, serial: int) -> int:
        """The first word of one of a desk's timers."""
        return self._timers_at + (desk * TIMERS + serial % TIMERS) * TIMER_SIZE

    def column(self, field: int) -> list[int]:
        """One field of all desks."""
        start = self._desks_at + field
        return self.words[start : self._lives_at : _DESK.size].tolist()

    # --- what all ask

    @property
    def ending(self) -> bool:
        """Whether all are to leave."""
        return self.words[_HEAD["ending"]] != 0

    def end(self) -> None:
        """Tell all to leave."""
        self.words[_HEAD["ending"]] = 1

    @property
    def warm(self) -> bool:
        """Whether resources are to be looked at."""
        return self.words[_HEAD["warm"]] != 0

    def warm_up(self) -> None:
        """From now on they are."""
        self.words[_HEAD["warm"]] = 1

    def was_killed(self, life: int) -> int:
        """When, ns; 0 if it was not."""
        return self.words[self.life(life) + KILLED_AT]

    def note_kill(self, life: int) -> None:
        """Before the blow."""
        at = self.life(life) + KILLED_AT
        if not self.words[at]:
            self.words[at] = time.monotonic_ns()

    def sums(self, field: int) -> dict[str, int]:
        """Of `MEANT` or `DONE`: how much of each, at all desks."""
        return {name: sum(self.column(field + number)) for number, name in enumerate(COUNTED)}

    # --- faults

    def fault(self, kind: str, what: str) -> None:
        """Write one down, for the conductor. One write to a file that is appended to: whole, whoever else does."""
        os.write(self.files[1], (json.dumps([kind, what, os.getpid()]) + "\n").encode())

    def faults(self) -> Iterator[Fault]:
        """All that were written down so far."""
        for line in os.pread(self.files[1], 1 << 20, 0).decode().splitlines():
            kind, what, pid = json.loads(line)
            yield Fault(kind, f"{what} (process {pid})")

    def printed(self) -> str:
        """What the processes have printed as errors, which is nothing, or where they are if they were asked."""
        return os.pread(self.files[2], 1 << 20, 0).decode(errors="replace")


def _appended(name: str) -> int:
    """A file without a name; what is written goes to its end, whoever else writes."""
    descriptor = os.memfd_create(name)
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
