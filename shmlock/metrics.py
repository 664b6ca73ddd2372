"""Round-trip metrics that all workers record and any of them can read: status codes and latencies, in rolling windows.

Recording takes no lock and waits for nobody: each thread counts in a shard of its own. Reading sums up the shards (one
that is just being stored to is read again) and stores nothing. (After the metrics of vulcand/oxy, which keeps them
for one process under one lock.)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from shmlock._engine.engine import engine_of
from shmlock._engine.handle import DEFAULT_PARTICIPANTS, Handle
from shmlock._engine.stats import LockStatistics, read_statistics
from shmlock._kernel.membarrier import Fences
from shmlock._rolling import CODES, FIRST_CODE, Geometry, Shard, Table, Tally
from shmlock._segment import noise
from shmlock._segment.header import Kind
from shmlock._segment.noise import Sound
from shmlock.errors import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock._engine.engine import Engine
    from shmlock._hdr import Scale

_NETWORK_ERRORS: Final = (502, 504)  # bad gateway, gateway timeout: the other side is not there


@dataclass(frozen=True)
class LatencyHistogram:
    """How long requests took: counts on a scale whose buckets are right to 1 %. Times in seconds."""

    scale: Scale
    counts: dict[int, int]

    @property
    def total_count(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def latency_at_quantile(self, quantile: float) -> float:
        """The latency that so many per cent stayed within, seconds; 0.0 when there is none.

        As HdrHistogram has it: the highest that is counted in the same bucket, so at most 1 % (2 figures) too high.
        Raises ValueError for less than 0 or more than 100.
        """
        if not 0 <= quantile <= 100:
            raise ValueError(f"a quantile is from 0 to 100, not {quantile!r}")
        total = self.total_count
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= total * quantile / 100:
                return (self.scale.lowest(bucket) + self.scale.width(bucket) - 1) / 1e6
        return 0.0

    def mean(self) -> float:
        """Right to half a bucket, like all that is computed from a histogram; 0.0 when there is none."""
        total = self.total_count
        return sum(count * middle for _, middle, _, count in self) / total if total else 0.0

    def __iter__(self) -> Iterator[tuple[float, float, float, int]]:
        """Each bucket that is not empty: its lowest latency, its middle, what lies above it, and its count."""
        for bucket in sorted(self.counts):
            low, width = self.scale.lowest(bucket), self.scale.width(bucket)
            yield low / 1e6, (low + (width - 1) / 2) / 1e6, (low + width) / 1e6, self.counts[bucket]

    def to_hdr(self) -> Any:
        """As an `hdrh.histogram.HdrHistogram` of microseconds, to merge, encode or print. Needs shmlock-rw[hdr]."""
        try:
            from hdrh.histogram import HdrHistogram  # noqa: PLC0415  an extra, for those who ask for it
        except ImportError as error:
            raise ImportError("HdrHistogram is not installed: pip install shmlock-rw[hdr]") from error
        histogram = HdrHistogram(1, self.scale.highest, self.scale.figures)
        for bucket, count in self.counts.items():
            histogram.record_value(self.scale.lowest(bucket), count)
        return histogram


def _network_errors(counts: dict[int, int]) -> int:
    return sum(counts.get(code, 0) for code in _NETWORK_ERRORS)


class _Readings:
    """What can be asked of metrics, and of what was exported of them. Ratios are 0.0 where there is nothing."""

    def _tally(self, *, latencies: bool) -> Tally:
        raise NotImplementedError

    def total_count(self) -> int:
        """How many were recorded within the window."""
        return sum(self.status_codes_counts().values())

    def status_codes_counts(self) -> dict[int, int]:
        """How many of each status code, by code; zeros left out."""
        return self._tally(latencies=False).codes()

    def network_error_count(self) -> int:
        """How many 502 and 504."""
        return _network_errors(self.status_codes_counts())

    def network_error_ratio(self) -> float:
        """The share of 502 and 504 in all."""
        counts = self.status_codes_counts()
        total = sum(counts.values())
        return _network_errors(counts) / total if total else 0.0

    def response_code_ratio(self, start_a: int, end_a: int, start_b: int, end_b: int) -> float:
        """How many codes from `start_a` up to, not including, `end_a` there are for one from `start_b` to `end_b`.

        >>> import shmlock
        >>> metrics = shmlock.RTMetrics("docs.ratio", max_participants=4)
        >>> for code in (200, 200, 200, 503):
        ...     metrics.record(code, 0.01)
        >>> metrics.response_code_ratio(500, 600, 200, 300)
        0.3333333333333333
        >>> metrics.unlink()
        """
        counts = self.status_codes_counts().items()
        above = sum(count for code, count in counts if start_a <= code < end_a)
        below = sum(count for code, count in counts if start_b <= code < end_b)
        return above / below if below else 0.0

    def latency_histogram(self) -> LatencyHistogram:
        """How long those took that were recorded within the histogram's windows."""
        tally = self._tally(latencies=True)
        return LatencyHistogram(tally.geometry.scale, tally.latencies())


