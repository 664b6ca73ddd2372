"""Whose turn it is: phase-fair order. Pure.

Read phases and write phases alternate when both are wanted (Brandenburg and Anderson, "Reader-writer
synchronization for shared-memory multiprocessor real-time systems", 2009): a reader waits for at most one
write phase, a writer for at most one read phase and one write phase per writer ahead of it.

- S and W queue first come, first served; an upgrade goes before all that waits.
- Behind an S nobody but its upgrade closes the gate: readers keep flowing past a queued W.
- The readers that a write phase made wait enter together before the next W; `State.decide` pays that debt
  (`owed`) before it asks whose turn it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmlock._engine.modes import MODE_MASK, QUEUES, READ, UPGRADE

if TYPE_CHECKING:
    from collections.abc import Sequence


def next_turn(seeker: int, wants: Sequence[int]) -> tuple[int, int]:
    """Who is next while no W is held: (mode, slot). READ, with no slot, means all readers that wait.

    `seeker`: the seeking participant's number or 0; `wants`: each slot's want, ticket << 3 | mode or 0.
    """
    if seeker:
        upgrades = wants[seeker - 1] & MODE_MASK == UPGRADE
        return (UPGRADE, seeker - 1) if upgrades else (READ, -1)
    queue = [want for want in filter(None, wants) if want & QUEUES]
    if not queue:
        return READ, -1
    head = min(queue)  # the ticket is in the high bits: the oldest
    return head & MODE_MASK, wants.index(head)


def waiting(wants: Sequence[int]) -> list[int]:
    """The slots that wait, oldest first."""
    return [slot for _, slot in sorted((want, slot) for slot, want in enumerate(wants) if want)]


def ahead(slot: int, want: int, wants: Sequence[int]) -> int:
    """How many wait before this slot, which wants `want`, in the order of `waiting`. Counted: a sort takes longer."""
    return sum(map(want.__gt__, wants)) - wants.count(0) + wants[:slot].count(want)
