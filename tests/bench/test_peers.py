"""Each lock that is measured locks, shares, and recovers as its flags say, and leaves nothing behind."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.peers import Peer, available, missing, peers, version
from shmlock.bench.peers.prwlock_lock import RWLock
from shmlock.bench.scenarios import mix, recovery, scenario


@pytest.fixture(params=peers(), ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> type[Peer]:
    """Each of them that is installed."""
    found: type[Peer] = request.param
    reason = available(found)
    if reason is not None:
        pytest.skip(reason)
    return found


def left(unique: str) -> list[str]:
    """What is named after it in shared memory and in the directory for temporary files."""
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))  # noqa: S108  that is where names of locks are
    return [entry.name for place in places for entry in place.iterdir() if unique in entry.name]


def test_writers_are_alone(peer: type[Peer]) -> None:
    """No writer is in beside a reader or another writer: the scenario that would tell finds nothing wrong."""
    assert mix.crowd(peer, readers=1, writers=2, iterations=3, seconds=0.001, least=0.006)["wall"] > 0
    assert left(f"bench-{os.getpid()}-mix") == []


def test_readers_share_if_it_says_so(peer: type[Peer]) -> None:
    """Two readers of a lock that is shared meet inside; those of another never do."""
    inside = context.Barrier(2)
    lock = peer(f"test-{os.getpid()}-share")

    def meet(start: Start) -> bool:
        reader, _ = lock.opened()
        start.wait()
        with reader:
            try:
                inside.wait(10 if peer.shared else 0.1)
            except Exception:  # noqa: BLE001  a broken barrier: the other one wasn't in
                return False
            return True

    try:
        assert set(gather([meet, meet]).results) == {peer.shared}
    finally:
        lock.close()
    assert left(f"test-{os.getpid()}-share") == []


def test_a_killed_writer_is_got_over_if_it_says_so(peer: type[Peer]) -> None:
    """After a SIGKILL the next one gets in with a lock that recovers, and never with another."""
    took = recovery.kill(peer, recovery.WRITER, settle=0.01, patience=10 if peer.recovers else 0.2)
    assert math.isinf(took) is not peer.recovers
    assert left(f"bench-{os.getpid()}-kill") == []


def test_opened_locks_are_used_again_and_again(peer: type[Peer]) -> None:
    """What `opened` gives is good for any number of `with`, also after an error inside."""
    lock = peer(f"test-{os.getpid()}-again")

    def use(start: Start) -> int:
        start.wait()
        inside = 0
        for way in lock.opened():
            with pytest.raises(KeyError), way:
                raise KeyError
            for _ in range(3):
                with way:
                    inside += 1
        return inside

    try:
        assert gather([use]).results == [6]
    finally:
        lock.close()


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package makes its locks unusable, with a reason that says how to get it."""
    absent: Any = None  # what makes `import` fail
    monkeypatch.setitem(sys.modules, "prwlock", absent)
    monkeypatch.setattr("shmlock.bench.peers.peers", lambda: [RWLock])
    assert scenario("mix").measurable(scenario("mix").turned(quick=True))[0] == []
    assert missing() == {"prwlock": "prwlock is not installed (pip install prwlock)"}


def test_names_and_versions() -> None:
    """Names are all different, as columns of results go by them; ours and the standard library's have no version."""
    names = [peer.name for peer in peers()]
    assert len(set(names)) == len(names)
    assert [version(peer) for peer in peers() if peer.package is None] == [None] * 5
