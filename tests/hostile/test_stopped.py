"""A process that is stopped: in a hold, or where everybody has to pass, in the guard. Nothing is taken from it.

What the others can do meanwhile is in `test_recovery.py`; here is how they look, reap and end, and how it goes on.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._kernel.deadline import FOREVER
from tests.conftest import HANG
from tests.order import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start

PROGRAM = """
import sys, shmlock
lock = shmlock.RWLock(sys.argv[1])
with lock.reader:
    pass
print("used", flush=True)
input()
"""


def stopped_inside(name: str, start: Start, kind: type[shmlock.RWLock | shmlock.TimerQueue] = shmlock.RWLock) -> Child:
    """A child that is stopped while it holds the guard."""

    def stay(peer: Peer) -> None:
        def action() -> None:
            peer.say("inside")
            peer.hear()

        kind(name)._engine.guard.run(FOREVER, action)
        peer.say("went on")
        peer.hear()

    child = start(stay)
    assert child.hear() == "inside"
    child.stop()
    return child


def goes_on(child: Child) -> None:
    """It was not taken for dead."""
    child.cont()
    child.say("go on")
    assert child.hear() == "went on"


def test_looking_and_reaping(name: str, start: Start) -> None:
    """Who looks needs no guard; who reaps, though there is one to reap, gives up at its time, and can do it later."""
    lock = shmlock.RWLock(name)

    def die(peer: Peer) -> None:
        shmlock.RWLock(name).reader.acquire()
        peer.say("in")
        peer.hear()

    dead = start(die)
    dead.hear()
    child = stopped_inside(name, start)
    dead.kill()
    assert "reading" in repr(lock)
    assert lock.statistics().evictions == 0
    with pytest.raises(shmlock.LockTimeout):
        lock.reap(0.05)
    goes_on(child)
    assert lock.reap(HANG) == 1


def test_a_late_release(name: str, start: Start) -> None:
    """A holder that was stopped until others gave up leaves late: the next one is in then, and stays in alone."""
    lock = shmlock.RWLock(name)

    def hold(peer: Peer) -> None:
        ours = shmlock.RWLock(name)
        ours.writer.acquire()
        peer.say("in")
        peer.hear()
        ours.writer.release()
        with pytest.raises(shmlock.NotHeld):
            ours.writer.release()
        peer.say("left")
        peer.hear()
        peer.say(ours.reader.acquire(timeout=0.05))

    child = start(hold)
    assert child.hear() == "in"
    child.stop()
    assert not lock.writer.acquire(timeout=0.3)
    child.cont()
    child.say("leave")
    assert lock.writer.acquire(timeout=HANG)
    assert not lock.writer.owner_died
    assert child.hear() == "left"
    child.say("ask")
    assert child.hear() is False
    lock.writer.release()
    assert child.join() == 0


def test_a_program_ends(name: str, start: Start) -> None:
    """It can't free its slot, and does not wait until it can: the others find it dead, afterwards."""
    lock = shmlock.RWLock(name)
    command = [sys.executable, "-P", "-c", PROGRAM, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "used\n"
            child = stopped_inside(name, start)
            program.communicate("\n", timeout=HANG)
        finally:
            program.kill()
    assert program.returncode == 0
    goes_on(child)
    assert lock.reap() == 1


@contextmanager
def in_a_thread(use: Callable[[], object]) -> Iterator[None]:
    """A thread that has used it at the beginning, and ends with the block."""
    used, end = threading.Event(), threading.Event()

    def run() -> None:
        use()
        used.set()
        end.wait(HANG)

    thread = threading.Thread(target=run)
    thread.start()
    assert used.wait(HANG)
    yield
    end.set()
    thread.join(HANG)
    assert not thread.is_alive()


def test_a_thread_ends(name: str, start: Start) -> None:
    """The same, of a thread."""
    lock = shmlock.RWLock(name)

    def use() -> None:
        with lock.reader:
            pass

    with in_a_thread(use):
        child = stopped_inside(name, start)
    goes_on(child)
    until(lambda: lock.reap() == 1)  # the kernel ends the thread some time after Python has


def test_a_thread_ends_that_has_timers_in_hand(name: str, start: Start) -> None:
    """It was not killed: its timers do not come once more, though it could not tell the others under the guard."""
    timers = shmlock.TimerQueue(name, capacity=4)
    timers.schedule(1, 0)
    with in_a_thread(timers.wake_expired):
        child = stopped_inside(name, start, shmlock.TimerQueue)
    goes_on(child)
    until(lambda: timers.reap() == 1)
    assert timers.wake_expired() == []
