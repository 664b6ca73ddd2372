"""A process that is stopped where everybody has to pass, in the guard. It lives: nothing is taken from it.

What the others do meanwhile is in `test_recovery.py`; here is how they end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import shmlock
from shmlock._kernel.deadline import FOREVER
from tests.conftest import HANG

if TYPE_CHECKING:
    from tests.conftest import Child, Peer, Start

PROGRAM = """
import sys, shmlock
lock = shmlock.RWLock(sys.argv[1])
with lock.reader:
    pass
print("used", flush=True)
input()
"""


def stopped_inside(name: str, start: Start) -> Child:
    """A child that is stopped while it holds the guard."""

    def stay(peer: Peer) -> None:
        def action() -> None:
            peer.say("inside")
            peer.hear()

        shmlock.RWLock(name)._engine.guard.run(FOREVER, action)
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


def test_a_thread_ends(name: str, start: Start) -> None:
    """The same, of a thread."""
    lock = shmlock.RWLock(name)
    used, end = threading.Event(), threading.Event()

    def use() -> None:
        with lock.reader:
            pass
        used.set()
        end.wait(HANG)

    thread = threading.Thread(target=use)
    thread.start()
    assert used.wait(HANG)
    child = stopped_inside(name, start)
    end.set()
    thread.join(HANG)
    assert not thread.is_alive()
    goes_on(child)
    assert lock.reap() == 1
