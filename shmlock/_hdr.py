"""The scale of a high dynamic range histogram: which bucket a value falls into, and what a bucket stands for. Pure.

As HdrHistogram (Gil Tene) has it, so that counts can be handed to any of its libraries as they are: values are whole
units from 0 up; the first 2**bits values have a bucket each, and every doubling from there has 2**(bits - 1) more, each
twice as wide as those before:

    bits = 3       0 1 2 3 4 5 6 7 | 8-9 10-11 12-13 14-15 | 16-19 20-23 24-27 28-31 | ...
    bucket         0 1 2 3 4 5 6 7 |  8    9     10    11  |  12    13    14    15   | ...

A bucket is at most 1 / 2**(bits - 1) of its values wide: 2 significant figures take 8 bits, and are right to 0.8 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from shmlock._lazy import lazy


@dataclass(frozen=True)
class Scale:
    """Values from 0 to `highest`, with so many significant figures (1 to 4)."""

    highest: int
    figures: int

    @lazy
    def bits(self) -> int:
        """Values below 2**bits are told apart exactly."""
        return (2 * int(10**self.figures) - 1).bit_length()

    @lazy
    def size(self) -> int:
        """How many buckets there are."""
        return self.bucket(self.highest) + 1

    def bucket(self, value: int) -> int:
        """Where the value is counted."""
        shift = value.bit_length() - self.bits
        return (shift << self.bits - 1) + (value >> shift) if shift > 0 else value

    def lowest(self, bucket: int) -> int:
        """The lowest value that is counted there."""
        half = 1 << self.bits - 1
        shift = max((bucket >> self.bits - 1) - 1, 0)
        return bucket - (shift * half) << shift

    def width(self, bucket: int) -> int:
        """How many values are counted there."""
        return 1 << max((bucket >> self.bits - 1) - 1, 0)
