"""The locks: a thin face on the engine.

    RWLock    reader | writer                    fair to both sides
    Mutex     one at a time, robust              the kernel's own order

Which one? State that is read far more than written: RWLock. A critical section that always writes: Mutex,
which costs a fifth of RWLock's writer, but is not fair.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, Self, TypeVar

from shmlock._engine.acquire import engine_of
from shmlock._engine.bias import Reader
from shmlock._engine.handle import Handle
from shmlock._engine.modes import WRITE
from shmlock._engine.mutual import mutual_exclusion_of
from shmlock._engine.stats import FULL, LockStatistics, read_statistics
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._segment.header import Kind
from shmlock._segment.layout import ACCOUNT, ACCOUNT_AT, OWNER_DIED, READS, SEQUENCE, WRITER
from shmlock.errors import LockTimeout, OwnerDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.acquire import Engine
    from shmlock._engine.mutual import MutualExclusion

T = TypeVar("T")

_OPTIMISTIC_TRIES: Final = 8
_READ_LOCKS: Final = ACCOUNT_AT - READS + ACCOUNT["read_locks"]
_READ_UNLOCKS: Final = ACCOUNT_AT - READS + ACCOUNT["read_unlocks"]


class Writer:
    """`with lock.writer as hold:`, the same object for every use and every thread."""

    __slots__ = ("_engine", "_policy", "_words")

    def __init__(self, engine: Engine, policy: _Policy) -> None:
        self._engine = engine
        self._policy = policy
        self._words = engine.words

    @property
    def owner_died(self) -> bool:
        """Whether a writer was killed inside, and none has left cleanly since."""
        return self._words[OWNER_DIED] != 0

    def __enter__(self) -> Self:
        self._engine.acquire(WRITE, FOREVER)
        if self._words[OWNER_DIED]:
            self._policy.writing()
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        try:
            self._engine.release_write(vouch=kind is None)
        except BaseException:
            if self._engine.holds(WRITER):  # interrupted before it began
                self._engine.release_write(vouch=False)
            raise

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Write, alone. True when held.

        `timeout` in seconds: None waits for ever, 0 (or `blocking=False`) waits for no holder.
        Raises WouldDeadlock when this thread holds the lock already, in whatever way; ValueError for a
        negative or NaN timeout; OwnerDied with `on_owner_died="raise"`.
        """
        held = self._engine.acquire(WRITE, Deadline.after(timeout, blocking=blocking))
        if held and self._words[OWNER_DIED]:
            self._policy.writing()
        return held

    def release(self) -> None:
        """Leave, vouching for the data. Raises NotHeld when this thread, in this process, does not write."""
        self.__exit__(None, None, None)


class _CarefulReader(Reader):
    """A Reader that looks at the owner-died word, too, or counts (statistics="full"): what the fast one can't."""

    __slots__ = ("_counts", "_policy")

    def __init__(self, engine: Engine, policy: _Policy, *, counts: bool) -> None:
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

    def _entered(self) -> None:
        words = self._words
        at = self._here.me.at
        if words[OWNER_DIED] and words[at] == 1 and not self._engine.holds(WRITER):
            self._policy.reading(self)
        if self._counts:
            words[at + _READ_LOCKS] += 1

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        super().__exit__(kind, value, traceback)
        if self._counts:
            self._words[self._here.me.at + _READ_UNLOCKS] += 1


