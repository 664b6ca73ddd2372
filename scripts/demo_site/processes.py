"""What the demo starts: each leads a process group of its own, is watched by its log, and surely ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

PATIENCE = 15.0
"""Seconds after which something that was waited for is taken not to come."""


class DemoError(Exception):
    """Something did not come that the demo needs to go on."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait until it holds, and return what it returned. Raises DemoError."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise DemoError(f"waited for {seconds:g} s in vain: {what}")
        time.sleep(0.002)
    return result


class Process:
    """A Python program in the background; as a context manager, ended at the end."""

    def __init__(self, title: str, folder: Path, *arguments: str, **environment: str) -> None:
        """Start it. What it prints goes to a file in the folder."""
        self.title = title
        self._log = folder / f"{title}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own programs
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environment,
                process_group=0,  # Ctrl-C is for the demo alone, which ends what it has started
            )
        self.pid = self._process.pid

    def log(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    def tells(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed this. Raises DemoError, also when it has ended instead."""

        def told() -> re.Match[str] | None:
            if self._process.poll() is not None:
                raise DemoError(f"{self.title} has ended ({self._process.returncode}) before it told {pattern!r}")
            return re.search(pattern, self.log())

        found: re.Match[str] = wait_for(told, f"{self.title} tells {pattern!r}")
        return found

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Ask it to end, and wait for that: its exit code. Raises DemoError when it does not."""
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.title} did not end within {PATIENCE:g} s") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            with suppress(DemoError):
                self.end()
        if self._process.returncode != 0:  # or else it has ended its children itself
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def kill_worker(pid: int) -> set[int]:
    """SIGKILL a process; return the clients' ports of the connections that it had accepted.

    It is stopped first, so that it can accept no other between the look and the kill.
    """
    process = psutil.Process(pid)
    process.suspend()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, f"worker {pid} stops")
    ports = {
        connection.raddr.port
        for connection in process.net_connections(kind="tcp")
        if connection.status != psutil.CONN_LISTEN and connection.raddr
    }
    process.kill()
    return ports
