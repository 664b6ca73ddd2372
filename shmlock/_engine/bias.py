"""The readers' fast path and its revocation: both halves of the handshake, and why they meet.

    reader, entering                     writer, under the guard
    ----------------                     -----------------------
    r1  reads[me] = 1                    w1  gate = closed
    r2  load gate; open: it is in        w2  membarrier (State._close, after_closing)
                                         w3  load every slot's reads; all 0: it is in

Suppose both get in: r2 loaded "open" and w3 loaded 0. At w2 the kernel runs a full fence on the reader's
CPU, at some point of its program. If that point is after r1, the fence pushes r1 out before w3, and w3 loads
1. If it is before r1, then r2 comes after the fence, which comes after w1, and r2 loads "closed". So one of
the two sees the other, without a fence in the reader's path. (Both x86-64 and aarch64 may otherwise delay r1
beyond r2; Python does not hide that: with a plain fence in the writer alone, 15 double entries were measured
in 3,000,000 rounds, with membarrier none in 600,000.) BRAVO (Dice and Kogan, 2019) has the same handshake.

A reader that loses (r2 loads "closed") stores 0 again, and then its want; one that leaves stores 0, and has to look
after the gate if it is closed, for a writer may have counted it. Neither needs the guard if somebody else is sure
to decide after its store (`Acquisition._others_decide`). Both fence after their store and look:

- The gate is closed and a writer holds. When that one ends, it stores so; then it fences and loads the wants
  (`State.decide`). Since we saw it hold after our fence, its fence comes after our store: it sees it.
- The gate is closed and another reader is in. All that leave, or back out, store 0, fence, and look. The one whose
  fence is last sees the others' zeros, and decides under the guard; its fence comes after our store.
- The gate is not closed any more. Whoever opened it may have loaded the wants before ours was there. We decide, under
  the guard. And if we saw it closed, whoever opens it later fences after that and loads the wants again.

A reader that is interrupted for good between its store and its look costs the others a slice: whoever is first in the
queue decides anew with every slice that it waits. One that dies there is evicted, which decides.

Cost, uncontended: entering 2 loads and 1 store, leaving 2 loads and 1 store; no system call, no call at all.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.interrupts import begins_at_once
from shmlock._segment import noise
from shmlock._segment.layout import GATE, OWNER_DIED
from shmlock.errors import LockTimeout, NotHeld

if TYPE_CHECKING:
    from shmlock._engine.engine import Engine
    from shmlock._engine.participant import Participant


class Here(threading.local):
    """What the calling thread has in one segment.

    `at` is the index of its reads word, and None (which is no index, so that the fast path fails) while that path is
    not allowed: before the thread has a slot, on a slow path (a signal handler would use the slot under its feet), and
    while something abandoned is to be settled. It stands here, not in `me`, because each use looks for it twice.

    CPython drops these attributes when the thread ends, before its id is used again; a forked child empties them.
    """

    at: Any
    me: Participant
    leaver: object
    shard: Any  # of a metrics segment


class Reader:
    """`with lock.reader:`, the same object for every use and every thread.

    >>> import shmlock
    >>> lock = shmlock.RWLock("docs.reader")
    >>> with lock.reader:
    ...     pass
    >>> lock.unlink()
    """

    __slots__ = ("_engine", "_here", "_words")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._here = engine.here
        self._words = engine.words

    @property
    def owner_died(self) -> bool:
        """Whether a writer was killed inside, and none has left cleanly since."""
        return self._words[OWNER_DIED] != 0

    def __enter__(self) -> Self:
        words = self._words
        try:
            at = self._here.at
            depth = words[at]
        except (AttributeError, TypeError):
            self._enter(FOREVER)
            return self
        try:
            words[at] = depth + 1
            if words[GATE] and not depth:
                words[at] = 0
                self._wait(FOREVER)
            return self  # noqa: TRY300  a jump over what follows would cost
        except ValueError as error:
            noise.check(self._engine.segment.name, error)
            raise

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Read, together with other readers and a seeker. Nests. True when held.

        `timeout` in seconds: None waits for ever, 0 (or `blocking=False`) waits for no holder.
        Raises ValueError for a negative or NaN timeout.
        """
        deadline = Deadline.after(timeout, blocking=blocking)
        try:
            return self._enter(deadline)
        except LockTimeout:
            return False

    def _enter(self, deadline: Deadline) -> bool:
        """As `__enter__`, with a deadline. Raises LockTimeout when not even a slot in order is to be had before it."""
        words = self._words
        at = self._at(deadline)
        try:
            depth = words[at]
            words[at] = depth + 1
            if words[GATE] and not depth:
                words[at] = 0
                return self._wait(deadline)
            return True  # noqa: TRY300  as above
        except ValueError as error:
            noise.check(self._engine.segment.name, error)
            raise

    def _at(self, deadline: Deadline) -> int:
        """The index of the calling thread's reads word.

        Whoever closes the lock gives up what it finds there, and no more. So from here to the store no other thread may
        come in: no call, and no jump back (with which, as 3.12 compiles it, an `except` ends that does not return).
        """
        try:
            at: int = self._here.at
            self._words[at]
        except (AttributeError, TypeError):
            engine = self._engine
            at = engine.prepare(deadline)
            if self._here is not engine.here:
                raise engine.closed() from None
            return at
        return at

    def _wait(self, deadline: Deadline) -> bool:
        engine = self._engine
        held = engine.acquire_read(deadline)
        if held and self._here is not engine.here:
            self._closed(engine)
        return held

    def _closed(self, engine: Engine) -> None:
        """The handle was closed while we waited, and so this R may be of another `here`. Raises ClosedError."""
        engine.give_read_back()
        raise engine.closed()

    def shut(self, closed: Any) -> None:
        """Make every later use raise."""
        self._engine = self._words = self._here = closed

    @begins_at_once
    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        words = self._words
        try:
            at = self._here.at
            depth = words[at] - 1
            words[at] = depth  # less than 0 does not fit
        except (AttributeError, TypeError, ValueError):
            pass
        else:
            if words[GATE] and not depth:
                self._engine.left_read()
            return
        # A wrong release; or what a seek lock has made of this R is to be given up.
        try:
            self._engine.end_read(vouch=kind is None)
        except NotHeld:
            if self._here is not self._engine.here:  # another thread has closed the last handle, and given up this R
                raise self._engine.closed() from None
            raise
        except BaseException:
            if self._engine.must_end():  # interrupted before it began
                self._engine.end_read(vouch=False)
            raise

    @begins_at_once
    def release(self) -> None:
        """Leave. Raises NotHeld when this thread, in this process, does not read."""
        try:
            reads = self._words[self._here.at] > 0
        except (AttributeError, TypeError):
            reads = False
        if not reads:
            self._engine.check_reads()
        self.__exit__(None, None, None)
