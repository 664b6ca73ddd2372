"""A collector for `prometheus_client`: any one process tells of all of them. Needs the extra `prometheus`.

    registry = CollectorRegistry()
    registry.register(Collector(metrics, lock, config))
    application = make_wsgi_app(registry)

What the objects count lies in their shared memory, so it makes no difference which worker is asked, and the files of
`prometheus_client`'s multiprocess mode are not needed. Of each object, by its `name`:

`shmlock_up`
: 1, or 0 when it was closed here, when its name is gone or means another segment by now, or when it can't be read.
  Nothing else is told of it then, and all of the others: its counters would be those of a segment that the next
  worker doesn't use.

RTMetrics
: `shmlock_requests_total{code}`, and `shmlock_request_duration_seconds`, a summary as Prometheus defines it: `_count`
  and `_sum` since creation, quantiles of the rolling windows (NaN when they are empty). Of the window that is
  `shmlock_window_seconds` long: `shmlock_window_requests`, `shmlock_window_network_error_ratio`.

All, for each is a lock or lies on one
: by `mode` (write, seek, read): `shmlock_lock_acquired_total`, `_waits_total`, `_wait_seconds_total`,
  `_longest_wait_seconds`, `_unreleased` (what `str(lock.statistics())` has in brackets) and, for write and seek,
  `_released_total`. For all modes: `shmlock_lock_wait_duration_seconds`, a histogram; `shmlock_lock_timeouts_total`,
  `_evictions_total`, `_repairs_total`, `_owner_deaths_total`, `_revocations_total`, `_revocation_seconds_total`.

SharedConfig
: `shmlock_config_version`, `shmlock_config_age_seconds` (+Inf before the first publish), `shmlock_config_updater_up`.

TimerQueue
: `shmlock_timers_pending`.

Counters (`_total`, `_count`, `_sum`, `_bucket`) never go backwards while the segment lives, whoever ends or is
killed. Reads have no `_released_total`, because it would: a reader leaves in the fast way, which is not counted, what
it took in the slow.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shmlock import Mutex, RTMetrics, RWLock, SharedConfig, ShmlockError, TimerQueue

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        Sample,
    )
except ImportError as error:
    raise ImportError(
        'shmlock.prometheus needs prometheus_client, which is not installed; run: pip install "shmlock-rw[prometheus]"',
        name="prometheus_client",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shmlock import LockStatistics

__all__ = ["Collector"]

Shared: TypeAlias = RWLock | Mutex | SharedConfig | TimerQueue | RTMetrics
_Sample: TypeAlias = tuple[Any, ...]  # a family's name, and the arguments of its `add_metric`

_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)


class _Summary(Metric):
    """A summary with quantiles, which prometheus_client prints, but has no class for."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        super().__init__(name, documentation, "summary")
        self._labels = labels

    def add_metric(self, labels: Sequence[str], count: int, total: float, quantiles: dict[float, float]) -> None:
        named = dict(zip(self._labels, labels, strict=True))
        self.samples += [
            Sample(f"{self.name}_count", named, count),
            Sample(f"{self.name}_sum", named, total),
            *(Sample(self.name, {**named, "quantile": str(at)}, value) for at, value in quantiles.items()),
        ]


_FAMILIES: Final[list[tuple[str, type[Any], str, tuple[str, ...]]]] = [
    ("shmlock_up", GaugeMetricFamily, "Whether the object can be read, and its name still means it.", ()),
    ("shmlock_requests_total", CounterMetricFamily, "Requests since creation.", ("code",)),
    (
        "shmlock_request_duration_seconds",
        _Summary,
        "Time of requests: count and sum since creation, quantiles of the rolling windows.",
        (),
    ),
    ("shmlock_window_seconds", GaugeMetricFamily, "Length of the window.", ()),
    ("shmlock_window_requests", GaugeMetricFamily, "Requests within the window.", ()),
    ("shmlock_window_network_error_ratio", GaugeMetricFamily, "Share of 502 and 504 within the window.", ()),
    ("shmlock_lock_acquired_total", CounterMetricFamily, "Grants; reads: in the slow way.", ("mode",)),
    ("shmlock_lock_released_total", CounterMetricFamily, "Grants that were given back.", ("mode",)),
    ("shmlock_lock_unreleased", GaugeMetricFamily, "Grants not given back: held now, or killed in it.", ("mode",)),
    ("shmlock_lock_waits_total", CounterMetricFamily, "Grants that had to wait.", ("mode",)),
    ("shmlock_lock_wait_seconds_total", CounterMetricFamily, "Time that they waited.", ("mode",)),
    ("shmlock_lock_longest_wait_seconds", GaugeMetricFamily, "The longest of these times.", ("mode",)),
    ("shmlock_lock_wait_duration_seconds", HistogramMetricFamily, "Times that grants waited, of all modes.", ()),
    ("shmlock_lock_timeouts_total", CounterMetricFamily, "Waits whose time was over.", ()),
    ("shmlock_lock_evictions_total", CounterMetricFamily, "Dead participants that were evicted.", ()),
    ("shmlock_lock_repairs_total", CounterMetricFamily, "Changes that a death left half done, mended.", ()),
    ("shmlock_lock_owner_deaths_total", CounterMetricFamily, "Writers that died inside.", ()),
    ("shmlock_lock_revocations_total", CounterMetricFamily, "Times that the readers' fast path was closed.", ()),
    ("shmlock_lock_revocation_seconds_total", CounterMetricFamily, "Time that this took.", ()),
    ("shmlock_config_version", GaugeMetricFamily, "How often a value was published.", ()),
    ("shmlock_config_age_seconds", GaugeMetricFamily, "Time since the value was published or confirmed.", ()),
    ("shmlock_config_updater_up", GaugeMetricFamily, "Whether an updater holds the seat.", ()),
    ("shmlock_timers_pending", GaugeMetricFamily, "Timers that are to come.", ()),
]


