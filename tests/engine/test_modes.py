"""R, S, W: the numbers, and what one participant may ask for while it holds something."""

from __future__ import annotations

from itertools import product

import pytest

from shmlock._engine import modes
from shmlock._engine.modes import MODE_MASK, NAMES, QUEUES, READ, SEEK, UPGRADE, WRITE, conflict

# Protocol section 6: rows are what is held, columns what is asked for; what the refusal must say, None to go on.
NOTHING: dict[int, str | None] = {READ: None, SEEK: None, WRITE: None}
TABLE: dict[str, dict[int, str | None]] = {
    "": NOTHING,
    "R": {READ: None, SEEK: "only a try (read_to_seek)", WRITE: "only a try (read_to_write)"},
    "S": {READ: None, SEEK: "seeking already", WRITE: "upgrade it"},
    "W": {READ: None, SEEK: "can't seek inside", WRITE: "can't write inside"},
    "RS": {READ: None, SEEK: "seeking already", WRITE: "upgrade it"},
    "RW": {READ: None, SEEK: "can't seek inside", WRITE: "can't write inside"},
    "SW": {READ: None, SEEK: "can't seek inside", WRITE: "can't write inside"},
    "RSW": {READ: None, SEEK: "can't seek inside", WRITE: "can't write inside"},
}


@pytest.mark.parametrize(("held", "asked"), list(product(TABLE, NOTHING)))
def test_what_goes_together_in_one_thread(held: str, asked: int) -> None:
    """A nested R always goes; any other ask by a holder is refused with a reason that says what to do instead."""
    reason = conflict(asked, reads="R" in held, seeks="S" in held, writes="W" in held)
    said = TABLE[held][asked]
    if said is None:
        assert reason is None
    else:
        assert reason is not None
        assert said in reason


def test_mode_numbers() -> None:
    """Each mode is another number, fits the bits that a want has for it, is not 0 (no want), and has a name."""
    numbers = [READ, SEEK, WRITE, UPGRADE]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number <= MODE_MASK for number in numbers)
    assert sorted(NAMES) == sorted(numbers)
    assert set(modes.DOING) == {READ, SEEK, WRITE}


def test_queue_bit() -> None:
    """One bit tells S and W, which queue first come first served, from R and upgrades, which do not."""
    assert {mode for mode in NAMES if mode & QUEUES} == {SEEK, WRITE}
