"""R, S, W: what goes together, and what one participant may ask for while it holds something. Pure.

Held by another:      R asks   S asks   W asks
    nothing           yes      yes      yes
    R                 yes      yes      waits
    S                 yes      waits    waits
    W                 waits    waits    waits

(After Willy Tarreau's progressive locks, plock: R shared, S together with R but alone among S, W alone.)
"""

from __future__ import annotations

from typing import Final

READ: Final = 1
SEEK: Final = 2
WRITE: Final = 3
UPGRADE: Final = 4  # a seeker that asks for W; a want, never a hold
QUEUES: Final = 2  # the bit that SEEK and WRITE have, READ and UPGRADE have not: first come, first served

NAMES: Final = {READ: "read", SEEK: "seek", WRITE: "write", UPGRADE: "upgrade"}
DOING: Final = {READ: "reading", SEEK: "seeking", WRITE: "writing"}
MODE_BITS: Final = 3
MODE_MASK: Final = (1 << MODE_BITS) - 1


def conflict(asked: int, *, reads: bool, seeks: bool, writes: bool) -> str | None:
    """Why a participant that holds these modes can't wait for `asked`, or None. A nested R always may."""
    if asked == READ:
        return None
    what = NAMES[asked]
    if writes:
        return f"this thread holds the lock for writing, and can't {what} inside"
    if seeks:
        if asked == WRITE:
            return "this thread holds the lock for seeking: upgrade it (seek_to_write, or `with lock.upgraded():`)"
        return "this thread holds the lock for seeking already"
    if reads:
        return f"this thread holds the lock for reading, and would wait for itself: only a try (read_to_{what}) can go"
    return None
