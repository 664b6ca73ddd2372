"""How long a caller is ready to wait, on the clock that nobody can step."""

from __future__ import annotations

import threading
import time
from math import inf, isnan
from typing import Final


class Deadline:
    """A moment of `time.monotonic`, in seconds; `inf` for ever, and a moment gone by for "don't wait"."""

    __slots__ = ("_at", "waits")

    def __init__(self, at: float, *, waits: bool = True) -> None:
        self._at = at
        self.waits = waits

    @classmethod
    def after(cls, timeout: float | None, *, blocking: bool = True) -> Deadline:
        """Check what a caller passed, as `threading.Lock` does, and start the clock.

        `timeout` is in seconds; None waits for ever, 0 (or `blocking=False`) never waits.
        Raises ValueError for a negative or NaN timeout or one given together with `blocking=False`,
        OverflowError for one beyond `threading.TIMEOUT_MAX`.
        """
        if timeout is None:
            return FOREVER if blocking else NOW
        if not blocking:
            raise ValueError("a timeout can't be given together with blocking=False")
        if isnan(timeout) or timeout < 0:
            raise ValueError(f"timeout must be None or a number of seconds from 0 up, not {timeout!r}")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError(f"timeout {timeout!r} is beyond {threading.TIMEOUT_MAX:.0f} s; None waits for ever")
        return cls(time.monotonic() + timeout) if timeout else NOW

    def left(self) -> float:
        """Seconds until the deadline; 0 when it has passed."""
        return max(0.0, self._at - time.monotonic()) if self.waits else 0.0

    def passed(self) -> bool:
        return not self.waits or time.monotonic() >= self._at


FOREVER: Final = Deadline(inf)
NOW: Final = Deadline(0.0, waits=False)
