"""The updater's loop, with a source and a configuration under control."""

from __future__ import annotations

import logging
import os
import queue
import random
import socket
import threading
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.errors import SegmentCorrupt
from shmlock.updater import SourceError, Updater, daemon
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
        """Remember."""
        self.sent.put(fields)

    def feed_watchdog(self) -> float:
        """Count."""
        self.fed += 1
        return inf

    def next(self) -> tuple[str, ...]:
        """Return what was sent next."""
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


def test_publishes_what_is_fetched(launch: Any, config: Any, source: Any) -> None:
    """The first good body is published, as the value that it stands for."""
    source.has(b'{"a": 1}')
    launch()
    assert config.next() == ("published", {"a": 1})


def test_unchanged_is_confirmed(launch: Any, config: Any, source: Any) -> None:
    """An equal value in other words, and a source not modified, are confirmed and not published again."""
    source.has(b'{"a": 1}', b'{ "a" : 1 }', None)
    updater = launch()
    assert config.next() == ("published", {"a": 1})
    updater.refresh()
    assert config.next() == ("confirmed",)
    updater.refresh()
    assert config.next() == ("confirmed",)
    assert config.version == 1


def test_unchanged_since_another_run(launch: Any, config: Any, source: Any) -> None:
    """What an earlier updater published isn't published again."""
    config.bytes_published = b'{"a":1}'
    source.has(b'{"a": 1}')
    launch()
    assert config.next() == ("confirmed",)


def test_last_is_passed_to_the_source(launch: Any, config: Any, source: Any) -> None:
    """A fetch is told what was fetched last, good or bad."""
    source.has(b"1", b"bad", None, b"2", b"3")
    updater = launch()
    config.next()
    updater.refresh()  # bad, then None, retried at once
    assert config.next() == ("published", 2)
    updater.refresh()
    assert config.next() == ("published", 3)
    lasts = [source.asked.get(timeout=HANG) for _ in range(5)]
    assert [last and last.body for last in lasts] == [None, b"1", b"bad", b"bad", b"2"]


def test_overwritten_is_restored(launch: Any, config: Any, source: Any) -> None:
    """What someone else published in between gives way to the source's, though that was not modified."""
    source.has(b"1", None)
    updater = launch()
    assert config.next() == ("published", 1)
    config.bytes_published = b"666"
    updater.refresh()
    assert config.next() == ("published", 1)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1', b"\xff", b"[" * 100_000])
def test_bad_bodies_keep_the_last_good(launch: Any, config: Any, source: Any, logged: Any, body: bytes) -> None:
    """A body that doesn't decode is told with the source's name, and changes nothing."""
    source.has(b"1", body, b"1")
    updater = launch()
    config.next()
    updater.refresh()
    assert config.next() == ("confirmed",)
    updater.end()
    assert config.version == 1
    ((level, message), _) = logged()
    assert level == "WARNING"
    assert message.startswith("site.config: test:source: not a good configuration: ")


