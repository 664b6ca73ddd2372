"""portalocker's: `flock` on a file, shared or exclusive, in which the kernel lets it wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from shmlock.bench.peers.files import FileLock

if TYPE_CHECKING:
    from shmlock.bench.peers import Context, Peer


class Lock(FileLock):
    """`portalocker.Lock` with flags that block: by default it would try every 250 ms, and give up after 5 s."""

    name: ClassVar = "portalocker"
    package: ClassVar[str | None] = "portalocker"
    shared: ClassVar = True

    def __init__(self, unique: str) -> None:
        import portalocker  # noqa: F401, PLC0415  it may not be installed

        super().__init__(unique)

    def opened(self) -> tuple[Context, Context]:
        """It opens the file for each hold anyway."""
        import portalocker  # noqa: PLC0415  as above

        flags = portalocker.LockFlags
        reader: Any = portalocker.Lock(self._path, "a", flags=flags.SHARED)
        writer: Any = portalocker.Lock(self._path, "a", flags=flags.EXCLUSIVE)
        return reader, writer


PEERS: list[type[Peer]] = [Lock]
