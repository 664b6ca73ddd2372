"""The updater's loop, with a source and a configuration under control."""

from __future__ import annotations

import logging
import queue
import random
import socket
import threading
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.errors import SegmentCorrupt
from shmlock.updater import Fetched, SourceError, Updater, daemon
from shmlock.updater.cache import Cache
from shmlock.updater.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HANG = 30.0


class Reports(Notifier):
    """A service manager that remembers what it was told. Each status is one end of a round."""

    def __init__(self) -> None:
        super().__init__({})
        self.sent: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self.fed = 0

    def send(self, *fields: str) -> None:
        self.sent.put(fields)

    def feed_watchdog(self) -> float:
        self.fed += 1
        return inf

    def next(self) -> tuple[str, ...]:
        return self.sent.get(timeout=HANG)


@pytest.fixture
def reports() -> Reports:
    """Return a service manager to pass to an updater."""
    return Reports()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Retry at once; return the ceilings that the delays were drawn below."""
    ceilings: list[float] = []

    def none(_: float, ceiling: float) -> float:
        ceilings.append(ceiling)
        return 0.0

    monkeypatch.setattr(random, "uniform", none)
    return ceilings


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return a function that returns what was logged from INFO up, apart from versions published."""
    caplog.set_level(logging.INFO, "shmlock.updater")
    return lambda: [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if "published version" not in record.getMessage()
    ]


def failing(reason: str = "test:source: out of order") -> SourceError:
    """Return an error as a source raises it."""
    return SourceError(reason)


# What is published


def test_publishes_what_is_fetched(start: Any, config: Any, source: Any) -> None:
    """The first good body is published, as the value that it stands for."""
    source.has(b'{"a": 1}')
    start()
    assert config.next() == ("published", {"a": 1})


def test_unchanged_is_confirmed(start: Any, config: Any, source: Any) -> None:
    """An equal value in other words, and a source not modified, are confirmed and not published again."""
    source.has(b'{"a": 1}', b'{ "a" : 1 }', None)
    updater = start()
    assert config.next() == ("published", {"a": 1})
    updater.refresh()
    assert config.next() == ("confirmed",)
    updater.refresh()
    assert config.next() == ("confirmed",)
    assert config.version == 1


def test_unchanged_since_another_run(start: Any, config: Any, source: Any) -> None:
    """What an earlier updater published isn't published again."""
    config.bytes_published = b'{"a":1}'
    source.has(b'{"a": 1}')
    start()
    assert config.next() == ("confirmed",)


def test_last_is_passed_to_the_source(start: Any, config: Any, source: Any) -> None:
    """A fetch is told what was fetched last, good or bad."""
    source.has(b"1", b"bad", None, b"2", b"3")
    updater = start()
    config.next()
    updater.refresh()  # bad, then None, retried at once
    assert config.next() == ("published", 2)
    updater.refresh()
    assert config.next() == ("published", 3)
    lasts = [source.asked.get(timeout=HANG) for _ in range(5)]
    assert [last and last.body for last in lasts] == [None, b"1", b"bad", b"bad", b"2"]


def test_overwritten_is_restored(start: Any, config: Any, source: Any) -> None:
    """What someone else published in between gives way to the source's, though that was not modified."""
    source.has(b"1", None)
    updater = start()
    assert config.next() == ("published", 1)
    config.bytes_published = b"666"
    updater.refresh()
    assert config.next() == ("published", 1)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1', b"\xff", b"[" * 100_000])
def test_bad_bodies_keep_the_last_good(start: Any, config: Any, source: Any, logged: Any, body: bytes) -> None:
    """A body that doesn't decode is told with the source's name, and changes nothing."""
    source.has(b"1", body, b"1")
    updater = start()
    config.next()
    updater.refresh()
    assert config.next() == ("confirmed",)
    assert config.version == 1
    ((level, message), _) = logged()
    assert level == "WARNING"
    assert message.startswith("site.config: test:source: not a good configuration: ")


def test_check(start: Any, config: Any, source: Any, logged: Any) -> None:
    """A body that doesn't pass the check isn't published; the check sees the body as it came."""
    seen = []

    def check(body: bytes) -> None:
        seen.append(body)
        if body == b"2":
            raise ValueError("two is too many")

    source.has(b"1", b"2", b"3")
    updater = start(check=check)
    assert config.next() == ("published", 1)
    updater.refresh()
    assert config.next() == ("published", 3)
    assert seen == [b"1", b"2", b"3"]
    assert "two is too many" in logged()[0][1]


def test_too_large(start: Any, config: Any, source: Any, logged: Any) -> None:
    """A value that doesn't fit the segment leaves the last good one, and the way out is told."""
    config.capacity = 5
    source.has(b"1", b"1000000", b"2")
    updater = start()
    assert config.next() == ("published", 1)
    updater.refresh()
    assert config.next() == ("published", 2)
    assert "7 bytes don't fit 5; shorten it, or create the segment larger" in logged()[0][1]


def test_not_encodable(start: Any, config: Any, source: Any, logged: Any) -> None:
    """A value that decodes and doesn't encode again is a bad body, too."""

    class Codec:
        def decode(self, data: bytes) -> object:
            return data if data == b"good" else {data}

        def encode(self, value: object) -> bytes:
            if not isinstance(value, bytes):
                raise TypeError("only bytes")
            return value

    config.codec = Codec()
    source.has(b"bad", b"good")
    start()
    assert config.next() == ("published", b"good")
    assert "only bytes" in logged()[0][1]


# Failures


