"""The timetable on plain words: against a dictionary, and cut off at every store."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shmlock._timetable import FREE, PLACED, Timetable

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = (1 << 64) - 1
IDS = st.one_of(st.integers(0, 12), st.sampled_from([LARGEST, LARGEST - 1, 1 << 63, 1 << 32]))
TIMES = st.one_of(st.integers(0, 40), st.sampled_from([LARGEST, 1 << 63]))


class Cut(Exception):  # noqa: N818  it is no error
    """The process is no more."""


class Fragile:
    """Words that stop the story instead of making the nth store."""

    def __init__(self, size: int) -> None:
        self._view = memoryview(bytearray(8 * size)).cast("Q")
        self.left = -1  # stores; negative: any number

    def __getitem__(self, index: Any) -> Any:
        return self._view[index]

    def __setitem__(self, index: int, value: int) -> None:
        if not self.left:
            raise Cut
        self.left -= 1
        self._view[index] = value

    def tolist(self) -> list[int]:
        """As a memoryview's."""
        return self._view.tolist()


def table_of(capacity: int) -> tuple[Timetable, Fragile]:
    """An empty one, and the words it is on."""
    words = Fragile(Timetable.words_for(capacity))
    return Timetable(words, capacity), words


def truth(table: Timetable) -> dict[int, tuple[int, int]]:
    """What the entries say: (expires, state) by id."""
    columns = [table._column(field) for field in (0, 1, 2)]
    live = [(ident, moment, state) for ident, moment, state in zip(*columns, strict=True) if state != FREE]
    assert len({ident for ident, _, _ in live}) == len(live), "an id has two entries"
    return {ident: (moment, state) for ident, moment, state in live}


