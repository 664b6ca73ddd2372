"""Counts in rolling windows, one shard a participant, on words that only its owner stores. Pure.

    control | baseline 0 | baseline 1 | shard 0 | shard 1 | ... | shard n-1
    shard:    sequence, sum | a stamp a bucket | a stamp a window | totals | counts by code, a bucket each | histograms

Time is cut into ticks, and a bucket holds what was counted in one tick, a window in several. Each says in its stamp
which, and a stamp that is not of the present is of no account: so nothing is ever swept, and nobody that reads
stores anything. An owner that comes upon a bucket of the past clears it for the present.

A shard belongs to its slot and not to a participant. When that one has gone, or was killed, its counts stay, count,
and age like all others; the next owner of the slot goes on where it stopped. So there is nothing to hand over, and
nothing to be counted twice or lost by it.

What has been counted only grows, within a tick. So a reset is a baseline: the sums of a moment, which are taken off
from then on. It is written where no baseline is in force, and put into force by one store.

Sums are taken of whole rows: 32-bit counts side by side are a number, and the sum of two such numbers is the row of
the sums, as long as none passes 32 bits. (Row by row in Python's own arithmetic that is a hundred times faster than
count by count.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shmlock._hdr import Scale
from shmlock._lazy import lazy
from shmlock._segment.layout import MOST_PARTICIPANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FIRST_CODE: Final = 100
CODES: Final = 500  # 100 to 599
_COUNT: Final = 4  # bytes
_WORD: Final = 8
_LINE: Final = 128

TRIES: Final = 16  # at a copy of a shard that is stored to

# Words of the control line. used: no shard from here up has ever been used; grows only, under the guard.
# base: 0, or the number of the reset that made the baseline in force, times 2, plus which of the two it is.
USED: Final = 0
BASE: Final = 1

_SEQUENCE, _SUM, _STAMPS = 0, 1, 2  # words of a shard; sum: microseconds since creation


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE


@dataclass(frozen=True)
class Kind:
    """Rows of counts, one for each of the last `number` times, in a shard."""

    number: int
    stamps: int  # the first one's, in words
    rows: int  # the first one, in bytes
    size: int  # of a row, in bytes; whole words

    def stamp(self, time: int) -> int:
        """The word that says of which time the row is, plus one; 0 of none."""
        return self.stamps + time % self.number

    def row(self, time: int) -> int:
        """Where it begins."""
        return self.rows + time % self.number * self.size

    def sums(self, block: bytes, time: int) -> int:
        """A row as one number."""
        return int.from_bytes(block[self.row(time) : self.row(time) + self.size], "little")


@dataclass(frozen=True)
class Geometry:
    """How much is kept: `buckets` of one tick, and `windows` of so many ticks each. Times in ms, `highest` in s."""

    buckets: int
    tick_ms: int
    windows: int
    ticks: int  # in a window
    highest: int
    figures: int

    _BITS = (("buckets", 9), ("tick_ms", 18), ("windows", 7), ("ticks", 12), ("highest", 15), ("figures", 2))

    @classmethod
    def unpacked(cls, number: int) -> Geometry:
        """What `packed` made a number of."""
        found = {}
        for name, bits in cls._BITS:
            found[name] = number & (1 << bits) - 1
            number >>= bits
        return cls(**found)

    def packed(self) -> int:
        """As one number. Raises ValueError when a part is out of its range."""
        number, shift = 0, 0
        for name, bits in self._BITS:
            value = getattr(self, name)
            if not 1 <= value < 1 << bits:
                raise ValueError(f"{name} must be from 1 to {(1 << bits) - 1}, not {value}")
            number |= value << shift
            shift += bits
        return number

    @lazy
    def scale(self) -> Scale:
        """Of latencies, in microseconds."""
        return Scale(self.highest * 1_000_000, self.figures)

    # Offsets in bytes from the start of a shard; `codes` and `histograms` are rows of counts.

    @lazy
    def totals_at(self) -> int:
        """Of the words that count by code since creation."""
        return _lines((_STAMPS + self.buckets + self.windows) * _WORD)

    @lazy
    def codes_at(self) -> int:
        """Of a row for each bucket."""
        return self.totals_at + CODES * _WORD

    @lazy
    def histograms_at(self) -> int:
        """Of a row for each window."""
        return self.codes_at + self.buckets * CODES * _COUNT

    @lazy
    def kinds(self) -> tuple[Kind, Kind]:
        """The buckets' rows, which are by code, and the windows', which are histograms."""
        histogram = -(-self.scale.size * _COUNT // _WORD) * _WORD
        return (
            Kind(self.buckets, _STAMPS, self.codes_at, CODES * _COUNT),
            Kind(self.windows, _STAMPS + self.buckets, self.histograms_at, histogram),
        )

    @lazy
    def shard_size(self) -> int:
        """In bytes; whole lines."""
        return _lines(self.histograms_at + self.windows * self.kinds[1].size)

    def payload_size(self, participants: int) -> int:
        """In bytes."""
        return _LINE + (2 + participants) * self.shard_size


class Shard:
    """One participant's own. Cost of a record: about ten loads and five stores on its own lines."""

    __slots__ = ("at", "bits", "codes", "counts", "geometry", "tick", "totals", "window", "words")

    def __init__(self, geometry: Geometry, words: Any, counts: Any, start: int) -> None:
        """`words`, `counts`: the whole payload in words and in counts; `start`: this shard's first byte."""
        self.geometry = geometry
        self.words = words
        self.counts = counts
        self.at = start // _WORD
        self.bits = geometry.scale.bits
        self.totals = (start + geometry.totals_at) // _WORD - FIRST_CODE
        self.tick = -1
        self.codes = self.window = 0  # where counting goes on, in counts

    def record(self, tick: int, code: int, microseconds: int) -> None:
        """Count one. A tick that is past counts as the last one."""
        if tick > self.tick:
            self.turn(tick)
        shift = microseconds.bit_length() - self.bits
        bucket = (shift << self.bits - 1) + (microseconds >> shift) if shift > 0 else microseconds
        words, counts, at = self.words, self.counts, self.at
        # Also right if the last owner was killed in between.
        words[at] = odd = words[at] | 1
        words[at + _SUM] += microseconds
        words[self.totals + code] += 1
        counts[self.codes + code] += 1
        counts[self.window + bucket] += 1
        words[at] = odd + 1

    def turn(self, tick: int) -> None:
        """Go on to the bucket and the window of this tick."""
        start = self.at * _WORD
        buckets, windows = self.geometry.kinds
        window = tick // self.geometry.ticks
        self._clear(buckets, tick)
        self._clear(windows, window)
        self.codes = (start + buckets.row(tick)) // _COUNT - FIRST_CODE
        self.window = (start + windows.row(window)) // _COUNT
        self.tick = tick

    def _clear(self, kind: Kind, time: int) -> None:
        """See that a row is of this time. Its stamp is 0 while it is neither of the old one nor of the new."""
        words, at = self.words, self.at
        stamp = at + kind.stamp(time)
        if words[stamp] == time + 1:
            return
        words[at] = odd = words[at] | 1
        words[stamp] = 0
        first = at + kind.row(time) // _WORD
        words[first : first + kind.size // _WORD] = _words(0, kind.size)
        words[stamp] = time + 1
        words[at] = odd + 1

    def add(self, tally: Tally) -> None:
        """Count all that another has counted. What is older than what stands in its place is too old to count."""
        geometry, words, at = self.geometry, self.words, self.at
        words[at] = odd = words[at] | 1
        try:
            for kind, counted in zip(geometry.kinds, (tally.buckets, tally.windows), strict=True):
                for time, sums in counted.items():
                    self._add(kind, time, sums)
            for code, count in tally.codes().items():
                words[self.totals + code] += count
            words[at + _SUM] += sum(
                count * (geometry.scale.lowest(bucket) + geometry.scale.width(bucket) // 2)
                for bucket, count in tally.latencies().items()
            )
        finally:
            words[at] = odd + 1

    def _add(self, kind: Kind, time: int, sums: int) -> None:
        """Counts of the present only grow in it, also if it is cut off: a baseline relies on that."""
        words = self.words
        stamp = self.at + kind.stamp(time)
        first = self.at + kind.row(time) // _WORD
        row = words[first : first + kind.size // _WORD]
        if words[stamp] == time + 1:
            row[:] = _words(int.from_bytes(row, "little") + sums, kind.size)
        elif words[stamp] < time + 1:
            words[stamp] = 0
            row[:] = _words(sums, kind.size)
            words[stamp] = time + 1


def _words(row: int, size: int) -> memoryview[int]:
    return memoryview(row.to_bytes(size, "little")).cast("Q")


@dataclass
class Tally:
    """The sums of several shards, by tick and by window: rows of counts, each as one number."""

    geometry: Geometry
    buckets: dict[int, int] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)

    def count(self, tick: int, blocks: Iterable[bytes], base: bytes, *, latencies: bool) -> None:
        """Sum up what these shards have of the present, and take off the baseline, if there is one."""
        headers = [(memoryview(block)[: self.geometry.totals_at].cast("Q"), block) for block in blocks]
        kinds = self.geometry.kinds if latencies else self.geometry.kinds[:1]
        for kind, now, counted in zip(
            kinds, (tick, tick // self.geometry.ticks), (self.buckets, self.windows), strict=False
        ):
            for time in range(max(now - kind.number + 1, 0), now + 1):
                sums, stamp = 0, kind.stamp(time)
                # Whoever has gone on already has put the next one over the oldest: that is past, then, for all.
                if any(header[stamp] > time + 1 for header, _ in headers):
                    continue
                for header, block in headers:
                    if header[stamp] == time + 1:
                        sums += kind.sums(block, time)
                if base and memoryview(base)[stamp * _WORD : (stamp + 1) * _WORD].cast("Q")[0] == time + 1:
                    sums -= kind.sums(base, time)
                if not 0 <= sums < (1 << 8 * kind.size) // kind.number:
                    raise OverflowError(f"counts of {sums}")  # noise: nobody counts so far
                if sums:
                    counted[time] = sums

    def block(self) -> bytes:
        """As a shard would have it, for a baseline."""
        block = bytearray(self.geometry.shard_size)
        header = memoryview(block)[: self.geometry.totals_at].cast("Q")
        for kind, counted in zip(self.geometry.kinds, (self.buckets, self.windows), strict=True):
            for time, sums in counted.items():
                header[kind.stamp(time)] = time + 1
                block[kind.row(time) : kind.row(time) + kind.size] = sums.to_bytes(kind.size, "little")
        header.release()
        return bytes(block)

    def codes(self) -> dict[int, int]:
        """How often each code was counted; zeros left out."""
        return {FIRST_CODE + code: count for code, count in _counts(sum(self.buckets.values()), CODES * _COUNT)}

    def latencies(self) -> dict[int, int]:
        """How often each bucket of the scale was; zeros left out."""
        return dict(_counts(sum(self.windows.values()), self.geometry.kinds[1].size))


def _counts(row: int, size: int) -> Iterator[tuple[int, int]]:
    counts = memoryview(row.to_bytes(size, "little")).cast("I")
    return ((number, count) for number, count in enumerate(counts) if count)


def _no_fence() -> None:
    pass


class Table:
    """All shards of a segment's payload."""

    def __init__(self, payload: Any, geometry: Geometry, fence: Callable[[], None] | None = None) -> None:
        """`payload`: its bytes. `fence`: on all CPUs, where one is needed."""
        self.geometry = geometry
        self._fence = fence or _no_fence
        self._payload = payload
        self.words = payload.cast("Q")
        self.counts = payload.cast("I")

    def shard(self, number: int) -> Shard:
        """The one of a slot."""
        return Shard(self.geometry, self.words, self.counts, self._start(2 + number))

    def enlist(self, number: int) -> None:
        """Under the guard: from now on this shard is looked at."""
        self.words[USED] = max(self.words[USED], number + 1)

    def _start(self, block: int) -> int:
        return _LINE + block * self.geometry.shard_size

    def tally(self, tick: int, *, latencies: bool, gross: bool = False) -> Tally:
        """What counts at this tick; `gross`: what was counted before the last reset as well."""
        size = self.geometry.shard_size if latencies else self.geometry.histograms_at
        base = b"" if gross else self._baseline(size)  # first: what is counted meanwhile comes on top
        tally = Tally(self.geometry)
        tally.count(tick, self._copies(size), base, latencies=latencies)
        return tally

    def _baseline(self, size: int) -> bytes:
        """A copy of the one that is in force; empty if none is."""
        while base := self.words[BASE]:
            start = self._start(base & 1)
            block = bytes(self._payload[start : start + size])
            if self.words[BASE] - base < 4:  # it takes two resets to write it anew
                return block
        return b""

    def _copies(self, size: int) -> list[bytes]:
        """Each used shard between two records; or in the middle of one, if its owner was stopped or killed there.

        Where loads and stores may pass each other, a fence on all CPUs, owners' ones too, keeps the copy between the
        two looks at the sequence.
        """
        starts = list(self._used_shards())
        copies = dict.fromkeys(starts, b"")
        pending = starts
        for _ in range(TRIES):
            before = {start: self.words[start // _WORD] for start in pending}
            self._fence()
            for start in pending:
                copies[start] = bytes(self._payload[start : start + size])
            self._fence()
            pending = [start for start, found in before.items() if found & 1 or self.words[start // _WORD] != found]
            if not pending:
                break
        return list(copies.values())

    def rebase(self, tick: int) -> None:
        """Alone: have all that was counted so far count no more."""
        base = self.words[BASE]
        other = 1 - (base & 1)
        block = self.tally(tick, latencies=True, gross=True).block()
        start = self._start(other)
        self._payload[start : start + len(block)] = block
        self.words[BASE] = (base >> 1) + 1 << 1 | other

    def totals(self) -> dict[int, int]:
        """By code, since creation; zeros left out."""
        found: dict[int, int] = {}
        for start in self._used_shards():
            at = (start + self.geometry.totals_at) // _WORD
            for number, count in enumerate(self.words[at : at + CODES].tolist()):
                if count:
                    found[FIRST_CODE + number] = found.get(FIRST_CODE + number, 0) + count
        return found

    def microseconds(self) -> int:
        """The sum of all latencies, since creation."""
        return sum(self.words[start // _WORD + _SUM] for start in self._used_shards())

    def _used_shards(self) -> Iterable[int]:
        return (self._start(2 + number) for number in range(min(self.words[USED], MOST_PARTICIPANTS)))
