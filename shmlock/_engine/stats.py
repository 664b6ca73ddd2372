"""A lock's own counters. Each participant adds to its own account with plain stores; readers sum them up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shmlock._engine.modes import READ, SEEK, UPGRADE, WRITE
from shmlock._kernel.interrupts import begins_at_once
from shmlock._segment.layout import (
    ACCOUNT,
    ACCOUNT_AT,
    BANKS,
    EVICTIONS,
    FOLD,
    HIGH_WATER,
    MAXIMA,
    OWNER_DEATHS,
    READS,
    REPAIRS,
    REVOCATION_NS,
    REVOCATIONS,
    slot,
)
from shmlock._segment.noise import Sound

if TYPE_CHECKING:
    from shmlock._engine.state import Words
    from shmlock._segment.segment import Segment

FULL: Final = 1  # in the header's option: count fast reads, too

_FIELDS: Final = ("locks", "unlocks", "waits", "wait_ns", "longest_ns")
_FIRST: Final = {
    WRITE: ACCOUNT["write_locks"],
    UPGRADE: ACCOUNT["write_locks"],
    SEEK: ACCOUNT["seek_locks"],
    READ: ACCOUNT["read_locks"],
}
_UNLOCKS, _WAITS, _WAIT_NS, _LONGEST = range(1, 5)
_HISTOGRAM: Final = ACCOUNT["wait_histogram"]
_BUCKETS: Final = ACCOUNT.size - _HISTOGRAM
_TIMEOUTS: Final = ACCOUNT["timeouts"]


class Account:
    """One participant's own. Cost: a load and a store a count, on its own lines."""

    __slots__ = ("_at", "_words")

    def __init__(self, words: Words, at: int) -> None:
        self._words = words
        self._at = at

    @begins_at_once
    def locked(self, mode: int) -> None:
        self._words[self._at + _FIRST[mode]] += 1

    @begins_at_once
    def unlocked(self, mode: int) -> None:
        self._words[self._at + _FIRST[mode] + _UNLOCKS] += 1

    def timed_out(self) -> None:
        self._words[self._at + _TIMEOUTS] += 1

    def waited(self, mode: int, nanoseconds: int) -> None:
        words = self._words
        first = self._at + _FIRST[mode]
        words[first + _WAITS] += 1
        words[first + _WAIT_NS] += nanoseconds
        words[first + _LONGEST] = max(words[first + _LONGEST], nanoseconds)
        bucket = min((nanoseconds // 1000).bit_length(), _BUCKETS - 1)
        words[self._at + _HISTOGRAM + bucket] += 1


@dataclass(frozen=True)
class ModeStatistics:
    """What one mode of a lock has seen. Times in nanoseconds."""

    locks: int
    unlocks: int
    waits: int
    wait_ns: int
    longest_wait_ns: int


@dataclass(frozen=True)
class LockStatistics:
    """A lock's counters since its segment was made, over all participants, departed ones included.

    Reads are counted where they take the slow path, or all of them with `statistics="full"`.
    `wait_histogram[i]` counts waits of less than 2**i microseconds, the last all longer ones.
    """

    name: str
    write: ModeStatistics
    seek: ModeStatistics
    read: ModeStatistics
    timeouts: int
    evictions: int
    repairs: int
    owner_deaths: int
    revocations: int
    revocation_ns: int
    wait_histogram: tuple[int, ...]

    def __str__(self) -> str:
        """The table that HAProxy prints of its locks; the difference in brackets shows a leak."""
        lines = [f"Stats about Lock {self.name}:"]
        for mode in ("write", "seek", "read"):
            seen: ModeStatistics = getattr(self, mode)
            average = seen.wait_ns / seen.locks if seen.locks else 0.0
            lines += [
                f"    {mode} lock  : {seen.locks}",
                f"    {mode} unlock: {seen.unlocks} ({seen.locks - seen.unlocks})",
                f"    wait time for {mode}     : {seen.wait_ns / 1e6:.3f} msec",
                f"    wait time for {mode}/lock: {average:.3f} nsec",
            ]
        return "\n".join(lines)


def read_statistics(segment: Segment) -> LockStatistics:
    """Sum up all accounts, without the guard. A fold that comes in between is noticed, and the sum made again."""
    words = segment.words
    for _ in range(100):
        fold = words[FOLD]
        bank = BANKS[fold & 1]
        total = words[bank : bank + ACCOUNT.size].tolist()
        held = 0
        with Sound(segment.name):
            for number in range(words[HIGH_WATER]):
                held += words[slot(number) + READS]
                if number + 1 == fold >> 1:
                    continue  # in the bank already
                start = slot(number) + ACCOUNT_AT
                for offset, value in enumerate(words[start : start + ACCOUNT.size].tolist()):
                    total[offset] = max(total[offset], value) if offset in MAXIMA else total[offset] + value
        if words[FOLD] == fold:
            break

    def mode(which: int) -> ModeStatistics:
        first = _FIRST[which]
        return ModeStatistics(*total[first : first + len(_FIELDS)])

    read = mode(READ)
    if not segment.header.option & FULL:
        # A read that came in the slow way may leave in the fast one: what is not held any more has been left.
        read = replace(read, unlocks=read.locks - min(held, read.locks))
    return LockStatistics(
        name=segment.name,
        write=mode(WRITE),
        seek=mode(SEEK),
        read=read,
        timeouts=total[_TIMEOUTS],
        evictions=words[EVICTIONS],
        repairs=words[REPAIRS],
        owner_deaths=words[OWNER_DEATHS],
        revocations=words[REVOCATIONS],
        revocation_ns=words[REVOCATION_NS],
        wait_histogram=tuple(total[_HISTOGRAM:]),
    )
