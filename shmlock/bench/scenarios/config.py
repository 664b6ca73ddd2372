"""A configuration in many processes: what reading costs, and how soon all have a new one."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import shmlock
from shmlock.bench.crowd import HANG, Start, context, gather, manager
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmlock.bench.samples import Results

Value = dict[str, Any]

POLL: Final = 0.001  # seconds between two looks of a side that can't wait
NEVER: Final = 10.0  # seconds after which a value is taken not to come
SHARED: Final = Path("/dev/shm")  # noqa: S108  memory, so that no side pays for a disk
_ITEM: Final = 94  # bytes of an item, encoded, with quotes and comma
_TURN: Final = 10  # its first digits, which say of which value it is
_STEADY: Final = 0.05  # seconds of steady reading

_turn = count()


class Opened(NamedTuple):
    """What a process uses. Each process that reads has its own."""

    publish: Callable[[Value], object]
    get: Callable[[], Value]
    wait: Callable[[float], Value | None]  # for one that `get` and `wait` haven't returned yet, for so many seconds


class Side(Protocol):
    """A way to share a configuration. An instance is one; it is made in the parent, and used by its forked children."""

    name: ClassVar[str]

    def __init__(self, unique: str, size: int) -> None:
        """Raises ImportError or OSError when it can't be used."""

    def opened(self) -> Opened:
        """Called in each process, before anything is measured."""

    def close(self) -> None:
        """Leave nothing behind."""


def _sleep(_: float) -> None:
    time.sleep(POLL)


def _polled(
    look: Callable[[], Any], load: Callable[[], Value], pause: Callable[[float], object] = _sleep
) -> tuple[Callable[[], Value], Callable[[float], Value | None]]:
    """`get` and `wait` of a side that can be asked what it has, and told to load it: it does so when that changed.

    `pause`: what to do between two looks, for so many seconds at most. `look` comes before `load`, so a value can be
    newer than what it is known by, and is loaded once more; never older.
    """
    seen: Any = None
    value: Value = {}

    def get() -> Value:
        nonlocal seen, value
        found = look()
        if found != seen:
            value = load()
            seen = found
        return value

    def wait(seconds: float) -> Value | None:
        end = time.monotonic() + seconds
        while look() == seen:
            left = end - time.monotonic()
            if left <= 0:
                return None
            pause(left)
        return get()

    return get, wait


class Shared:
    """`shmlock.SharedConfig`."""

    name: ClassVar = "shmlock.SharedConfig"

    def __init__(self, unique: str, size: int) -> None:
        self._config = shmlock.SharedConfig(unique, capacity=2 * size + 4096)

    def opened(self) -> Opened:
        """It sleeps until there is a version after the one it has."""
        config = shmlock.SharedConfig(self._config.name)

        def wait(seconds: float) -> Value | None:
            snapshot = config.wait(after=config._latest.version, timeout=seconds)  # noqa: SLF001  what `get` returned
            return None if snapshot is None else snapshot.value

        return Opened(config.publish, config.get, wait)

    def close(self) -> None:
        """Unlink."""
        self._config.unlink()
        self._config.close()


class ManagerDict:
    """`multiprocessing.Manager().dict()`: in a server process, each use is two messages."""

    name: ClassVar = "Manager().dict"

    def __init__(self, unique: str, size: int) -> None:  # noqa: ARG002  it has no name, and no limit
        self._manager = manager()
        self._dict: Any = self._manager.dict()

    def opened(self) -> Opened:
        """A version beside the value, so that what hasn't changed isn't sent."""
        shared = self._dict

        def publish(value: Value) -> None:
            shared.update(value=value, version=value["first"])

        return Opened(publish, *_polled(lambda: shared.get("version"), lambda: shared["value"]))

    def close(self) -> None:
        """End the server."""
        self._manager.shutdown()


class _Folder:
    def __init__(self, unique: str, size: int) -> None:
        self._size = size
        self._folder = Path(tempfile.mkdtemp(prefix=f"{unique}-", dir=SHARED))

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder)


class File(_Folder):
    """A JSON file that is replaced by renaming, and read anew when its time has changed."""

    name: ClassVar = "file, by mtime"

    def opened(self) -> Opened:
        """By its inode, too: times have the kernel's tick, and of two changes within one the second isn't seen."""
        path = self._folder / "config.json"
        new = self._folder / "config.json.new"

        def publish(value: Value) -> None:
            new.write_bytes(json.dumps(value).encode())
            new.replace(path)

        def look() -> tuple[int, int]:
            status = path.stat()
            return status.st_mtime_ns, status.st_ino

        return Opened(publish, *_polled(look, lambda: json.loads(path.read_bytes())))


