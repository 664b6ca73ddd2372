"""Declare the words of a block once: their offsets, its size, and a map for people come from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmlock._segment.words import WORDS_PER_LINE

if TYPE_CHECKING:
    from collections.abc import Iterator


class Record:
    """A block of whole lines. Each line lists its fields in order; `"name:8"` takes 8 words."""

    def __init__(self, *lines: str) -> None:
        self._offsets: dict[str, int] = {}
        self._lines = lines
        position = 0
        for line in lines:
            start = position
            for field in line.split():
                name, _, count = field.partition(":")
                self._offsets[name] = position
                position += int(count or 1)
            taken = position - start
            position = start + -(-taken // WORDS_PER_LINE) * WORDS_PER_LINE
        self.size = position  # words

    def __getitem__(self, name: str) -> int:
        """The field's offset in words from the start of the block."""
        return self._offsets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def offsets(self) -> dict[str, int]:
        return dict(self._offsets)
