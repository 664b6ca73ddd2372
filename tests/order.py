"""Steps in order where another process can only be watched: what it does shows in the lock."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shmlock._kernel.deadline import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import shmlock
    from tests.conftest import Child, Peer, Start


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what another process's progress makes true; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


def waiting(lock: shmlock.RWLock, number: int) -> Callable[[], bool]:
    """Whether so many participants wait."""
    return lambda: f"{number} waiting" in repr(lock)


@contextmanager
def guard_held(
    thing: shmlock.RWLock | shmlock.SharedConfig | shmlock.TimerQueue,
    start: Start,
    first: Callable[[Any], None] = lambda _: None,
) -> Iterator[Child]:
    """Somebody, who has done something else first, is in the middle of a change, and does not go on before the end."""

    def stay_inside(peer: Peer) -> None:
        def action() -> None:
            peer.say("inside")
            peer.hear()

        ours = type(thing)(thing.name)
        first(ours)
        ours._engine.guard.run(FOREVER, action)
        peer.say("went on")
        peer.hear()

    child = start(stay_inside)
    assert child.hear() == "inside"
    yield child
    child.say("go on")
    assert child.hear() == "went on"
