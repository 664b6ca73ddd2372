"""The collector for Prometheus: what a scrape says of each object, and that it goes on saying it."""

from __future__ import annotations

import importlib
import math
import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import shmlock
from shmlock.prometheus import Collector, _lock, _samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shmlock.prometheus import Shared
    from tests.conftest import Peer, Start

FAMILIES = {
    "shmlock_up": ("gauge", ""),
    "shmlock_requests": ("counter", "code"),
    "shmlock_request_duration_seconds": ("summary", "quantile"),
    "shmlock_window_seconds": ("gauge", ""),
    "shmlock_window_requests": ("gauge", ""),
    "shmlock_window_network_error_ratio": ("gauge", ""),
    "shmlock_lock_acquired": ("counter", "mode"),
    "shmlock_lock_released": ("counter", "mode"),
    "shmlock_lock_unreleased": ("gauge", "mode"),
    "shmlock_lock_waits": ("counter", "mode"),
    "shmlock_lock_wait_seconds": ("counter", "mode"),
    "shmlock_lock_longest_wait_seconds": ("gauge", "mode"),
    "shmlock_lock_wait_duration_seconds": ("histogram", "le"),
    "shmlock_lock_timeouts": ("counter", ""),
    "shmlock_lock_evictions": ("counter", ""),
    "shmlock_lock_repairs": ("counter", ""),
    "shmlock_lock_owner_deaths": ("counter", ""),
    "shmlock_lock_revocations": ("counter", ""),
    "shmlock_lock_revocation_seconds": ("counter", ""),
    "shmlock_config_version": ("gauge", ""),
    "shmlock_config_age_seconds": ("gauge", ""),
    "shmlock_config_updater_up": ("gauge", ""),
    "shmlock_timers_pending": ("gauge", ""),
}
"""What dashboards are made of: the names, types and labels (beside `name`) of all families."""


@pytest.fixture
def metrics(name: str) -> Iterator[shmlock.RTMetrics]:
    """Metrics that nobody has recorded anything in."""
    with shmlock.RTMetrics(name, max_participants=8) as made:
        yield made


class Page:
    """What one scrape says."""

    def __init__(self, *objects: Shared) -> None:
        registry = CollectorRegistry()
        registry.register(Collector(*objects))
        self.text = generate_latest(registry).decode()
        self.families = {family.name: family for family in parse(self.text)}
        self.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        # The other format's parser is strict about what may be in a family.
        list(parse_openmetrics(generate_openmetrics(registry).decode()))  # type: ignore[no-untyped-call]

    def value(self, sample: str, name: str, **labels: str) -> float:
        """One of its numbers."""
        return self.values[sample, frozenset({"name": name, **labels}.items())]

    def told(self) -> set[tuple[str, str]]:
        """All samples and the objects that they are told of."""
        return {(sample, dict(labels)["name"]) for sample, labels in self.values}


