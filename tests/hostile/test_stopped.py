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
from tests.conftest import HANG
from tests.order import guard_held, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start

PROGRAM = """
import sys, shmlock
lock = shmlock.RWLock(sys.argv[1])
with lock.reader:
    pass
print("used", flush=True)
input()
"""


@contextmanager
def stopped_inside(thing: shmlock.RWLock | shmlock.TimerQueue, start: Start) -> Iterator[None]:
    """Meanwhile a process is stopped while it holds the guard; and it goes on after, for it was not taken for dead."""
    with guard_held(thing, start) as child:
        child.stop()
        yield
        child.cont()


def test_looking_and_reaping(name: str, start: Start) -> None:
    """Who looks needs no guard; who reaps, though there is one to reap, gives up at its time, and can do it later."""
    lock = shmlock.RWLock(name)

    def die(peer: Peer) -> None:
        shmlock.RWLock(name).reader.acquire()
        peer.say("in")
        peer.hear()

    dead = start(die)
    dead.hear()
    with stopped_inside(lock, start):
        dead.kill()
        assert "reading" in repr(lock)
        assert lock.statistics().evictions == 0
        with pytest.raises(shmlock.LockTimeout):
            lock.reap(0.05)
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
            with stopped_inside(lock, start):
                program.communicate("\n", timeout=HANG)
        finally:
            program.kill()
    assert program.returncode == 0
    assert lock.reap() == 1


def in_a_thread(use: Callable[[], object]) -> Callable[[], None]:
    """A thread has used it; what ends that thread."""
    used, end = threading.Event(), threading.Event()

    def run() -> None:
        use()
        used.set()
        end.wait(HANG)

    thread = threading.Thread(target=run)
    thread.start()
    assert used.wait(HANG)

    def ends() -> None:
        end.set()
        thread.join(HANG)
        assert not thread.is_alive()

    return ends


def test_a_thread_ends(name: str, start: Start) -> None:
    """The same, of a thread."""
    lock = shmlock.RWLock(name)

    def use() -> None:
        with lock.reader:
            pass

    ends = in_a_thread(use)
    with stopped_inside(lock, start):
        ends()
    until(lambda: lock.reap() == 1)  # the kernel ends the thread some time after Python has


def test_a_thread_ends_that_has_timers_in_hand(name: str, start: Start) -> None:
    """It was not killed: its timers do not come once more, though it could not tell the others under the guard."""
    timers = shmlock.TimerQueue(name, capacity=4)
    timers.schedule(1, 0)
    ends = in_a_thread(timers.wake_expired)
    with stopped_inside(timers, start):
        ends()
    until(lambda: timers.reap() == 1)
    assert timers.wake_expired() == []
