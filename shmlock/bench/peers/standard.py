"""The standard library's: `multiprocessing.Lock`, `RLock`, and a lock in a `Manager`'s process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from shmlock.bench.crowd import context, manager

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class Lock:
    """`multiprocessing.Lock`: a POSIX semaphore, inherited by fork."""

    name: ClassVar = "multiprocessing.Lock"
    package: ClassVar[str | None] = None
    shared: ClassVar = False
    recovers: ClassVar = False

    def __init__(self, unique: str) -> None:  # noqa: ARG002  it has no name
        self._lock: Any = context.Lock()

    def opened(self) -> tuple[Context, Context]:
        """The one thing."""
        return self._lock, self._lock

    def close(self) -> None:
        """Nothing stays."""


class RLock(Lock):
    """`multiprocessing.RLock`: the same, nestable."""

    name: ClassVar = "multiprocessing.RLock"

    def __init__(self, unique: str) -> None:
        super().__init__(unique)
        self._lock = context.RLock()


class ManagerLock(Lock):
    """`multiprocessing.Manager().Lock()`: a `threading.Lock` in a server process; each use is two messages."""

    name: ClassVar = "Manager().Lock"

    def __init__(self, unique: str) -> None:
        super().__init__(unique)
        self._manager = manager()
        self._lock = self._manager.Lock()

    def close(self) -> None:
        """End the server."""
        self._manager.shutdown()


PEERS: list[type[Peer]] = [Lock, RLock, ManagerLock]