class _Policy:
    """What this handle does when a writer was killed inside."""

    def __init__(self, lock: RWLock, on_owner_died: Any) -> None:
        self.chosen = on_owner_died
        self._engine = lock._engine  # noqa: SLF001  the policy is a part of the lock
        self._lock = lock
        self._takes_lock = callable(on_owner_died) and _takes_argument(on_owner_died)

    def writing(self) -> None:
        """W was just acquired. Gives it up again if it raises."""
        try:
            if self.chosen == "raise":
                raise OwnerDied(
                    f"{self._lock.name}: a writer was killed inside; mend the data, then call mark_consistent()"
                )
            if callable(self.chosen):
                self.chosen(self._lock) if self._takes_lock else self.chosen()
                self._engine.vouch()
        except BaseException:
            self._engine.release_write(vouch=False)
            raise

    def reading(self, reader: Reader) -> None:
        """R was just acquired. Gives it up again if it raises."""
        if self.chosen == "raise":
            reader.release()
            raise OwnerDied(f"{self._lock.name}: a writer was killed inside, and nobody has mended the data")
        if callable(self.chosen):
            reader.release()
            with self._lock.writer:  # where the callable runs
                reader.__enter__()  # leaving W first leaves R: nobody gets in between


def _check_policy(on_owner_died: object) -> None:
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


class _Face(Protocol):
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...
    def release(self) -> None: ...


F = TypeVar("F", bound=_Face)


class _Timed(Generic[F]):
    """`with lock.read_lock(timeout=...)`."""

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

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self._face.release()


class RWLock(Handle):
    """A reader-writer lock among all processes that open it by name; fair to both sides; robust.

    Any number of readers, or one writer. Readers that find no writer pay two loads and a store, without a
    system call. A reader waits for at most one write phase, a writer for at most one read phase and one write
    phase per writer ahead of it. A holder that is killed, in whatever way and wherever, is found and evicted
    by the first that waits, within milliseconds; a holder that is merely slow or stopped is not.

    >>> import shmlock
    >>> lock = shmlock.RWLock("docs.rwlock")
    >>> with lock.reader:
    ...     pass
    >>> with lock.writer as hold:
    ...     hold.owner_died
    False
    >>> lock.unlink()

    `name`: 1 to 200 characters of `A-Za-z0-9._-`, not starting with a dot; the same name means the same lock in
    every process. `create=False` attaches only (SegmentNotFound). `mode` and `owner` (uid, gid) are exact,
    whatever the umask. `max_participants`: threads of all processes that use it at once; fixed at creation,
    256 if not given. `statistics="full"` counts fast reads, too, at twice their price.

    `on_owner_died`: what this handle does when a writer was killed inside. "flag": nothing; `hold.owner_died`
    is true for every holder until a writer has left without an exception. "raise": acquiring raises
    `OwnerDied` until somebody calls `mark_consistent()`. A callable (with no argument, or the lock): it is run
    with W held before anyone else who uses this policy enters; if it raises, the next one runs it again.
    """

    _kind: ClassVar[Kind] = Kind.RWLock

    reader: Reader
    writer: Writer

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
        max_participants: int | None = None,
        on_owner_died: Literal["flag", "raise"] | Callable[[RWLock], object] | Callable[[], object] = "flag",
        statistics: Literal["slow", "full"] | None = None,
    ) -> None:
        if statistics not in {None, "slow", "full"}:
            raise ValueError(f'statistics must be "slow" or "full", not {statistics!r}')
        _check_policy(on_owner_died)  # before anything is created
        super().__init__(
            name,
            create=create,
            mode=mode,
            owner=owner,
            max_participants=max_participants,
            option=None if statistics is None else FULL * (statistics == "full"),
            option_name="statistics",
            option_values=("slow", "full"),
        )
        self._engine: Engine = engine_of(self._segment)
        self._words = self._engine.words
        policy = _Policy(self, on_owner_died)
        self._on_owner_died = on_owner_died
        counts = bool(self._segment.header.option & FULL)
        plain = on_owner_died == "flag" and not counts
        self.reader = Reader(self._engine) if plain else _CarefulReader(self._engine, policy, counts=counts)
        self.writer = Writer(self._engine, policy)

    def read_lock(self, timeout: float | None = None) -> _Timed[Reader]:
        """`with lock.read_lock(timeout=0.5):`; raises LockTimeout when it is not to be had in time."""
        return _Timed(self.reader, timeout, f"{self._name}: the read lock")

    def write_lock(self, timeout: float | None = None) -> _Timed[Writer]:
        """`with lock.write_lock(timeout=0.5):`; raises LockTimeout when it is not to be had in time."""
        return _Timed(self.writer, timeout, f"{self._name}: the write lock")

    def optimistic_stamp(self) -> int:
        """A stamp to `validate` after reading, or 0 while somebody writes. Cost: one load."""
        stamp = self._words[SEQUENCE]
        return 0 if stamp & 1 else stamp

    def validate(self, stamp: int) -> bool:
        """Whether nobody has written since the stamp was taken. Cost: one load."""
        return stamp != 0 and self._words[SEQUENCE] == stamp

    def read_consistent(self, function: Callable[[], T]) -> T:
        """Run `function` until it saw one consistent state: optimistically at first, then as a reader.

        It must have no effects: it may see torn data, and then its result, or exception, is thrown away.
        An optimistic run that succeeds stores nothing to shared memory. (After Java's StampedLock.)
        """
        for _ in range(_OPTIMISTIC_TRIES):
            stamp = self.optimistic_stamp()
            if not stamp:
                break
            try:
                result = function()
            except Exception:
                if self.validate(stamp):
                    raise
            else:
                if self.validate(stamp):
                    return result
        with self.reader:
            return function()

    def mark_consistent(self) -> None:
        """Vouch for the data after a writer's death, for all."""
        self._engine.vouch()

    def statistics(self) -> LockStatistics:
        """The lock's counters; `str` of them prints a table."""
        return read_statistics(self._segment)

    def _shut(self, closed: Any) -> None:
        super()._shut(closed)
        self._words = closed
        for face in (self.reader, self.writer):
            face._engine = face._words = closed  # noqa: SLF001  the faces are parts of the lock
        self.reader._here = closed  # noqa: SLF001  as above

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"on_owner_died": self._on_owner_died}

    def _describe(self) -> str:
        return self._engine.describe()


