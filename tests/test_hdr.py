"""The scale of the latency histogram: against the definition, and against HdrHistogram itself."""

from __future__ import annotations

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from shmlock._hdr import Scale

FIGURES = [1, 2, 3]
HIGHEST = 3_600_000_000
VALUES = st.one_of(st.integers(0, 5000), st.integers(0, HIGHEST), st.integers(0, 31).map(lambda bits: 1 << bits))


@pytest.mark.parametrize("figures", FIGURES)
@given(value=VALUES)
def test_a_bucket_holds_its_values(figures: int, value: int) -> None:
    """A value lies in its bucket, which is no wider than the figures allow, and ends where the next one begins."""
    scale = Scale(HIGHEST, figures)
    bucket = scale.bucket(value)
    low, width = scale.lowest(bucket), scale.width(bucket)
    assert low <= value < low + width
    assert width == 1 or width <= low / 10**figures
    assert scale.lowest(bucket + 1) == low + width
    assert bucket < scale.size


@pytest.mark.parametrize("figures", FIGURES)
@given(value=VALUES)
def test_buckets_are_hdrhistogram_s(figures: int, value: int) -> None:
    """The same value lands in the same place in HdrHistogram, whose arrays are as long or longer."""
    scale, theirs = Scale(HIGHEST, figures), HdrHistogram(1, HIGHEST, figures)
    assert scale.bucket(value) == theirs._counts_index_for(value)
    assert scale.size <= theirs.counts_len
