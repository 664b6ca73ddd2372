"""What `with` takes: the faces of one lock's modes, and what they do about a writer that was killed inside."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from shmlock._engine.bias import Reader
from shmlock._engine.modes import READ, SEEK, WRITE
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.interrupts import begins_at_once
from shmlock._segment.layout import OWNER_DIED, READS, SEEKER, WRITER
from shmlock.errors import LockTimeout, NotHeld, OwnerDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.engine import Engine


class Lock(Protocol):
    """What the policy knows of the lock that it is a part of."""

    reader: Reader
    writer: Writer

    @property
    def name(self) -> str: ...


class Policy:
    """What a handle does when a writer was killed inside."""

    def __init__(self, lock: Lock, engine: Engine, on_owner_died: Any) -> None:
        self.chosen = on_owner_died
        self._engine = engine
        self._lock = lock
        self._takes_lock = callable(on_owner_died) and _takes_argument(on_owner_died)

    @begins_at_once
    def writing(self, give_up: Callable[[], None] | None = None) -> None:
        """W was just acquired. Gives it up again if it raises, in the way that is asked for."""
        try:
            if self.chosen == "raise":
                raise OwnerDied(
                    f"{self._lock.name}: a writer was killed inside; mend the data, then call mark_consistent()"
                )
            if callable(self.chosen):
                self.chosen(self._lock) if self._takes_lock else self.chosen()
                self._engine.vouch()
        except BaseException:
            self._surely(give_up or self._give_up_write, WRITER)
            raise

    def reading(self, reader: Reader) -> None:
        """R was just acquired. It may be given up, or not, when it raises."""
        if self.chosen == "raise":
            reader.release()
            raise self._unmended()
        if callable(self.chosen):
            reader.release()
            with self._lock.writer:  # where the callable runs
                reader.__enter__()  # leaving W first leaves R: nobody gets in between

    @begins_at_once
    def seeking(self) -> None:
        """S was just acquired. Gives it up again if it raises."""
        try:
            if self.chosen == "raise":
                raise self._unmended()
            if callable(self.chosen):
                self._engine.upgrade(FOREVER)
                self.writing()
                self._engine.write_to_seek(vouch=True)
        except BaseException:
            self._surely(self._give_up_seek, SEEKER)
            raise

    @begins_at_once
    def _surely(self, give_up: Callable[[], None], word: int) -> None:
        """Also when it is interrupted before it began."""
        try:
            give_up()
        except BaseException:
            if self._engine.holds(word):
                give_up()
            raise

    def _give_up_write(self) -> None:
        self._engine.release_write(vouch=False)

    def _give_up_seek(self) -> None:
        self._engine.end(SEEK, vouch=False)

    def _unmended(self) -> OwnerDied:
        return OwnerDied(f"{self._lock.name}: a writer was killed inside, and nobody has mended the data")


def check_policy(on_owner_died: object) -> None:
    """Raise ValueError unless it is one."""
    if on_owner_died not in {"flag", "raise"} and not callable(on_owner_died):
        raise ValueError(f'on_owner_died must be "flag", "raise" or a callable, not {on_owner_died!r}')


def _takes_argument(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


class CarefulReader(Reader):
    """A Reader that looks at the owner-died word, too, or counts (statistics="full"): what the fast one can't."""

    __slots__ = ("_counts", "_policy")

    def __init__(self, engine: Engine, policy: Policy, *, counts: bool) -> None:
        super().__init__(engine)
        self._policy = policy
        self._counts = counts

    def __enter__(self) -> Self:
        super().__enter__()
        self._entered()
        return self

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        held = super().acquire(blocking, timeout)
        if held:
            self._entered()
        return held

    @begins_at_once
    def _entered(self) -> None:
        words, me = self._words, self._here.me
        reads = me.base + READS
        depth = words[reads]
        if self._counts:
            me.account.locked(READ)
        try:
            if words[OWNER_DIED] and depth == 1 and not self._engine.holds(WRITER):
                self._policy.reading(self)
        except BaseException:
            if words[reads] == depth:
                self.__exit__(None, None, None)
            raise

    @begins_at_once
    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        try:
            me = self._here.me
            reads = me.number >= 0 and self._words[me.base + READS] > 0
        except AttributeError:  # this thread has never used it
            reads = False
        # Not by super(), which is a call into C. What reads no more is an S or W by now, and counted as that.
        Reader.__exit__(self, kind, value, traceback)
        if self._counts and reads:
            me.account.unlocked(READ)


class _Face:
    """What all have but the reader."""

    __slots__ = ("_engine", "_policy")

    _engine: Engine
    _policy: Policy

    @property
    def owner_died(self) -> bool:
        """Whether a writer was killed inside, and none has left cleanly since."""
        return self._engine.words[OWNER_DIED] != 0


