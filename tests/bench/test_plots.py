"""The pictures."""

from __future__ import annotations

import importlib
import math
import struct
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from shmlock.bench.samples import Results


@pytest.fixture
def plots() -> ModuleType:
    """The room; imported when the first test asks, for all that comes with it makes each fork before that dearer."""
    pytest.importorskip("matplotlib")
    return importlib.import_module("shmlock.bench.plots")


def size(png: bytes) -> tuple[int, int]:
    """Width and height, as the header of a PNG has them."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize(
    "columns", [("1", "2", "64"), ("80/20", "20/80"), ("",)], ids=["lines", "groups of bars", "bars"]
)
@pytest.mark.parametrize(
    "values",
    [[0.010, 0.012, 0.011], [1e-6, 2e-6, 1e-6], [0.0], [math.inf], [1.0, math.inf], [-1.0, -2.0]],
    ids=["alike", "far apart", "zero", "never", "once never", "negative"],
)
def test_a_picture_is_a_png(
    made: Callable[..., Results], plots: ModuleType, columns: Sequence[str], values: Sequence[float]
) -> None:
    """Whatever the samples are: a thousand pixels wide, and not much higher."""
    found = made({"shmlock.RWLock": [0.010, 0.011, 0.012], "other": values}, columns)
    width, height = size(plots.picture(found, "wall"))
    assert width == 990
    assert 500 < height < 1300


def test_a_picture_of_nothing_but_never(made: Callable[..., Results], plots: ModuleType) -> None:
    """Also that can be drawn."""
    assert size(plots.picture(made({"other": [math.inf]}), "wall"))[0] == 990


def test_only_what_was_measured_is_drawn(some: Results, plots: ModuleType) -> None:
    """A picture for each measure that has samples."""
    assert list(plots.pictures(some)) == ["wall"]


def test_ours_has_a_colour_of_its_own(plots: ModuleType) -> None:
    """However many the others are, none is drawn in it."""
    assert [style for style in range(20) if plots._colour(style) == plots._COLOURS[0]] == [0]


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        (["1", "2", "4"], [1, 2, 4]),
        (["1 process", "2 processes", "4 processes"], [1, 2, 4]),
        (["1", "2"], None),
        (["80/20", "50/50", "20/80"], None),
        (["4", "2", "1"], None),
        ([""], None),
    ],
)
def test_counts_are_drawn_as_lines(plots: ModuleType, columns: list[str], counts: list[int] | None) -> None:
    """Three numbers at least, growing: between others there is nothing that a line could mean."""
    assert plots._counts(columns) == counts