def test_check(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """A body that doesn't pass the check isn't published; the check sees the body as it came."""
    seen = []

    def check(body: bytes) -> None:
        seen.append(body)
        if body == b"2":
            raise ValueError("two is too many")

    source.has(b"1", b"2", b"3")
    updater = launch(check=check)
    assert config.next() == ("published", 1)
    updater.refresh()
    assert config.next() == ("published", 3)
    assert seen == [b"1", b"2", b"3"]
    assert "two is too many" in logged()[0][1]


def test_too_large(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """A value that doesn't fit the segment leaves the last good one, and the way out is told."""
    config.capacity = 5
    source.has(b"1", b"1000000", b"2")
    updater = launch()
    assert config.next() == ("published", 1)
    updater.refresh()
    assert config.next() == ("published", 2)
    assert logged()[0][1] == "site.config: test:source: 7 bytes don't fit 5"


def test_not_encodable(launch: Any, config: Any, source: Any, logged: Any) -> None:
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
    launch()
    assert config.next() == ("published", b"good")
    assert "only bytes" in logged()[0][1]


# Failures


def test_log_once_per_change(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """A failure is logged when it begins, when its reason changes, and when it ends, not on each retry."""
    source.has(failing("a"), failing("a"), failing("a"), failing("b"), failing("b"), b"1")
    updater = launch()
    config.next()
    source.has(failing("b"), None)
    updater.refresh()
    config.next()
    updater.end()
    assert logged() == [
        ("WARNING", "site.config: a"),
        ("WARNING", "site.config: b"),
        ("INFO", "site.config: recovered"),
        ("WARNING", "site.config: b"),
        ("INFO", "site.config: recovered"),
    ]


def test_not_modified_is_no_cure(launch: Any, config: Any, source: Any, logged: Any, reports: Reports) -> None:
    """After a bad body, "not modified" means that it is still bad; only another body ends the failure."""
    source.has(b"1", b"bad", None, None)
    updater = launch(notifier=reports)
    config.next()
    assert reports.next() == ("READY=1", "STATUS=up to date")
    updater.refresh()
    assert reports.next()[0] == "RELOADING=1"
    told = [reports.next()[1] for _ in range(3)]
    assert len(set(told)) == 1
    assert "not a good configuration" in told[0]
    source.has(b"1")
    assert config.next() == ("confirmed",)
    updater.end()
    assert [level for level, _ in logged()] == ["WARNING", "INFO"]


def test_any_failure_of_a_source_is_survived(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """Even an exception that no source should raise is a failure like others."""
    source.has(KeyError("x"), b"1")
    launch()
    assert config.next() == ("published", 1)
    assert logged()[0] == ("WARNING", "site.config: test:source: KeyError: 'x'")


def test_source_that_has_nothing(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """A source that claims "not modified" before anything was fetched gave nothing."""
    source.has(None, b"1")
    launch()
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
    launch: Any, config: Any, source: Any, at_once: list[float], interval: float, expected: list[float]
) -> None:
    """Delays are drawn below a ceiling that doubles from a second, or the interval, up to a minute, or it."""
    source.has(*[failing()] * len(expected), b"1", failing(), b"2")
    updater = launch(interval=interval)
    assert config.next() == ("published", 1)
    assert at_once == expected
    updater.refresh()
    assert config.next() == ("published", 2)
    assert at_once == [*expected, min(1, interval)]


def test_errors_of_the_segment_end_it(launch: Any, config: Any, source: Any) -> None:
    """When the shared memory itself is broken the loop ends with that error, and the seat is free."""

    def broken(_: object) -> int:
        raise SegmentCorrupt("no longer a segment")

    config.publish = broken
    source.has(b"1")
    updater = launch()
    updater.wait()
    assert isinstance(updater.raised, SegmentCorrupt)
    assert not config.seat.locked()
    assert config.closed == 1


# Waiting


def test_interval(launch: Any, config: Any, source: Any) -> None:
    """After a success the next fetch comes by itself."""
    source.has(b"1", b"2", b"3")
    launch(interval=0.001)
    assert [config.next() for _ in range(3)] == [("published", 1), ("published", 2), ("published", 3)]


def test_refresh_during_a_fetch(launch: Any, config: Any, source: Any) -> None:
    """A refresh asked for during a fetch brings another one: the first may have begun before the change."""
    updater = launch()
    source.asked.get(timeout=HANG)
    updater.refresh()
    source.has(b"1", b"2")
    assert config.next() == ("published", 1)
    assert config.next() == ("published", 2)


def test_stop_during_a_fetch(launch: Any, config: Any, source: Any) -> None:
    """A stop doesn't wait for a source that doesn't answer, and leaves the seat."""
    updater = launch()
    source.asked.get(timeout=HANG)
    updater.end()
    assert updater.raised is None
    assert config.next() == ("left",)
    assert config.closed == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads, on purpose
def test_fork_during_a_fetch(launch: Any, config: Any, source: Any) -> None:
    """A process that forks doesn't wait for a fetch that is under way, and neither does its child to end."""
    launch()
    source.asked.get(timeout=HANG)
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    source.has(b"1")
    assert config.next() == ("published", 1)


def test_stop_during_a_pause(launch: Any, source: Any, reports: Reports) -> None:
    """A stop ends the pause between two fetches."""
    source.has(b"1")
    updater = launch(notifier=reports)
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


def test_interrupt(config: Any, source: Any) -> None:
    """After a stop, a signal handler of the same thread gets out of a wait for the lock, and only then."""
    updater = Updater(lambda: config, source, interval=3600, timeout=3600)

    def waits_for_a_reader(_: object) -> int:
        updater.interrupt()  # not stopped yet
        updater.stop()
        other = threading.Thread(target=updater.interrupt)  # another thread's exception would not help
        other.start()
        other.join(HANG)
        updater.interrupt()
        raise AssertionError("interrupt() returned")

    config.publish = waits_for_a_reader
    source.has(b"1")
    updater.run()
    updater.interrupt()  # nothing to interrupt any more
    assert not config.seat.locked()


def test_overdue(launch: Any, config: Any, source: Any, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch beyond its timeout is told, starves the watchdog, isn't doubled, and is used when it ends."""
    monkeypatch.setattr(daemon, "_OVERDUE", 0)
    updater = launch(notifier=reports, timeout=0.01)
    (status,) = reports.next()
    assert "no answer in 0.01 s; it is still waited for" in status
    fed = reports.fed
    for _ in range(3):
        assert reports.next() == (status,)
    assert reports.fed == fed
    assert source.asked.get(timeout=HANG) is None
    assert source.asked.empty()
    source.has(b"1")
    assert config.next() == ("published", 1)
    updater.end()
    assert reports.fed > fed


# The seat


def test_standby(launch: Any, config: Any, source: Any, reports: Reports, logged: Any) -> None:
    """A second updater waits without fetching, is ready meanwhile, and takes over when the seat is free."""
    config.seat.acquire()
    updater = launch(notifier=reports)
    assert config.next("waiting") == ("waiting",)
    assert reports.next() == ("READY=1", "STATUS=standby: another updater holds the seat")
    assert source.asked.empty()
    source.has(b"1")
    config.seat.release()
    assert config.next() == ("published", 1)
    updater.end()
    assert [message for _, message in logged()] == [
        "site.config: standing by, another updater holds the seat",
        "site.config: taking over from another updater",
    ]


def test_stop_during_standby(launch: Any, config: Any, source: Any) -> None:
    """A stop ends the wait for the seat; what another one holds stays held."""
    config.seat.acquire()
    updater = launch()
    config.next("waiting")
    updater.end()
    assert updater.raised is None
    assert config.seat.locked()
    assert config.closed == 1
    assert source.asked.empty()


def test_refresh_during_standby(launch: Any, config: Any, source: Any, reports: Reports) -> None:
    """A refresh of a standby is answered at once: the one with the seat fetches."""
    config.seat.acquire()
    updater = launch(notifier=reports)
    reports.next()
    updater.refresh()
    assert reports.next()[0] == "RELOADING=1"
    assert reports.next() == ("READY=1",)
    assert source.asked.empty()


def test_the_seat_is_the_running_threads(launch: Any, config: Any, source: Any) -> None:
    """The thread that runs the loop takes the seat, publishes, and leaves it: it is bound to a thread."""
    threads = []
    for method in ("take_seat", "publish", "leave_seat", "close"):
        original = getattr(config, method)

        def noted(*arguments: Any, original: Any = original) -> Any:
            threads.append(threading.get_ident())
            return original(*arguments)

        setattr(config, method, noted)
    source.has(b"1")
    updater = launch()
    config.next()
    updater.end()
    assert len(threads) >= 4
    assert len(set(threads)) == 1


# A segment that was made anew


def test_new_segment_gets_the_last_good_at_once(launch: Any, config: Any, source: Any) -> None:
    """When the name comes to mean another segment, that gets the last good value before any fetch."""
    other = type(config)()
    opened = iter([config, other])
    source.has(b"1", b"2")
    updater = launch(open_config=lambda: next(opened))
    assert config.next() == ("published", 1)
    source.asked.get(timeout=HANG)
    config.stale = True
    updater.refresh()
    assert config.next() == ("left",)
    assert other.next() == ("published", 1)
    assert other.next() == ("published", 2)
    assert config.closed == 1


def test_new_segment_with_a_value_is_left_alone(launch: Any, config: Any, source: Any) -> None:
    """What a new segment already holds stays until the source was asked."""
    other = type(config)(bytes_published=b"2")
    opened = iter([config, other])
    source.has(b"1", b"2")
    updater = launch(open_config=lambda: next(opened))
    assert config.next() == ("published", 1)
    config.stale = True
    updater.refresh()
    assert other.next() == ("confirmed",)


def test_new_segment_too_small(launch: Any, config: Any, source: Any, logged: Any) -> None:
    """A new segment that is too small for the last good value is a failure as any other."""
    other = type(config)(capacity=1)
    opened = iter([config, other])
    source.has(b"10", None, b"2")
    updater = launch(open_config=lambda: next(opened))
    assert config.next() == ("published", 10)
    config.stale = True
    updater.refresh()
    assert other.next() == ("published", 2)
    assert "2 bytes don't fit 1" in logged()[0][1]


def test_stale_while_standing_by(launch: Any, config: Any, source: Any) -> None:
    """A standby follows the name, too."""
    other = type(config)()
    opened = iter([config, other])
    config.seat.acquire()
    source.has(b"1")
    launch(open_config=lambda: next(opened))
    config.next("waiting")
    config.stale = True
    assert other.next() == ("published", 1)


def test_damaged_is_published_again(launch: Any, config: Any, source: Any) -> None:
    """A version that was damaged in the shared memory is replaced by a new one."""

    def damaged() -> bytes:
        raise SegmentCorrupt("version 1 is damaged; publish again")

    config.encoded = damaged
    source.has(b"1")
    launch()
    assert config.next() == ("published", 1)


# The cache


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the cache's path."""
    return tmp_path / "cache.json"


@pytest.fixture
def cache(file: Path) -> Cache:
    """Return a cache."""
    return Cache(file, max_size=1000)


def test_cache_is_written(launch: Any, config: Any, source: Any, cache: Cache, file: Path) -> None:
    """Each good body is kept, as it came; a bad one isn't."""
    source.has(b"[ 1 ]", b"bad", b"[2]")
    updater = launch(cache=cache)
    assert config.next() == ("published", [1])
    updater.refresh()
    assert config.next() == ("published", [2])
    updater.end()
    assert file.read_bytes() == b"[2]"


def test_cache_is_written_when_nothing_was_published(
    launch: Any, config: Any, source: Any, cache: Cache, file: Path
) -> None:
    """A good body is kept even if it is what is published already: the cache may be new."""
    config.bytes_published = b"[1]"
    source.has(b"[1]")
    updater = launch(cache=cache)
    assert config.next() == ("confirmed",)
    updater.end()
    assert file.read_bytes() == b"[1]"


def test_cache_is_not_rewritten(
    launch: Any, config: Any, source: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the body is the same the disk is left alone."""
    stored: list[bytes] = []
    monkeypatch.setattr(cache, "store", stored.append)
    source.has(b"1", b"1", None, b"2")
    updater = launch(cache=cache)
    for _ in range(3):
        config.next()
        updater.refresh()
    assert config.next() == ("published", 2)
    updater.end()
    assert stored == [b"1", b"2"]


def test_cache_helps_out(launch: Any, config: Any, source: Any, cache: Cache, file: Path, logged: Any) -> None:
    """While the source has nothing and nothing is published, the cache is; then the source's, when it can."""
    file.write_bytes(b"[1]")
    source.has(failing("down"), failing("down"), b"[2]")
    updater = launch(cache=cache)
    assert config.next() == ("published", [1])
    assert config.next() == ("published", [2])
    updater.end()
    assert logged() == [
        ("WARNING", "site.config: down"),
        ("WARNING", f"site.config: the cached configuration was published: {file.as_uri()}"),
        ("INFO", "site.config: recovered"),
    ]


def test_cache_is_older_than_what_is_published(launch: Any, config: Any, source: Any, cache: Cache, file: Path) -> None:
    """What is published stays when the source has nothing, whatever the cache says."""
    config.bytes_published = b"[3]"
    file.write_bytes(b"[1]")
    source.has(failing(), b"[3]")
    launch(cache=cache)
    assert config.next() == ("confirmed",)


@pytest.mark.parametrize("content", [b"{", b"x" * 1001, None])
def test_corrupt_cache(
    launch: Any, config: Any, source: Any, cache: Cache, file: Path, logged: Any, content: bytes | None
) -> None:
    """A cache that is damaged, too large or missing is told once and not used."""
    if content is not None:
        file.write_bytes(content)
    source.has(failing("down"), failing("down"), b"1")
    updater = launch(cache=cache)
    assert config.next() == ("published", 1)
    updater.end()
    down, corrupt, *_ = messages = logged()
    assert down == ("WARNING", "site.config: down")
    assert corrupt[1].startswith(f"site.config: {file.as_uri()}: ")
    assert len([level for level, _ in messages if level == "WARNING"]) == 2


def test_cached_must_pass_the_check(
    launch: Any, config: Any, source: Any, cache: Cache, file: Path, logged: Any
) -> None:
    """What the cache holds is judged as what the source has: the schema may have changed since."""

    def check(body: bytes) -> None:
        if body == b"1":
            raise ValueError("one is not enough")

    file.write_bytes(b"1")
    source.has(failing("down"), b"2")
    updater = launch(cache=cache, check=check)
    assert config.next() == ("published", 2)
    updater.end()
    assert "one is not enough" in logged()[1][1]


def test_cache_that_cannot_be_written(launch: Any, config: Any, source: Any, tmp_path: Path, logged: Any) -> None:
    """A cache that can't be written is told once, and the updates go on; it is told when it can again."""
    folder = tmp_path / "later"
    source.has(b"1", b"2", b"3")
    updater = launch(cache=Cache(folder / "cache", max_size=1000))
    config.next()
    updater.refresh()
    config.next()
    source.asked.get(timeout=HANG)
    source.asked.get(timeout=HANG)
    updater.refresh()
    source.asked.get(timeout=HANG)  # the second body was dealt with
    config.next()
    updater.end()
    (told,) = logged()
    assert told[0] == "WARNING"
    assert "can't be written: No such file or directory" in told[1]


# Once


def once(config: Any, source: Any, **options: Any) -> bool:
    """Run an updater once."""
    return Updater(lambda: config, source, interval=3600, timeout=3600, **options).run_once()


def test_once(config: Any, source: Any) -> None:
    """Once means one fetch, published if it differs; the seat is free afterwards."""
    source.has(b"1", b"1")
    assert once(config, source)
    assert once(config, source)
    assert [config.next() for _ in range(4)] == [("published", 1), ("left",), ("confirmed",), ("left",)]
    assert config.closed == 2


def test_once_without_the_seat(config: Any, source: Any) -> None:
    """While another updater holds the seat, once does nothing and says so."""
    config.seat.acquire()
    assert not once(config, source)
    assert source.asked.empty()
    assert config.closed == 1


def test_once_failing(config: Any, source: Any) -> None:
    """A source without a good body is an error; it is asked once."""
    source.has(failing("down"), b"bad")
    with pytest.raises(SourceError, match=r"^down$"):
        once(config, source)
    with pytest.raises(SourceError, match="not a good configuration"):
        once(config, source)
    assert config.bytes_published is None
    assert not config.seat.locked()


def test_once_with_the_cache(config: Any, source: Any, cache: Cache, file: Path) -> None:
    """When the cache helped out, it is still an error, which says so."""
    file.write_bytes(b"1")
    source.has(failing("down"), failing("down"))
    with pytest.raises(SourceError, match=r"^down \(the cached configuration was published instead\)$"):
        once(config, source, cache=cache)
    assert config.next() == ("published", 1)
    with pytest.raises(SourceError, match=r"^down$"):
        once(config, source, cache=cache)


def test_once_stopped(config: Any, source: Any) -> None:
    """Stopped before it has fetched, once is an error: nobody knows whether what is published is current."""
    updater = Updater(lambda: config, source, interval=3600, timeout=3600)
    updater.stop()
    with pytest.raises(SourceError, match="stopped before the end"):
        updater.run_once()
    assert not config.seat.locked()


# The service manager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """Yield a service manager with a watchdog of 20 ms."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("notify")
        receiver.settimeout(HANG)
        yield Manager(receiver)


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self.notifier = Notifier({"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "20000"})

    def is_fed(self, times: int) -> None:
        """Wait until the watchdog was fed so many times."""
        while times:
            times -= self._receiver.recv(4096) == b"WATCHDOG=1"

    def is_told(self) -> bytes:
        """Return the next datagram that isn't the watchdog's."""
        while (told := self._receiver.recv(4096)) == b"WATCHDOG=1":
            pass
        return told


def test_ready_when_published(launch: Any, source: Any, manager: Manager) -> None:
    """A service is ready when the first good configuration is published, not when it has begun to fail."""
    source.has(failing("down"), b"1")
    launch(notifier=manager.notifier)
    assert manager.is_told() == b"STATUS=down"
    assert manager.is_told() == b"READY=1\nSTATUS=up to date"


def test_ready_with_an_old_value(launch: Any, config: Any, source: Any, manager: Manager) -> None:
    """What an earlier run published makes a service ready, too, when the source is down."""
    config.bytes_published = b"1"
    source.has(failing("down"), b"1")
    launch(notifier=manager.notifier)
    assert manager.is_told() == b"READY=1\nSTATUS=down"


def test_reload(launch: Any, source: Any, manager: Manager) -> None:
    """A refresh is told as a reload, which ends, well or badly, with READY; a stop is told, too."""
    source.has(b"1")
    updater = launch(notifier=manager.notifier)
    manager.is_told()
    source.has(b"bad", b"1")
    updater.refresh()
    assert manager.is_told().startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert manager.is_told().startswith(b"READY=1\nSTATUS=test:source: not a good configuration")
    assert manager.is_told() == b"READY=1\nSTATUS=up to date"
    updater.end()
    assert manager.is_told() == b"STOPPING=1"


def test_watchdog_in_a_fetch(launch: Any, source: Any, manager: Manager) -> None:
    """The watchdog is fed while a fetch takes its time."""
    launch(notifier=manager.notifier)
    source.asked.get(timeout=HANG)
    manager.is_fed(5)


def test_watchdog_in_a_pause(launch: Any, source: Any, manager: Manager) -> None:
    """The watchdog is fed between fetches, however long the interval."""
    source.has(b"1")
    launch(notifier=manager.notifier)
    manager.is_told()
    manager.is_fed(5)


def test_watchdog_in_standby(launch: Any, config: Any, manager: Manager) -> None:
    """The watchdog is fed while another updater holds the seat."""
    config.seat.acquire()
    launch(notifier=manager.notifier)
    manager.is_told()
    manager.is_fed(5)
