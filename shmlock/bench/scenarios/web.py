"""A web application behind gunicorn whose requests read what a background writer changes: the first seed's."""

from __future__ import annotations

import functools
import http.client
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import shmlock
from shmlock.bench import web_site
from shmlock.bench.crowd import Start, gather
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import compared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shmlock.bench.samples import Results

SIDES: Final = {
    "none": "no lock",
    "mutex": "multiprocessing.Lock",
    "rwlock": "shmlock.RWLock",
    "config": "shmlock.SharedConfig",
}  # by mode
PATIENCE: Final = 15.0  # seconds for the server to come, and for an answer

_turn = count()


class Attack(NamedTuple):
    """What the client saw."""

    latencies: list[float]  # seconds, of all requests
    succeeded: int
    torn: int
    attack: float  # seconds in which requests were begun
    whole: float  # seconds until the last answer


def unavailable() -> dict[str, str]:
    """All sides, if gunicorn is not installed."""
    if find_spec("gunicorn"):
        return {}
    return dict.fromkeys(SIDES.values(), "gunicorn is not installed (pip install shmlock-rw[gunicorn])")


@contextmanager
def serving(mode: str, settings: Mapping[str, float]) -> Iterator[int]:
    """Run gunicorn: the port at which it answers. Whatever happens, all of it ends, and nothing stays."""
    name = f"bench-{os.getpid()}-web{next(_turn)}"
    environment = {f"BENCH_{key.upper()}": str(value) for key, value in settings.items()}
    environment |= {"BENCH_MODE": mode, "BENCH_NAME": name, "BENCH_PARENT": str(os.getpid())}
    site, where = web_site.__name__, str(Path(shmlock.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (where, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile() as log:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            port: int = listener.getsockname()[1]
            server = subprocess.Popen(  # noqa: S603  our own
                [sys.executable, "-m", "gunicorn", "--config", f"python:{site}", f"{site}:application"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environment | {"BENCH_BIND": f"fd://{listener.fileno()}"},
                pass_fds=[listener.fileno()],
                process_group=0,
            )
        try:
            if not _answers(port, server):
                log.seek(0)
                raise RuntimeError(f"gunicorn does not serve:\n{log.read().decode(errors='replace')}")
            yield port
        finally:
            _end(server)
            shmlock.unlink(name)  # if it could not do so itself


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    """Ask until all workers are up; False when they won't be."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not _ended(server):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", web_site.READY)
            if connection.getresponse().status == 200:
                connection.close()
                return True
        connection.close()
        time.sleep(0.02)
    return False


def _ended(server: subprocess.Popen[bytes]) -> bool:
    """Whether the master has; it stays a zombie, so that the number of its group remains its own."""
    return os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask the master to end, at once since nobody waits for an answer any more; then end all of its process group."""
    os.kill(server.pid, signal.SIGQUIT)
    end = time.monotonic() + PATIENCE
    while not _ended(server) and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _attack(port: int, connections: int, longest: float, start: Start) -> Attack:
    """So many clients, each of which asks again, on a new connection, as soon as it has its answer."""
    latencies: list[float] = []
    succeeded: list[bool] = []
    torn: list[bool] = []
    start.wait()
    began = time.perf_counter()

    def ask_on() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        while not start.stopped and time.perf_counter() - began < longest:
            asked = time.perf_counter()
            try:
                connection.request("GET", "/")
                response = connection.getresponse()
                body, status = response.read(), response.status
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request makes another
                body, status = b"", 0
            latencies.append(time.perf_counter() - asked)
            succeeded.append(status == 200)
            torn.append(body == web_site.TORN)
            if not status:
                time.sleep(0.01)
        connection.close()

    threads = [threading.Thread(target=ask_on) for _ in range(connections)]
    for thread in threads:
        thread.start()
    while not start.stopped and time.perf_counter() - began < longest:
        time.sleep(0.005)
    attack = time.perf_counter() - began
    for thread in threads:
        thread.join()
    return Attack(latencies, sum(succeeded), sum(torn), attack, time.perf_counter() - began)


def report(seen: Attack) -> dict[str, float]:
    """As vegeta has it: latencies in ms; the rate of what was asked, the throughput of what succeeded."""
    ordered = sorted(seen.latencies)
    if not ordered:
        raise RuntimeError("the client sent no request")

    def percentile(share: int) -> float:
        return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] * 1000

    return {
        "requests": len(ordered),
        "rate": len(ordered) / seen.attack,
        "throughput": seen.succeeded / seen.whole,
        "min": ordered[0] * 1000,
        "mean": statistics.fmean(ordered) * 1000,
        **{f"p{share}": percentile(share) for share in (50, 90, 95, 99)},
        "max": ordered[-1] * 1000,
        "success": seen.succeeded / len(ordered) * 100,
    }


def serve(mode: str, settings: Mapping[str, float], connections: int, seconds: float) -> Mapping[str, float]:
    """One round. Raises WrongData."""
    with serving(mode, settings) as port:
        job = functools.partial(_attack, port, connections, 2 * seconds + PATIENCE)
        seen: Attack = gather([job], seconds).results[0]
    if seen.torn:
        raise WrongData(f"in {seen.torn} of {len(seen.latencies)} requests a reader was in together with a writer")
    return report(seen)


def cases(knobs: Knobs) -> Sequence[Case]:
    """All modes; the work is calibrated once for all of them."""
    settings: dict[str, Any] = {
        "rate": web_site.calibrated(),
        "workers": knobs["workers"],
        "threads": knobs["threads"],
        "interval": knobs["interval"],
        **{f"{kind}_work": knobs[f"{kind}_ms"] / 1000 for kind in ("read", "write", "request")},
    }
    column = f"{knobs['connections']} connections"
    return [
        Case(side, column, functools.partial(serve, mode, settings, knobs["connections"], knobs["seconds"]))
        for mode, side in SIDES.items()
    ]


def answer(results: Results) -> str:
    """Whether the kind of lock is seen from outside at all."""
    if not results.columns:
        return "There is nothing to compare."
    column = results.columns[0]
    none, mutex = SIDES["none"], SIDES["mutex"]
    throughput, p99 = (results.median(measure, column, none) for measure in ("throughput", "p99"))
    said = [f"Without any lock there are {throughput:.4g} answers a second, 99 % of them within {p99:.3g} ms."]
    for side in (mutex, SIDES["rwlock"], SIDES["config"]):
        rate, slowest = (compared(results, measure, column, side, none) for measure in ("throughput", "p99"))
        said.append(f"{side}: its throughput is {rate}, its 99th percentile {slowest}.")
    ours = compared(results, "throughput", column, SIDES["rwlock"], mutex)
    said.append(
        f"The throughput with shmlock.RWLock is {ours}; the seed saw no difference between its two locks that "
        "would matter."
    )
    return " ".join(said)


SCENARIO = Scenario(
    name="web",
    title="A web application whose requests read what a writer changes",
    question=(
        "Each request reads under a lock for a millisecond, and then works without it for 10; a background writer has "
        "it for 10 ms once in a second. Does it matter to who asks whether that lock lets one in at a time, or all "
        "readers, or whether there is none at all, because readers have a version of their own? The seed, with threads "
        "of one process, found that it hardly does."
    ),
    measures={
        "requests": Measure("requests", "", ""),
        "rate": Measure("requests begun", "/s", "more"),
        "throughput": Measure("requests that succeeded", "/s", "more"),
        "min": Measure("shortest latency", "ms"),
        "mean": Measure("mean latency", "ms"),
        "p50": Measure("half of them within", "ms"),
        "p90": Measure("90 % within", "ms"),
        "p95": Measure("95 % within", "ms"),
        "p99": Measure("99 % within", "ms"),
        "max": Measure("longest latency", "ms"),
        "success": Measure("succeeded", "%", "more"),
    },
    knobs={
        "seconds": Knob(2.5, 0.5, "that requests are sent; the seed has 60"),
        "connections": Knob(20, 20, "that each ask again as soon as they have an answer"),
        "workers": Knob(4, 2, "of gunicorn; the seed has one"),
        "threads": Knob(5, 5, "of each worker; the seed has 10"),
        "read_ms": Knob(1.0, 1.0, "of work under the lock, in each request"),
        "request_ms": Knob(10.0, 10.0, "of work without it; the seed has 100, which hides even more of the lock"),
        "write_ms": Knob(10.0, 10.0, "of work under the lock, by the writer"),
        "interval": Knob(1.0, 0.2, "seconds from one write to the next"),
    },
    cases=cases,
    missing=unavailable,
    answer=answer,
    columns="client",
    rounds=Knob(3, 1, "how often each side is measured"),
    notes=(
        "The work is hashing, as often as it takes so long on a processor of its own, measured before. The server is "
        "gunicorn with threads, preloaded; the writer is a thread of its master. Client and server share the machine. "
        "A request's 10 ms are a tenth of the seed's, so that the lock has a larger share. Each request has a "
        "connection of its own, so that whichever worker is free takes it: gunicorn leaves a connection that is kept "
        "to the worker that took it first, and how 20 of them are spread changes the throughput by a factor of 4. With "
        "a SharedConfig, "
        "reading takes no lock, and the writer publishes when its work is done. A reader that was in together with the "
        "writer is wrong data, except without a lock, where nobody keeps them apart."
    ),
)
