"""scripts/demo, as its users start it, but for the virtual environment that it makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from shmlock._kernel import shm
from tests.ending import with_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("rich", reason="the demo shows its progress with rich: pip install rich")

ROOT = Path(__file__).parents[2]
HANG = 60.0
"""Seconds after which something that was waited for is taken not to come. No test is faster or slower by it."""


class Demo:
    """A demo that runs, and what it has printed so far."""

    def __init__(self, seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo_site", f"--seconds={seconds}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "PYTHONUNBUFFERED": "1"},
            process_group=0,
            preexec_fn=with_us(signal.SIGTERM),  # it ends what it has started
        )
        self.output = ""

    def tells(self, text: str) -> None:
        """Wait until it prints this."""
        assert self.process.stdout is not None
        while text not in self.output:
            line = self.process.stdout.readline()
            assert line, f"it has ended without {text!r}:\n{self.output}"
            self.output += line

    def started(self, command: str) -> list[psutil.Process]:
        """What it has started whose command line contains this."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if command in " ".join(child.cmdline())]

    def ends(self) -> int:
        """Wait for its end; its exit code."""
        rest, _ = self.process.communicate(timeout=HANG)
        self.output += rest
        return self.process.returncode

    def names(self) -> list[str]:
        """What is in /dev/shm on its behalf."""
        return [entry for entry in shm.names() if f"demo-{self.process.pid}-" in entry]

    def close(self) -> None:
        """End it, and what it has started."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=HANG)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run() -> Iterator[Callable[[float], Demo]]:
    """`run(seconds)` starts a demo, which ends with the test, and of which nothing may be left."""
    demos = []

    def run(seconds: float) -> Demo:
        demos.append(Demo(seconds))
        return demos[-1]

    yield run
    for demo in demos:
        demo.close()
        assert demo.names() == []


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, reaped or not."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_all_promises_are_kept(run: Callable[[float], Demo]) -> None:
    """A demo ends with a table that a file can hold, and exit code 0."""
    demo = run(6.0)
    assert demo.ends() == 0, demo.output
    assert "All promises were kept." in demo.output
    assert "\x1b" not in demo.output
    for row in ("failed otherwise", "mixed reads", "backward reads", "p99", "names left in /dev/shm"):
        assert row in demo.output


def test_broken_promise(run: Callable[[float], Demo]) -> None:
    """When the standby is dead, too, the demo says what nobody has taken over, and its exit code is 1."""
    demo = run(6.0)
    demo.tells("clients ask")
    standby = max(demo.started("shmlock.updater"), key=lambda process: process.create_time())
    standby.kill()
    assert demo.ends() == 1
    assert "BROKEN: updater's death to standby's publish: never" in demo.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(run: Callable[[float], Demo], number: signal.Signals) -> None:
    """When it is interrupted, the demo ends all that it has started."""
    demo = run(60.0)
    demo.tells("clients ask")
    started = psutil.Process(demo.process.pid).children(recursive=True)
    assert len(started) == 1 + 4 + 2
    demo.process.send_signal(number)
    assert demo.ends() == 128 + number
    assert "Traceback" not in demo.output
    end = time.monotonic() + HANG
    while not all(map(is_gone, started)):
        assert time.monotonic() < end
        time.sleep(0.01)
