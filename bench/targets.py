"""What the locks and the configuration must reach, measured in one run.

    python bench/targets.py [SECTION ...] [--json FILE]

Every figure that is compared is a ratio of two medians of interleaved rounds, so that drift of the machine hits
both sides. Times of a loop are whole: nothing is subtracted. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import Result, context, interleaved, loop, now, run, unique

import shmlock
from shmlock.bench.peers.ours import ShmlockRWLock
from shmlock.bench.scenarios import mix as scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# --- sections


def uncontended() -> Iterator[Result]:
    """One process alone."""
    name = unique("alone")
    lock, mutex, theirs = shmlock.RWLock(name), shmlock.Mutex(f"{name}.m"), context.Lock()
    count = 20_000
    seen = interleaved(
        25,
        theirs=lambda: loop(theirs, count),
        reader=lambda: loop(lock.reader, count),
        writer=lambda: loop(lock.writer, count // 10),
        mutex=lambda: loop(mutex, count // 4),
    )
    yield Result("alone", "with multiprocessing.Lock()", seen["theirs"], "ns")
    yield Result("alone", "with lock.reader", seen["reader"], "ns")
    yield Result("alone", "reader / multiprocessing.Lock", seen["reader"] / seen["theirs"], "x", 2.0)
    yield Result("alone", "with lock.writer", seen["writer"] / 1000, "us", 10.0)
    yield Result("alone", "with mutex", seen["mutex"] / 1000, "us")
    for each in (lock, mutex):
        each.unlink()

    class Plain:
        def __init__(self) -> None:
            self.value: object = {"flags": {}}

        def get(self) -> object:
            return self.value

    config, plain = shmlock.SharedConfig(f"{name}.c"), Plain()
    config.publish({"flags": {}})

    def calls(get: Callable[[], object]) -> float:
        turns = range(count)
        began = now()
        for _ in turns:
            get()
        return (now() - began) / count * 1e9

    seen = interleaved(25, plain=lambda: calls(plain.get), get=lambda: calls(config.get))
    yield Result("alone", "a method that returns an attribute", seen["plain"], "ns")
    yield Result("alone", "config.get()", seen["get"], "ns")
    yield Result("alone", "config.get() / plain method", seen["get"] / seen["plain"], "x", 3.0)
    config.unlink()


def _sit(name: str, ready: Any, leave: Any) -> None:
    with shmlock.RWLock(name).reader:
        pass
    ready.release()
    leave.wait()


def writes() -> Iterator[Result]:
    """A write's cost must grow with those attached, not with max_participants."""
    locks = {most: shmlock.RWLock(unique(f"w{most}"), max_participants=most) for most in (8, 256, 8192)}
    seen = interleaved(15, **{str(most): functools.partial(loop, lock.writer, 2000) for most, lock in locks.items()})
    for most in locks:
        yield Result("write", f"max_participants={most}", seen[str(most)] / 1000, "us")
    yield Result("write", "max_participants=8192 / 8", seen["8192"] / seen["8"], "x", 1.15)
    ready, leave = context.Semaphore(0), context.Event()
    name = locks[256].name
    sitters = [context.Process(target=_sit, args=(name, ready, leave)) for _ in range(50)]
    for process in sitters:
        process.start()
    for _ in sitters:
        ready.acquire()
    attached = statistics.median(loop(locks[256].writer, 2000) for _ in range(15))
    yield Result("write", "with 50 processes attached", attached / 1000, "us")
    leave.set()
    for process in sitters:
        process.join()
    for lock in locks.values():
        lock.unlink()


def _turns(use: Any, go: Any, stop: Any, done: Any) -> None:
    with use:
        pass
    turns = 0
    go.wait()
    while not stop.value:
        for _ in range(100):
            with use:
                pass
        turns += 100
    done.put(turns)


