"""The decider stopped at every store: what is half done is finished, nobody loses anything, no fence is left out."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from shmlock._engine.modes import READ, SEEK, UPGRADE, WRITE
from shmlock._engine.state import State
from shmlock._engine.stats import read_statistics
from shmlock._segment.layout import (
    ABANDONED,
    ACCOUNT,
    ACCOUNT_AT,
    BANKS,
    FOLD,
    GATE,
    GATE_CLOSED,
    HIGH_WATER,
    IN_USE,
    MAXIMA,
    READS,
    REPAIRS,
    SEQUENCE,
    SLOT,
    WANT,
    WRITER,
    slot,
)
from tests.engine.plain_lock import (
    EndingWords,
    Lock,
    Move,
    Picture,
    Stopped,
    drain,
    in_an_account,
    kept,
    parts,
    signature,
    stop_after,
    stops,
    stores_of,
)
from tests.engine.reference import reachable

# --- accounts


def with_accounts(slots: int) -> Lock:
    """A lock in which every counter of every account, and of the departed, has a value of its own."""
    lock = Lock(slots)
    starts = [BANKS[0], *(slot(number) + ACCOUNT_AT for number in range(slots))]
    for factor, start in enumerate(starts, 1):
        for offset in range(ACCOUNT.size):
            lock.words[start + offset] = factor * 1_000_003 + offset * (7 - factor)
    return lock


def totals(lock: Lock) -> object:
    """All counters summed up, as a reader does that does not take the guard."""
    segment: Any = SimpleNamespace(words=lock.words, header=SimpleNamespace(option=1), name="any")
    seen = read_statistics(segment)
    return seen.write, seen.seek, seen.read, seen.timeouts, seen.wait_histogram


def expected_totals(lock: Lock) -> dict[int, int]:
    """The sum, or for the longest waits the maximum, of all accounts, by offset."""
    starts = [BANKS[0], *(slot(number) + ACCOUNT_AT for number in range(lock.slots))]
    columns = {offset: [lock.words[start + offset] for start in starts] for offset in range(ACCOUNT.size)}
    return {offset: max(values) if offset in MAXIMA else sum(values) for offset, values in columns.items()}


def test_totals_sum_up() -> None:
    """The statistics are the sums over all accounts, and the maxima of the longest waits."""
    lock = with_accounts(3)
    expected = expected_totals(lock)
    segment: Any = SimpleNamespace(words=lock.words, header=SimpleNamespace(option=1), name="any")
    seen = read_statistics(segment)
    for mode in ("write", "seek", "read"):
        for shown, offset in (
            ("locks", "locks"),
            ("unlocks", "unlocks"),
            ("waits", "waits"),
            ("wait_ns", "wait_ns"),
            ("longest_wait_ns", "longest_ns"),
        ):
            assert getattr(getattr(seen, mode), shown) == expected[ACCOUNT[f"{mode}_{offset}"]]
    assert seen.timeouts == expected[ACCOUNT["timeouts"]]
    first = ACCOUNT["wait_histogram"]
    assert list(seen.wait_histogram) == [expected[offset] for offset in range(first, ACCOUNT.size)]


@pytest.mark.parametrize("again", [False, True])
def test_fold_is_exactly_once(again: bool) -> None:
    """A departed one's numbers count once, at whichever store its eviction stops, and the repair of that, too."""
    lock = with_accounts(3)
    if again:  # from the second bank to the first
        lock.play(("die", 2))
        lock.play(("join", 2))
    before = totals(lock)
    for stop in range(len(stores_of(lock, ("die", 1))) + 1):
        stopped = stop_after(lock, ("die", 1), stop)
        assert totals(stopped) == before, f"stopped after store {stop}"
        repaired = stopped.copy()
        repaired.play(("repair", 0))
        assert not repaired.wrong()
        for second in range(len(stores_of(stopped, ("repair", 0))) + 1):
            twice = stop_after(stopped, ("repair", 0), second)
            assert totals(twice) == before, f"stopped after store {stop}, and its repair after store {second}"
        if repaired.words[slot(1) + IN_USE]:
            repaired.play(("die", 1))
        assert totals(repaired) == before
        assert not any(repaired.words[slot(1) + ACCOUNT_AT : slot(2)])
        repaired.play(("join", 1))
        assert totals(repaired) == before


# --- everything else


ASKED = {
    "enter": 1 << READ,
    "ask_seek": 1 << SEEK,
    "ask_write": 1 << WRITE,
    "try_write": 1 << WRITE,
    "upgrade": 1 << UPGRADE,
    "release_write": 1 << WRITE,
    "release_write_in_doubt": 1 << WRITE,
    "write_to_seek": 1 << WRITE,
    "write_to_read": 1 << WRITE,
    "release_seek": 1 << SEEK,
    "seek_to_read": 1 << SEEK,
    "read_to_seek": 1 << SEEK,
    "read_to_write": 1 << WRITE,
    "release_upgraded": 1 << UPGRADE | 1 << SEEK,
    "leave": 0,
}
"""By move, the modes that an asynchronous exception in the middle of it leaves abandoned."""


