"""The locks of others, and ours, behind the same few methods; each file uses one as its own documentation says."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any, ClassVar, Final, Protocol

Context = AbstractContextManager[Any]


class Peer(Protocol):
    """A kind of lock. An instance is one lock; it is made in the parent, and used by its forked children.

    `opened` is called in each process, before anything is measured, and says how to read and to write there.
    """

    name: ClassVar[str]
    package: ClassVar[str | None]  # on the package index; None for the standard library, and for ours
    shared: ClassVar[bool]  # whether several readers are in at once
    recovers: ClassVar[bool]  # whether it claims to get over a killed holder

    def __init__(self, unique: str) -> None:
        """Raises ImportError when it is not installed."""

    def opened(self) -> tuple[Context, Context]:
        """(to read, to write), each for any number of `with`; the same one twice if it knows no difference."""

    def close(self) -> None:
        """Leave nothing behind."""


_FILES: Final = (
    *("ours", "standard", "posix_ipc_semaphore", "fasteners_lock", "filelock_lock", "portalocker_lock", "prwlock_lock"),
)


def peers() -> list[type[Peer]]:
    """All that there are files for, installed or not."""
    found: list[type[Peer]] = []
    for file in _FILES:
        found += importlib.import_module(f"{__name__}.{file}").PEERS
    return found


def available(peer: type[Peer]) -> str | None:
    """None if it can be used here; else why not."""
    try:
        peer(f"bench-{os.getpid()}-try").close()
    except ImportError:
        return f"{peer.package} is not installed (pip install {peer.package})"
    except OSError as error:
        return f"it can't be used here: {error}"
    return None


def missing() -> dict[str, str]:
    """Those that can't be used here, by name: why not."""
    reasons = {peer.name: available(peer) for peer in peers()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def version(peer: type[Peer]) -> str | None:
    """Of its package, if it is installed."""
    try:
        return metadata.version(peer.package) if peer.package else None
    except metadata.PackageNotFoundError:
        return None
