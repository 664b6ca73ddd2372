"""What tests start ends with them."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

from tests.conftest import Child
from tests.ending import with_us
from tests.order import until

if TYPE_CHECKING:
    from tests.conftest import Peer, Start


def test_killed_tests_leave_no_process(start: Start) -> None:
    """Neither a program that one has started, nor a forked child, outlives it, though it could not end them."""

    def be_killed(peer: Peer) -> None:
        program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, preexec_fn=with_us())
        child = Child(lambda _: time.sleep(600))
        peer.say((program.pid, child.pid))
        peer.hear()

    killed = start(be_killed)
    pids = killed.hear()
    assert all(psutil.pid_exists(pid) for pid in pids)
    killed.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