class Deaths:
    """Every move from every reachable state, stopped at every store, by death or by an exception; and its repair."""

    def __init__(self, slots: int, *, fast: bool = True, kind: type[State] = State, every: int = 1) -> None:
        self.states = reachable(slots, fast=fast, kind=kind)[::every]
        # With three, a death stands for a departure, which does the same.
        self.moves = {*ASKED, "withdraw", "settle", "die", *(["close"] if slots < 3 else [])}
        self._drained: set[object] = set()
        self._repaired: set[object] = set()
        self.count = 0

    def check(self) -> None:
        """Raise AssertionError with the state, the move, and what was wrong."""
        for lock in self.states:
            part = parts(lock)
            # Of two participants with the same part, one will do.
            moves = {(name, part[number]): (name, number) for name, number in lock.moves()}
            for move in moves.values():
                idle = not any(part[move[1]][:2]) and move[1] not in {lock.picture().writer, lock.picture().seeker}
                if move[0] in self.moves and not (move[0] == "die" and idle and lock.slots > 2):
                    for stored, stopped in stops(lock, move):
                        self.count += 1
                        self._go_on(lock, move, stored, stopped)

    def _go_on(self, lock: Lock, move: Move, stored: list[int], stopped: Lock) -> None:
        name, number = move
        before = lock.picture()
        where = (before, move, stored)
        if {slot(number) + READS, slot(number) + WANT}.issuperset(stored) and name in {"enter", "leave"}:
            # Not under the guard yet: nobody sees that there is anything to repair.
            if slot(number) + WANT in stored:
                self._is_interrupted(before, stopped.copy(), move, where)
            self._dies(before, stopped, number, where)
            return
        self._repair_at_every_store(stopped, where)
        stopped.play(("repair", 0))
        self._see(before, stopped, number, where)
        if name == "settle":
            if stopped.words[slot(number) + ABANDONED]:
                stopped.play(move)
            self._ends_as(lock, move, stopped, where)
        elif name in {"die", "close"}:
            if stopped.words[slot(number) + IN_USE]:
                stopped.play(move)
            self._ends_as(lock, move, stopped, where)
        else:
            self._is_interrupted(before, stopped.copy(), move, where)
            self._dies(before, stopped, number, where)

    def _see(self, before: Picture, lock: Lock, actor: int, where: object) -> None:
        assert not lock.wrong(), (where, lock.wrong())
        lost = kept(before, lock.picture(), actor)
        assert not lost, (where, lost)

    def _dies(self, before: Picture, lock: Lock, number: int, where: object) -> None:
        wrote = lock.words[WRITER] == number + 1
        lock.play(("die", number))
        self._see(before, lock, number, where)
        now = lock.picture()
        assert not now.reads[number], where
        assert not now.wants[number], where
        assert number not in {now.writer, now.seeker}, where
        assert now.owner_died or not wrote, where
        self._drain(lock)

    def _is_interrupted(self, before: Picture, lock: Lock, move: Move, where: object) -> None:
        name, number = move
        asked = 1 << before.wants[number] if name == "withdraw" else ASKED[name]
        if asked:
            lock.words[slot(number) + ABANDONED] = asked
            lock.play(("settle", number))
        self._see(before, lock, number, where)
        now = lock.picture()
        assert not asked & (1 << WRITE | 1 << UPGRADE) or now.writer != number, where
        assert not asked & 1 << SEEK or now.seeker != number, where
        assert not now.wants[number], where
        self._drain(lock)

    def _ends_as(self, lock: Lock, move: Move, stopped: Lock, where: object) -> None:
        whole = lock.copy()
        whole.play(move)
        assert signature(stopped) == signature(whole), where
        assert stopped.words[HIGH_WATER] == whole.words[HIGH_WATER], where
        assert stopped.picture().facts() == whole.picture().facts(), where
        assert not stopped.wrong(), where
        self._drain(stopped)

    def _drain(self, lock: Lock) -> None:
        key = signature(lock)
        if key not in self._drained:
            self._drained.add(key)
            drain(lock.copy())

    def _repair_at_every_store(self, stopped: Lock, where: object) -> None:
        words = stopped.words
        key = signature(stopped), words[SEQUENCE] & 1, words[FOLD] >> 1 > 0, words[HIGH_WATER]
        if key in self._repaired:
            return
        self._repaired.add(key)
        whole = stopped.copy()
        whole.play(("repair", 0))
        facts = whole.picture().facts()
        again = whole.copy()
        again.play(("repair", 0))
        changed = [index for index, word in enumerate(again.words) if word != whole.words[index]]
        assert changed == [REPAIRS], (where, changed)
        for _, twice in stops(stopped, ("repair", 0)):
            twice.play(("repair", 0))
            assert twice.picture().facts() == facts, where
            assert not twice.wrong(), (where, twice.wrong())


