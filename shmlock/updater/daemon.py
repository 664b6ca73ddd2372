"""The updater's loop: take the seat, fetch, judge, publish, wait.

One thread runs the loop and holds the seat. Each fetch has a thread of its own, so that the loop goes on
while a server is slow: it obeys signals, feeds the watchdog, and tells when a fetch is overdue.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from shmlock.errors import PayloadTooLarge, SegmentCorrupt
from shmlock.updater.notify import Notifier
from shmlock.updater.source import Fetched, Source, SourceError
from shmlock.updater.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock.config import SharedConfig
    from shmlock.updater.cache import Cache

log = logging.getLogger("shmlock.updater")

_FIRST_RETRY = 1.0
_LAST_RETRY = 60.0
_SEAT_SLICE = 0.2
_STALE_SLICE = 1.0
_OVERDUE = 1.0
"""Seconds beyond its timeout after which a fetch is no longer waited for in silence."""


class _Stop(Exception):  # noqa: N818  a request, not an error
    """The loop is to end. Raised where it waits for the bell or the lock, and nowhere else."""


@dataclass(frozen=True, slots=True)
class _Good:
    """A body that passed: where it came from, as it came, as a value, and as it is published."""

    url: str
    body: bytes
    value: object
    encoded: bytes


class Updater:
    """Keeps one `SharedConfig` fresh.

    `open_config` attaches to the configuration, or creates it; it is called again when the name has come to
    mean another segment. `interval`: seconds from one success to the next fetch. `timeout`: seconds that the
    source allows a fetch. `check` raises ValueError for a body that must not be published. `cache` keeps the
    last good body, to be published when the source has none and nothing is published.
    """

    def __init__(
        self,
        open_config: Callable[[], SharedConfig],
        source: Source,
        *,
        interval: float,
        timeout: float,
        check: Callable[[bytes], None] | None = None,
        cache: Cache | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._open_config = open_config
        self._source = source
        self._interval = interval
        self._timeout = timeout
        self._check = check
        self._cache = cache
        self._notifier = Notifier({}) if notifier is None else notifier

        # A signal handler may ring while its own thread waits for the bell: of all in the standard library
        # only SimpleQueue.put() is documented to be reentrant. It only wakes; what to do is in the flags.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._refreshing = False
        self._waiting_thread: int | None = None

        self._pending: Future[Fetched | None] | None = None
        self._overdue = False
        self._last: Fetched | None = None
        self._verdict: _Good | str = f"{source.url}: nothing fetched yet"
        """On the body of `_last`: good, or why not. It stands until a new body comes, whatever 304s do."""
        self._good: _Good | None = None
        """The last that was published or found published."""
        self._cached: bytes | None = None

        self._source_trouble = Trouble("recovered")
        self._cache_trouble = Trouble("the cache is written again")

    def stop(self) -> None:
        """Make `run` or `run_once` end soon. For other threads and signal handlers."""
        self._stopping = True
        self._bell.put(None)

    def interrupt(self) -> None:
        """Leave a wait for the lock, after `stop()`, by an exception. For signal handlers.

        It waits for those who hold the lock, one of which may be stopped, with no timeout. Elsewhere, or in
        another thread, this does nothing; so call it until the end has come.
        """
        if self._stopping and self._waiting_thread == threading.get_ident():
            raise _Stop

    def refresh(self) -> None:
        """Make `run` fetch now. For other threads and signal handlers."""
        self._refreshing = True
        self._bell.put(None)

    def run(self) -> None:
        """Update until `stop()`. Raises the errors of the shared configuration, and none of the source."""
        try:
            while True:
                with contextlib.closing(self._open_config()) as config:
                    if self._take_seat(config):
                        try:
                            self._serve(config)
                        finally:
                            config.leave_seat()
        except _Stop:
            self._notifier.send("STOPPING=1")

    def run_once(self) -> bool:
        """Fetch once, and publish if it differs. Return False if another updater holds the seat.

        Raises `SourceError` when nothing good was fetched, even if the cache helped out, and the errors of
        the shared configuration.
        """
        with contextlib.closing(self._open_config()) as config:
            if not config.take_seat(0):
                return False
            try:
                self._update_or_fall_back(config)
            except _Stop:
                raise SourceError(f"{self._source.url}: stopped before the end") from None
            finally:
                config.leave_seat()
            return True

    def _update_or_fall_back(self, config: SharedConfig) -> None:
        try:
            self._update(config)
        except SourceError as error:
            if self._fall_back(config):
                raise SourceError(f"{error} (the cached configuration was published instead)") from error
            raise

    def _take_seat(self, config: SharedConfig) -> bool:
        """Wait for the seat. False: the segment went stale meanwhile."""
        if config.take_seat(0):
            return True
        log.info("%s: standing by, another updater holds the seat", config.name)
        self._notifier.send("READY=1", "STATUS=standby: another updater holds the seat")
        while not config.is_stale():
            if config.take_seat(_SEAT_SLICE):
                log.info("%s: taking over from another updater", config.name)
                return True
            if self._refreshing:  # the one that holds the seat fetches; there is nothing to do here
                self._begin_refresh()
                self._notifier.send("READY=1")
            self._doze(0)
        return False

    def _serve(self, config: SharedConfig) -> None:
        """Update, with the seat held, until the segment is stale."""
        if self._good is not None and self._published(config) is None:
            # The name was unlinked and made anew while we ran: its first reader shall not wait for a fetch.
            with contextlib.suppress(SourceError):  # too large for the new one: the update below says so
                self._publish(config, self._good)
        first, last = min(_FIRST_RETRY, self._interval), max(_LAST_RETRY, self._interval)
        ceiling = first
        while True:
            try:
                self._update(config)
            except SourceError as error:
                self._source_trouble.failing(config.name, str(error))
                self._fall_back(config)
                # Full jitter, lest a fleet come back in step: M. Brooker, "Exponential Backoff And Jitter",
                # AWS Architecture Blog, 2015.
                delay = random.uniform(0, ceiling)  # noqa: S311
                ceiling = min(2 * ceiling, last)
            else:
                self._source_trouble.fine(config.name)
                delay, ceiling = self._interval, first
            status = f"STATUS={self._source_trouble.reason or 'up to date'}"
            self._notifier.send(*(["READY=1"] if self._published(config) is not None else []), status)
            if not self._pause(config, delay):
                return

    def _pause(self, config: SharedConfig, delay: float) -> bool:
        """Wait for the next fetch's time, or for `refresh()`. False: the segment went stale meanwhile."""
        end = time.monotonic() + delay
        self._doze(0)
        while not config.is_stale():
            left = end - time.monotonic()
            if self._refreshing or left <= 0:
                return True
            self._doze(min(left, _STALE_SLICE))
        return False

    def _doze(self, seconds: float) -> None:
        """Wait for the bell. Every wait of the loop ends here: feed the watchdog, and obey `stop()`."""
        until_fed = self._notifier.feed_watchdog() if not self._overdue else inf
        if not self._stopping:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=min(seconds, until_fed))
        if self._stopping:
            raise _Stop

    def _update(self, config: SharedConfig) -> None:
        """Fetch, judge what is new, and publish what differs. Raises `SourceError`."""
        fetched = self._fetch()
        if fetched is not None:
            self._last = fetched
            try:
                self._verdict = self._judge(config, fetched.body, self._source.url)
            except SourceError as error:
                self._verdict = str(error)
        if isinstance(self._verdict, str):
            raise SourceError(self._verdict)
        self._publish(config, self._verdict)
        self._good = self._verdict
        self._keep(config.name, self._good.body)

    def _fetch(self) -> Fetched | None:
        """Fetch in another thread, or go on waiting for a fetch that was overdue the last time."""
        if self._pending is None:
            self._pending = self._begin_fetch()
        patience = time.monotonic() + self._timeout + _OVERDUE
        while not self._pending.done():
            left = patience - time.monotonic()
            if left <= 0:
                # From now on the watchdog starves: if this never ends, a restart or a standby may do better.
                self._overdue = True
                raise SourceError(
                    f"{self._source.url}: no answer in {self._timeout:g} s; "
                    "it is still waited for: look at name resolution, or the file system"
                )
            self._doze(left)
        self._overdue = False
        done, self._pending = self._pending, None
        return done.result()

    def _begin_fetch(self) -> Future[Fetched | None]:
        if self._refreshing:
            self._begin_refresh()
        future: Future[Fetched | None] = Future()

        def fetch() -> None:
            try:
                future.set_result(self._source.fetch(self._last))
            except SourceError as error:
                future.set_exception(error)
            except Exception as error:  # noqa: BLE001  whatever breaks a source, the last good value stays
                future.set_exception(SourceError(f"{self._source.url}: {type(error).__name__}: {error}"))
            finally:
                self._bell.put(None)

        # A daemon thread: the end of the process doesn't wait for a server.
        threading.Thread(target=fetch, name="shmlock-fetch", daemon=True).start()
        return future

    def _begin_refresh(self) -> None:
        self._refreshing = False
        self._notifier.reloading()

    def _judge(self, config: SharedConfig, body: bytes, url: str) -> _Good:
        try:
            value = config.codec.decode(body)
            if self._check is not None:
                self._check(body)
            return _Good(url, body, value, config.codec.encode(value))
        except (ValueError, TypeError) as error:
            raise SourceError(f"{url}: not a good configuration: {error}; correct it there") from error
        except RecursionError as error:
            raise SourceError(f"{url}: not a good configuration: nested too deeply; correct it there") from error

    def _publish(self, config: SharedConfig, good: _Good) -> None:
        """Publish it if it differs. Raises `SourceError` if it is too large."""
        try:
            with self._interruptible():
                if self._published(config) == good.encoded:
                    config.confirm()
                    log.debug("%s: nothing new", config.name)
                    return
                version = config.publish(good.value)
        except PayloadTooLarge as error:
            raise SourceError(f"{good.url}: {error}") from error
        log.info("%s: published version %d, %d bytes", config.name, version, len(good.encoded))

    def _keep(self, name: str, body: bytes) -> None:
        """Keep a good body in the cache. Without a cache on disk the update is no less a success."""
        if self._cache is None or body == self._cached:
            return
        try:
            self._cache.store(body)
        except OSError as error:
            self._cache_trouble.failing(name, f"{self._cache.url}: can't be written: {error.strerror or error}")
        else:
            self._cached = body
            self._cache_trouble.fine(name)

    def _fall_back(self, config: SharedConfig) -> bool:
        """Publish what the cache holds if nothing is published at all. Return whether that was done."""
        if self._cache is None or self._published(config) is not None:
            return False
        try:
            good = self._judge(config, self._cache.load(), self._cache.url)
            self._publish(config, good)
        except SourceError as error:
            self._cache_trouble.failing(config.name, str(error))
            return False
        self._cached = good.body
        log.warning("%s: the cached configuration was published: %s", config.name, self._cache.url)
        return True

    def _published(self, config: SharedConfig) -> bytes | None:
        """Return what is published; None when that is nothing, or damaged, which the next publish heals."""
        try:
            with self._interruptible():
                return config.encoded()
        except SegmentCorrupt:
            return None

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Mark what may wait for the lock, and is built to be left by an exception."""
        before, self._waiting_thread = self._waiting_thread, threading.get_ident()
        try:
            yield
        finally:
            self._waiting_thread = before
