"""A holder is killed while another waits: how long until the next one is in."""

from __future__ import annotations

import functools
import logging
import math
import os
import signal
import statistics
import time
import traceback
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from shmlock.bench import peers
from shmlock.bench.crowd import HANG, context, enter, heard, undisturbed
from shmlock.bench.peers import Peer, missing
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import clearly_less, milliseconds, never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from shmlock.bench.samples import Results

READER, WRITER = "a reader is killed", "a writer is killed"

_turn = count()


def _hold(lock: Peer, column: str, pipe: Connection[Any, Any]) -> None:
    reader, writer = lock.opened()
    with reader if column == READER else writer:
        pipe.send("in")
        time.sleep(HANG)  # until it is killed


def _ask(lock: Peer, pipe: Connection[Any, Any]) -> None:
    logging.getLogger("shmlock").setLevel(logging.ERROR)  # it tells of each death, and these are meant
    _, writer = lock.opened()
    pipe.send("opened")
    pipe.recv()
    pipe.send("asks")
    with writer:
        pipe.send(time.monotonic())


@contextmanager
def _process(job: Callable[..., None], *args: Any) -> Iterator[tuple[int, Connection[Any, Any]]]:
    """A process that says things, by its id and what it says; killed at the end, wherever it is."""
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(os.getpid(), job, *args, theirs), daemon=True)
    try:
        with undisturbed():
            process.start()
        theirs.close()
        assert process.pid is not None  # noqa: S101  for type checkers: it has started
        yield process.pid, ours
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        process.close()
        ours.close()


def _run(parent: int, job: Callable[..., None], lock: Peer, *args: Any) -> None:
    enter(parent)
    pipe: Connection[Any, Any] = args[-1]
    try:
        job(lock, *args)
    except BaseException:  # noqa: BLE001  the parent says it
        pipe.send(RuntimeError(f"in a process of {lock.name}:\n{traceback.format_exc()}"))
    os._exit(0)  # whatever a peer left behind must not be heard of at exit


def _heard(pipe: Connection[Any, Any]) -> Any:
    said = heard(pipe)
    if isinstance(said, RuntimeError):
        raise said
    return said


def kill(peer: type[Peer], column: str, settle: float, patience: float) -> float:
    """Seconds from a SIGKILL until the next holder is in; `inf` when that takes longer than `patience`.

    Raises WrongData when the lock doesn't lock.
    """
    with ExitStack() as stack:
        lock = peer(f"bench-{os.getpid()}-kill{next(_turn)}")
        stack.callback(lock.close)
        _, asking = stack.enter_context(_process(_ask, lock))
        _heard(asking)  # it is ready before the lock is held: some must take a lock once to know their place in it
        holder, held = stack.enter_context(_process(_hold, lock, column))
        _heard(held)
        asking.send("ask")
        _heard(asking)
        time.sleep(settle)  # a `with` doesn't say from when on it sleeps
        if asking.poll():
            _heard(asking)
            raise WrongData("one that wanted to write was in beside the holder")
        killed = time.monotonic()
        os.kill(holder, signal.SIGKILL)
        return _heard(asking) - killed if asking.poll(patience) else math.inf


def kills(peer: type[Peer], column: str, knobs: Knobs) -> Mapping[str, float]:
    """One round. The first that nobody gets over is the last one: the others would be no different."""
    took: list[float] = []
    for number in range(knobs["kills"]):
        # Not always at the same moment of what waits in steps.
        settle = knobs["settle"] * (1 + number / knobs["kills"]) / 1000
        took.append(kill(peer, column, settle, knobs["patience"]) * 1000)
        if math.isinf(took[-1]):
            break
    return {"median": statistics.median(took), "longest": max(took)}


def cases(knobs: Knobs) -> list[Case]:
    """A reader and a writer that are killed, for all peers."""
    return [
        Case(peer.name, column, functools.partial(kills, peer, column, knobs))
        for column in (READER, WRITER)
        for peer in peers.peers()
    ]


def answer(results: Results) -> str:
    """Ours; who never gets over it; and who does so sooner than ours."""
    parts = []
    for column in results.columns:
        endless = never(results, "longest", column)
        ours = milliseconds(results.median("median", column, "shmlock.RWLock"), "for ever")
        sooner = clearly_less(results, "median", column, "shmlock.RWLock")
        parts.append(
            f"When {column}, the next one is in after {ours} with shmlock.RWLock"
            + (f", sooner with {', '.join(sooner)}" if sooner else ", and clearly sooner with no other")
            + (f", and never with {', '.join(endless)}." if endless else ", and with all others at some time.")
        )
    return " ".join(parts)


SCENARIO = Scenario(
    name="recovery",
    title="A holder is killed",
    question=(
        "The out-of-memory killer, an impatient supervisor, kill -9: whoever holds the lock is gone, and one that "
        "wants to write waits for it. When does it get in, if ever? What the kernel keeps (file locks, robust mutexes) "
        "it takes away from the dead itself. What is kept in shared memory alone stays as it was, unless somebody "
        "looks after who is dead."
    ),
    measures={
        "median": Measure("until the next one is in, the median", "ms"),
        "longest": Measure("until the next one is in, the longest", "ms"),
    },
    knobs={
        "kills": Knob(5, 3, "in each round, each of a new lock's holder"),
        "settle": Knob(20.0, 20.0, "milliseconds at least that the other waits before the kill"),
        "patience": Knob(1.0, 0.5, "seconds after which it is taken never to get in"),
    },
    cases=cases,
    answer=answer,
    missing=missing,
    columns="who dies",
    notes=(
        "The one that waits always wants to write, as readers may be in together with the dead. A round ends at the "
        "first kill that nobody gets over."
    ),
)