@pytest.mark.parametrize(("slots", "fast", "every"), [(2, True, 1), (2, False, 1), (3, True, 3)])
def test_stopped_at_every_store(slots: int, fast: bool, every: int) -> None:
    """Wherever an operation stops, by death or by an exception, nobody else loses anything, and all are let in.

    All operations, from all states that two participants can reach, and every third of those of three. What an
    eviction or a settlement was doing is finished by the next one, and a repair by the next repair, to the same result.
    """
    deaths = Deaths(slots, fast=fast, every=every)
    deaths.check()
    assert deaths.count > 3_000


# --- fences


class Fences:
    """All three obligations, as on a machine with weak order; each fence is logged among the stores and loads."""

    def __init__(self, words: LoggedWords) -> None:
        self._words = words

    def _fence(self, name: str) -> None:
        if not self._words.left:
            raise Stopped  # who dies after a store has not made the fence that follows it
        self._words.log.append((name, 0))

    def after_closing(self) -> None:
        """Between closing the gate and looking at the readers' words."""
        self._fence("after_closing")

    def before_writing(self) -> None:
        """Between the drain and the first write."""
        self._fence("before_writing")

    def before_opening(self) -> None:
        """Between the last write and opening the gate."""
        self._fence("before_opening")

    def here(self) -> None:
        """Between a store of this thread and its look at the wants."""
        self._fence("here")


class LoggedWords(EndingWords):
    """Words that also tell of the stores that matter here, and who looked at the readers' words."""

    log: list[tuple[str, int]]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step == SLOT.size:
            if index.start == slot(0) + READS:
                self.log.append(("scan", 0))
            elif index.start == slot(0) + WANT:
                self.log.append(("look", 0))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self[index]
        super().__setitem__(index, value)
        if index == GATE:
            self.log.append(("close" if value == GATE_CLOSED else "open", 0))
        elif index == SEQUENCE:
            self.log.append(("odd" if value & 1 else "even", 0))
        elif index == WRITER:
            self.log.append(("writer", value - 1) if value else ("ended", 0))
        elif index >= slot(0) and (index - slot(0)) % SLOT.size == WANT and before and not value:
            self.log.append(("granted", (index - slot(0)) // SLOT.size))


def fenced_copy(lock: Lock) -> tuple[Lock, LoggedWords]:
    """The same lock on a weak machine, and its words, which log what happens to it."""
    other = lock.copy()
    words = LoggedWords("Q", lock.words)
    words.log = []
    other.bind(words)
    other.state = lock.kind(words, Fences(words), fast=True)
    return other, words


def unfenced(words: LoggedWords) -> list[str]:
    """Say which of the three obligations was not met between the steps of a log."""
    found = []
    steps = [step for step, _ in words.log]
    for position, (step, number) in enumerate(words.log):
        behind = steps[:position]
        if step == "writer" and "close" in behind and "after_closing" not in up_to("scan", since("close", behind)):
            found.append("the readers' words were looked at before the fence after closing")
        if step == "open" and "before_opening" not in behind:
            found.append("the gate was opened without a fence")
        if step == "even" and "before_opening" not in behind:
            found.append("the sequence was made even without a fence")
        if step == "granted" and words[WRITER] == number + 1 and "before_writing" not in since("writer", behind):
            found.append(f"{number} could write before the fence after the drain")
    for step in ("open", "ended"):
        after = since(step, steps)
        if step in steps and not ("here" in after and "look" in since("here", after)):
            found.append(f"nobody looked for a reader that had stored its want before the {step} could be seen")
    if "odd" in steps and "before_writing" not in since("odd", steps):
        found.append("W was granted without a fence after the sequence became odd")
    return found


def since(step: str, steps: list[str]) -> list[str]:
    """What came after the last of these steps."""
    return steps[len(steps) - steps[::-1].index(step) :] if step in steps else steps


def up_to(step: str, steps: list[str]) -> list[str]:
    """What came before the last of these steps."""
    return steps[: len(steps) - 1 - steps[::-1].index(step)] if step in steps else []


def test_every_change_of_the_gate_is_fenced() -> None:
    """Where order is weak: a fence between closing and scanning, between drain and grant, and before opening."""
    for lock in reachable(3, fast=True):
        for move in lock.moves():
            other, words = fenced_copy(lock)
            other.play(move)
            assert not unfenced(words), (lock.picture(), move, words.log)


def test_repair_is_fenced() -> None:
    """The same when a granter is killed at any store, and another one repairs: no fence is left out."""
    for lock in reachable(2, fast=True):
        for move in lock.moves():
            for stores, index in enumerate(stores_of(lock, move)):
                if in_an_account(index):
                    continue
                other, words = fenced_copy(lock)
                words.left = stores
                with suppress(Stopped):
                    other.play(move)
                words.left = -1
                other.play(("repair", 0))
                assert not unfenced(words), (lock.picture(), move, stores, words.log)
