"""A timetable on words: a heap of timers, a hash index of their ids, and how to mend both after a death. Pure.

    control | entries: id, expires, state, place | heap: key, entry | index: entry + 1, or 0

The entries are the truth, and of them id, expires and state. All the rest is derived from these, and `mend` makes
it anew. So a change may be cut off at any store: `dirty` is set before its first and cleared after its last, the
state of an entry goes from one truth to the next in one store, and whoever finds `dirty` set mends first.

A timer that is postponed only gets another `expires`; its key in the heap, by which it comes up, stays, and it is
placed anew when it comes up (after HAProxy's wait queue). So a key is never later than `expires`.

Who may call what: look-ups and `postpone` need that nobody changes the table meanwhile; `change` needs to be
alone. Words of zeros are an empty table. Times are numbers of 64 bits, ids as well.

Where the derived words contradict the entries, or each other (somebody else has written there), there is no endless
loop, and no store outside its part of the table: IndexError. Mending helps.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from shmlock._segment.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from shmlock._engine.state import Words

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_CONTROL: Final = Record(
    # dirty: 1 while a change is unfinished.
    # size (derived): of the heap, in timers. used: no entry from here up has ever been used; grows only.
    # free (derived): the first of the chain of free entries below `used`, plus one.
    "dirty size used free",
)
DIRTY: Final = _CONTROL["dirty"]
_SIZE: Final = _CONTROL["size"]
_USED: Final = _CONTROL["used"]
_FREE: Final = _CONTROL["free"]

# An entry. state: FREE, PLACED, or the tag of the batch with which it was handed out.
# place (derived): where it is in the heap while it is PLACED; the next free entry, plus one, while it is FREE.
_ENTRY: Final = 4  # words
_ID, _EXPIRES, _STATE, _PLACE = range(_ENTRY)

FREE: Final = 0
PLACED: Final = 1  # tags are greater

_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: spreads ids that are in a row
_64_BITS: Final = (1 << 64) - 1
_LOOKS: Final = 32  # how many postponed timers `earliest` looks behind


def _index_bits(capacity: int) -> int:
    """The index is at most half full."""
    return (2 * capacity - 1).bit_length()


class Timetable:
    """Up to `capacity` timers on `Timetable.words_for(capacity)` words."""

    __slots__ = ("_entries", "_heap", "_index", "_mask", "_shift", "_words", "capacity")

    def __init__(self, words: Words, capacity: int) -> None:
        self._words = words
        self.capacity = capacity
        bits = _index_bits(capacity)
        self._mask = (1 << bits) - 1
        self._shift = 64 - bits
        self._entries = _CONTROL.size
        self._heap = self._entries + _ENTRY * capacity
        self._index = self._heap + 2 * capacity

    @staticmethod
    def words_for(capacity: int) -> int:
        """How many words it needs."""
        return _CONTROL.size + (_ENTRY + 2) * capacity + (1 << _index_bits(capacity))

    # --- looking: while nobody changes it

    @property
    def dirty(self) -> bool:
        """Whether a change was cut off: then only `change` may be called."""
        return self._words[DIRTY] != 0

    def __len__(self) -> int:
        return self._size()

    def _size(self) -> int:
        """Of the heap."""
        size = self._words[_SIZE]
        if size > self.capacity:
            raise IndexError(f"{size} timers of {self.capacity}")
        return size

    def _checked(self, entry: int) -> int:
        """The entry, as it stands in the heap, the index or the chain of the free ones."""
        if not 0 <= entry < self.capacity:
            raise IndexError(f"entry {entry} of {self.capacity}")
        return entry

    def find(self, ident: int) -> int:
        """The entry of this id, or -1."""
        words, entries = self._words, self._entries - _ENTRY
        for at in self._row(ident):
            entry = words[at]
            if not entry:
                return -1
            if words[entries + _ENTRY * entry + _ID] == ident:
                return self._checked(entry - 1)
        raise IndexError("the index of the timers is full")

    def expires(self, ident: int) -> int | None:
        """When the timer of this id is to come, or None when there is none to come."""
        at = self._placed(ident)
        return self._words[at + _EXPIRES] if at else None

    def _placed(self, ident: int) -> int:
        """Where the words of the timer's entry begin; 0 when no such timer is to come."""
        entry = self.find(ident)
        at = self._entries + _ENTRY * entry
        return at if entry >= 0 and self._words[at + _STATE] == PLACED else 0

    def comes_up(self, now: int) -> bool:
        """Whether there is anything to do: a timer that is due, or one that was postponed and is to be placed anew."""
        words = self._words
        return words[_SIZE] != 0 and words[self._heap] <= now

    def coming_up(self, now: int, most: int) -> list[int]:
        """The entries of the first timers that come up, at most so many. Best first, with a fringe of its own."""
        words, heap, size = self._words, self._heap, self._size()
        fringe = [(words[heap], 0)] if self.comes_up(now) else []
        found: list[int] = []
        while fringe and len(found) < most:
            _, place = heappop(fringe)
            found.append(words[heap + 2 * place + 1])
            for below in (2 * place + 1, 2 * place + 2):
                if below < size and (key := words[heap + 2 * below]) <= now:
                    heappush(fringe, (key, below))
        return found

    def earliest(self) -> int | None:
        """No timer is to come before this moment; None when none is to come at all.

        It is the moment of the first one, unless more than 32 postponed ones stand before it in the heap.
        """
        words, heap, size = self._words, self._heap, self._size()
        fringe = [(words[heap], 0)] if size else []
        best: int | None = None
        looks = _LOOKS
        while fringe:
            key, place = heappop(fringe)
            if best is not None and key >= best:
                break
            if not looks:
                return key
            looks -= 1
            expires = words[self._entries + _ENTRY * self._checked(words[heap + 2 * place + 1]) + _EXPIRES]
            best = expires if best is None else min(best, expires)
            for below in (2 * place + 1, 2 * place + 2):
                if below < size:
                    heappush(fringe, (words[heap + 2 * below], below))
        return best

    # --- postponing: while nobody else changes it but in this way

    def postpone(self, ident: int, expires: int) -> bool:
        """See that the timer does not come before `expires`; False when none is to come. At most one store."""
        at = self._placed(ident)
        if at and expires > self._words[at + _EXPIRES]:
            self._words[at + _EXPIRES] = expires
        return at != 0

    def reset(self, ident: int, expires: int) -> bool:
        """Have the timer come at `expires`, if one store can do that; False when it must be placed."""
        words = self._words
        at = self._placed(ident)
        if not at or expires < words[self._heap + 2 * self._place((at - self._entries) // _ENTRY)]:
            return False
        words[at + _EXPIRES] = expires
        return True

    # --- changing: alone

    def change(self, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Mend if need be, and run an action on the table. Cut off anywhere, the table can be mended."""
        words = self._words
        if words[DIRTY]:
            self.mend()
        words[DIRTY] = 1
        result = action(*args)
        words[DIRTY] = 0
        return result

    def schedule(self, ident: int, expires: int, held: Container[int]) -> bool:
        """Have a timer of this id come at `expires`; False when there is no room.

        `held`: the tags of batches that still count. Entries of others may be used again.
        """
        entry = self.find(ident)
        if entry < 0:
            entry = self._spare_entry(held)
            if entry < 0:
                return False
            self._words[self._entries + _ENTRY * entry + _ID] = ident
            self._enter(ident, entry)
        self._schedule(entry, expires)
        return True

    def _schedule(self, entry: int, expires: int) -> None:
        words = self._words
        at = self._entries + _ENTRY * entry
        words[at + _EXPIRES] = expires
        if words[at + _STATE] == PLACED:
            self.place_anew(entry)
        else:
            self._place_new(entry)

    def _place_new(self, entry: int) -> None:
        words = self._words
        at = self._entries + _ENTRY * entry
        words[at + _STATE] = PLACED
        size = self._size()
        words[_SIZE] = size + 1
        self._put(size, words[at + _EXPIRES], entry)

    def place_anew(self, entry: int) -> None:
        """Put it where its `expires` belongs."""
        words = self._words
        at = self._entries + _ENTRY * entry
        self._put(self._place(entry), words[at + _EXPIRES], entry)

    def cancel(self, ident: int) -> bool:
        """Forget the id; whether a timer of it was to come."""
        entry = self.find(ident)
        if entry < 0:
            return False
        placed = self._words[self._entries + _ENTRY * entry + _STATE] == PLACED
        if placed:
            self._unlink(entry)
        self._release(entry)
        return placed

    def hand_out(self, entry: int, now: int, tag: int) -> tuple[int, int] | None:
        """Mark a timer of the heap that is due as handed out with the batch `tag`: (expires, id).

        One that is not due (postponed since it was placed) is placed anew: None.
        """
        words = self._words
        at = self._entries + _ENTRY * self._checked(entry)
        if words[at + _STATE] != PLACED:
            raise IndexError(f"entry {entry} is in the heap, and not to come")  # it would come up for ever
        expires = words[at + _EXPIRES]
        if expires > now:
            self.place_anew(entry)
            return None
        words[at + _STATE] = tag
        self._unlink(entry)
        return expires, words[at + _ID]

    def take_back(self, tag: int) -> None:
        """Have all timers of a batch come again that have not been scheduled or cancelled since."""
        for entry, state in enumerate(self._column(_STATE)):
            if state == tag:
                self._place_new(entry)

    def mend(self) -> None:
        """Derive everything from the entries' ids, times and states. Idempotent; may be cut off anywhere."""
        words = self._words
        words[DIRTY] = 1
        words[_FREE] = 0
        words[_USED] = min(words[_USED], self.capacity)
        for at in range(self._index, self._index + self._mask + 1):
            if words[at]:
                words[at] = 0
        idents, moments, states = (self._column(field) for field in (_ID, _EXPIRES, _STATE))
        for entry, state in enumerate(states):
            if state == FREE:
                self._chain(entry)
            else:
                self._enter(idents[entry], entry)
        # What is sorted is a heap.
        placed = sorted((moments[entry], entry) for entry, state in enumerate(states) if state == PLACED)
        for place, (expires, entry) in enumerate(placed):
            self._store(place, expires, entry)
        words[_SIZE] = len(placed)
        words[DIRTY] = 0

    # --- entries

    def _column(self, field: int) -> list[int]:
        """One field of all entries that have ever been used."""
        words = self._words
        start = self._entries + field
        return words[start : start + _ENTRY * min(words[_USED], self.capacity) : _ENTRY].tolist()

    def _spare_entry(self, held: Container[int]) -> int:
        """An entry for another id, or -1."""
        words = self._words
        if not words[_FREE] and words[_USED] >= self.capacity:
            self._reclaim(held)
        if words[_FREE]:
            entry = self._checked(words[_FREE] - 1)
            at = self._entries + _ENTRY * entry
            if words[at + _STATE] != FREE:
                raise IndexError(f"entry {entry} is not free")
            words[_FREE] = words[at + _PLACE]
            return entry
        if words[_USED] >= self.capacity:
            return -1
        words[_USED] += 1
        return words[_USED] - 1

    def _reclaim(self, held: Container[int]) -> None:
        """Free what was handed out with batches that do not count any more; all at once, when room is needed."""
        for entry, state in enumerate(self._column(_STATE)):
            if state > PLACED and state not in held:
                self._release(entry)

    def _release(self, entry: int) -> None:
        """Of an entry that is not in the heap."""
        words = self._words
        at = self._entries + _ENTRY * entry
        words[at + _STATE] = FREE
        self._strike(words[at + _ID])
        self._chain(entry)

    def _chain(self, entry: int) -> None:
        words = self._words
        words[self._entries + _ENTRY * entry + _PLACE] = words[_FREE]
        words[_FREE] = entry + 1

    # --- the index: open addressing, the next one in a row

    def _home(self, ident: int) -> int:
        return (ident * _GOLDEN & _64_BITS) >> self._shift

    def _row(self, ident: int) -> Iterable[int]:
        """All words of the index, beginning at the id's home."""
        start, home = self._index, self._index + self._home(ident)
        return chain(range(home, start + self._mask + 1), range(start, home))

    def _enter(self, ident: int, entry: int) -> None:
        words = self._words
        for at in self._row(ident):
            if not words[at]:
                words[at] = entry + 1
                return
        raise IndexError("the index of the timers is full")

    def _strike(self, ident: int) -> None:
        """Take an id out, and move up those behind it that would not be found over the gap."""
        words, start, mask, entries = self._words, self._index, self._mask, self._entries - _ENTRY
        gap = next((at for at in self._row(ident) if words[entries + _ENTRY * words[at] + _ID] == ident), -1)
        if gap < 0:
            raise IndexError("a timer that is not in the index")
        # This far behind it; as it ends with an empty word, it does not come round to the beginning.
        for at in chain(range(gap + 1, start + mask + 1), range(start, gap)):
            entry = words[at]
            if not entry:
                break
            home = self._home(words[entries + _ENTRY * entry + _ID])
            if (at - start - home & mask) >= (at - gap & mask):
                words[gap] = entry
                gap = at
        words[gap] = 0

    # --- the heap

    def _unlink(self, entry: int) -> None:
        """Fill its place with the last one."""
        words, heap = self._words, self._heap
        place = self._place(entry)
        last = self._size() - 1
        words[_SIZE] = last
        if place != last:
            self._put(place, words[heap + 2 * last], words[heap + 2 * last + 1])

    def _place(self, entry: int) -> int:
        """Where it is in the heap."""
        words = self._words
        place = words[self._entries + _ENTRY * entry + _PLACE]
        if place >= self._size() or words[self._heap + 2 * place + 1] != entry:
            raise IndexError(f"entry {entry} is not at place {place} of the heap")
        return place

    def _put(self, place: int, key: int, entry: int) -> None:
        """Fill a hole: those that belong above or below it move, and the entry goes where they leave room."""
        words, heap, size = self._words, self._heap, self._size()
        while place and words[above := heap + 2 * (place - 1 >> 1)] > key:
            self._store(place, words[above], words[above + 1])
            place = place - 1 >> 1
        while (below := 2 * place + 1) < size:
            at = heap + 2 * below
            if below + 1 < size and words[at + 2] < words[at]:
                below, at = below + 1, at + 2
            if words[at] >= key:
                break
            self._store(place, words[at], words[at + 1])
            place = below
        self._store(place, key, entry)

    def _store(self, place: int, key: int, entry: int) -> None:
        words = self._words
        at = self._heap + 2 * place
        self._checked(entry)
        words[at] = key
        words[at + 1] = entry
        words[self._entries + _ENTRY * entry + _PLACE] = place
