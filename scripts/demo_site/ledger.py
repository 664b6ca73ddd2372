"""Two numbers in a mapped file. A writer changes one after the other, so a reader must be kept out meanwhile."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SIZE = 3 * 8


class Ledger:
    """`numbers` are first, second, and the pid of a writer that means to die between the two."""

    def __init__(self, path: Path) -> None:
        """Map the file, and make it if there is none."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.truncate(descriptor, _SIZE)
            self.numbers = memoryview(mmap.mmap(descriptor, _SIZE)).cast("Q")
        finally:
            os.close(descriptor)

    def write(self) -> None:
        """Count on."""
        self.numbers[0] += 1
        self.numbers[1] += 1

    def write_half(self) -> None:
        """Begin to count on, and say so."""
        self.numbers[0] += 1
        self.numbers[2] = os.getpid()

    def mend(self) -> None:
        """Finish what a writer has begun."""
        self.numbers[1] = self.numbers[0]

    def agrees(self) -> bool:
        """Whether a reader sees a whole state."""
        return self.numbers[0] == self.numbers[1]
