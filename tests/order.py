"""Steps in order where another process can only be watched: what it does shows in the lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import shmlock


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what another process's progress makes true; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


def waiting(lock: shmlock.RWLock, number: int) -> Callable[[], bool]:
    """Whether so many participants wait."""
    return lambda: f"{number} waiting" in repr(lock)
