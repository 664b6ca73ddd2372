"""What the `web` scenario has gunicorn serve: the first seed's application, and gunicorn's configuration, in one.

    python -m gunicorn -c python:shmlock.bench.web_site shmlock.bench.web_site:application

The master imports it once, for both, before it forks: so a `multiprocessing.Lock` made here is all workers' own. All
settings come from the environment. What is protected is a number that a writer leaves odd while it works.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time
import uuid
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import shmlock
from shmlock import gunicorn as shared
from shmlock.gunicorn import *  # noqa: F403  all hooks there are

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from wsgiref.types import StartResponse

    from gunicorn.arbiter import Arbiter
    from gunicorn.workers.base import Worker

MODE: Final = os.environ.get("BENCH_MODE", "none")
NAME: Final = os.environ.get("BENCH_NAME", "bench-web")
PARENT: Final = int(os.environ.get("BENCH_PARENT", "0"))  # whoever started this, in a process group of its own
RATE: Final = float(os.environ.get("BENCH_RATE", "100000"))  # pieces of work in a second
READ_WORK: Final = float(os.environ.get("BENCH_READ_WORK", "0.001"))  # seconds, as the others
WRITE_WORK: Final = float(os.environ.get("BENCH_WRITE_WORK", "0.01"))
REQUEST_WORK: Final = float(os.environ.get("BENCH_REQUEST_WORK", "0.01"))
INTERVAL: Final = float(os.environ.get("BENCH_INTERVAL", "1"))
TORN: Final = b"a reader was in together with a writer"
READY: Final = "/ready"

# gunicorn's
bind = os.environ.get("BENCH_BIND", "127.0.0.1:0")
workers = int(os.environ.get("BENCH_WORKERS", "4"))
threads = int(os.environ.get("BENCH_THREADS", "5"))
worker_class = "gthread"
preload_app = True
keepalive = 0  # a connection that is kept stays with one worker, and all 20 often did with the first that was up
graceful_timeout = 1  # a worker that is told to end before it has its own handlers does not hear it, and is killed then
control_socket_disable = True
shmlock_objects = {"rwlock": {NAME: "RWLock"}, "config": {NAME: "SharedConfig"}}.get(MODE, {})

_PATIENCE: Final = 0.1  # seconds between two looks whether whoever started this is there

_data = multiprocessing.RawValue("q", 0)
_lock = multiprocessing.get_context("fork").Lock() if MODE == "mutex" else nullcontext()
_up = multiprocessing.RawArray("b", workers)  # by age, which counts the workers


class _Opened:
    """What one process protects its reads and writes with; opened when it is first asked for.

    The hooks have made it. Whoever made it anew here could do so between `_end_with_parent`'s two lines, and leave it.
    """

    def __init__(self) -> None:
        self.reader: AbstractContextManager[Any] = nullcontext()
        self.writer: AbstractContextManager[Any] = nullcontext()
        self.config: shmlock.SharedConfig | None = None
        if MODE == "mutex":
            self.reader = self.writer = _lock
        elif MODE == "rwlock":
            lock = shmlock.RWLock(NAME, create=False)
            self.reader, self.writer = lock.reader, lock.writer
        elif MODE == "config":
            self.config = shmlock.SharedConfig(NAME, create=False)

    def read(self) -> bool:
        """Do a read's work; whether what was read was whole."""
        if self.config is not None:
            value = self.config.get(default={"first": 0, "last": 0})
            work(READ_WORK)
            return bool(value["first"] == value["last"])
        with self.reader:
            before = _data.value
            work(READ_WORK)
            return MODE == "none" or (not before % 2 and _data.value == before)

    def write(self) -> None:
        """Do a write's work."""
        if self.config is not None:
            work(WRITE_WORK)
            number = self.config.version + 1
            self.config.publish({"first": number, "last": number})
            return
        with self.writer:
            _data.value += 1
            work(WRITE_WORK)
            _data.value += 1


_opened: dict[int, _Opened] = {}  # by process


def opened() -> _Opened:
    """This process's."""
    found = _opened.get(os.getpid())
    return _opened.setdefault(os.getpid(), _Opened()) if found is None else found


def pieces(number: int) -> None:
    """The work of the seed: hashes of random identifiers."""
    for _ in range(number):
        hashlib.sha256(str(uuid.uuid4()).encode()).hexdigest()


def work(seconds: float) -> None:
    """So much work as takes so long on a processor of one's own."""
    pieces(int(RATE * seconds))


def calibrated(number: int = 2000, tries: int = 15) -> float:
    """Pieces in a second: the best of some tries, so that whatever else runs here counts little."""
    best = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        pieces(number)
        best = min(best, time.perf_counter() - began)
    return number / best


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Read, and then do what a request does. Or say whether all workers are up."""
    if environ["PATH_INFO"] == READY:
        status, body = ("200 OK", b"all are up") if all(_up) else ("503 Service Unavailable", b"not all are up")
    elif environ["PATH_INFO"] != "/":
        status, body = "404 Not Found", b"not found"
    elif not opened().read():
        status, body = "500 Internal Server Error", TORN
    else:
        work(REQUEST_WORK)
        status, body = "200 OK", b"Hello, wat is love?"
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def on_starting(server: Arbiter) -> None:  # type: ignore[no-redef]  # in place of the one that came with all
    """End with whoever started it: from the beginning, for it may be gone before this is ready."""
    shared.on_starting(server)
    if PARENT:
        threading.Thread(target=_end_with_parent, daemon=True).start()


def when_ready(server: Arbiter) -> None:  # type: ignore[no-redef]  # in place of the one that came with all
    """Write now and then, in the master."""
    shared.when_ready(server)
    threading.Thread(target=_write_on, daemon=True).start()


def post_worker_init(worker: Worker) -> None:
    """It serves from now on."""
    _up[worker.age % workers] = 1


def _write_on() -> None:
    while True:
        opened().write()
        time.sleep(INTERVAL)


def _end_with_parent() -> None:
    while os.getppid() == PARENT:
        time.sleep(_PATIENCE)
    shmlock.unlink(NAME)
    os.killpg(0, signal.SIGKILL)  # gunicorn does not always hear a SIGQUIT that comes while it starts
