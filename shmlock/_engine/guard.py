"""The lock below the lock: a robust mutex that serialises every slow path for a few microseconds.

What may be interrupted here, and by what:

- *Death.* The kernel hands the mutex on with EOWNERDEAD. `dirty` is set before the first store and cleared
  after the last, so whoever takes the guard and finds it set repairs first.
- *An asynchronous exception* (a signal handler that raises). CPython runs handlers only at the start of a
  Python function, on a backward jump, and after a call into C. So the lock call stands inside the `try`, and
  the `finally` calls the C function itself, with nothing between. A mutex that is not ours answers EPERM, and
  that is ignored; but the C library takes an equal thread id in another pid namespace for its own, so it is not
  asked when we know better. (Measured over about 59,600 exceptions each: lock before the `try` leaked 21,673 times, a
  flag kept in Python 21,558, a Python function around the unlock 4,265, this form 0.)
  The backward jump of a `while` may not be within the `try` around it, whatever the source says, and an exception
  there goes past `except` and `finally` (CPython 3.12 and 3.13: issues 130279, 108214). So the loop jumps back only
  while the mutex is not ours.
- *Noise* in the mutex itself, which would end the process in the C library (see `robust`): its kind is looked at before
  it is taken, its links before it is left. If they lead elsewhere, nobody can leave it any more, and all are told: a
  mutex of no kind is a broken one. (Cost: six loads, 7 % of an uncontended write.)
- *A signal handler that asks for the same lock* meets `busy` in `membership`, not this mutex.

Waiting is cut into slices of 20 ms, because `pthread_mutex_lock` goes on waiting through signals, and Python's
handlers could not run until the lock came (measured: 1.4 s late).
"""

from __future__ import annotations

import os
from errno import EBUSY, EINVAL, EOWNERDEAD, ETIMEDOUT
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from shmlock._kernel.robust import (
    AFTER,
    BEFORE,
    KIND,
    block,
    consistent,
    kind,
    linked,
    lock_within,
    trylock_block,
    unlock_block,
)
from shmlock._segment.layout import DIRTY, GUARD
from shmlock.errors import LockTimeout, SegmentCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.state import State
    from shmlock._kernel.deadline import Deadline
    from shmlock._segment.segment import Segment

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_SLICE: Final = 0.020  # seconds
_KIND, _BEFORE, _AFTER = GUARD + KIND, GUARD + BEFORE, GUARD + AFTER


class Guard:
    """Runs actions on the state, one at a time among all processes."""

    __slots__ = ("_address", "_kind", "_mutex", "_name", "_post", "_state", "_words")

    def __init__(self, segment: Segment, state: State, post: Callable[[int], None]) -> None:
        self._address = segment.guard_address
        self._mutex = block(segment.guard_address)
        self._kind = kind()
        self._words = segment.words
        self._name = segment.name
        self._state = state
        self._post = post

    def run(self, deadline: Deadline, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Take the guard, repair if need be, run the action, leave, and wake those that were granted something.

        Raises LockTimeout when the guard can't be had before the deadline (it tries for 20 ms at least); only
        a process that was stopped inside makes anybody wait that long.
        Uncontended: two calls into the C library and two stores, about 1 us beside the action's own.
        """
        address, mutex, words, state = self._address, self._mutex, self._words, self._state
        if words[_KIND] != self._kind:
            self._check(EINVAL, deadline)  # noise
        maybe_ours = True
        before = after = None
        try:
            status = trylock_block(mutex)
            while status and status != EOWNERDEAD:
                maybe_ours = False
                self._check(status, deadline)
                maybe_ours = True
                status = lock_within(address, _SLICE)
            before, after = words[_BEFORE], words[_AFTER]
            if status:
                consistent(address)
                words[DIRTY] = 1
            state.woken = []
            if words[DIRTY]:
                state.repair()
            words[DIRTY] = 1
            result = action(*args)
            words[DIRTY] = 0
            woken = state.woken
            if words[_BEFORE] != before or words[_AFTER] != after:
                maybe_ours = self._can_be_left(before, after)
        except BaseException:
            # Had the last owner died and the exception come before we knew, an unlock would brick the mutex.
            if maybe_ours:
                consistent(address)
                maybe_ours = self._can_be_left(before, after)
            raise
        finally:
            if maybe_ours:
                unlock_block(mutex)
        if woken:
            self._wake(woken)
        return result

    def _can_be_left(self, before: int | None, after: int | None) -> bool:
        """Whether unlocking follows the right links: those that it had when it was taken, or that its neighbours have.

        They are others when a latch was taken or left meanwhile. Or somebody else has written there.
        """
        words = self._words
        if before is None or (words[_BEFORE] == before and words[_AFTER] == after) or linked(self._address):
            return True
        words[_KIND] = 0  # noise
        return False

    def _check(self, status: int, deadline: Deadline) -> None:
        """Raise if there is no point in waiting on."""
        if status == ETIMEDOUT and deadline.passed():
            raise LockTimeout(f"{self._name}: a process that does not go on is in the middle of a change")
        if status not in {EBUSY, ETIMEDOUT} or self._words[_KIND] != self._kind:
            raise SegmentCorrupt(f"{self._name}: the guard is broken (errno {status})")

    def _wake(self, numbers: list[int]) -> None:
        for number in numbers:
            self._post(number)
        # Let them run: one that was put in this CPU's queue would wait until we sleep (measured, a hand-over
        # among 20 writers: 220 to 240 us instead of 260 to 310).
        os.sched_yield()
