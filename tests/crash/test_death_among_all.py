"""A process is killed before its nth step while a reader, a seeker, a writer and an upgrader wait: all go on.

It is killed while it joins the queue and goes through it, and while it gives back, or converts, what they wait for.
"""

from __future__ import annotations

import itertools
import operator
import signal
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._segment.layout import WANT
from tests.crash import uses
from tests.crash.mortal import RECORDS, Steps, mortal
from tests.crash.test_death_at_every_store import sound
from tests.order import until, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start

ROLES = ("upgrader", "seeker", "writer", "reader")


class Crowd:
    """Processes that ask for the lock when they are told to, each in its way."""

    def __init__(self, lock: shmlock.SeekLock, start: Start) -> None:
        self._lock = lock
        self._members = [start(_member(lock.name, role)) for role in ROLES]
        self._wants = [member.hear() for member in self._members]

    def ask(self, flows: int = 0) -> None:
        """All, one after the other, behind those that wait already; the last ones do not wait, but get it at once."""
        for number, (member, want) in enumerate(zip(self._members, self._wants, strict=True)):
            member.say("ask")
            if number < len(ROLES) - flows:
                until(lambda want=want: self._lock._words[want] > 0)  # type: ignore[misc]

    def got_it(self) -> None:
        """All had their turn."""
        for member in self._members:
            assert member.hear() == "done"

    def leave(self) -> None:
        """They end."""
        for member in self._members:
            member.say("")
            assert member.join() == 0


def _member(name: str, role: str) -> Callable[[Peer], None]:
    def take_part(peer: Peer) -> None:
        lock = shmlock.SeekLock(name)
        uses.read(lock)
        peer.say(lock._engine.me().base + WANT)
        while peer.hear():
            if role == "upgrader":
                assert lock.seeker.acquire(timeout=30)
                assert lock.seek_to_write(timeout=30)
                lock.write_to_seek()
                lock.seeker.release()
            else:
                assert getattr(lock, role).acquire(timeout=30)
                getattr(lock, role).release()
            peer.say("done")

    return take_part


@pytest.fixture
def lock(name: str) -> Iterator[shmlock.SeekLock]:
    """With a slot for the test itself."""
    with shmlock.SeekLock(name, max_participants=8) as made:
        uses.read(made)
        yield made


def check(lock: shmlock.SeekLock, deaths: int) -> None:
    """All is free, no slot is lost, and no more holds were not given back than holders died."""
    sound(lock, living=1 + len(ROLES))
    seen = lock.statistics()
    for mode in (seen.write, seen.seek):
        assert 0 <= mode.locks - mode.unlocks <= deaths


@pytest.mark.parametrize("use", [uses.read, uses.write, uses.upgrade])
def test_who_waits_with_them(lock: shmlock.SeekLock, start: Start, use: Callable[[shmlock.SeekLock], None]) -> None:
    """Killed while it claims, asks, waits, is granted, uses and gives back, in the middle of the queue."""
    crowd = Crowd(lock, start)
    for last in itertools.count():
        assert lock.writer.acquire(timeout=30)

        def ask(_: Peer, last: int = last) -> None:
            mortal(last)
            use(shmlock.SeekLock(lock.name))

        victim = start(ask)
        until(lambda child=victim: waiting(lock, 1)() or not child.alive())  # type: ignore[misc]
        crowd.ask()
        lock.writer.release()  # which is still ours
        crowd.got_it()
        code = victim.join()
        check(lock, last + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    crowd.leave()


# Its mode, and what it does then.
LEAVING: dict[str, tuple[str, list[str]]] = {
    "R": ("reader", ["reader.release"]),
    "S": ("seeker", ["seeker.release"]),
    "S to R": ("seeker", ["seek_to_read", "reader.release"]),
    "S to W": ("seeker", ["seek_to_write", "write_to_seek", "seeker.release"]),
    "W": ("writer", ["writer.release"]),
    "W to S": ("writer", ["write_to_seek", "seeker.release"]),
    "W to R": ("writer", ["write_to_read", "reader.release"]),
}


@pytest.mark.parametrize("how", LEAVING)
def test_whom_they_wait_for(lock: shmlock.SeekLock, start: Start, how: str) -> None:
    """Killed while it gives up, or converts, what all the others wait for."""
    face, steps = LEAVING[how]
    crowd = Crowd(lock, start)

    def hold(peer: Peer) -> None:
        mortal(-1)
        ours = shmlock.SeekLock(lock.name)
        getattr(ours, face).acquire()
        peer.say("in")
        Steps.arm(peer.hear())
        for step in steps:
            operator.attrgetter(step)(ours)()

    for last in itertools.count():
        victim: Child = start(hold)
        assert victim.hear() == "in"
        crowd.ask(flows=face == "seeker")  # readers go on beside a seeker
        victim.say(last)
        crowd.got_it()
        code = victim.join()
        check(lock, last + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert last > 5 or RECORDS
    crowd.leave()
