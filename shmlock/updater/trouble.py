"""Says what is wrong when that changes, and not each time it is met again."""

from __future__ import annotations

import logging

log = logging.getLogger("shmlock.updater")


class Trouble:
    """One thing that may be failing."""

    def __init__(self, recovered: str) -> None:
        self._recovered = recovered
        self.reason: str | None = None
        """Why it is failing; None while it isn't."""

    def failing(self, name: str, reason: str) -> None:
        """Log the reason, as a mere detail if it still is the last one."""
        log.log(logging.DEBUG if reason == self.reason else logging.WARNING, "%s: %s", name, reason)
        self.reason = reason

    def fine(self, name: str) -> None:
        """Log the recovery, if there was anything to recover from."""
        if self.reason is not None:
            log.info("%s: %s", name, self._recovered)
        self.reason = None
