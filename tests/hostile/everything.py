"""All objects and all that is usually done with them, once, by one who is alone with them."""

from __future__ import annotations

import time
from typing import Any, Final

import shmlock
from tests.crash import uses

_READS_AND_WRITES: Final = [uses.read, uses.write, uses.write_nowait, uses.write_and_read_on]
_CONVERSIONS: Final = [
    uses.seek,
    uses.upgrade,
    uses.seek_to_read,
    uses.seek_to_write_to_read,
    uses.write_to_seek,
    uses.read_to_seek,
    uses.read_to_seek_and_back,
    uses.read_to_write_and_back,
]
KINDS: Final = ["RWLock", "SeekLock", "Mutex", "SharedConfig", "RTMetrics", "TimerQueue"]


def made(name: str, **arguments: Any) -> dict[str, Any]:
    """One of each kind, by the kind's name; the names are `name` and that."""
    return {kind: getattr(shmlock, kind)(f"{name}.{kind}", **arguments) for kind in KINDS}


def used(objects: dict[str, Any]) -> None:
    """Use each in every way, and see that it does what it should."""
    for use in _READS_AND_WRITES:
        use(objects["RWLock"])
        use(objects["SeekLock"])
    for convert in _CONVERSIONS:
        convert(objects["SeekLock"])
    with objects["Mutex"]:
        pass
    config = objects["SharedConfig"]
    version = config.publish({"a": [1]})
    assert config.snapshot().version >= version
    assert config.get() == {"a": [1]}
    metrics = objects["RTMetrics"]
    before = sum(metrics.totals().values())
    metrics.record(200, 0.01)
    assert sum(metrics.totals().values()) > before
    timers = objects["TimerQueue"]
    ident = time.monotonic_ns()
    timers.schedule(ident, 0)
    assert ident in timers.wake_expired()


def unlinked(objects: dict[str, Any]) -> None:
    """Remove all names."""
    for each in objects.values():
        each.unlink()
