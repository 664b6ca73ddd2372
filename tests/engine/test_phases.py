"""Whose turn it is, on plain lists of wants."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from shmlock._engine.modes import MODE_BITS, READ, SEEK, UPGRADE, WRITE
from shmlock._engine.phases import ahead, next_turn, waiting

NOBODY = 0
READERS = (READ, -1)


def wants(*asks: tuple[int, int] | None) -> list[int]:
    """Each slot's want, from (ticket, mode) or None."""
    return [0 if ask is None else ask[0] << MODE_BITS | ask[1] for ask in asks]


def test_nobody_wants_anything() -> None:
    """With no queue it is the readers' turn, also with no slots at all, and beside a seeker."""
    assert next_turn(NOBODY, []) == READERS
    assert next_turn(NOBODY, wants(None, None)) == READERS
    assert next_turn(1, wants(None, None)) == READERS


def test_readers_are_not_queued() -> None:
    """Readers that wait, however long, are no head of the queue: they enter in phases."""
    assert next_turn(NOBODY, wants((1, READ), (2, READ))) == READERS
    assert next_turn(NOBODY, wants((1, READ), (2, WRITE))) == (WRITE, 1)


def test_first_ticket_goes_first() -> None:
    """Among S and W the oldest ticket is next, wherever its slot lies: over all orders of 2 S and 2 W."""
    for tickets in permutations(range(4)):
        line = [*zip(tickets, (SEEK, WRITE, SEEK, WRITE), strict=True)]
        mode, slot = next_turn(NOBODY, wants(*line, None))
        assert line[slot] == (0, mode)


def test_ticket_zero_is_a_ticket() -> None:
    """The very first ticket of a segment, 0, is older than all others."""
    assert next_turn(NOBODY, wants((1, WRITE), (0, SEEK))) == (SEEK, 1)


def test_behind_a_seeker_only_its_upgrade() -> None:
    """While S is held nobody is next but the seeker's own upgrade, which passes all that waits."""
    assert next_turn(1, wants(None, (0, WRITE), (1, SEEK), (2, READ))) == READERS
    assert next_turn(1, wants((9, UPGRADE), (0, WRITE), (1, SEEK))) == (UPGRADE, 0)
    assert next_turn(3, wants((0, WRITE), None, (7, UPGRADE))) == (UPGRADE, 2)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.sampled_from([0, READ, SEEK, WRITE])), unique_by=lambda ask: ask[0])
)
def test_waiting_lists_everybody_oldest_first(asks: list[tuple[int, int]]) -> None:
    """`waiting` has each slot that wants something once, in the order of the tickets, whatever the mode."""
    line = [ask if ask[1] else None for ask in asks]
    listed = waiting(wants(*line))
    assert sorted(listed) == [slot for slot, ask in enumerate(line) if ask]
    tickets = [asks[slot][0] for slot in listed]
    assert tickets == sorted(tickets)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, READ, SEEK, WRITE]))))
def test_as_many_are_ahead_as_are_listed_before(asks: list[tuple[int, int]]) -> None:
    """`ahead` is each slot's place in what `waiting` lists, also among readers with the same ticket."""
    line = wants(*(ask if ask[1] else None for ask in asks))
    listed = waiting(line)
    assert [ahead(slot, line[slot], line) for slot in listed] == [*range(len(listed))]


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.sampled_from([0, READ, SEEK, WRITE])),
        unique_by=lambda ask: ask[0],
        min_size=1,
    ),
    st.data(),
)
def test_next_turn_is_a_function_of_order_alone(asks: list[tuple[int, int]], data: st.DataObject) -> None:
    """Which slots they sit in does not change who is next: permuted slots, permuted answer."""
    order = data.draw(st.permutations(range(len(asks))))
    line = [ask if ask[1] else None for ask in asks]
    mode, slot = next_turn(NOBODY, wants(*line))
    shuffled_mode, shuffled_slot = next_turn(NOBODY, wants(*(line[number] for number in order)))
    assert mode == shuffled_mode
    assert slot == (order[shuffled_slot] if shuffled_slot >= 0 else -1)
