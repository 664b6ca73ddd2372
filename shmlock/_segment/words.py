"""Words that several processes read: the only way to store one.

A word is 8 aligned bytes. `words[i]` and `words[i] = value` on the view made here are one machine move each,
because `memoryview.cast("Q")` copies a native 8-byte integer at once. `struct.pack_into` does not: it writes
byte by byte (measured: 591,021 of 4,916,194 reads of a word that another process kept rewriting with the same
value saw 0), so shared words are never stored any other way than through this room.
"""

from __future__ import annotations

import ctypes
from typing import Final

WORD: Final = 8  # bytes
LINE: Final = 128  # bytes: two 64-byte lines are prefetched as a pair on x86-64; some aarch64 have 128-byte lines
WORDS_PER_LINE: Final = LINE // WORD


def view(address: int, size: int) -> memoryview[int]:
    """`size` bytes at `address` as words; a plain index is one load or one store."""
    return _bytes(address, size).cast("Q")


def payload(address: int, size: int) -> memoryview[int]:
    """`size` bytes at `address` for bulk copies. A copy is not one store: readers must validate it."""
    return _bytes(address, size)


def _bytes(address: int, size: int) -> memoryview[int]:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def address_of(buffer: bytearray) -> int:
    """Where a private buffer lies. It must not be resized while the address is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
