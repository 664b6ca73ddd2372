"""Look for the dead among those that others wait for, and take them out.

Only whoever is next looks at all that hold (a prototype in which every waiter looked at every slot livelocked with
100 processes). The others look at the first in the queue, lest it has died itself, and at the writer, lest the first is
stopped. One proven death is reason enough to look at all slots, once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shmlock._engine.phases import next_turn, waiting
from shmlock._segment.layout import ABANDONED, IN_USE, PID, READS, SEEKER, TID, WANT, WRITER, slot
from shmlock._segment.participants import find_dead, is_dead
from shmlock.errors import SegmentCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmlock._engine.state import State
    from shmlock._segment.segment import Segment

log = logging.getLogger("shmlock")


@dataclass(frozen=True)
class Death:
    """A participant that was evicted, and what it held or wanted."""

    pid: int
    tid: int
    role: str


class Recovery:
    """All but `report` under the guard."""

    __slots__ = ("_segment", "_state", "_words")

    def __init__(self, segment: Segment, state: State) -> None:
        self._segment = segment
        self._state = state
        self._words = segment.words

    def look(self, number: int) -> list[Death]:
        """What the waiter in this slot does at the end of a slice in which nobody woke it.

        Decides anew in any case: a reader that was interrupted for good between leaving and deciding, or a
        process that was killed between deciding and waking, costs the others a slice and no more.
        """
        self._check(number)
        deaths: list[Death] = []
        if any(self._is_gone(suspect) for suspect in self._suspects(number)):
            deaths = self.sweep()
        self._state.decide()
        return deaths

    def _check(self, number: int) -> None:
        """Whoever waits, writes or seeks takes part: it is taken out of the state before its slot is free.

        Raises SegmentCorrupt if not: it is noise that we wait for, and nobody will ever leave.
        """
        words = self._words
        numbers = {number + 1, words[WRITER], words[SEEKER]} - {0}
        if not all(words[slot(taking_part - 1) + IN_USE] for taking_part in numbers):
            raise SegmentCorrupt(f"{self._segment.name}: it is held by a participant that there is not")

    def _suspects(self, number: int) -> set[int]:
        """Whom the waiter in this slot looks at.

        An upgrade is next, whoever is the first. And the readers who wait for a writer enter together when that is
        gone: so the first may not be the only one that looks at it. (One that is stopped would keep them waiting.)
        """
        words = self._words
        wants = self._state.column(WANT)
        first = waiting(wants)[:1]
        _, next_one = next_turn(words[SEEKER], wants)
        if number in {*first, next_one}:
            suspects = {reader for reader, reads in enumerate(self._state.column(READS)) if reads}
            suspects.add(words[SEEKER] - 1)
        else:
            suspects = set(first)
        suspects.add(words[WRITER] - 1)
        return suspects - {number, -1}

    def _is_gone(self, number: int) -> bool:
        return bool(self._words[slot(number) + ABANDONED]) or is_dead(self._segment, number)

    def sweep(self) -> list[Death]:
        """Evict all that are dead, and settle what the living have walked away from."""
        for number, modes in enumerate(self._state.column(ABANDONED)):
            if modes:
                self._state.settle(number)
        dead = find_dead(self._segment)
        deaths = [self._describe(number) for number in dead]
        self._state.evict(dead)
        return deaths

    def _describe(self, number: int) -> Death:
        words = self._words
        base = slot(number)
        if words[WRITER] == number + 1:
            role = "held the lock for writing"
        elif words[SEEKER] == number + 1:
            role = "held the lock for seeking"
        elif words[base + READS]:
            role = "held the lock for reading"
        elif words[base + WANT]:
            role = "waited for the lock"
        else:
            role = "held nothing"
        return Death(words[base + PID], words[base + TID], role)

    def report(self, deaths: Sequence[Death]) -> None:
        """Log each death once; outside the guard, by whoever evicted it."""
        for death in deaths:
            level = logging.WARNING if death.role.endswith("writing") else logging.DEBUG
            log.log(
                level,
                "%s: thread %d of process %d died while it %s; evicted",
                self._segment.name, death.tid, death.pid, death.role,
            )  # fmt: skip
