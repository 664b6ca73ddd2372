"""posix_ipc's: a named POSIX semaphore that starts with 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class Semaphore:
    """`posix_ipc.Semaphore`: opened by its name in each process. A killed holder's count is gone for good."""

    name: ClassVar = "posix_ipc.Semaphore"
    package: ClassVar[str | None] = "posix_ipc"
    shared: ClassVar = False
    recovers: ClassVar = False

    def __init__(self, unique: str) -> None:
        import posix_ipc  # noqa: PLC0415  it may not be installed

        self._name = f"/{unique}"
        self._made: Any = posix_ipc.Semaphore(self._name, posix_ipc.O_CREX, initial_value=1)

    def opened(self) -> tuple[Context, Context]:
        """Open it here."""
        import posix_ipc  # noqa: PLC0415  as above

        semaphore: Any = posix_ipc.Semaphore(self._name)
        return semaphore, semaphore

    def close(self) -> None:
        """Unlink."""
        self._made.unlink()
        self._made.close()


PEERS: list[type[Peer]] = [Semaphore]
