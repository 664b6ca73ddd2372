"""What a reader does without the guard, at every point of every change that somebody makes under it.

One order of all loads and stores is assumed here; that there is one is what the fences are for.
"""

# ruff: noqa: D102  what each class does wrong is said at its head

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shmlock._engine.modes import MODE_BITS, READ
from shmlock._engine.state import State
from shmlock._segment.layout import GATE, GATE_CLOSED, GATE_OPEN, OWED, READS, SEEKER, TICKET, WANT, WRITER, slot
from tests.engine.plain_lock import EndingWords, Lock, Move, drain, parts, signature
from tests.engine.reference import reachable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# A reader's program is a generator: it yields False before a load or store, and True when it needs the guard.


def others_decide(lock: Lock) -> Generator[bool, None, bool]:
    """`Acquisition._others_decide`, load by load; the fence before it is not seen in one order."""
    yield False
    if lock.words[GATE] != GATE_CLOSED:
        return False
    yield False
    if lock.words[WRITER]:
        return True
    yield False
    reads = lock.state.column(READS)
    yield False
    seeker = lock.words[SEEKER]
    if seeker:
        reads[seeker - 1] = 0
    return any(reads)


def entering(lock: Lock, number: int) -> Generator[bool, None, None]:
    """Read, or wait for it."""
    reads, want = slot(number) + READS, slot(number) + WANT
    lock.words[reads] = 1
    yield False
    if lock.words[GATE] == GATE_OPEN:
        return
    yield False
    lock.words[reads] = 0
    yield False
    ticket = lock.words[TICKET]
    yield False
    lock.words[want] = ticket << MODE_BITS | READ
    if not (yield from others_decide(lock)):
        yield True


def leaving(lock: Lock, number: int) -> Generator[bool, None, None]:
    """Stop reading."""
    lock.words[slot(number) + READS] = 0
    yield False
    if lock.words[GATE] != GATE_OPEN and not (yield from others_decide(lock)):
        yield True


class WatchedWords(EndingWords):
    """Words that call somebody before a load or store of theirs, given by its number."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.accesses = 0
        self.before = -1
        self.call: Callable[[], None] = lambda: None

    def _step(self) -> None:
        self.accesses += 1
        if self.accesses == self.before:
            self.call()

    def __getitem__(self, index: Any) -> Any:
        self._step()
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._step()
        super().__setitem__(index, value)


def beside(lock: Lock, move: Move, reader: int, point: int, steps: int) -> tuple[Lock, int]:
    """Make the move; before its load or store of this number the reader makes so many steps, and the rest at its end.

    The lock afterwards, and how many loads and stores there were.
    """
    other = lock.copy()
    words = WatchedWords("Q", lock.words)
    other.bind(words)
    program = (leaving if other.words[slot(reader) + READS] else entering)(other, reader)
    needs_guard = False
    going = True

    def go_on(steps: int) -> None:
        nonlocal needs_guard, going
        while steps and going and not needs_guard:
            steps -= 1
            step = next(program, None)
            going = step is not None
            needs_guard = step is True

    words.accesses, words.before = 0, point
    words.call = lambda: go_on(steps)
    other.play(move)
    made, words.before = words.accesses, -1
    go_on(-1)
    if needs_guard:
        other.state.decide()
    return other, made


GUARDED = {
    *("ask_seek", "ask_write", "upgrade", "withdraw", "try_write", "read_to_seek", "read_to_write"),
    *("release_write", "release_seek", "release_upgraded", "write_to_seek", "write_to_read", "seek_to_read"),
    *("settle", "die", "decide"),
}


def check_beside(slots: int, every: int, kind: type[State] = State) -> int:
    """Try it from every so many of all reachable states. Raise AssertionError, or return how often it was tried."""
    tried = 0
    drained = set()
    for lock in reachable(slots, fast=True, kind=kind)[::every]:
        now, part = lock.picture(), parts(lock)
        readers = {
            part[number]: number
            for number in range(slots)
            if now.reads[number] < 2 and not now.wants[number] and number not in {now.writer, now.seeker}
        }
        moves = {(name, part[number]): (name, number) for name, number in lock.moves() if name in GUARDED}
        for move in [*moves.values(), ("decide", -1)]:
            for reader in readers.values():
                if reader == move[1]:
                    continue
                for where, after in everywhere(lock, move, reader):
                    tried += 1
                    assert not after.wrong(), (now, where, after.wrong())
                    if signature(after) not in drained:
                        drained.add(signature(after))
                        drain(after.copy())
    return tried


def everywhere(lock: Lock, move: Move, reader: int) -> Iterator[tuple[object, Lock]]:
    """The lock afterwards for each point of the move, and each number of steps that the reader makes there."""
    point, made = 0, 1
    while point < made:
        point += 1
        for steps in range(1, MOST_STEPS + 1):
            after, made = beside(lock, move, reader, point, steps)
            yield (move, reader, point, steps), after


MOST_STEPS = 9  # of `entering`


@pytest.mark.parametrize(("slots", "every"), [(2, 4), (3, 150)])
def test_reader_beside_every_change(slots: int, every: int) -> None:
    """A reader that enters or leaves beside a change is in only if it may be; nobody is left waiting who need not."""
    assert check_beside(slots, every) > 1000


class OpensUnseen(State):
    """Who opens the gate does not look again for those that still saw it closed."""

    __slots__ = ()

    def _flow(self, wants: list[int]) -> None:
        self._admit(wants)
        self._words[GATE] = self._open


class LooksTooEarly(State):
    """A writer looks for waiting readers before it has stored that it holds no more."""

    __slots__ = ()

    def release_write(self, vouch: bool) -> None:  # noqa: ARG002  as it is called
        waiting = self.column(WANT)
        self._end_write()
        self._admit(waiting)
        self._words[OWED] = 0
        if not any(self.column(WANT)):
            self._words[GATE] = self._open


@pytest.mark.parametrize("kind", [OpensUnseen, LooksTooEarly])
def test_reader_beside_every_change_catches(kind: type[State]) -> None:
    """A decider that misses a reader is found out."""
    with pytest.raises(AssertionError):
        check_beside(2, 1, kind)