class Mutex(Handle):
    """A mutex among all processes that open it by name, with `threading.Lock`'s interface; robust.

    When its holder is killed, the kernel hands it on at once, and `owner_died` is true until the next holder
    has left without an exception. Only the thread that acquired it can release it. The kernel decides who is
    next; for a fair order, and across pid namespaces (see README), use `RWLock.writer`.

    >>> import shmlock
    >>> mutex = shmlock.Mutex("docs.mutex")
    >>> with mutex:
    ...     mutex.locked()
    True
    >>> mutex.unlink()

    Arguments as for `RWLock`; `max_participants` has no effect, for there is no limit.
    """

    _kind: ClassVar[Kind] = Kind.Mutex

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
        max_participants: int | None = None,
    ) -> None:
        super().__init__(name, create=create, mode=mode, owner=owner, max_participants=max_participants)
        self._engine: MutualExclusion = mutual_exclusion_of(self._segment)

    @property
    def owner_died(self) -> bool:
        """Whether a holder was killed inside, and none has left cleanly since."""
        return self._engine.words[OWNER_DIED] != 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`: -1 waits for ever. Raises WouldDeadlock where that one would hang."""
        return self._engine.acquire(Deadline.after(None if timeout == -1 else timeout, blocking=blocking))

    def release(self) -> None:
        """Raises NotHeld when this thread, in this process, does not hold it."""
        self._release(vouch=True)

    def _release(self, *, vouch: bool) -> None:
        try:
            self._engine.release(vouch=vouch)
        except BaseException:
            if self._engine.holds():  # interrupted before it began
                self._engine.release(vouch=False)
            raise

    def locked(self) -> bool:
        """Whether somebody who lives holds it."""
        return self._engine.locked()

    def __enter__(self) -> Self:
        self._engine.acquire(FOREVER)
        return self

    def __exit__(self, *exception: object) -> None:
        self._release(vouch=exception[0] is None)

    def statistics(self) -> LockStatistics:
        """The mutex's counters, as those of a lock that is only written."""
        return read_statistics(self._segment)

    def _describe(self) -> str:
        pid = self._engine.words[WRITER]
        return f"held by process {pid}" if pid else "free"