class _Exclusive(_Face):
    """S or W, which always take the guard; the same object for every use and every thread."""

    __slots__ = ("_words",)

    _mode: ClassVar[int]

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine = engine
        self._policy = policy
        self._words = engine.words

    def _taken(self) -> None:
        """It was just acquired, and a writer was killed inside before."""
        raise NotImplementedError

    def _closed(self, engine: Engine) -> None:
        """The handle was closed while we waited. Raises ClosedError."""
        with suppress(NotHeld):  # else it was the last, and this has been given up
            engine.end(self._mode, vouch=False)
        raise engine.closed()

    def shut(self, closed: Any) -> None:
        """Make every later use raise."""
        self._engine = self._words = closed

    def __enter__(self) -> Self:
        engine = self._engine
        engine.acquire(self._mode, FOREVER)
        if self._engine is not engine:
            self._closed(engine)
        if self._words[OWNER_DIED]:
            self._taken()
        return self

    @begins_at_once
    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        engine = self._engine
        try:
            engine.end(self._mode, vouch=kind is None)
        except BaseException:
            if engine.must_end():  # interrupted before it began
                engine.end(self._mode, vouch=False)
            raise

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As the class says. True when held.

        `timeout` in seconds: None waits for ever, 0 (or `blocking=False`) waits for no holder.
        Raises WouldDeadlock when this thread holds the lock already, in whatever way; ValueError for a
        negative or NaN timeout; OwnerDied with `on_owner_died="raise"`.
        """
        engine = self._engine
        held = engine.acquire(self._mode, Deadline.after(timeout, blocking=blocking))
        if held and self._engine is not engine:
            self._closed(engine)
        if held and self._words[OWNER_DIED]:
            self._taken()
        return held


class Writer(_Exclusive):
    """Write, alone: `with lock.writer as hold:`."""

    __slots__ = ()

    _mode: ClassVar = WRITE

    @begins_at_once
    def _taken(self) -> None:
        self._policy.writing()

    def acquire_nowait(self) -> bool:
        """Write, if nobody holds the lock or waits for it: at once or not at all. True when held.

        Unlike `acquire(blocking=False)` it does not hold up anybody who is in or comes meanwhile (the readers' gate
        stays open when one of them is in), and does not look for the dead. Raises as `acquire` does.
        """
        engine = self._engine
        held = engine.try_write()
        if held and self._engine is not engine:
            self._closed(engine)
        if held and self._words[OWNER_DIED]:
            self._taken()
        return held

    @begins_at_once
    def release(self) -> None:
        """Leave, vouching for the data; to S, if the hold was one. Raises NotHeld when this thread does not write."""
        try:
            self._engine.release_write(vouch=True)
        except BaseException:
            if self._engine.holds(WRITER):  # interrupted before it began
                self._engine.release_write(vouch=False)
            raise


class Seeker(_Exclusive):
    """Seek, alone among seekers and writers, together with readers: `with lock.seeker as hold:`."""

    __slots__ = ()

    _mode: ClassVar = SEEK

    @begins_at_once
    def _taken(self) -> None:
        self._policy.seeking()

    @begins_at_once
    def release(self) -> None:
        """Leave. Raises NotHeld when this thread, in this process, does not seek, or has upgraded to a write."""
        try:
            self._engine.release_seek()
        except BaseException:
            if self._engine.holds(SEEKER) and not self._engine.holds(WRITER):  # interrupted before it began
                self._engine.release_seek()
            raise


class Upgrade(_Face):
    """`with lock.upgraded():`, within a seek."""

    __slots__ = ("_name", "_timeout")

    def __init__(self, engine: Engine, policy: Policy, name: str, timeout: float | None) -> None:
        Deadline.after(timeout)  # a bad timeout is told where it is written
        self._engine = engine
        self._policy = policy
        self._name = name
        self._timeout = timeout

    def __enter__(self) -> Self:
        if not self._engine.upgrade(Deadline.after(self._timeout)):
            raise LockTimeout(f"{self._name}: readers did not leave within {self._timeout} s; the seek is still held")
        if self._engine.words[OWNER_DIED]:
            self._policy.writing()
        return self

    @begins_at_once
    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        engine = self._engine
        try:
            if engine.holds(WRITER):
                engine.write_to_seek(vouch=kind is None)
        except BaseException:
            if engine.holds(WRITER):  # interrupted before it began
                engine.write_to_seek(vouch=False)
            raise


class _Acquirable(Protocol):
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...
    def __exit__(self, kind: object, value: object, traceback: object) -> None: ...


F = TypeVar("F", bound=_Acquirable)


class Timed(Generic[F]):
    """`with lock.read_lock(timeout=...):` and its like."""

    __slots__ = ("_doing", "_face", "_timeout")

    def __init__(self, face: F, timeout: float | None, doing: str) -> None:
        Deadline.after(timeout)  # a bad timeout is told where it is written
        self._face = face
        self._timeout = timeout
        self._doing = doing

    def __enter__(self) -> F:
        if not self._face.acquire(timeout=self._timeout):
            raise LockTimeout(f"{self._doing} was not to be had within {self._timeout} s")
        return self._face

    @begins_at_once
    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self._face.__exit__(kind, value, traceback)
