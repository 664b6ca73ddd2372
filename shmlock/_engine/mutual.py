"""The public mutex: the kernel's robust mutex itself, with what it lacks in manners.

It needs no slots. Its words are stored only by its holder, so plain adding is exact. Waiting is cut into
slices so that signal handlers run; the kernel hands the mutex on at the moment its holder dies.
"""

from __future__ import annotations

import os
import threading
import time
from errno import EBUSY, EINVAL, EOWNERDEAD, ETIMEDOUT
from typing import TYPE_CHECKING, Final

from shmlock._engine.modes import WRITE
from shmlock._engine.stats import Account
from shmlock._kernel import process
from shmlock._kernel.forks import in_child
from shmlock._kernel.interrupts import begins_at_once
from shmlock._kernel.robust import (
    AFTER,
    BEFORE,
    KIND,
    consistent,
    kind,
    linked,
    lock_within,
    tried,
    trylock,
    unlock,
)
from shmlock._segment import noise
from shmlock._segment.layout import ACCOUNT, BANKS, GUARD, OWNER_DEATHS, OWNER_DIED, SEEKER, WRITER, WRITER_SINCE
from shmlock.errors import NotHeld, SegmentCorrupt, WouldDeadlock

if TYPE_CHECKING:
    from shmlock._kernel.deadline import Deadline
    from shmlock._segment.segment import Segment

_SLICE: Final = 0.020  # seconds
_KIND, _BEFORE, _AFTER = GUARD + KIND, GUARD + BEFORE, GUARD + AFTER
_64_BITS: Final = (1 << 64) - 1
_UNLOCKS: Final = BANKS[0] + ACCOUNT["write_unlocks"]


class _Here(threading.local):
    holds = False


class MutualExclusion:
    """One segment's mutex in one process, shared by all handles."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.words = segment.words
        self._address = segment.guard_address
        self._kind = kind()
        self._before = self._after = 0  # the mutex's links, when it was taken; only its holder uses them
        self._here = _Here()
        self._account = Account(segment.words, BANKS[0])

    def acquire(self, deadline: Deadline) -> bool:
        """True when held. Raises WouldDeadlock for a wait of the thread that holds it."""
        here, words, address = self._here, self.words, self._address
        if here.holds:
            if not deadline.waits:
                return False
            raise WouldDeadlock(f"{self.segment.name}: this thread holds the mutex already")
        try:
            status, waited = self._lock(deadline)
            if status in {EBUSY, ETIMEDOUT}:
                return False
            self._before, self._after = words[_BEFORE], words[_AFTER]
            if status == EOWNERDEAD:
                self._note_death()
            elif status:
                raise self._broken(status)
            words[SEEKER] = process.pid_namespace()
            words[WRITER] = os.getpid()
            words[WRITER_SINCE] = time.monotonic_ns()
            self._account.locked(WRITE)
            if waited:
                self._account.waited(WRITE, waited)
            here.holds = True
        except BaseException as error:
            # Interrupted: whether it is ours by now the mutex knows best (EPERM if not), except that it takes an
            # equal thread id in another pid namespace for its own: then the holder's namespace stands here.
            here.holds = False
            if words[SEEKER] in {0, process.pid_namespace()} and words[_KIND] == self._kind:
                if consistent(address) == 0:
                    self._tell_of_death()  # which has not been done yet
                unlock(address)
            noise.check(self.segment.name, error)
            raise
        return True

    def _broken(self, status: int) -> SegmentCorrupt:
        name = self.segment.name
        return SegmentCorrupt(f"{name}: the mutex is broken (errno {status}); shmlock.unlink({name!r}) removes it")

    def _lock(self, deadline: Deadline) -> tuple[int, int]:
        """The status and, if it had to be waited for, the nanoseconds.

        EINVAL for a mutex of another kind: noise, which would end the process in the C library (see `robust`).
        """
        status = trylock(self._address) if self.words[_KIND] == self._kind else EINVAL
        if status != EBUSY or not deadline.waits:
            return status, 0
        began = time.monotonic_ns()
        while status in {EBUSY, ETIMEDOUT} and (left := deadline.left()):
            if self.words[_KIND] != self._kind:
                return EINVAL, 0
            status = lock_within(self._address, min(left, _SLICE))
        return status, time.monotonic_ns() - began

    @begins_at_once
    def _note_death(self) -> None:
        """The mutex is ours, and its last owner died inside. What tells the others comes before what can be cut off."""
        self._tell_of_death()
        consistent(self._address)

    @begins_at_once
    def _tell_of_death(self) -> None:
        self.words[OWNER_DEATHS] += 1
        self.words[OWNER_DIED] = 1

    def release(self, *, vouch: bool) -> None:
        """Raises NotHeld for a thread that does not hold it, in this process.

        From the first store to the unlock there is no call, so that no signal handler can come in between.
        """
        here, words = self._here, self.words
        if not here.holds:
            raise NotHeld(f"{self.segment.name}: this thread of process {os.getpid()} does not hold the mutex")
        # Other links than when it was taken: of neighbours that came or went. Or somebody else has written there.
        moved = words[_BEFORE] != self._before or words[_AFTER] != self._after
        if (moved and not linked(self._address)) or words[_KIND] != self._kind:
            here.holds = False
            words[_KIND] = 0  # noise: nobody can leave it any more, and all are told
            raise self._broken(EINVAL)
        if vouch:
            words[OWNER_DIED] = 0
        words[_UNLOCKS] = words[_UNLOCKS] + 1 & _64_BITS
        words[WRITER] = 0
        words[SEEKER] = 0
        here.holds = False
        unlock(self._address)

    def locked(self) -> bool:
        """Whether somebody who lives holds it."""
        status = EINVAL
        try:
            if self.words[_KIND] == self._kind:
                (status,) = tried(self._address)
            if status == EOWNERDEAD:
                self._note_death()
        finally:
            if status in {0, EOWNERDEAD}:
                unlock(self._address)
        if status not in {0, EBUSY, EOWNERDEAD}:
            raise self._broken(status)
        return status == EBUSY

    def holds(self) -> bool:
        """Whether the calling thread does."""
        return self._here.holds

    def leave(self) -> None:
        """Give up what the calling thread holds, unless it is open still; nobody can give up another thread's mutex."""
        if not self.segment.handles and self._here.holds:
            self.release(vouch=False)

    def reap(self, _deadline: Deadline) -> list[object]:
        """Nobody: the kernel hands a dead holder's mutex on, and those that wait leave nothing behind."""
        return []

    def forget(self) -> None:
        """In a forked child: the parent's hold is not ours."""
        self._here.holds = False


_mutexes: dict[tuple[int, int], MutualExclusion] = {}


def mutual_exclusion_of(segment: Segment) -> MutualExclusion:
    """The one of a segment in this process."""
    return _mutexes.setdefault(segment.identity, MutualExclusion(segment))


@in_child
def _forget_parent() -> None:
    for mutex in list(_mutexes.values()):
        mutex.forget()
