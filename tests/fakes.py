"""Stand-ins that several tests use."""

from __future__ import annotations


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Recorded(list[tuple[int, float]]):
    """Metrics that keep what they are given."""

    def record(self, code: int, seconds: float) -> None:
        """Keep it."""
        self.append((code, seconds))
