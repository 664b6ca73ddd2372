"""The locks: a thin face on the engine.

    RWLock    reader | writer                    fair to both sides
    SeekLock  reader | seeker | writer           the same, and a mode to look around in before one writes
    Mutex     one at a time, robust              the kernel's own order

Which one? State that is read far more than written: RWLock. A search that ends in a change, while others read on:
SeekLock. A critical section that always writes: Mutex, which costs a fifth of RWLock's writer, but is not fair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

from shmlock._engine.bias import Reader
from shmlock._engine.engine import engine_of
from shmlock._engine.handle import Handle
from shmlock._engine.mutual import mutual_exclusion_of
from shmlock._engine.stats import FULL, LockStatistics, read_statistics
from shmlock._faces import CarefulReader, Policy, Seeker, Timed, Upgrade, Writer, check_policy
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.interrupts import begins_at_once
from shmlock._segment.header import Kind
from shmlock._segment.layout import OWNER_DIED, SEQUENCE, WRITER

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.engine import Engine
    from shmlock._engine.mutual import MutualExclusion

T = TypeVar("T")

_OPTIMISTIC_TRIES: Final = 8


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
        on_owner_died: Literal["flag", "raise"] | Callable[[Any], object] | Callable[[], object] = "flag",
        statistics: Literal["slow", "full"] | None = None,
    ) -> None:
        if statistics not in {None, "slow", "full"}:
            raise ValueError(f'statistics must be "slow" or "full", not {statistics!r}')
        check_policy(on_owner_died)  # before anything is created
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
        self._policy = Policy(self, self._engine, on_owner_died)
        self._make_faces()

    def _make_faces(self) -> None:
        engine, policy = self._engine, self._policy
        counts = bool(self._segment.header.option & FULL)
        plain = policy.chosen == "flag" and not counts
        self.reader = Reader(engine) if plain else CarefulReader(engine, policy, counts=counts)
        self.writer = Writer(engine, policy)

    def read_lock(self, timeout: float | None = None) -> Timed[Reader]:
        """`with lock.read_lock(timeout=0.5):`; raises LockTimeout when it is not to be had in time."""
        return Timed(self.reader, timeout, f"{self._name}: the read lock")

    def write_lock(self, timeout: float | None = None) -> Timed[Writer]:
        """`with lock.write_lock(timeout=0.5):`; raises LockTimeout when it is not to be had in time."""
        return Timed(self.writer, timeout, f"{self._name}: the write lock")

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
        for face in self._faces():
            face.shut(closed)
        self._words = closed
        super()._shut(closed)

    def _faces(self) -> list[Any]:
        return [self.reader, self.writer]

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"on_owner_died": self._policy.chosen}

    def _describe(self) -> str:
        return self._engine.describe()


class SeekLock(RWLock):
    """An RWLock with a third mode: seek, which goes together with reading, alone among seekers, and can become write.

    Whoever may have to change something looks for it as a seeker: readers go on, nobody else changes anything
    meanwhile, and what was found still holds when the seek has become a write. (After Willy Tarreau's progressive
    locks, plock, and HAProxy's use of them.)

    >>> import shmlock
    >>> queue = shmlock.SeekLock("docs.seeklock")
    >>> with queue.seeker:           # beside all readers
    ...     with queue.upgraded():   # alone; then a seek again
    ...         pass
    >>> with queue.reader:
    ...     queue.read_to_seek()     # at once or not at all; then this is a seek
    True
    >>> queue.unlink()

    Every hold ends with its `with`, whatever it has become in it. Arguments as for `RWLock`.
    """

    _kind: ClassVar[Kind] = Kind.SeekLock

    seeker: Seeker

    def _make_faces(self) -> None:
        super()._make_faces()
        self.seeker = Seeker(self._engine, self._policy)

    def seek_lock(self, timeout: float | None = None) -> Timed[Seeker]:
        """`with lock.seek_lock(timeout=0.5):`; raises LockTimeout when it is not to be had in time."""
        return Timed(self.seeker, timeout, f"{self._name}: the seek lock")

    def upgraded(self, timeout: float | None = None) -> Upgrade:
        """`with lock.upgraded():` within a seek: write, and seek again at the end.

        `timeout` in seconds, for the other readers to leave. Raises LockTimeout, and then the seek is still held;
        NotHeld when this thread does not seek.
        """
        return Upgrade(self._engine, self._policy, self._name, timeout)

    def read_to_seek(self) -> bool:
        """R to S, at once or not at all: False, with R still held, if anybody seeks, writes or waits to.

        It never waits, for two readers that did would wait for each other. A nested read gives up its innermost R.
        Raises NotHeld when this thread does not read.
        """
        converted = self._engine.read_to_seek()
        if converted and self._words[OWNER_DIED]:
            self._policy.seeking()
        return converted

    def read_to_write(self) -> bool:
        """R to W, at once or not at all: False, with R still held, if anybody else holds the lock or waits for it.

        Raises NotHeld when this thread does not read; OwnerDied, with R still held, as acquiring W does.
        """
        converted = self._engine.read_to_write()
        if converted and self._words[OWNER_DIED]:
            self._policy.writing(lambda: self._engine.write_to_read(vouch=False))
        return converted

    def seek_to_write(self, timeout: float | None = None) -> bool:
        """S to W: before all that wait, once the other readers have left. False, with S still held, if not in time.

        `timeout` in seconds: None waits for ever, 0 waits for no reader. Raises NotHeld when this thread does not
        seek; OwnerDied, with S still held, as acquiring W does.
        """
        converted = self._engine.upgrade(Deadline.after(timeout))
        if converted and self._words[OWNER_DIED]:
            self._policy.writing()
        return converted

    def write_to_seek(self) -> None:
        """W to S, vouching for the data. Never waits. Raises NotHeld when this thread does not write."""
        self._engine.write_to_seek(vouch=True)

    def write_to_read(self) -> None:
        """W to R, vouching for the data; nobody writes in between. Never waits. Raises NotHeld, likewise."""
        self._engine.write_to_read(vouch=True)

    def seek_to_read(self) -> None:
        """S to R. Never waits. Raises NotHeld when this thread does not seek, or has upgraded to a write."""
        self._engine.seek_to_read()

    def _faces(self) -> list[Any]:
        return [*super()._faces(), self.seeker]


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
        engine = self._engine
        held = engine.acquire(Deadline.after(None if timeout == -1 else timeout, blocking=blocking))
        if held and self._engine is not engine:
            self._closed(engine)
        return held

    def _closed(self, engine: MutualExclusion) -> None:
        """The handle was closed while we waited. Raises ClosedError."""
        engine.release(vouch=False)
        self._engine.holds()

    @begins_at_once
    def release(self) -> None:
        """Raises NotHeld when this thread, in this process, does not hold it."""
        self._release(vouch=True)

    @begins_at_once
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
        engine = self._engine
        engine.acquire(FOREVER)
        if self._engine is not engine:
            self._closed(engine)
        return self

    @begins_at_once
    def __exit__(self, *exception: object) -> None:
        self._release(vouch=exception[0] is None)

    def statistics(self) -> LockStatistics:
        """The mutex's counters, as those of a lock that is only written."""
        return read_statistics(self._segment)

    def _describe(self) -> str:
        pid = self._engine.words[WRITER]
        return f"held by process {pid}" if pid else "free"