class Collector:
    """Tells `prometheus_client` of shmlock's objects: `registry.register(Collector(metrics, lock, config))`.

    One for all objects of a registry, which refuses a second one. Raises TypeError for what is no object of shmlock's,
    ValueError for two of one name.
    """

    def __init__(self, *objects: Shared) -> None:
        for thing in objects:
            if not isinstance(thing, Shared):
                raise TypeError(f"a Collector takes locks, configurations, timer queues and RTMetrics, not {thing!r}")
        names = [thing.name for thing in objects]
        if len(names) != len(set(names)):
            raise ValueError(f"a Collector takes one object of each name, not {', '.join(names)}")
        self._objects = objects

    def describe(self) -> list[Metric]:
        """The families that there can be, without samples: how a registry learns their names."""
        return list(_families().values())

    def collect(self) -> list[Metric]:
        """What there is to tell now; called for each scrape."""
        families = _families()
        for thing in self._objects:
            for family, *arguments in _told(thing):
                families[family].add_metric(*arguments)
        return [family for family in families.values() if family.samples]


def _families() -> dict[str, Any]:
    return {name: kind(name, text, labels=("name", *labels)) for name, kind, text, labels in _FAMILIES}


def _told(thing: Shared) -> list[_Sample]:
    """All of an object, or that it is not up."""
    try:
        if not thing.is_stale():
            return [("shmlock_up", [thing.name], 1), *_samples(thing)]
    except (ShmlockError, OSError):
        pass
    return [("shmlock_up", [thing.name], 0)]


def _samples(thing: Shared) -> Iterator[_Sample]:
    yield from _lock(thing.statistics())
    match thing:
        case RTMetrics():
            yield from _requests(thing)
        case SharedConfig():
            yield "shmlock_config_version", [thing.name], thing.version
            yield "shmlock_config_age_seconds", [thing.name], thing.age
            yield "shmlock_config_updater_up", [thing.name], int(thing.updater_alive())
        case TimerQueue():
            yield "shmlock_timers_pending", [thing.name], len(thing)


def _requests(metrics: RTMetrics) -> Iterator[_Sample]:
    name = metrics.name
    totals = metrics.totals()
    for code, count in totals.items():
        yield "shmlock_requests_total", [name, str(code)], count
    window = metrics.export()
    latencies = window.latency_histogram()
    quantiles = {
        quantile: latencies.latency_at_quantile(100 * quantile) if latencies.total_count else math.nan
        for quantile in _QUANTILES
    }
    yield "shmlock_request_duration_seconds", [name], sum(totals.values()), metrics.latency_sum(), quantiles
    yield "shmlock_window_seconds", [name], metrics.counter_window_size()
    yield "shmlock_window_requests", [name], window.total_count()
    yield "shmlock_window_network_error_ratio", [name], window.network_error_ratio()


def _lock(seen: LockStatistics) -> Iterator[_Sample]:
    name = seen.name
    waited = 0
    for mode, counts in (("write", seen.write), ("seek", seen.seek), ("read", seen.read)):
        labels = [name, mode]
        waited += counts.wait_ns
        yield "shmlock_lock_acquired_total", labels, counts.locks
        if mode != "read":
            yield "shmlock_lock_released_total", labels, counts.unlocks
        yield "shmlock_lock_unreleased", labels, counts.locks - counts.unlocks
        yield "shmlock_lock_waits_total", labels, counts.waits
        yield "shmlock_lock_wait_seconds_total", labels, counts.wait_ns / 1e9
        yield "shmlock_lock_longest_wait_seconds", labels, counts.longest_wait_ns / 1e9
    yield "shmlock_lock_wait_duration_seconds", [name], _buckets(seen.wait_histogram), waited / 1e9
    yield "shmlock_lock_timeouts_total", [name], seen.timeouts
    yield "shmlock_lock_evictions_total", [name], seen.evictions
    yield "shmlock_lock_repairs_total", [name], seen.repairs
    yield "shmlock_lock_owner_deaths_total", [name], seen.owner_deaths
    yield "shmlock_lock_revocations_total", [name], seen.revocations
    yield "shmlock_lock_revocation_seconds_total", [name], seen.revocation_ns / 1e9


def _buckets(histogram: Sequence[int]) -> list[tuple[str, int]]:
    """Prometheus' buckets, each with all below it. Ours end at powers of two microseconds, the last nowhere."""
    bounds = [str(2**bucket / 1e6) for bucket in range(len(histogram) - 1)]
    return list(zip([*bounds, "+Inf"], accumulate(histogram), strict=True))
