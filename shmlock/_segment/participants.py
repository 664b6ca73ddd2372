"""Slots: claim one, give it back, and tell whether its owner is provably dead. All under the guard.

A slot's latch is a robust mutex that its thread holds for as long as it lives. The kernel marks it when the
thread ends in whatever way (SIGKILL, exec, the end of that one thread), also while the process is a zombie
and across pid namespaces. A stopped process holds its latch: it lives.
"""

from __future__ import annotations

import threading
from errno import EINVAL, EOWNERDEAD
from typing import TYPE_CHECKING

from shmlock._kernel import robust
from shmlock._kernel.forks import in_child
from shmlock._segment.layout import HIGH_WATER, IN_USE, NAMESPACE, PID, SLOT, STARTED, TID, slot
from shmlock.errors import ParticipantsExhausted

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._segment.segment import Segment


class _Latches(threading.local):
    def __init__(self) -> None:
        # The addresses of this thread's, in all segments. A set, for a count would not be right any more after an
        # exception between a latch's call and its counting.
        self.held: set[int] = set()


_latches = _Latches()


@in_child
def _hold_nothing() -> None:
    _latches.held.clear()


def claim(
    segment: Segment,
    identity: tuple[int, int, int, int],
    *,
    limit: int,
    trying: Callable[[int], None],
) -> int | None:
    """Take a free slot below `limit` for the calling thread: its number, or None.

    `identity`: as `process.identity` gives it; asked for before the guard is taken, for it may read files.
    `trying` is told each number before its latch is touched; should an exception come in between, `abort` frees
    what was taken.
    """
    words = segment.words
    if len(_latches.held) >= robust.MOST_PER_THREAD:
        raise ParticipantsExhausted(
            f"{segment.name}: this thread is in {len(_latches.held)} segments, "
            "and the kernel would not see it die in more"
        )
    for number in range(limit):
        if words[slot(number) + IN_USE] and number < words[HIGH_WATER]:
            continue
        trying(number)
        if _latch(segment, number):
            _identify(segment, number, identity)
            return number
    return None


def abort(segment: Segment, number: int) -> None:
    """Free the slot if the calling thread took its latch in a claim that was interrupted."""
    if unlatch(segment, number):
        segment.words[slot(number) + IN_USE] = 0


def _identify(segment: Segment, number: int, identity: tuple[int, int, int, int]) -> None:
    words = segment.words
    base = slot(number)
    for field in range(IN_USE + 1, SLOT.size):
        if words[base + field]:
            words[base + field] = 0  # left by a claim that was never finished
    for field, value in zip((PID, TID, STARTED, NAMESPACE), identity, strict=True):
        words[base + field] = value
    if number >= words[HIGH_WATER]:
        words[HIGH_WATER] = number + 1
    words[base + IN_USE] = 1


def _latch(segment: Segment, number: int) -> bool:
    address = segment.latch_address(number)
    _latches.held.add(address)
    status = EINVAL
    if robust.sound(address):
        (status,) = robust.tried(address)
    if status == EOWNERDEAD:  # at once: an unlock without it, in `abort`, would make the latch useless for ever
        robust.consistent(address)
    if status not in {0, EOWNERDEAD}:
        _latches.held.discard(address)
        return False
    return True


def unlatch(segment: Segment, number: int) -> bool:
    """Give the latch back; False (EPERM) if the calling thread does not hold it."""
    address = segment.latch_address(number)
    held = _latches.held
    if address not in held:
        return False
    can_be_left = robust.can_be_left(address)
    held -= {address}  # not by a call, so that no handler runs between this and the unlock
    return can_be_left and not robust.unlock(address)


def is_of(segment: Segment, number: int, identity: tuple[int, int, int, int]) -> bool:
    """Whether the slot is in use by a thread of the process that this `process.identity()` is of.

    A thread that ended with a hold was evicted by whoever waited for it, and its slot may be a stranger's by now.
    """
    words = segment.words
    base = slot(number)
    pid, _, started, namespace = identity
    return bool(words[base + IN_USE]) and (words[base + PID], words[base + STARTED], words[base + NAMESPACE]) == (
        pid, started, namespace,
    )  # fmt: skip


def is_dead(segment: Segment, number: int) -> bool:
    """Whether a slot in use is provably without an owner. Unsure means alive."""
    return bool(segment.words[slot(number) + IN_USE]) and not robust.lives(segment.latch_address(number))


def find_dead(segment: Segment) -> list[int]:
    """All slots in use whose owners are gone. Cost: one trylock a slot."""
    return [number for number in range(segment.words[HIGH_WATER]) if is_dead(segment, number)]