def never_less(before: Page, after: Page) -> None:
    """Each counter that was there is there, and not less."""
    counters = [key for key in before.values if key[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    assert len(counters) > 20
    for key in counters:
        assert after.values[key] >= before.values[key], key


def test_all_families(name: str, metrics: shmlock.RTMetrics) -> None:
    """A scrape has these families, of these types, with these labels; dashboards depend on it."""
    config = shmlock.SharedConfig(f"{name}.config")
    timers = shmlock.TimerQueue(f"{name}.timers", capacity=10)
    metrics.record(200, 0.1)
    page = Page(metrics, config, timers)
    found = {
        family.name: (family.type, "".join({key for sample in family.samples for key in sample.labels} - {"name"}))
        for family in page.families.values()
    }
    assert found == FAMILIES
    assert {family.name for family in Collector(metrics).describe()} == set(FAMILIES)
    assert all(family.documentation.endswith(".") for family in page.families.values())
    config.unlink()
    timers.unlink()


def test_nothing_to_tell() -> None:
    """A collector without objects tells nothing, not even what it could tell."""
    assert Page().text == ""


def test_requests(name: str, metrics: shmlock.RTMetrics) -> None:
    """Requests by code, the time they took in all, and the quantiles, network errors and number of the last seconds."""
    for _ in range(98):
        metrics.record(200, 0.010)
    metrics.record(502, 1.0)
    metrics.record(504, 2.0)
    page = Page(metrics)
    assert page.value("shmlock_requests_total", name, code="200") == 98
    assert page.value("shmlock_requests_total", name, code="504") == 1
    assert page.value("shmlock_request_duration_seconds_count", name) == 100
    assert page.value("shmlock_request_duration_seconds_sum", name) == pytest.approx(3.98)
    assert page.value("shmlock_request_duration_seconds", name, quantile="0.5") == pytest.approx(0.010, rel=0.02)
    assert page.value("shmlock_request_duration_seconds", name, quantile="0.99") == pytest.approx(1.0, rel=0.02)
    assert page.value("shmlock_window_seconds", name) == metrics.counter_window_size()
    assert page.value("shmlock_window_requests", name) == 100
    assert page.value("shmlock_window_network_error_ratio", name) == pytest.approx(0.02)


def test_no_requests(name: str, metrics: shmlock.RTMetrics) -> None:
    """Before the first request nothing has taken 0 seconds: quantiles are NaN, counts 0."""
    page = Page(metrics)
    assert page.value("shmlock_request_duration_seconds_count", name) == 0
    assert math.isnan(page.value("shmlock_request_duration_seconds", name, quantile="0.99"))


def test_requests_out_of_the_window(name: str) -> None:
    """What grows old, or is reset, goes from the window and its quantiles, and from no counter."""
    now = 1000.0
    with shmlock.RTMetrics(name, max_participants=8, clock=lambda: now) as metrics:
        metrics.record(200, 1.0)
        before = Page(metrics)
        now += 3600
        aged = Page(metrics)
        metrics.record(200, 1.0)
        metrics.reset()
        reset = Page(metrics)
    never_less(before, aged)
    never_less(aged, reset)
    for page in (aged, reset):
        assert page.value("shmlock_window_requests", name) == 0
        assert math.isnan(page.value("shmlock_request_duration_seconds", name, quantile="0.5"))
    assert reset.value("shmlock_requests_total", name, code="200") == 2


def test_lock_statistics() -> None:
    """Times are in seconds, buckets cumulative; and a mode's numbers are told of that mode."""
    histogram = [0] * 16
    histogram[0], histogram[11], histogram[15] = 3, 2, 1  # below 1 us, below 2048 us, longer than 16.384 ms
    seen = shmlock.LockStatistics(
        name="a",
        write=shmlock.ModeStatistics(10, 9, 4, 1_500_000_000, 900_000_000),
        seek=shmlock.ModeStatistics(20, 20, 2, 500_000_000, 400_000_000),
        read=shmlock.ModeStatistics(30, 28, 0, 0, 0),
        timeouts=1,
        evictions=2,
        repairs=3,
        owner_deaths=4,
        revocations=5,
        revocation_ns=6_000_000,
        wait_histogram=tuple(histogram),
    )
    told = [(family, *arguments) for family, *arguments in _lock(seen)]
    assert ("shmlock_lock_acquired_total", ["a", "write"], 10) in told
    assert ("shmlock_lock_released_total", ["a", "write"], 9) in told
    assert ("shmlock_lock_unreleased", ["a", "write"], 1) in told
    assert ("shmlock_lock_waits_total", ["a", "seek"], 2) in told
    assert ("shmlock_lock_wait_seconds_total", ["a", "write"], 1.5) in told
    assert ("shmlock_lock_longest_wait_seconds", ["a", "seek"], 0.4) in told
    assert ("shmlock_lock_unreleased", ["a", "read"], 2) in told
    assert ("shmlock_lock_timeouts_total", ["a"], 1) in told
    assert ("shmlock_lock_evictions_total", ["a"], 2) in told
    assert ("shmlock_lock_repairs_total", ["a"], 3) in told
    assert ("shmlock_lock_owner_deaths_total", ["a"], 4) in told
    assert ("shmlock_lock_revocations_total", ["a"], 5) in told
    assert ("shmlock_lock_revocation_seconds_total", ["a"], 0.006) in told
    [(buckets, total)] = [rest for family, _, *rest in told if family == "shmlock_lock_wait_duration_seconds"]
    assert total == 2.0
    assert [(float(bound), count) for bound, count in buckets] == [
        *((2**bucket / 1e6, 3) for bucket in range(11)),
        *((2**bucket / 1e6, 5) for bucket in range(11, 15)),
        (math.inf, 6),
    ]


def test_waits(name: str, start: Start) -> None:
    """A writer that has waited is in the counter of its mode and in the histogram, with the same time."""

    def wait(peer: Peer) -> None:
        lock = shmlock.RWLock(name)
        peer.say("here")
        with lock.writer:
            pass

    lock = shmlock.RWLock(name)
    with lock.writer:
        child = start(wait)
        assert child.hear() == "here"
        while "1 waiting" not in repr(lock):
            assert child.alive()
    assert child.join() == 0
    page = Page(lock)
    assert page.value("shmlock_lock_acquired_total", name, mode="write") == 2
    assert page.value("shmlock_lock_released_total", name, mode="write") == 2
    assert page.value("shmlock_lock_waits_total", name, mode="write") == 1
    assert page.value("shmlock_lock_wait_duration_seconds_count", name) == 1
    waited = page.value("shmlock_lock_wait_seconds_total", name, mode="write")
    assert waited == page.value("shmlock_lock_wait_duration_seconds_sum", name) > 0


@pytest.mark.parametrize("kind", [shmlock.RWLock, shmlock.SeekLock, shmlock.Mutex])
def test_every_lock(name: str, kind: type[shmlock.RWLock | shmlock.Mutex]) -> None:
    """Each kind of lock is told of by the same names."""
    with kind(name) as lock:
        page = Page(lock)
    assert {sample for sample, _ in page.told()} >= {"shmlock_up", "shmlock_lock_acquired_total"}


def test_a_reader_that_leaves_in_the_fast_way(name: str) -> None:
    """Reads that are held show, and nothing goes backwards when more are held than came in the slow way."""
    lock = shmlock.RWLock(name)
    with lock.writer:  # closes the fast path, so that the next reader takes the slow one
        pass
    with lock.reader:
        pass
    before = Page(lock)
    with lock.reader:
        during = Page(lock)
        assert during.value("shmlock_lock_unreleased", name, mode="read") == 1
    never_less(before, during)
    never_less(during, Page(lock))


def test_config(name: str) -> None:
    """Version, age and updater of a configuration, from before the first publish on."""
    with shmlock.SharedConfig(name) as config:
        page = Page(config)
        assert page.value("shmlock_config_version", name) == 0
        assert page.value("shmlock_config_age_seconds", name) == math.inf
        assert page.value("shmlock_config_updater_up", name) == 0
        config.publish("one")
        assert config.take_seat()
        page = Page(config)
        assert page.value("shmlock_config_version", name) == 1
        assert 0 <= page.value("shmlock_config_age_seconds", name) <= config.age
        assert page.value("shmlock_config_updater_up", name) == 1


def test_timers(name: str) -> None:
    """Timers that are to come."""
    with shmlock.TimerQueue(name, capacity=10) as timers:
        timers.schedule(1, 0)
        timers.schedule(2, 0)
        assert Page(timers).value("shmlock_timers_pending", name) == 2
        timers.cancel(1)
        assert Page(timers).value("shmlock_timers_pending", name) == 1


# --- objects that are not there any more


def test_a_closed_object(name: str, metrics: shmlock.RTMetrics) -> None:
    """An object that was closed here is not up, has no other numbers, and takes nothing from the others."""
    lock = shmlock.RWLock(f"{name}.lock")
    lock.unlink()
    lock.close()
    page = Page(lock, metrics)
    assert {sample for sample, of in page.told() if of == lock.name} == {"shmlock_up"}
    assert page.value("shmlock_up", lock.name) == 0
    assert page.value("shmlock_up", name) == 1
    assert page.value("shmlock_window_requests", name) == 0


def test_an_object_whose_name_is_gone(name: str, metrics: shmlock.RTMetrics) -> None:
    """An object whose name is gone is not up: the next worker won't count in it. Nor when there is a new one."""
    metrics.unlink()
    for _ in range(2):
        assert Page(metrics).told() == {("shmlock_up", name)}
        assert Page(metrics).value("shmlock_up", name) == 0
        successor = shmlock.RTMetrics(name, max_participants=8)
    assert Page(successor).value("shmlock_up", name) == 1


def test_an_object_without_room(name: str, start: Start) -> None:
    """An object that this process can't take part in to read it is not up, and takes nothing from the others."""

    def take_the_place(peer: Peer) -> None:
        timers = shmlock.TimerQueue(name, capacity=10)
        timers.schedule(1, 0)
        peer.say("in")
        peer.hear()

    timers = shmlock.TimerQueue(name, capacity=10, max_participants=1)
    lock = shmlock.RWLock(f"{name}.lock")
    child = start(take_the_place)
    assert child.hear() == "in"
    page = Page(timers, lock)
    assert {sample for sample, of in page.told() if of == name} == {"shmlock_up"}
    assert page.value("shmlock_up", name) == 0
    assert page.value("shmlock_up", lock.name) == 1
    child.kill()
    assert Page(timers).value("shmlock_timers_pending", name) == 1
    lock.unlink()


# --- many processes


def test_any_process_tells_of_all(name: str, start: Start) -> None:
    """What a child has recorded its parent tells; and the child tells what the parent has."""

    def record(peer: Peer) -> None:
        metrics = shmlock.RTMetrics(name)
        metrics.record(200, 0.5)
        peer.say(Page(metrics).values)
        peer.hear()

    with shmlock.RTMetrics(name, max_participants=8) as metrics:
        metrics.record(404, 0.25)
        child = start(record)
        childs = child.hear()
        ours = Page(metrics)
        assert ours.value("shmlock_requests_total", name, code="200") == 1
        assert ours.value("shmlock_request_duration_seconds_sum", name) == pytest.approx(0.75)
        counters = {key: value for key, value in ours.values.items() if key[0].startswith("shmlock_request")}
        assert counters == {key: childs[key] for key in counters}


def test_workers_that_die(name: str, start: Start) -> None:
    """Workers come, are killed or end, and others take their places: the counts are exact, and no counter goes back."""

    def work(peer: Peer) -> None:
        metrics, lock = shmlock.RTMetrics(name), shmlock.RWLock(f"{name}.lock")
        while peer.hear():
            metrics.record(200, 0.5)
            with lock.writer:
                pass
            peer.say("done")

    metrics = shmlock.RTMetrics(name, max_participants=3)
    lock = shmlock.RWLock(f"{name}.lock", max_participants=3)
    page = Page(metrics, lock)
    for round_ in range(1, 6):
        workers = [start(work), start(work)]
        for worker in workers:
            worker.say(True)
            assert worker.hear() == "done"
        pages = [page, Page(metrics, lock)]
        workers[0].kill(signal.SIGKILL)
        pages.append(Page(metrics, lock))
        workers[1].say(False)
        assert workers[1].join() == 0
        pages.append(Page(metrics, lock))
        metrics.reap()
        lock.reap()
        pages.append(page := Page(metrics, lock))
        for before, after in pairwise(pages):
            never_less(before, after)
        assert page.value("shmlock_requests_total", name, code="200") == 2 * round_
        assert page.value("shmlock_request_duration_seconds_sum", name) == pytest.approx(round_)
        assert page.value("shmlock_lock_acquired_total", lock.name, mode="write") == 2 * round_
    lock.unlink()


def test_a_writer_that_dies(name: str, start: Start) -> None:
    """A writer that is killed inside is counted, and what it took is not given back."""

    def hold(peer: Peer) -> None:
        with shmlock.RWLock(name).writer:
            peer.say("in")
            peer.hear()

    lock = shmlock.RWLock(name)
    child = start(hold)
    assert child.hear() == "in"
    child.kill()
    assert lock.reap() == 1
    page = Page(lock)
    assert page.value("shmlock_lock_evictions_total", name) == 1
    assert page.value("shmlock_lock_owner_deaths_total", name) == 1
    assert page.value("shmlock_lock_unreleased", name, mode="write") == 1


# --- the registry, and the package


def test_what_a_collector_takes(name: str, metrics: shmlock.RTMetrics) -> None:
    """It takes objects of this package, and one of each name."""
    with pytest.raises(TypeError, match="not 'site'"):
        Collector("site")  # type: ignore[arg-type]
    with shmlock.RTMetrics(name) as other, pytest.raises(ValueError, match=name):
        Collector(metrics, other)


def test_one_collector_for_a_registry(metrics: shmlock.RTMetrics) -> None:
    """A registry refuses a second one, instead of telling its families twice; and forgets one that is unregistered."""
    registry = CollectorRegistry()
    collector = Collector(metrics)
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector())
    registry.unregister(collector)
    registry.register(Collector())


def test_a_scrape_of_some_names(name: str, metrics: shmlock.RTMetrics) -> None:
    """Prometheus may ask for some samples only."""
    registry = CollectorRegistry()
    registry.register(Collector(metrics))
    text = generate_latest(registry.restricted_registry(["shmlock_window_requests"])).decode()
    assert [line for line in text.splitlines() if line[0] != "#"] == [f'shmlock_window_requests{{name="{name}"}} 0.0']


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where prometheus_client is not installed, the error says which extra to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    monkeypatch.delitem(sys.modules, "shmlock.prometheus")
    with pytest.raises(ImportError, match=r'pip install "shmlock-rw\[prometheus\]"'):
        importlib.import_module("shmlock.prometheus")


def test_only_who_asks_for_it_pays() -> None:
    """Neither the package nor the middleware imports prometheus_client, asyncio or a server."""
    check = "import sys, shmlock, shmlock.wsgi, shmlock.asgi; print(sorted({n.split('.')[0] for n in sys.modules}))"
    output = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout
    assert "shmlock" in output
    for package in ("prometheus_client", "asyncio", "wsgiref", "gunicorn"):
        assert f"'{package}'" not in output


def test_every_sample_has_a_family(metrics: shmlock.RTMetrics) -> None:
    """What is told of an object is told of it by its name, first of all labels."""
    assert all(labels[0] == metrics.name for _, labels, *_ in _samples(metrics))
