"""What a service manager is told over `NOTIFY_SOCKET`: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notifier:
    """Tells the service manager how we are, if there is one that asks; else does nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._period = _watchdog_period(environment) if path else inf
        self._due = time.monotonic()

    def send(self, *fields: str) -> None:
        """Send `KEY=value` fields as one datagram. A manager that doesn't listen is no trouble of ours."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)  # its queue fills up while it is stopped
            channel.sendto("\n".join(fields).encode(), self._address)

    def reloading(self) -> None:
        """Tell that a reload begins; `READY=1` ends it. `Type=notify-reload` wants the time with it."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def feed_watchdog(self) -> float:
        """Send `WATCHDOG=1` if it is due. Return the seconds until it is due again."""
        now = time.monotonic()
        if now >= self._due and self._period < inf:
            self.send("WATCHDOG=1")
            self._due = now + self._period
        return self._due - now if self._period < inf else inf


def _watchdog_period(environment: Mapping[str, str]) -> float:
    """Return half the time after which we are taken for hung, as the man page advises, in seconds."""
    try:
        timeout = int(environment["WATCHDOG_USEC"]) / 1e6
        ours = int(environment.get("WATCHDOG_PID", os.getpid())) == os.getpid()
    except (KeyError, ValueError):
        return inf
    return timeout / 2 if ours and timeout > 0 else inf
