"""How answers put what they compare into words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmlock.bench.samples import Results


def compared(results: Results, measure: str, column: str, side: str, to: str) -> str:
    """`side` in terms of `to`, and whether that can be told from noise; one round alone can't tell."""
    ratio, differs = results.ratio(measure, column, side, to)
    if math.isnan(ratio):
        return f"not to be compared with that of {to}"
    unsure = "" if differs and results.knobs["rounds"] > 1 else " (within the noise, or too few rounds to know)"
    return f"{ratio:.3g} times that of {to}{unsure}"
