"""Data that a lock is to keep whole, and that say so when it does not."""

from __future__ import annotations

import time

from shmlock.bench.crowd import context
from shmlock.bench.scenario import WrongData


class Data:
    """A number in shared memory that a writer leaves odd while it is in. Raises WrongData."""

    def __init__(self) -> None:
        self._number = context.RawValue("q", 0)

    def write(self, seconds: float) -> None:
        """Be in, as a writer, for so long."""
        self._number.value = number = self._number.value + 1
        time.sleep(seconds)
        if self._number.value != number or not number % 2:
            raise WrongData("a writer was in together with another one")
        self._number.value = number + 1

    def read(self, seconds: float) -> None:
        """Be in, as a reader, for so long."""
        number = self._number.value
        time.sleep(seconds)
        if number % 2 or self._number.value != number:
            raise WrongData("a reader was in together with a writer")

    def check(self, writes: int) -> None:
        """At the end, when there were so many."""
        if self._number.value != 2 * writes:
            raise WrongData(f"{self._number.value} was counted instead of {2 * writes}: writers overlapped")
