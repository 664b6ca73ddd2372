"""How long a caller is ready to wait."""

from __future__ import annotations

import threading
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmlock._kernel import deadline as room
from shmlock._kernel.deadline import FOREVER, NOW, Deadline


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the room goes by; there is no other in it."""
    clock = Clock()
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_none_is_for_ever(clock: Clock) -> None:
    """None waits for ever: nothing ever passes."""
    forever = Deadline.after(None)
    clock.now += 1e9
    assert forever is FOREVER
    assert forever.waits
    assert forever.left() == inf
    assert not forever.passed()


@pytest.mark.parametrize("timeout", [0, 0.0, -0.0, False])
def test_zero_never_waits(timeout: float) -> None:
    """0 is over before it began, on whatever clock."""
    now = Deadline.after(timeout)
    assert now is NOW
    assert not now.waits
    assert now.left() == 0
    assert now.passed()


def test_not_blocking_never_waits() -> None:
    """`blocking=False` is the same as a timeout of 0."""
    assert Deadline.after(None, blocking=False) is NOW


@pytest.mark.parametrize("timeout", [0, 0.5, -1, inf])
def test_not_blocking_takes_no_timeout(timeout: float) -> None:
    """`blocking=False` together with a timeout, even of 0, contradicts itself."""
    with pytest.raises(ValueError, match="blocking=False"):
        Deadline.after(timeout, blocking=False)


@pytest.mark.parametrize("timeout", [-1, -1e-300, -inf, nan, -nan, -(10**400)])
def test_negative_and_nan_are_refused(timeout: float) -> None:
    """A timeout that is negative or no number is an error that repeats it; nothing is waited for."""
    with pytest.raises((ValueError, OverflowError)) as refusal:
        Deadline.after(timeout)
    if abs(timeout) <= 1 or timeout in {-inf, inf}:
        assert repr(timeout) in str(refusal.value)


@pytest.mark.parametrize("timeout", [inf, 1e300, threading.TIMEOUT_MAX * 1.01, 10**400])
def test_huge_is_refused(timeout: float) -> None:
    """A timeout beyond the longest that the system can wait is an OverflowError, as `threading.Lock` has it."""
    with pytest.raises(OverflowError):
        Deadline.after(timeout)


@pytest.mark.parametrize("timeout", ["1", b"", [], object(), 1j])
def test_no_number_is_refused(timeout: Any) -> None:
    """What is no number at all is a TypeError."""
    with pytest.raises(TypeError):
        Deadline.after(timeout)


def test_longest_is_accepted(clock: Clock) -> None:
    """`threading.TIMEOUT_MAX` itself is no error."""
    assert Deadline.after(threading.TIMEOUT_MAX).left() == pytest.approx(threading.TIMEOUT_MAX)
    assert clock.now == 1000


def test_passes_at_its_time(clock: Clock) -> None:
    """It passes when the monotonic clock has gone on by the timeout, and not a moment before."""
    deadline = Deadline.after(2)
    assert deadline.left() == 2
    clock.now += 1.5
    assert deadline.left() == 0.5
    assert not deadline.passed()
    clock.now += 0.5
    assert deadline.left() == 0
    assert deadline.passed()
    clock.now += 100
    assert deadline.left() == 0


@given(st.floats(min_value=0, max_value=threading.TIMEOUT_MAX, exclude_min=True))
def test_whatever_is_left_is_within_what_was_given(timeout: float) -> None:
    """Any positive timeout waits, and never for longer than was asked for (up to the clock's own resolution)."""
    deadline = Deadline.after(timeout)
    assert deadline.waits
    assert 0 <= deadline.left() <= timeout * (1 + 1e-9) + 1e-6
