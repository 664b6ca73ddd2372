"""The one at-fork registration."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from shmlock._kernel import forks

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Peer, Start


def test_hooks_run_in_the_child(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hook runs once in a forked child, in the order of registration, and none in the parent."""
    monkeypatch.setattr(forks, "_hooks", list(forks._hooks))
    ran: list[tuple[str, int]] = []

    @forks.in_child
    def first() -> None:
        ran.append(("first", os.getpid()))

    @forks.in_child
    def second() -> None:
        ran.append(("second", os.getpid()))

    child = start(lambda peer: peer.say(ran))
    assert child.hear() == [("first", child.pid), ("second", child.pid)]
    assert child.join() == 0
    assert ran == []
    first()  # what the decorator returns is the function
    assert ran == [("first", os.getpid())]


def test_hooks_run_in_grandchildren(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's child forgets in its turn."""
    monkeypatch.setattr(forks, "_hooks", list(forks._hooks))
    ran: list[int] = []
    forks.in_child(lambda: ran.append(os.getpid()))

    def fork_again(peer: Peer) -> None:
        pid = os.fork()
        if not pid:
            peer.say((os.getpid(), ran))
            os._exit(0)
        os.waitpid(pid, 0)

    child = start(fork_again)
    grandchild, seen = child.hear()
    assert seen == [child.pid, grandchild]


def test_hooks_run_whichever_thread_forks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork by a thread other than the main one runs them, too."""
    monkeypatch.setattr(forks, "_hooks", list(forks._hooks))
    ran: list[int] = []
    forks.in_child(lambda: ran.append(os.getpid()))
    heard: list[bool] = []

    def fork() -> None:
        child = start(lambda peer: peer.say(ran))
        heard.append(child.hear() == [child.pid])

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert heard == [True]


def test_nothing_before_a_fork() -> None:
    """All of shmlock registers one hook, for the child: a fork waits for nothing, least of all for the network."""
    program = """
import os, sys
register, calls = os.register_at_fork, []
def note(**hooks):
    if sys._getframe(1).f_globals["__name__"].startswith("shmlock"):
        calls.append(sorted(hooks))
    register(**hooks)
os.register_at_fork = note
import shmlock, shmlock.updater
print(calls)
"""
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[['after_in_child']]"
