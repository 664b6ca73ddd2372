"""Processes that begin together: what they return, how long all of them took, and what it cost."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import selectors
import signal
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.managers import SyncManager
from typing import TYPE_CHECKING, Any, Final

from shmlock._kernel import libc
from shmlock.bench.scenario import WrongData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

context = multiprocessing.get_context("fork")
HANG = 120.0  # seconds that a crowd may take; nobody is measured by it
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what ends the bench, which cleans up then

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_prctl = libc.holding_gil.function("prctl", ctypes.c_int, ctypes.c_ulong)


@contextmanager
def undisturbed() -> Iterator[None]:
    """While a process is started: what ends the bench waits, until the process is known, and has called `enter`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def enter(parent: int) -> None:
    """In a process just started by this parent: Ctrl-C is for the parent alone, and the process ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before it could be heard of
        os._exit(1)


def manager() -> SyncManager:
    """As `multiprocessing.Manager()`, but its process ends with this one even when this one is killed."""
    made = SyncManager(ctx=context)
    with undisturbed():
        made.start(enter, (os.getpid(),))
    return made


class Gate:
    """Holds back the crowd's processes until the parent opens it, to all at once: by an end of file."""

    def __init__(self) -> None:
        self._end, self._bar = os.pipe()

    def enter(self) -> None:
        """In a job's process: let the parent alone open it."""
        os.close(self._bar)

    def wait(self) -> None:
        """In a job's process."""
        os.read(self._end, 1)

    def open(self) -> None:
        """In the parent; once."""
        bar, self._bar = self._bar, -1  # first, since an interrupt may come when it is closed
        os.close(bar)

    def close(self) -> None:
        """In the parent, at the end."""
        if self._bar >= 0:
            self.open()
        os.close(self._end)


class Start:
    """What a job gets: `wait()` until all are ready, `stopped` from when it is to end."""

    def __init__(self, stop: Any, gate: Gate) -> None:
        self._stop = stop
        self._gate = gate
        self._ready: Connection[Any, Any] | None = None

    def enter(self, ready: Connection[Any, Any]) -> None:
        """In a job's process: say here when it is ready."""
        self._gate.enter()
        self._ready = ready

    def wait(self) -> None:
        """Begin together with the others."""
        if self._ready is not None:
            self._ready.send(_READY)
        self._gate.wait()

    @property
    def stopped(self) -> bool:
        """Whether the time is over."""
        return bool(self._stop.value)


_READY = "ready"
_Told = tuple[Any, tuple[float, int, int, int]]  # what a job returned, and what it cost


@dataclass(frozen=True)
class Crowd:
    """What came of it. `cpu`: seconds of all processes, from fork to end."""

    results: list[Any]
    wall: float
    cpu: float
    voluntary: int  # context switches: waits
    involuntary: int
    rss: int  # KiB, of the largest


def gather(jobs: Sequence[Callable[[Start], Any]], seconds: float | None = None) -> Crowd:
    """Run each job in a process of its own; tell them to stop after so many seconds, if any.

    A job calls `start.wait()` once, when it is ready, and returns something that pickles. Raises what a job raised;
    whatever happens, the processes end with it.
    """
    stop = context.RawValue("b", 0)
    begin, end = Gate(), Gate()
    start = Start(stop, begin)
    pipes: list[Connection[Any, Any]] = []
    workers: list[ForkProcess] = []
    try:
        for job in jobs:
            ours, theirs = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(os.getpid(), job, start, end, theirs), daemon=True)
            with undisturbed():
                worker.start()
                workers.append(worker)
            theirs.close()
            pipes.append(ours)
        early = [heard(pipe) for pipe in pipes]  # most are ready; one that is not has ended
        begin.open()
        began = time.perf_counter()
        if seconds is not None:
            time.sleep(seconds)
            stop.value = 1
        told = _all_told(pipes, early)
        wall = time.perf_counter() - began
        end.open()
        for worker in workers:
            worker.join(HANG)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            worker.join()
            worker.close()
        for pipe in pipes:
            pipe.close()
        begin.close()
        end.close()
    usages = [usage for _, usage in told]
    return Crowd(
        results=[result for result, _ in told],
        wall=wall,
        cpu=sum(usage[0] for usage in usages),
        voluntary=sum(usage[1] for usage in usages),
        involuntary=sum(usage[2] for usage in usages),
        rss=max((usage[3] for usage in usages), default=0),
    )


def _work(parent: int, job: Callable[[Start], Any], start: Start, end: Gate, pipe: Connection[Any, Any]) -> None:
    enter(parent)
    start.enter(pipe)
    end.enter()
    try:
        result: tuple[str, Any] = ("returned", job(start))
    except WrongData as wrong:
        result = ("wrong", str(wrong))
    except BaseException:  # noqa: BLE001  the parent says it
        result = ("raised", traceback.format_exc())
    used = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send((result, (used.ru_utime + used.ru_stime, used.ru_nvcsw, used.ru_nivcsw, used.ru_maxrss)))
    pipe.close()
    end.wait()  # to take down a process costs a millisecond, which those that go on would pay for
    os._exit(0)  # whatever a peer left behind must not be heard of at exit


def heard(pipe: Connection[Any, Any]) -> Any:
    """What a process says next. Raises TimeoutError, and ChildProcessError when it has ended."""
    if not pipe.poll(HANG):
        raise TimeoutError(f"a process said nothing for {HANG:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise ChildProcessError("a process ended without a word: was it killed?") from None


def _all_told(pipes: Sequence[Connection[Any, Any]], early: Sequence[Any]) -> list[_Told]:
    """In their order, but heard as they come: who waits for one that has failed would wait for the others, too."""
    told = {place: _told(said) for place, said in enumerate(early) if said != _READY}
    with selectors.DefaultSelector() as selector:
        for place, pipe in enumerate(pipes):
            if place not in told:
                selector.register(pipe, selectors.EVENT_READ, place)
        while len(told) < len(pipes):
            came = selector.select(HANG)
            if not came:
                raise TimeoutError(f"{len(pipes) - len(told)} processes said nothing for {HANG:.0f} s")
            for key, _ in came:
                selector.unregister(key.fileobj)
                told[key.data] = _told(heard(pipes[key.data]))
    return [told[place] for place in range(len(pipes))]


def _told(said: Any) -> _Told:
    (kind, result), usage = said
    if kind == "wrong":
        raise WrongData(result)
    if kind == "raised":
        raise RuntimeError(f"in a process of the crowd:\n{result}")
    return result, usage