class MetricsSnapshot(_Readings):
    """What RTMetrics had at one moment, for good. Asked twice, it gives one truth. Pickles."""

    def __init__(self, name: str, source: tuple[int, int], tally: Tally) -> None:
        self.name = name
        self._source = source
        self._counted = tally

    def _tally(self, *, latencies: bool) -> Tally:  # noqa: ARG002  it has both
        return self._counted

    def __repr__(self) -> str:
        return f"<shmlock.MetricsSnapshot of {self.name!r}: {self.total_count()} recorded>"


class RTMetrics(Handle, _Readings):
    """Counts of status codes, and a histogram of latencies, over the last seconds, recorded by many processes.

    >>> import shmlock
    >>> metrics = shmlock.RTMetrics("docs.metrics", max_participants=4)
    >>> metrics.record(200, 0.012)
    >>> metrics.record(504, 1.5)
    >>> metrics.total_count(), metrics.network_error_ratio()
    (2, 0.5)
    >>> metrics.latency_histogram().latency_at_quantile(50)
    0.012031
    >>> metrics.unlink()

    Totals are exact: each record counts once, in the second in which it was made, until it is out of the window; also
    when the process that made it has ended since, or was killed. A process that is killed in the middle of a record may
    leave that one half counted, and no other.

    `buckets` of `resolution` seconds each are the window of the counts, the present one included: between 9 and 10 s,
    if nothing else is said. `windows` of `window_seconds` each, a multiple of `resolution`, are that of the histogram,
    which goes to `highest` seconds with `figures` significant figures (1 to 3). All fixed at creation.
    `clock`: seconds that all processes agree on; `time.monotonic` unless a test has another.
    Memory: 104 KB for each of `max_participants`. The other arguments as for `RWLock`.
    """

    _kind: ClassVar[Kind] = Kind.RTMetrics

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
        max_participants: int | None = None,
        buckets: int | None = None,
        resolution: float | None = None,
        windows: int | None = None,
        window_seconds: float | None = None,
        highest: int | None = None,
        figures: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        asked = _Asked(buckets, resolution, windows, window_seconds, highest, figures)
        geometry = asked.geometry()
        super().__init__(
            name,
            create=create,
            mode=mode,
            owner=owner,
            max_participants=max_participants,
            defaults=(geometry.packed(), 0),
            payload_size=lambda _: geometry.payload_size(max_participants or DEFAULT_PARTICIPANTS),
        )
        self._geometry = Geometry.unpacked(self._segment.header.capacity)
        asked.check(self._name, self._geometry)
        self._engine: Engine = engine_of(self._segment)
        self._here = self._engine.here
        self._clock = clock
        self._tick = self._geometry.tick_ms / 1000
        self._longest = float(self._geometry.highest)
        fence = Fences(fast=self._segment.header.fast).before_writing  # where the machine is one that needs it
        self._table = Table(self._segment.payload, self._geometry, fence)

    # --- recording

    def record(self, code: int, seconds: float) -> None:
        """Count a response: its status code, and how long it took.

        Longer than the histogram goes counts as its longest. Raises ValueError, and counts nothing, for a code outside
        100 to 599 or a time that is negative or not a number; TypeError for what is no number at all.
        Cost: about twice that of an uncontended lock around `counts[code] += 1`, however many others record.
        """
        try:
            shard = self._here.shard
        except AttributeError:
            shard = self._join()
        if not (100 <= code < 600 and 0 <= seconds <= self._longest):
            seconds = self._checked(code, seconds)
        try:
            shard.record(int(self._clock() / self._tick), code, int(seconds * 1e6))
        except ValueError as error:
            noise.check(self._name, error)
            raise

    def _checked(self, code: int, seconds: float) -> float:
        if not FIRST_CODE <= code < FIRST_CODE + CODES:
            raise ValueError(f"{self._name}: a status code is from 100 to 599, not {code!r}")
        if not seconds >= 0:
            raise ValueError(f"{self._name}: seconds must be from 0 up, not {seconds!r}")
        return self._longest

    def _join(self) -> Shard:
        """The calling thread's shard, from its first record on."""
        engine = self._engine
        number = engine.take_part()
        engine.under_guard(self._table.enlist, number)
        shard = self._here.shard = self._table.shard(number)
        return shard

    # --- reading

    def _tally(self, *, latencies: bool) -> Tally:
        with Sound(self._name):
            return self._table.tally(int(self._clock() / self._tick), latencies=latencies)

    def export(self) -> MetricsSnapshot:
        """All that counts now, apart from what is recorded from now on."""
        return MetricsSnapshot(self._name, self._segment.identity, self._tally(latencies=True))

    def totals(self) -> dict[int, int]:
        """How many of each status code since creation, by code: what never grows old, nor is reset; zeros left out."""
        with Sound(self._name):
            return self._table.totals()

    def latency_sum(self) -> float:
        """The latencies of all that was recorded since creation, in seconds."""
        with Sound(self._name):
            return self._table.microseconds() / 1e6

    def counter_window_size(self) -> float:
        """The time that the counts are of, in seconds."""
        return self._geometry.buckets * self._tick

    # --- changing

    def append(self, other: RTMetrics | MetricsSnapshot) -> None:
        """Count all that another has counted within its window, as if it had been recorded here, at its time.

        What is out of the window here is left out. Raises ValueError for metrics of another geometry, and for oneself:
        that would count everything twice. A process that is killed in it may leave a part of it counted.
        """
        snapshot = other.export() if isinstance(other, RTMetrics) else other
        if snapshot._source == self._segment.identity:  # noqa: SLF001  a friend
            raise ValueError(f"{self._name}: metrics can't be appended to themselves")
        tally = snapshot._tally(latencies=True)  # noqa: SLF001  as above
        if tally.geometry != self._geometry:
            raise ValueError(f"{self._name}: {snapshot.name} has other buckets or windows")
        try:
            shard = self._here.shard
        except AttributeError:
            shard = self._join()
        with Sound(self._name):
            shard.add(tally)

    def reset(self) -> None:
        """Have all that was recorded so far count no more, in `totals` and `latency_sum` apart.

        Each record counts either before it or after; one that is made at the same time in one way or the other. Several
        resets at once come one after the other.
        """
        self._engine.change(lambda: self._table.rebase(int(self._clock() / self._tick)))

    # --- as every shared object

    def statistics(self) -> LockStatistics:
        """The counters of the lock below, which only resets take."""
        return read_statistics(self._segment)

    def _shut(self, closed: Any) -> None:
        self._here = self._table = closed
        super()._shut(closed)

    def _arguments(self) -> dict[str, Any]:
        clock = {} if self._clock is time.monotonic else {"clock": self._clock}
        return super()._arguments() | clock

    def _describe(self) -> str:
        return f"{self.total_count()} recorded in the last {self.counter_window_size():g} s"


