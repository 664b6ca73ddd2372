"""Turns of a loop until the time is over: how many there were, and what CPU they cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock.bench.crowd import Start

_LOOK: Final = 0.002  # seconds between two looks at the clock, about: seldom for the fast, in time for the slow
_MOST: Final = 5000


class Turns(NamedTuple):
    """How many were made, and the CPU seconds of the process that they took."""

    made: int
    cpu: float


def turns(start: Start, do: Callable[[int], object]) -> Turns:
    """Call `do(turns)` again and again, from when all are ready until they are told to stop."""
    count, batch = 0, 1
    start.wait()
    cpu = time.process_time()
    while not start.stopped:
        began = time.perf_counter()
        do(batch)
        count += batch
        took = time.perf_counter() - began
        batch = min(2 * batch, _MOST) if took < _LOOK / 2 else max(batch // 2, 1) if took > 2 * _LOOK else batch
    return Turns(count, time.process_time() - cpu)