class Lmdb(_Folder):
    """`lmdb`: a memory-mapped B-tree; readers and a writer don't block each other."""

    name: ClassVar = "lmdb"

    def __init__(self, unique: str, size: int) -> None:
        self._lmdb = importlib.import_module("lmdb")
        super().__init__(unique, size)

    def opened(self) -> Opened:
        """An environment is not to be used across a fork: each process has its own."""
        environment = self._lmdb.open(str(self._folder), map_size=16 * self._size + (1 << 20), max_readers=512)

        def publish(value: Value) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(b"value", json.dumps(value).encode())
                transaction.put(b"version", str(value["first"]).encode())

        def look() -> Any:
            with environment.begin() as transaction:
                return transaction.get(b"version")

        def load() -> Value:
            with environment.begin(buffers=True) as transaction:
                found: Value = json.loads(bytes(transaction.get(b"value")))
            return found

        return Opened(publish, *_polled(look, load))


class Redis:
    """A Redis server on this machine: values by key, and a message to those who wait."""

    name: ClassVar = "Redis"

    def __init__(self, unique: str, size: int) -> None:  # noqa: ARG002  it has no limit
        self._redis: Any = importlib.import_module("redis")
        self._unique = unique
        client = self._client()
        try:
            client.ping()
        except self._redis.RedisError as error:
            raise ConnectionError(f"no Redis server answers on this machine ({error})") from None
        finally:
            client.close()

    def _client(self) -> Any:
        return self._redis.Redis(socket_connect_timeout=1, retry=None)

    def opened(self) -> Opened:
        """A version beside the value, so that what hasn't changed isn't sent; both are set at once."""
        client, name = self._client(), self._unique
        messages = client.pubsub(ignore_subscribe_messages=True)
        messages.subscribe(name)

        def publish(value: Value) -> None:
            with client.pipeline() as pipeline:
                pipeline.mset({f"{name}.value": json.dumps(value), f"{name}.version": value["first"]})
                pipeline.publish(name, value["first"])
                pipeline.execute()

        def load() -> Value:
            found: Value = json.loads(client.get(f"{name}.value"))
            return found

        def pause(seconds: float) -> None:
            messages.get_message(timeout=seconds)

        return Opened(publish, *_polled(lambda: client.get(f"{name}.version"), load, pause))

    def close(self) -> None:
        """Remove the keys."""
        client = self._client()
        client.delete(f"{self._unique}.value", f"{self._unique}.version")
        client.close()


SIDES: Final[tuple[type[Side], ...]] = (Shared, ManagerDict, Lmdb, File, Redis)


def unavailable() -> dict[str, str]:
    """The sides that can't be used here, and why not."""
    found = {}
    for side in SIDES:
        try:
            side(f"bench-{os.getpid()}-try", 1024).close()
        except ImportError as error:
            found[side.name] = f"{error.name} is not installed"
        except OSError as error:
            found[side.name] = str(error)
    return found