def _throughput(use: Any, processes: int, seconds: float) -> float:
    """Turns a second in all."""
    go, stop, done = context.Barrier(processes + 1), context.RawValue("b", 0), context.Queue()
    workers = [context.Process(target=_turns, args=(use, go, stop, done)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    go.wait()
    began = now()
    time.sleep(seconds)
    stop.value = 1
    turns = sum(int(done.get()) for _ in workers)
    elapsed = now() - began
    for worker in workers:
        worker.join()
    return turns / elapsed


def together() -> Iterator[Result]:
    """Readers in 1 to 20 processes, against multiprocessing.Lock, whose rounds of 0.3 s differ by a factor of two."""
    name = unique("together")
    lock, theirs = shmlock.RWLock(name), context.Lock()
    ours: dict[int, float] = {}
    for processes in (1, 2, 4, 8, 20):
        seen = interleaved(
            15,
            theirs=functools.partial(_throughput, theirs, processes, 0.3),
            ours=functools.partial(_throughput, lock.reader, processes, 0.3),
        )
        ours[processes] = seen["ours"]
        yield Result("together", f"{processes} processes: with lock.reader", seen["ours"] / 1e6, "M/s")
        yield Result("together", f"{processes} processes: multiprocessing.Lock", seen["theirs"] / 1e6, "M/s")
        yield Result(
            "together",
            f"{processes} processes: ratio",
            seen["ours"] / seen["theirs"],
            "x",
            1.5 if processes > 1 else None,
            at_least=True,
        )
    # "Not falling": within the noise of a shared machine.
    yield Result("together", "20 processes / 2 processes", ours[20] / ours[2], "x", 0.9, at_least=True)
    lock.unlink()


def _hold(name: str, mode: str, pipe: Any) -> None:
    getattr(shmlock.RWLock(name), mode).acquire()
    pipe.send("in")
    time.sleep(600)


def recovery() -> Iterator[Result]:
    """SIGKILL the holder while another waits: how long until the next is in."""
    logging.getLogger("shmlock").setLevel(logging.ERROR)  # each death is logged, and 400 are meant
    for mode in ("writer", "reader"):
        name = unique("recovery")
        lock = shmlock.RWLock(name)
        with lock.writer:
            pass
        took: list[float] = []
        for turn in range(200):
            pipe, theirs = context.Pipe()
            child = context.Process(target=_hold, args=(name, mode, theirs))
            child.start()
            pipe.recv()
            killed = context.RawValue("d", 0)
            killer = context.Process(target=_kill_later, args=(child.pid, 0.02 + turn % 20 / 1000, killed))
            killer.start()
            lock.writer.acquire()
            took.append((time.monotonic() - killed.value) * 1000)
            lock.writer.release()
            killer.join()
            child.join()
        lock.unlink()
        quantiles = statistics.quantiles(took, n=100)
        yield Result("recovery", f"killed {mode}: next holder in, median of 200", statistics.median(took), "ms", 20)
        yield Result("recovery", f"killed {mode}: next holder in, p99", quantiles[98], "ms", 100)


def _kill_later(pid: int, seconds: float, killed: Any) -> None:
    time.sleep(seconds)
    killed.value = time.monotonic()
    os.kill(pid, signal.SIGKILL)


def _follow(name: str, ready: Any, times: Any) -> None:
    config = shmlock.SharedConfig(name)
    seen = config.version
    ready.release()
    while True:
        snapshot = config.wait(after=seen)
        if snapshot is None:
            continue
        times.put((snapshot.version, time.monotonic()))
        if snapshot.value == "end":
            return
        seen = snapshot.version


def publishing() -> Iterator[Result]:
    """A publish of 100 KB until the last of 8 waiting processes has the decoded value."""
    name = unique("publish")
    config = shmlock.SharedConfig(name)
    ready, times = context.Semaphore(0), context.Queue()
    followers = [context.Process(target=_follow, args=(name, ready, times)) for _ in range(8)]
    for process in followers:
        process.start()
    for _ in followers:
        ready.acquire()
    took, first = [], []
    for turn in range(50):
        value = {"turn": turn, "items": ["x" * 90] * 1000}
        began = time.monotonic()
        config.publish(value)
        arrived = sorted((times.get()[1] - began) * 1000 for _ in followers)
        took.append(arrived[-1])
        first.extend(arrived)
        time.sleep(0.02)
    config.publish("end")
    for process in followers:
        process.join()
    config.unlink()
    yield Result("publish", "100 KB to 8 waiting processes, each, median", statistics.median(first), "ms", 10)
    yield Result("publish", "100 KB to the last of 8, median", statistics.median(took), "ms", 10)


def _brief(name: str) -> None:
    lock = shmlock.RWLock(name)
    with lock.writer:
        pass
    if lock.writer.acquire(timeout=0):
        lock.writer.release()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _names(name: str) -> int:
    return sum(name in entry.name for entry in Path("/dev/shm").iterdir())  # noqa: S108  that is where they are


def resources() -> Iterator[Result]:
    """Memory, descriptors, names."""
    name = unique("resources")
    before = _descriptors()
    lock = shmlock.RWLock(name, max_participants=256)
    with lock.writer:
        pass
    size = Path(f"/dev/shm/shmlock.{name}").stat().st_size  # noqa: S108  as above
    yield Result("resources", "an RWLock for 256 participants", size / 1024, "KiB", 192)
    yield Result("resources", "descriptors kept", _descriptors() - before, "", 1)
    names, descriptors = _names(name), _descriptors()
    for _ in range(50):
        workers = [context.Process(target=_brief, args=(name,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            worker.close()
    grown = _descriptors() - descriptors
    yield Result("resources", "descriptors more after 200 worker restarts", grown, "", 0)
    # One semaphore for each slot that ever slept: as many as there were workers at once, and ours.
    yield Result("resources", "names more after 200 worker restarts", _names(name) - names, "", 5)
    lock.unlink()
    yield Result("resources", "names left after unlink", _names(name), "", 0)


def mix() -> Iterator[Result]:
    """100 workers, each 50 times 1 ms inside the lock (the first seed's script, as processes); the median of 5.

    Measured as in the bench's scenario `mix`, beside the writers' sleeps, one after the other, and the readers', all of
    them at the same time. So many processes that wake up on two cores take longer than one: also told is the ratio to
    what it would be if all readers' sleeps took no longer than one's.
    """
    crowds = {"80/20": (80, 20), "20/80": (20, 80), "50/50": (50, 50)}

    def wall(readers: int, writers: int) -> float:
        return scenario.crowd(ShmlockRWLock, readers, writers, 50, 0.001, 1.0)["wall"]

    took = interleaved(
        5,
        alone=functools.partial(scenario.nap, 0.001),
        **{f"{crowd} asleep": functools.partial(scenario.naps_together, n, 0.001) for crowd, (n, _) in crowds.items()},
        **{crowd: functools.partial(wall, *sizes) for crowd, sizes in crowds.items()},
    )
    yield Result("mix", "time.sleep(0.001) takes", took["alone"] * 1000, "ms")
    for crowd, (readers, writers) in crowds.items():
        least = scenario.unavoidable(writers, 50, took["alone"], took[f"{crowd} asleep"])
        fewer = scenario.unavoidable(writers, 50, took["alone"], took["alone"])
        yield Result("mix", f"{readers} processes at the same time", took[f"{crowd} asleep"] * 1000, "ms")
        yield Result("mix", f"{crowd}: wall", took[crowd], "s")
        yield Result("mix", f"{crowd}: wall / unavoidable {least:.3f} s", took[crowd] / least, "x", 1.25)
        yield Result("mix", f"{crowd}: wall / {fewer:.3f} s, as if readers slept like one", took[crowd] / fewer, "x")


SECTIONS: dict[str, Callable[[], Iterator[Result]]] = {
    "alone": uncontended,
    "write": writes,
    "together": together,
    "recovery": recovery,
    "publish": publishing,
    "resources": resources,
    "mix": mix,
}


if __name__ == "__main__":
    sys.exit(run(SECTIONS, __doc__))
