"""prwlock's: glibc's `pthread_rwlock_t` in shared memory, which prefers readers, and is not robust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class RWLock:
    """`prwlock.RWLock`, inherited by fork."""

    name: ClassVar = "prwlock"
    package: ClassVar[str | None] = "prwlock"
    shared: ClassVar = True
    recovers: ClassVar = False

    def __init__(self, unique: str) -> None:  # noqa: ARG002  it has no name
        import prwlock  # noqa: PLC0415  it may not be installed

        self._lock: Any = prwlock.RWLock()

    def opened(self) -> tuple[Context, Context]:
        """The one thing."""
        return self._lock.reader_lock(), self._lock.writer_lock()

    def close(self) -> None:
        """Its file has no name; the memory goes with the object."""
        self._lock = None


PEERS: list[type[Peer]] = [RWLock]
