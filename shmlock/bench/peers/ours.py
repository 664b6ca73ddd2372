"""shmlock's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import shmlock

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class ShmlockRWLock:
    """`RWLock`."""

    name: ClassVar = "shmlock.RWLock"
    package: ClassVar[str | None] = None
    shared: ClassVar = True
    recovers: ClassVar = True

    def __init__(self, unique: str) -> None:
        self._lock = shmlock.RWLock(unique)

    def opened(self) -> tuple[Context, Context]:
        """Each process has a slot before it begins."""
        with self._lock.reader:
            pass
        return self._lock.reader, self._lock.writer

    def close(self) -> None:
        """Unlink."""
        self._lock.unlink()
        self._lock.close()


class ShmlockMutex:
    """`Mutex`."""

    name: ClassVar = "shmlock.Mutex"
    package: ClassVar[str | None] = None
    shared: ClassVar = False
    recovers: ClassVar = True

    def __init__(self, unique: str) -> None:
        self._mutex = shmlock.Mutex(f"{unique}.m")

    def opened(self) -> tuple[Context, Context]:
        """The one thing."""
        return self._mutex, self._mutex

    def close(self) -> None:
        """Unlink."""
        self._mutex.unlink()
        self._mutex.close()


PEERS: list[type[Peer]] = [ShmlockRWLock, ShmlockMutex]
