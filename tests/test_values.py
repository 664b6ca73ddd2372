"""What is published comes back, and is read-only."""

from __future__ import annotations

import copy
import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmlock._values import CODECS, FrozenDict, FrozenList, freeze

JSON = CODECS["json"]


class Colour(enum.IntEnum):
    """A number with a name."""

    RED = 1


class Text(str):
    """A text of a kind of its own."""

    __slots__ = ()


ANYTHING = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters())),
    *(st.just(10**4000), st.just("\ud800"), st.just(Colour.RED), st.builds(Text, st.text())),
)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()))
VALUES = st.recursive(
    ANYTHING,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4), st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_json_encodes_it_decodes(value: Any) -> None:
    """Whatever the value is: either it is refused at once, or it comes back, and encodes to the same again."""
    try:
        data = JSON.encode(value)
    except ValueError:
        return
    found = JSON.decode(data)
    if len({*map(type, _keys(value))}) < 2:  # keys of two types may become the same text
        assert JSON.encode(found) == data


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list | tuple) else []


def test_a_number_that_python_would_not_read_is_not_encoded() -> None:
    """Of more digits than `sys.get_int_max_str_digits()`."""
    with pytest.raises(ValueError, match="digits"):
        JSON.encode({"n": 10**5000})


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_the_deepest_that_json_encodes_it_decodes(kind: str) -> None:
    """Up to the depth at which encoding is refused, clearly, decoding is possible."""

    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value] if kind == "list" else {"k": value}
        return value

    def encodes(depth: int) -> bytes | None:
        try:
            return JSON.encode(nested(depth))
        except ValueError as error:
            assert "nested too deeply" in str(error)  # noqa: PT017  both ways are right, up to a depth
            return None

    low, high = 1, 1
    while encodes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if encodes(middle) else (low, middle)
    data = encodes(low)
    assert data is not None
    assert low > 100
    JSON.decode(data)


@given(VALUES)
def test_frozen_is_the_same_and_read_only_everywhere(value: Any) -> None:
    """A frozen value equals the value; no dict or list in it can be changed; a deep copy can be."""
    frozen = freeze(value)
    assert repr(frozen) == repr(value)

    def look(part: Any) -> None:
        if isinstance(part, dict | list):
            assert type(part) in {FrozenDict, FrozenList}
            with pytest.raises(TypeError, match="read-only"):
                part.clear()
            for item in part.values() if isinstance(part, dict) else part:
                look(item)
        elif isinstance(part, tuple):
            for item in part:
                look(item)

    look(frozen)
    assert type(copy.deepcopy(frozen)) is type(value)


def test_plain_and_other_items_beside_each_other() -> None:
    """Sets become frozen, bytearrays bytes, and a list among plain items is seen."""
    frozen = freeze({"a": 1, "b": [1, [2], {3}, bytearray(b"4"), ({5: []},)]})
    assert frozen == {"a": 1, "b": [1, [2], {3}, b"4", ({5: []},)]}
    assert [type(item) for item in frozen["b"]] == [int, FrozenList, frozenset, bytes, tuple]
    assert type(frozen["b"][4][0][5]) is FrozenList