def test_log_once_per_change(start: Any, config: Any, source: Any, logged: Any) -> None:
    """A failure is logged when it begins, when its reason changes, and when it ends, not on each retry."""
    source.has(failing("a"), failing("a"), failing("a"), failing("b"), failing("b"), b"1")
    updater = start()
    config.next()
    source.has(failing("b"), None)
    updater.refresh()
    config.next()
    assert logged() == [
        ("WARNING", "site.config: a"),
        ("WARNING", "site.config: b"),
        ("INFO", "site.config: recovered"),
        ("WARNING", "site.config: b"),
        ("INFO", "site.config: recovered"),
    ]


def test_not_modified_is_no_cure(start: Any, config: Any, source: Any, logged: Any, reports: Reports) -> None:
    """After a bad body, "not modified" means that it is still bad; only another body ends the failure."""
    source.has(b"1", b"bad", None, None)
    updater = start(notifier=reports)
    config.next()
    assert reports.next() == ("READY=1", "STATUS=up to date")
    updater.refresh()
    assert reports.next()[0] == "RELOADING=1"
    told = [reports.next()[1] for _ in range(3)]
    assert len(set(told)) == 1
    assert "not a good configuration" in told[0]
    source.has(b"1")
    assert config.next() == ("confirmed",)
    assert [level for level, _ in logged()] == ["WARNING", "INFO"]


def test_any_failure_of_a_source_is_survived(start: Any, config: Any, source: Any, logged: Any) -> None:
    """Even an exception that no source should raise is a failure like others."""
    source.has(KeyError("x"), b"1")
    start()
    assert config.next() == ("published", 1)
    assert logged()[0] == ("WARNING", "site.config: test:source: KeyError: 'x'")


def test_source_that_has_nothing(start: Any, config: Any, source: Any, logged: Any) -> None:
    """A source that claims "not modified" before anything was fetched gave nothing."""
    source.has(None, b"1")
    start()
    assert config.next() == ("published", 1)
    assert logged()[0] == ("WARNING", "site.config: test:source: nothing fetched yet")


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (3600.0, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]),
        (30.0, [1, 2, 4, 8, 16, 32, 60, 60]),
        (0.25, [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]),
    ],
)
def test_backoff(
    start: Any, config: Any, source: Any, at_once: list[float], interval: float, expected: list[float]
) -> None:
    """Delays are drawn below a ceiling that doubles from a second, or the interval, up to a minute, or it."""
    source.has(*[failing()] * len(expected), b"1", failing(), b"2")
    updater = start(interval=interval)
    assert config.next() == ("published", 1)
    assert at_once == expected
    updater.refresh()
    assert config.next() == ("published", 2)
    assert at_once == [*expected, min(1, interval)]


def test_errors_of_the_segment_end_it(start: Any, config: Any, source: Any) -> None:
    """When the shared memory itself is broken the loop ends with that error, and the seat is free."""

    def broken(_: object) -> int:
        raise SegmentCorrupt("no longer a segment")

    config.publish = broken
    source.has(b"1")
    updater = start()
    updater.wait()
    assert isinstance(updater.raised, SegmentCorrupt)
    assert not config.seat.locked()
    assert config.closed == 1


# Waiting


def test_interval(start: Any, config: Any, source: Any) -> None:
    """After a success the next fetch comes by itself."""
    source.has(b"1", b"2", b"3")
    start(interval=0.001)
    assert [config.next() for _ in range(3)] == [("published", 1), ("published", 2), ("published", 3)]


def test_refresh_during_a_fetch(start: Any, config: Any, source: Any) -> None:
    """A refresh asked for during a fetch brings another one: the first may have begun before the change."""
    updater = start()
    source.asked.get(timeout=HANG)
    updater.refresh()
    source.has(b"1", b"2")
    assert config.next() == ("published", 1)
    assert config.next() == ("published", 2)


def test_stop_during_a_fetch(start: Any, config: Any, source: Any) -> None:
    """A stop doesn't wait for a source that doesn't answer, and leaves the seat."""
    updater = start()
    source.asked.get(timeout=HANG)
    updater.end()
    assert updater.raised is None
    assert config.next() == ("left",)
    assert config.closed == 1


def test_stop_during_a_pause(start: Any, config: Any, source: Any, reports: Reports) -> None:
    """A stop ends the pause between two fetches."""
    source.has(b"1")
    updater = start(notifier=reports)
    reports.next()
    updater.end()
    assert updater.raised is None
    assert reports.next() == ("STOPPING=1",)


def test_stop_before_the_start(config: Any, source: Any) -> None:
    """An updater stopped before it runs ends at once."""
    updater = Updater(lambda: config, source, interval=3600, timeout=3600)
    updater.stop()
    updater.run()
    assert config.closed == 1


def test_stop_during_a_publish(config: Any, source: Any) -> None:
    """A stop by a signal handler of the same thread gets out of a publish that waits for a stopped reader."""
    updater = Updater(lambda: config, source, interval=3600, timeout=3600)

    def waits_for_a_reader(_: object) -> int:
        updater.stop()
        raise AssertionError("stop() returned")

    config.publish = waits_for_a_reader
    source.has(b"1")
    updater.run()
    assert not config.seat.locked()


def test_overdue(
    start: Any, config: Any, source: Any, reports: Reports, logged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch beyond its timeout is told, starves the watchdog, isn't doubled, and is used when it ends."""
    monkeypatch.setattr(daemon, "_OVERDUE", 0)
    updater = start(notifier=reports, timeout=0.01)
    for _ in range(3):
        ((status),) = reports.next()
        assert "no answer in 0.01 s; it is still waited for" in status
        fed = reports.fed
    assert reports.fed == fed or reports.fed == 0
    assert source.asked.get(timeout=HANG) is None
    assert source.asked.empty()
    source.has(b"1")
    assert config.next() == ("published", 1)
    ...