def check(table: Timetable) -> None:
    """All that is derived fits the entries."""
    assert not table.dirty
    words = table._words
    entries = {number: table._entries + 4 * number for number in range(table.capacity)}
    heap = [(words[table._heap + 2 * place], words[table._heap + 2 * place + 1]) for place in range(len(table))]
    for place, (key, entry) in enumerate(heap):
        at = entries[entry]
        assert words[at + 2] == PLACED
        assert words[at + 3] == place
        assert key <= words[at + 1]
        assert place == 0 or heap[(place - 1) // 2][0] <= key
    found = truth(table)
    assert sum(state == PLACED for _, state in found.values()) == len(heap)
    assert sum(words[at] != 0 for at in range(table._index, table._index + table._mask + 1)) == len(found)
    for ident, (moment, state) in found.items():
        assert words[entries[table.find(ident)]] == ident
        assert table.expires(ident) == (moment if state == PLACED else None)
    chain = []
    free = words[3]
    while free:
        chain.append(free - 1)
        free = words[entries[free - 1] + 3]
    assert sorted(chain) == [entry for entry, state in enumerate(table._column(2)) if state == FREE]


class TimetableMachine(RuleBasedStateMachine):
    """Any order of calls gives what a dictionary would."""

    CAPACITY = 6

    def __init__(self) -> None:
        super().__init__()
        self.table, self.words = table_of(self.CAPACITY)
        self.placed: dict[int, int] = {}
        self.out: dict[int, dict[int, int]] = {}  # by tag, what was handed out: id -> expires
        self.tag = PLACED

    def held(self) -> set[int]:
        """The ids that are in somebody's hands."""
        return {ident for batch in self.out.values() for ident in batch}

    def forget(self, ident: int) -> None:
        """It is in nobody's hands."""
        for batch in self.out.values():
            batch.pop(ident, None)

    @rule(ident=IDS, expires=TIMES)
    def schedule(self, ident: int, expires: int) -> None:
        """A new timer, another time, or a re-armed one; refused only when nothing is left to use."""
        room = ident in self.placed or ident in self.held() or len(self.placed) + len(self.held()) < self.CAPACITY
        assert self.table.change(self.table.schedule, ident, expires, set(self.out)) == room
        if room:
            self.forget(ident)
            self.placed[ident] = expires

    @rule(ident=IDS, expires=TIMES)
    def reset(self, ident: int, expires: int) -> None:
        """One store is enough, or nothing is changed."""
        if self.table.reset(ident, expires):
            assert ident in self.placed
            self.placed[ident] = expires
        else:
            assert ident not in self.placed or expires < self.placed[ident]

    @rule(ident=IDS, expires=TIMES)
    def postpone(self, ident: int, expires: int) -> None:
        """Never to an earlier time; only what is to come."""
        assert self.table.postpone(ident, expires) == (ident in self.placed)
        if ident in self.placed:
            self.placed[ident] = max(self.placed[ident], expires)

    @rule(ident=IDS)
    def cancel(self, ident: int) -> None:
        """Whether it was to come."""
        assert self.table.change(self.table.cancel, ident) == (self.placed.pop(ident, None) is not None)
        self.forget(ident)

    @rule(now=TIMES, most=st.integers(1, 8))
    def collect(self, now: int, most: int) -> None:
        """What comes up is in the order of its keys; what is due of it is handed out, the rest is placed anew."""
        self.tag += 1
        taken: dict[int, int] = {}

        def hand_out(entries: list[int]) -> None:
            for entry in entries:
                got = self.table.hand_out(entry, now, self.tag)
                if got:
                    taken[got[1]] = got[0]

        assert self.table.comes_up(now) == bool(self.table.coming_up(now, 1))
        while len(taken) < most and (entries := self.table.coming_up(now, most - len(taken))):
            self.table.change(hand_out, entries)
        due = {ident: expires for ident, expires in self.placed.items() if expires <= now}
        assert taken.items() <= due.items()
        assert len(taken) == min(most, len(due))
        for ident in taken:
            del self.placed[ident]
        self.out[self.tag] = taken

    @precondition(lambda self: self.out)
    @rule(data=st.data(), back=st.booleans())
    def settle(self, data: st.DataObject, back: bool) -> None:
        """A batch that is acknowledged makes room; one that is taken back is to come again."""
        tag = data.draw(st.sampled_from(sorted(self.out)))
        batch = self.out.pop(tag)
        if back:
            self.table.change(self.table.take_back, tag)
            self.placed |= batch

    @rule()
    def mend(self) -> None:
        """Changes nothing that anyone can see."""
        self.table.mend()

    @invariant()
    def holds(self) -> None:
        """It says what the dictionary says, and fits together."""
        check(self.table)
        found = truth(self.table)
        assert {ident: moment for ident, (moment, state) in found.items() if state == PLACED} == self.placed
        for tag, batch in self.out.items():
            assert {ident: moment for ident, (moment, state) in found.items() if state == tag} == batch
        assert self.table.earliest() == min(self.placed.values(), default=None)


TimetableMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_as_a_dictionary = TimetableMachine.TestCase


def test_many_come_in_order() -> None:
    """Of thousands, each comes once, in order, however they were moved about meanwhile."""
    dice = random.Random(5)
    table, _ = table_of(3000)
    wanted = {ident * 7919: dice.randrange(10**6) for ident in range(3000)}
    for ident, expires in wanted.items():
        assert table.change(table.schedule, ident, expires, ())
    assert not table.change(table.schedule, 1, 1, ())
    for ident in dice.sample(sorted(wanted), 1000):
        wanted[ident] += 1000
        assert table.postpone(ident, wanted[ident])
    for ident in dice.sample(sorted(wanted), 1000):
        wanted[ident] = dice.randrange(10**6)
        assert table.change(table.schedule, ident, wanted[ident], ())
    for ident in dice.sample(sorted(wanted), 500):
        assert table.change(table.cancel, ident)
        del wanted[ident]
    check(table)
    seen = []
    for now in range(0, 10**6 + 2000, 5000):
        while entries := table.coming_up(now, 32):
            for entry in entries:
                got = table.change(table.hand_out, entry, now, 2)
                if got:
                    assert now - 5000 < got[0] <= now
                    seen.append(got)
    assert sorted((expires, ident) for ident, expires in wanted.items()) == sorted(seen)
    assert len(table) == 0


def test_a_postponed_timer_is_placed_anew_only_when_it_comes_up() -> None:
    """Until then one word is changed, however often it is postponed; then it is moved once, to the last time."""
    table, words = table_of(8)
    for ident in range(8):
        table.change(table.schedule, ident, 10 + ident, ())
    for later in range(100, 200):
        words.left = 1
        assert table.postpone(0, later)
    words.left = -1
    assert table.coming_up(9, 8) == []
    assert not table.comes_up(9)
    assert table.comes_up(10)
    assert table.coming_up(11, 8) == [0, 1]
    assert table.change(table.hand_out, 0, 11, 2) is None
    assert table.coming_up(11, 8) == [1]
    assert not table.comes_up(10)
    check(table)
    assert table.coming_up(199, 8)[-1] == 0


def test_the_earliest_is_never_too_late() -> None:
    """With many postponed ones in front it may be early, so that nobody pays for all of them; never late."""
    table, _ = table_of(500)
    for ident in range(500):
        table.change(table.schedule, ident, ident, ())
    for ident in range(20):
        table.postpone(ident, 1000 + ident)
    assert table.earliest() == 20
    for ident in range(499):
        table.postpone(ident, 1000 + ident)
    early = table.earliest()
    assert early is not None
    assert 20 < early <= 499


def test_a_gap_in_the_index_hides_nothing() -> None:
    """Ids that share a home, around the end of the index: those left are found, in any order of removal."""
    dice = random.Random(3)
    table, _ = table_of(8)
    shared = [ident for ident in range(4000) if (ident * 0x9E3779B97F4A7C15 % 2**64) >> table._shift in {14, 15}]
    for _ in range(200):
        idents = dice.sample(shared, 8)
        for ident in idents:
            assert table.change(table.schedule, ident, 1, ())
        for ident in idents:
            assert table.change(table.cancel, ident)
            check(table)


def story(table: Timetable, batch: int) -> list[Callable[[], object]]:
    """Something of everything: steps, of which the last is the one to be cut off."""
    change = table.change
    return [
        *[lambda ident=ident: change(table.schedule, ident, 50 - 7 * ident, {batch}) for ident in range(7)],
        lambda: table.postpone(6, 60),
        *[lambda entry=entry: change(table.hand_out, entry, 40, batch) for entry in (5, 4)],
        lambda: change(table.cancel, 2),
    ]


ATTEMPTS: dict[str, Callable[[Timetable], object]] = {
    "new": lambda table: table.change(table.schedule, 99, 1, {2}),
    "new, with room to be made": lambda table: [
        table.change(table.schedule, 100 + ident, ident, ()) for ident in range(4)
    ],
    "earlier": lambda table: table.change(table.schedule, 0, 1, {2}),
    "later": lambda table: table.change(table.schedule, 3, 99, {2}),
    "armed again": lambda table: table.change(table.schedule, 5, 1, {2}),
    "reset": lambda table: table.reset(3, 70),
    "postponed": lambda table: table.postpone(3, 70),
    "cancelled": lambda table: table.change(table.cancel, 3),
    "cancelled when handed out": lambda table: table.change(table.cancel, 5),
    "handed out": lambda table: table.change(table.hand_out, 3, 40, 3),
    "placed anew": lambda table: table.change(table.hand_out, 6, 40, 3),
    "taken back": lambda table: table.change(table.take_back, 2),
    "mended": lambda table: table.mend(),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_cut_off_at_every_store(attempt: str) -> None:
    """Whatever store is the last: mended, each timer is as it was or as it was to be, and nothing else is changed."""
    table, _ = table_of(7)
    for step in story(table, 2):
        step()
    before = truth(table)
    ATTEMPTS[attempt](table)
    after = truth(table)
    left = 0
    while True:
        table, words = table_of(7)
        for step in story(table, 2):
            step()
        words.left = left
        try:
            ATTEMPTS[attempt](table)
        except Cut:
            # The one that mends may be cut off, too.
            words.left = left
            try:
                table.mend()
            except Cut:
                words.left = -1
                assert table.dirty or not left
                table.change(lambda: None)
        else:
            break
        check(table)
        found = truth(table)
        assert set(before) & set(after) <= set(found) <= set(before) | set(after)
        for ident, (moment, state) in found.items():
            choices = [there[ident] for there in (before, after) if ident in there]
            assert (moment, state) in choices or (
                # Armed again: the time is stored first.
                attempt == "armed again" and (moment, state) == (after[ident][0], before[ident][1])
            )
        left += 1
    assert truth(table) == after
    check(table)
    assert left >= 1
