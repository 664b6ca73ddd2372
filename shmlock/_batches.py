"""Who has timers in hand: batches that were handed out, by slot, until they are acknowledged or their owner is dead.

A batch has a tag that no other batch ever has. It is *open* as long as its slot's word here holds the tag:

    open                                             it counts: its timers may have to be handed out again
    open, and the slot's `batch` is the tag, too     in the hands of the slot's owner, which lives as far as we know
    open, and the slot is free or its `batch` is
    another                                          an orphan: the owner was evicted, or never got to see it
    not open                                         acknowledged, or taken back: it counts no more

An owner that leaves of its own accord acknowledges before its slot is free; so a free slot's open batch is that of
one that was killed. A later owner of the slot begins with `batch` 0, and can't be taken for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shmlock._segment.layout import BATCH, IN_USE, MOST_PARTICIPANTS, slot
from shmlock._segment.record import Record

if TYPE_CHECKING:
    from shmlock._engine.state import Words

_CONTROL: Final = Record(
    # serial: of the last tag. reach: no slot from here up has ever had a batch. Both grow only, stored under W.
    "serial reach",
)
_SERIAL: Final = _CONTROL["serial"]
_REACH: Final = _CONTROL["reach"]
_OPEN: Final = _CONTROL.size  # then one word a slot: stored under W, and made 0 by the owner of the tag, too


class Batches:
    """The batches of one timer queue. Contains the tags of those that are open."""

    __slots__ = ("_slots", "_words")

    def __init__(self, words: Words, slots: Words) -> None:
        self._words = words
        self._slots = slots

    @staticmethod
    def words_for(participants: int) -> int:
        """How many words it needs."""
        return _CONTROL.size + participants

    def __contains__(self, tag: object) -> bool:
        try:
            return isinstance(tag, int) and self._words[_OPEN + tag % MOST_PARTICIPANTS] == tag
        except IndexError:  # of a slot that there is not: noise
            return False

    def open(self, number: int) -> int:
        """Under W: a new batch in the hands of the calling thread, whose slot it is. There must be none open."""
        words = self._words
        words[_SERIAL] += 1
        tag = words[_SERIAL] * MOST_PARTICIPANTS + number
        if number >= words[_REACH]:
            words[_REACH] = number + 1
        self._slots[slot(number) + BATCH] = tag
        words[_OPEN + number] = tag
        return tag

    def acknowledge(self, number: int) -> None:
        """By the slot's owner, which has seen its batch: it counts no more. Does nothing to an orphan."""
        tag = self._words[_OPEN + number]
        if tag and tag == self._slots[slot(number) + BATCH]:
            self._words[_OPEN + number] = 0

    def abandon(self, number: int) -> None:
        """By the slot's owner, which has not seen its batch: it is an orphan. One store."""
        self._slots[slot(number) + BATCH] = 0

    def close(self, tag: int) -> None:
        """Under W: its timers have been taken back."""
        self._words[_OPEN + tag % MOST_PARTICIPANTS] = 0

    def orphans(self) -> list[int]:
        """The tags of all orphans. Under W they stay so, and no batch that its owner may have seen is one of them."""
        slots = self._slots
        return [
            tag
            for number, tag in enumerate(self._column())
            if tag
            and not (slots[slot(number) + IN_USE] and slots[slot(number) + BATCH] == tag)
            and tag in self  # looked at last: an owner that leaves acknowledges first
        ]

    def any(self) -> bool:
        """Whether any batch is open. Cost: a load a slot."""
        return any(self._column())

    def _column(self) -> list[int]:
        return self._words[_OPEN : _OPEN + self._words[_REACH]].tolist()
