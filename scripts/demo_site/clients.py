"""Those who ask, all the time, and notice what they are told."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

_PAUSE = 0.010  # seconds between the requests of one client
_PATIENCE = 15.0  # seconds for an answer
_WRITES = 10  # every so many requests is one that writes


@dataclass
class Tally:
    """What all clients have noticed."""

    answers: Counter[int] = field(default_factory=Counter)
    """By worker."""
    versions: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By worker: those it has answered with."""
    published: dict[int, float] = field(default_factory=dict)
    """By version: when its publisher stamped it, in seconds since the epoch."""
    first_use: defaultdict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By version and worker: when the worker had it in its hands for the first time."""
    numbers: dict[int, int] = field(default_factory=dict)
    """By version: what its fields said in the first answer."""
    mixed: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    """The client's port, and what happened."""
    highest: int = 0
    """The latest version that anybody was answered with."""
    slowest: float = 0.0
    """The longest time to an answer, in seconds."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, answer: dict[str, Any], *, floor: int, seconds: float) -> None:
        """Note an answer to a request that was sent when `floor` was the highest version known to anybody."""
        pid, version, first, last = answer["pid"], answer["version"], answer["first"], answer["last"]
        with self.lock:
            self.answers[pid] += 1
            self.versions[pid].add(version)
            self.published[version] = answer["published_at"]
            self.first_use[version][pid] = answer["used_at"]
            if not first == last == self.numbers.setdefault(version, first):
                self.mixed.append(
                    f"worker {pid}: version {version} has {first} and {last}, was {self.numbers[version]}"
                )
            if not answer["ledger_agrees"]:
                self.mixed.append(f"worker {pid} read a ledger that was half written")
            if version < floor:
                self.backward.append(f"worker {pid}: version {version} after somebody was answered with {floor}")
            self.highest = max(self.highest, version)
            self.slowest = max(self.slowest, seconds)

    def failed(self, port: int, why: str) -> None:
        """Note a request that has got no good answer."""
        with self.lock:
            self.failures.append((port, why))


def ask(host: str, path: str, tally: Tally) -> None:
    """One request, on a connection of its own, and what comes of it."""
    connection = HTTPConnection(host, timeout=_PATIENCE)
    port = 0
    try:
        floor, began = tally.highest, time.monotonic()
        connection.connect()
        port = connection.sock.getsockname()[1]
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status == 200:
            tally.answered(json.loads(body), floor=floor, seconds=time.monotonic() - began)
        else:
            tally.failed(port, f"status {response.status}")
    except (OSError, HTTPException) as error:
        tally.failed(port, f"{type(error).__name__}: {error}")
    finally:
        connection.close()


class Clients:
    """So many threads that ask until the end of the `with` block."""

    def __init__(self, number: int, host: str, tally: Tally) -> None:
        self._host = host
        self._tally = tally
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._go_on_asking) for _ in range(number)]

    def _go_on_asking(self) -> None:
        for count in itertools.count(1):
            ask(self._host, "/" if count % _WRITES else "/write", self._tally)
            if self._ended.wait(_PAUSE):
                break

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
