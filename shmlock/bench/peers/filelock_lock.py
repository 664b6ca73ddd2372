"""filelock's: `flock` on a file, tried every 50 ms; and, from 3.21 on, SQLite's transactions as a read-write lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shmlock.bench.peers.files import Again, FileLock

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class Lock(FileLock):
    """`filelock.FileLock`."""

    name: ClassVar = "filelock"
    package: ClassVar[str | None] = "filelock"
    shared: ClassVar = False

    def __init__(self, unique: str) -> None:
        import filelock  # noqa: F401, PLC0415  it may not be installed

        super().__init__(unique)

    def opened(self) -> tuple[Context, Context]:
        """An object for each process, so that each has a file description of its own."""
        import filelock  # noqa: PLC0415  as above

        lock = filelock.FileLock(self._path)
        return lock, lock


class ReadWriteLock(FileLock):
    """`filelock.ReadWriteLock`: readers share an SQLite transaction; the operating system's locks are below it."""

    name: ClassVar = "filelock rw"
    package: ClassVar[str | None] = "filelock"
    shared: ClassVar = True

    def __init__(self, unique: str) -> None:
        from filelock import ReadWriteLock  # noqa: F401, PLC0415  it may not be installed, or be too old

        super().__init__(unique)

    def opened(self) -> tuple[Context, Context]:
        """An object for each process: SQLite's connections must not go through a fork."""
        from filelock import ReadWriteLock  # noqa: PLC0415  as above

        lock = ReadWriteLock(self._path)
        return Again(lock.read_lock), Again(lock.write_lock)


PEERS: list[type[Peer]] = [Lock, ReadWriteLock]
