"""fasteners': `fcntl` locks on a file, asked for again and again, 10 ms later at first and 100 ms later at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shmlock.bench.peers.files import Again, FileLock

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class ReaderWriterLock(FileLock):
    """`fasteners.InterProcessReaderWriterLock`."""

    name: ClassVar = "fasteners rw"
    package: ClassVar[str | None] = "fasteners"
    shared: ClassVar = True

    def __init__(self, unique: str) -> None:
        import fasteners  # noqa: F401, PLC0415  it may not be installed

        super().__init__(unique)

    def opened(self) -> tuple[Context, Context]:
        """An object for each process: `fcntl` locks are a process's."""
        import fasteners  # noqa: PLC0415  as above

        lock = fasteners.InterProcessReaderWriterLock(self._path)
        return Again(lock.read_lock), Again(lock.write_lock)


class Lock(ReaderWriterLock):
    """`fasteners.InterProcessLock`."""

    name: ClassVar = "fasteners"
    shared: ClassVar = False

    def opened(self) -> tuple[Context, Context]:
        """An object for each process."""
        import fasteners  # noqa: PLC0415  as above

        lock = fasteners.InterProcessLock(self._path)
        return lock, lock


PEERS: list[type[Peer]] = [ReaderWriterLock, Lock]
