"""How answers put what they compare into words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmlock.bench.samples import Results


def compared(results: Results, measure: str, column: str, side: str, to: str) -> str:
    """`side` in terms of `to`, and whether that can be told from noise."""
    ratio, clear = results.ratio(measure, column, side, to)
    if math.isnan(ratio):
        return f"not to be compared with that of {to}"
    return f"{ratio:.3g} times that of {to}" + ("" if clear else " (within the noise, or too few rounds to know)")


def times_as_many(results: Results, measure: str, column: str, side: str, to: str) -> str:
    """The same of what is counted: the measure's name says what."""
    ratio, clear = results.ratio(measure, column, side, to)
    if math.isnan(ratio):
        return f"no figure to compare with {to}"
    return f"{ratio:.2f} times as many {measure} as {to}" + ("" if clear else " (which may be chance)")


def clearly_less(results: Results, measure: str, column: str, than: str) -> list[str]:
    """The sides that have less of it."""
    found = ((side, results.ratio(measure, column, side, than)) for side in results.sides)
    return [side for side, (ratio, clear) in found if clear and ratio < 1]


def never(results: Results, measure: str, column: str) -> list[str]:
    """The sides whose median of it is that it does not end."""
    return [side for side in results.sides if math.isinf(results.median(measure, column, side))]


def milliseconds(value: float, endless: str) -> str:
    """A time, or the word for one that doesn't end."""
    return endless if math.isinf(value) else f"{value:.1f} ms"
