"""What this kernel and runtime can do, asked by trying, not by name or version."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shmlock._kernel import libc, membarrier, shm


@dataclass(frozen=True)
class Capabilities:
    """What the machine offers; a reason stands where something is missing."""

    libc: str
    machine: str
    missing: str | None
    membarrier: str | None
    shm_free: int  # bytes; -1 where there is no /dev/shm


def capabilities() -> Capabilities:
    """Try everything that shmlock builds on."""
    try:
        status = os.statvfs(shm.ROOT)
        free = status.f_bavail * status.f_frsize
    except OSError as error:
        libc.check_refusal(error)
        free = -1
    lack = libc.missing()
    return Capabilities(
        libc=libc.NAME,
        machine=libc.MACHINE,
        missing=lack,
        membarrier=lack if lack is not None else membarrier.available(),
        shm_free=free,
    )
