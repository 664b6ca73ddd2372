"""Words that hold what no store of ours has left there, and what is done when they lead to nonsense.

Whoever may write to a segment may write anything. What can't be told from the truth is believed; but an index that
leads out of the segment, or a count that does not fit its word any more, is an error of ours, `SegmentCorrupt`,
and not whatever Python calls it. No loop's end, and no size, may be a shared word's alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from shmlock.errors import SegmentCorrupt, ShmlockError

# What Python raises for an index beyond the end, a value that does not fit, and a number that is too large.
_NONSENSE: Final = (IndexError, ValueError, OverflowError)
_OURS: Final = f"{Path(__file__).parent.parent}/"


def check(name: str, error: BaseException) -> None:
    """Raise SegmentCorrupt if the error is what a line of ours has made of noise.

    Not if somebody else has raised it: a signal handler that ran meanwhile, a codec, a function that was passed.
    """
    if not isinstance(error, _NONSENSE) or isinstance(error, ShmlockError):
        return
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is not None and innermost.tb_frame.f_code.co_filename.startswith(_OURS):
        raise SegmentCorrupt(
            f"{name}: the shared memory holds what shmlock never wrote there ({error}); "
            f"stop all that use it, then shmlock.unlink({name!r}) removes it"
        ) from error


class Sound(AbstractContextManager[None]):
    """`with Sound(name):` noise that is met inside is told as SegmentCorrupt."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            check(self._name, error)
