"""Fields declared once."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from shmlock._segment.record import Record
from shmlock._segment.words import WORDS_PER_LINE


def test_an_example() -> None:
    """Fields follow each other in a line, in words; the next line begins on the next multiple of a line."""
    record = Record("latch:8 pid tid", "reads", "account:20 after")
    assert record.offsets() == {"latch": 0, "pid": 8, "tid": 9, "reads": 16, "account": 32, "after": 52}
    assert list(record) == ["latch", "pid", "tid", "reads", "account", "after"]
    assert record["reads"] == 16
    assert record.size == 64


def test_offsets_are_a_copy() -> None:
    """What is told of the offsets can't change them."""
    record = Record("one two")
    record.offsets()["two"] = 0
    assert record["two"] == 1


def test_empty() -> None:
    """Without fields a record takes no room."""
    assert Record().size == 0
    assert list(Record("")) == []


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=6))
def test_fields_do_not_overlap(lines: list[list[int]]) -> None:
    """Whatever is declared: fields lie one after the other, lines begin on lines, and the size covers them all."""
    named = [[(f"f{row}_{column}", size) for column, size in enumerate(sizes)] for row, sizes in enumerate(lines)]
    record = Record(*(" ".join(f"{name}:{size}" for name, size in line) for line in named))
    end = 0
    for line in named:
        assert record[line[0][0]] % WORDS_PER_LINE == 0
        for name, size in line:
            assert record[name] >= end
            end = record[name] + size
    assert record.size % WORDS_PER_LINE == 0
    assert end <= record.size < end + WORDS_PER_LINE
    assert list(record) == [name for name, _ in chain.from_iterable(named)]
