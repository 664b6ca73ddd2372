"""Where the words of a segment lie."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._engine.modes import MODE_BITS, NAMES
from shmlock._kernel import robust, shm
from shmlock._segment import layout
from shmlock._segment.layout import HEADER, MOST_PARTICIPANTS, SHARED, SHARED_AT, SLOT, SLOTS_AT, payload_at, slot
from shmlock._segment.words import LINE, WORD, WORDS_PER_LINE

if TYPE_CHECKING:
    from shmlock._segment.record import Record

RECORDS = pytest.mark.parametrize("record", [HEADER, SHARED, SLOT, layout.ACCOUNT])


def line_of(record: Record, field: str) -> list[str]:
    """The fields that begin in the same line, this one included."""
    line = record[field] // WORDS_PER_LINE
    return [other for other in record if record[other] // WORDS_PER_LINE == line]


def test_size_of_a_lock(name: str) -> None:
    """An RWLock's segment for 256 participants, the default, takes at most 192 KiB, all reserved."""
    lock = shmlock.RWLock(name)
    status = os.stat(shm.path(f"shmlock.{name}"))  # noqa: PTH116  the name is no path of ours
    assert lock._segment.header.participants == 256
    assert status.st_size == payload_at(256) * WORD <= 192 * 1024
    assert status.st_blocks * 512 >= status.st_size


def test_memory_begins_on_a_line(name: str) -> None:
    """In memory, too, all lines begin on a multiple of 128 bytes."""
    assert shmlock.RWLock(name)._segment.address % LINE == 0


@RECORDS
def test_lines_begin_on_lines(record: Record) -> None:
    """Each record is a whole number of lines."""
    assert record.size % WORDS_PER_LINE == 0
    assert min(record[field] for field in record) == 0


def test_blocks_follow_each_other() -> None:
    """Header, shared words, slots and payload follow each other on multiples of 128 bytes, and don't overlap."""
    starts = [0, SHARED_AT, SLOTS_AT, *(slot(number) for number in range(1, 5)), payload_at(5)]
    sizes = [HEADER.size, SHARED.size, *[SLOT.size] * 5]
    assert [b - a for a, b in pairwise(starts)] == sizes
    assert all(start % WORDS_PER_LINE == 0 for start in starts)


@RECORDS
def test_fields_do_not_overlap(record: Record) -> None:
    """No two fields begin in one place, and mutexes have all of their space."""
    offsets = [record[field] for field in record]
    assert offsets == sorted(set(offsets))
    for field, after in pairwise(record):
        if field in {"guard", "seat", "latch"}:
            assert (record[after] - record[field]) * WORD >= robust.MUTEX_SPACE


@pytest.mark.parametrize(("record", "field"), [(SHARED, "gate"), (SHARED, "sequence"), (SLOT, "reads")])
def test_hot_words_are_alone(record: Record, field: str) -> None:
    """What readers look at or store without the guard has a line of its own."""
    assert line_of(record, field) == [field]
    assert record[field] % WORDS_PER_LINE == 0


def test_names_of_indices() -> None:
    """Each index that the rooms above use is the field of that name."""
    for field in SHARED:
        if not field.startswith("bank"):
            assert getattr(layout, field.upper()) == SHARED_AT + SHARED[field]
    for field in SLOT:
        if field != "account":
            assert getattr(layout, field.upper()) == SLOT[field]
    assert (SHARED_AT + SHARED["bank0"], SHARED_AT + SHARED["bank1"]) == layout.BANKS
    assert SLOT["account"] == layout.ACCOUNT_AT


def test_accounts_have_room() -> None:
    """Banks and slots hold a whole account, and maxima are those of the longest waits, and no sums."""
    size = layout.ACCOUNT.size
    assert layout.BANKS[1] - layout.BANKS[0] >= size
    assert SLOTS_AT - layout.BANKS[1] >= size
    assert SLOT.size - layout.ACCOUNT_AT >= size
    assert {field for field in layout.ACCOUNT if layout.ACCOUNT[field] in layout.MAXIMA} == {
        "write_longest_ns",
        "seek_longest_ns",
        "read_longest_ns",
    }


def test_numbers_fit() -> None:
    """Each mode fits the want's bits; only an open gate is 0, which is what the fast path tests."""
    assert all(0 < mode < 1 << MODE_BITS for mode in NAMES)
    assert layout.GATE_OPEN == 0
    assert len({layout.GATE_OPEN, layout.GATE_CLOSED, layout.GATE_SLOW}) == 3
    assert MOST_PARTICIPANTS >= 10_000
