"""Words that several processes read."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest

from shmlock._kernel import shm
from shmlock._segment.words import LINE, WORD, WORDS_PER_LINE, address_of, payload, view

if TYPE_CHECKING:
    from tests.conftest import Peer, Start

SIZE = 4096


@pytest.fixture
def address() -> int:
    """Where memory begins that forked children share."""
    descriptor = os.memfd_create("words")
    os.ftruncate(descriptor, SIZE)
    start = shm.map_shared(descriptor, SIZE)
    os.close(descriptor)
    return start


def test_words_are_native_words(address: int) -> None:
    """Index i is the 8 bytes at 8 * i, in the machine's own order; the same memory, not a copy."""
    words = view(address, SIZE)
    assert len(words) == SIZE // WORD
    words[3] = 0x0123_4567_89AB_CDEF
    assert ctypes.c_uint64.from_address(address + 3 * WORD).value == 0x0123_4567_89AB_CDEF
    ctypes.c_uint64.from_address(address + 5 * WORD).value = 7
    assert words[5] == 7
    assert payload(address, SIZE)[5 * WORD : 6 * WORD].tobytes() == words[5:6].tobytes()


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_what_is_no_word_is_refused(address: int, value: int) -> None:
    """A number that does not fit is an error, and nothing is stored."""
    words = view(address, SIZE)
    words[0] = 5
    with pytest.raises(ValueError, match="invalid value"):
        words[0] = value
    assert words[0] == 5


def test_there_is_an_end(address: int) -> None:
    """A view reaches no byte beyond its size."""
    words, tail = view(address, 2 * WORD), view(address + 2 * WORD, WORD)
    with pytest.raises(IndexError):
        words[2] = 1
    assert tail[0] == 0
    with pytest.raises(IndexError):
        words[2]


@pytest.mark.parametrize(
    "patterns",
    [(0x0000_0000_FFFF_FFFF, 0xFFFF_FFFF_0000_0000), (0x0101_0101_0101_0101, 0xFEFE_FEFE_FEFE_FEFE)],
    ids=["halves", "bytes"],
)
def test_a_store_is_never_torn(address: int, patterns: tuple[int, int], start: Start) -> None:
    """Another process that keeps storing one of two words is never seen to have stored a mixture of both."""
    words = view(address, SIZE)
    first, second = patterns
    words[0] = first

    def store(peer: Peer) -> None:
        peer.say("begin")
        while not words[WORDS_PER_LINE]:
            words[0] = first
            words[0] = second

    child = start(store)
    assert child.hear() == "begin"
    seen = {words[0] for _ in range(300_000)}
    words[WORDS_PER_LINE] = 1
    assert child.join() == 0
    assert seen <= {first, second}


def test_address_of_a_buffer() -> None:
    """A private buffer lies where we say."""
    buffer = bytearray(b"abcdefgh")
    assert ctypes.string_at(address_of(buffer), 8) == b"abcdefgh"


def test_lines_hold_whole_words() -> None:
    """A line is two of the cache lines of x86-64, and one of the largest of aarch64."""
    assert LINE == WORDS_PER_LINE * WORD == 128
