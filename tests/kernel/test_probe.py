"""What this machine offers, asked by trying."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shmlock._kernel import libc, membarrier, probe, shm

if TYPE_CHECKING:
    import pytest


def test_capabilities_here() -> None:
    """Nothing is missing on a machine that these tests run on, and what is told of it is so."""
    seen = probe.capabilities()
    status = os.statvfs(shm.ROOT)
    assert seen.missing is None
    assert seen.membarrier == membarrier.available()
    assert (seen.libc, seen.machine) == (libc.NAME, libc.MACHINE)
    assert 0 <= seen.shm_free <= status.f_blocks * status.f_frsize


def test_without_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /dev/shm the free space is -1, and nothing raises."""
    monkeypatch.setattr(shm, "ROOT", "/nowhere/at/all")
    assert probe.capabilities().shm_free == -1
