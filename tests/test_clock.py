"""No wait goes by the wall clock, so no step of it can stretch or end one."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shmlock

if TYPE_CHECKING:
    from tests.conftest import Peer, Start

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
_CLOCK_REALTIME = 256  # futex(2), FUTEX_CLOCK_REALTIME: the time-out is a time of day


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this kernel does not show what a process waits in")
@pytest.mark.parametrize("wait", ["writer", "reader", "mutex", "config", "seat"])
def test_the_kernel_is_asked_to_wait_by_the_monotonic_clock(name: str, start: Start, wait: str) -> None:
    """The futex call in which a waiter sleeps carries no FUTEX_CLOCK_REALTIME, whatever it waits for."""
    lock, mutex = shmlock.RWLock(name), shmlock.Mutex(f"{name}.m")
    config = shmlock.SharedConfig(f"{name}.c")

    def sleep(peer: Peer) -> None:
        peer.say("ready")
        if wait == "mutex":
            mutex.acquire(timeout=600)
        elif wait == "config":
            config.wait(timeout=600)
        elif wait == "seat":
            config.take_seat(timeout=600)
        else:
            getattr(lock, wait).acquire(timeout=600)

    with lock.writer, mutex:
        assert config.take_seat()
        child = start(sleep)
        child.hear()
        end = time.monotonic() + 30
        seen: list[str] = []
        while len(seen) < 3:
            words = Path(f"/proc/{child.pid}/syscall").read_text(encoding="ascii").split()
            if words[0] == str(_FUTEX):
                seen.append(words[2])
            assert time.monotonic() < end
        assert not any(int(operation, 16) & _CLOCK_REALTIME for operation in seen)
        child.kill()
    for each in (mutex, config):
        each.unlink()
