"""How what a test has started, or opened, ends: with the tests, even when these are killed."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._segment.segment import Segment

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: a forked child has better things to do


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent has ended, however that did; also after an exec."""
    if _prctl(_PR_SET_PDEATHSIG, number) or os.getppid() != parent:
        os._exit(1)


def close_all(segment: Segment) -> None:
    """All handles of this process, also those inherited from its parent, and those left to Python's garbage."""
    for handle in list(segment.handles):
        opened = handle()
        if opened is not None:
            opened.close()


def with_us(number: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn` for a program that is to end with this process, by this signal."""
    return functools.partial(die_with, os.getpid(), number)