def value_of(turn: int, size: int) -> Value:
    """A value of about so many bytes, encoded, in which everything says which one it is.

    No two items are the same: pickle, which `Manager` uses, would send them once.
    """
    items = [f"{turn:0{_TURN}d}{number:0{_ITEM - 4 - _TURN}d}" for number in range(max(1, size // _ITEM))]
    return {"first": turn, "items": items, "last": turn}


def check(value: Value | None, turn: int) -> None:
    """Raises WrongData when it is another value, or not all of it is this one."""
    if value is None or not value:
        raise WrongData(f"there was no value instead of number {turn}")
    parts = {value["first"], value["last"], *(int(item[:_TURN]) for item in value["items"])}
    if parts != {turn}:
        raise WrongData(f"a reader had {sorted(parts)} after it was told of {turn}")


class _Together:
    """What the processes of a round share besides the configuration."""

    def __init__(self, workers: int) -> None:
        self.barrier = context.Barrier(workers + 1)
        self.arrived = context.RawArray("d", workers)

    def step(self) -> None:
        """All are here."""
        self.barrier.wait(HANG)

    def run(self, job: Callable[[], Any]) -> Any:
        """Let one that fails end all; it alone says why."""
        try:
            return job()
        except BrokenBarrierError:
            return None
        except BaseException:
            self.barrier.abort()
            raise


def _publish(side: Side, size: int, turns: int, together: _Together, start: Start) -> Any:
    opened = side.opened()
    opened.publish(value_of(0, size))
    start.wait()

    def job() -> list[float]:
        together.step()  # all have the first one
        for turn in range(1, turns + 1):
            opened.publish(value_of(turn, size))
            together.step()  # it is published
            together.step()  # it was read
        together.step()  # all have the last one, and are quiet
        together.step()  # steady reading is over
        took = []
        for turn in range(turns + 1, 2 * turns + 1):
            value = value_of(turn, size)
            together.step()  # they are about to wait
            time.sleep(0.005)  # and now they do
            began = time.monotonic()
            opened.publish(value)
            together.step()  # all have it, or never will
            took.append(max(together.arrived) - began)
        return took

    return together.run(job)


def _follow(side: Side, number: int, turns: int, together: _Together, start: Start) -> Any:
    start.wait()
    opened = side.opened()

    def job() -> tuple[float, float]:
        refreshed, steady = [], math.nan
        check(opened.get(), 0)
        together.step()
        for turn in range(1, turns + 1):
            together.step()
            if not number:
                began = time.perf_counter()
                value = opened.get()
                refreshed.append(time.perf_counter() - began)
                check(value, turn)
            together.step()
        check(opened.get(), turns)
        together.step()
        if not number:
            steady = _steady(opened.get)
        together.step()
        for turn in range(turns + 1, 2 * turns + 1):
            together.step()
            found = opened.wait(NEVER)
            together.arrived[number] = math.inf if found is None else time.monotonic()
            if found is not None:
                check(found, turn)
            together.step()
        return statistics.median(refreshed) if refreshed else math.nan, steady

    return together.run(job)


def _steady(get: Callable[[], Value]) -> float:
    """Seconds for one read while nothing changes: the median of some batches."""
    batch = 1
    took: list[float] = []
    end = time.perf_counter() + _STEADY
    while time.perf_counter() < end or len(took) < 3:
        turns = range(batch)
        began = time.perf_counter()
        for _ in turns:
            get()
        took.append((time.perf_counter() - began) / batch)
        if took[-1] * batch < _STEADY / 50:
            batch *= 2
            took.clear()
    return statistics.median(took)


def share(side: type[Side], size: int, workers: int, turns: int) -> Mapping[str, float]:
    """One round. Raises WrongData."""
    config = side(f"bench-{os.getpid()}-config{next(_turn)}", size)
    try:
        together = _Together(workers)
        found = gather(
            [
                functools.partial(_publish, config, size, turns, together),
                *(functools.partial(_follow, config, number, turns, together) for number in range(workers)),
            ]
        )
    finally:
        config.close()
    took, (refreshed, steady), *_ = found.results
    return {"steady": steady * 1e6, "refresh": refreshed * 1e3, "all": statistics.median(took) * 1e3}


def cases(knobs: Knobs) -> list[Case]:
    """All sides, for each size and number of workers."""
    return [
        Case(
            side.name,
            f"{kilobytes} KB, {workers}",
            functools.partial(share, side, kilobytes * 1000, workers, knobs["turns"]),
        )
        for kilobytes in knobs["kilobytes"]
        for workers in knobs["workers"]
        for side in SIDES
    ]


def answer(results: Results) -> str:
    """Ours, and the best of the others, for each measure: in the first and in the last column."""
    said = []
    for column in dict.fromkeys([results.columns[0], results.columns[-1]]) if results.columns else ():
        parts = []
        for measure, what, unit in (
            ("steady", "a steady read takes", "us"),
            ("refresh", "the first read of a new value", "ms"),
            ("all", "all have it after", "ms"),
        ):
            ours = results.median(measure, column, Shared.name)
            others = {side: results.median(measure, column, side) for side in results.sides if side != Shared.name}
            others = {side: median for side, median in others.items() if not math.isnan(median)}
            if math.isnan(ours) or not others:
                continue
            best = min(others, key=lambda side: others[side])
            parts.append(f"{what} {ours:.3g} {unit}, {compared(results, measure, column, Shared.name, best)}")
        if parts:
            said.append(f"{column} workers, {Shared.name} against the best of the others: {'; '.join(parts)}.")
    return " ".join(said) or "There is nothing to compare."


SCENARIO = Scenario(
    name="config",
    title="A configuration that many processes read, and one changes",
    question=(
        "Workers read a configuration in each request, and now and then there is a new one. What does reading cost "
        "while nothing changes? How long does the first read take that has to fetch and decode the new one? And how "
        "long after it was published do all workers have it, if they wait for it?"
    ),
    measures={
        "steady": Measure("one read while nothing changes", "us"),
        "refresh": Measure("the first read of a new value, with decoding", "ms"),
        "all": Measure("from publishing until the last waiting worker has it", "ms"),
    },
    knobs={
        "kilobytes": Knob((1, 100, 10_000), (1,), "sizes of the encoded value"),
        "workers": Knob((2, 8), (4,), "how many processes read"),
        "turns": Knob(5, 5, "values that are published in a round, for each measure"),
    },
    cases=cases,
    answer=answer,
    columns="size, workers",
    missing=unavailable,
    rounds=Knob(3, 2, "how often each side is measured"),
    notes=(
        "All have a version beside the value, and fetch and decode it only when that has changed. A SharedConfig and "
        f"Redis tell those who wait; the others are asked every {POLL * 1000:g} ms. Files are in /dev/shm, so that no "
        "side pays for a disk. The file is known by its inode, too: with its time alone, a change within the same tick "
        "of the kernel's clock is not seen. Publishing includes encoding. Each value is checked to be whole, and the "
        "one that was told of."
    ),
)