@dataclass(frozen=True)
class _Asked:
    """What a caller says of the geometry; None: as it is, or as usual."""

    buckets: int | None
    resolution: float | None
    windows: int | None
    window_seconds: float | None
    highest: int | None
    figures: int | None

    def geometry(self) -> Geometry:
        """What to create."""
        resolution = 1.0 if self.resolution is None else float(self.resolution)
        if not 0 < resolution < math.inf or not (resolution * 1000).is_integer():
            raise ValueError(f"resolution must be whole milliseconds, and some, not {resolution!r} s")
        window = 10 * resolution if self.window_seconds is None else self.window_seconds
        ticks = window / resolution
        if not ticks.is_integer():
            raise ValueError(f"window_seconds must be a multiple of resolution ({resolution!r}), not {window!r}")
        geometry = Geometry(
            buckets=10 if self.buckets is None else self.buckets,
            tick_ms=int(resolution * 1000),
            windows=6 if self.windows is None else self.windows,
            ticks=int(ticks),
            highest=3600 if self.highest is None else self.highest,
            figures=2 if self.figures is None else self.figures,
        )
        geometry.packed()  # which knows the ranges
        return geometry

    def check(self, name: str, there: Geometry) -> None:
        """Raise LayoutMismatch when the segment is of another."""
        seconds = there.tick_ms / 1000
        for what, asked, found in (
            ("buckets", self.buckets, there.buckets),
            ("resolution", self.resolution, seconds),
            ("windows", self.windows, there.windows),
            ("window_seconds", self.window_seconds, there.ticks * seconds),
            ("highest", self.highest, there.highest),
            ("figures", self.figures, there.figures),
        ):
            if asked is not None and asked != found:
                raise LayoutMismatch(f"{name}: {what} is {found:g}, not {asked:g}")
