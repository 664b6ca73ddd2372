"""Who a participant is, for people."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from shmlock._kernel import process

if TYPE_CHECKING:
    from tests.conftest import Peer, Start


def started(pid: int) -> int:
    """Clock ticks since boot; psutil knows boot and start as times of day."""
    since_boot = psutil.Process(pid).create_time() - psutil.boot_time()
    return round(since_boot * os.sysconf("SC_CLK_TCK"))


def test_identity() -> None:
    """The identity is pid, tid, start time and pid namespace of whoever asks."""
    pid, tid, ticks, namespace = process.identity()
    assert pid == os.getpid()
    assert tid == threading.get_native_id()
    assert ticks == pytest.approx(started(pid), abs=2)
    assert namespace == Path("/proc/self/ns/pid").stat().st_ino


def test_identity_of_a_thread() -> None:
    """Another thread differs in its tid alone."""
    seen: list[tuple[int, int, int, int]] = []
    thread = threading.Thread(target=lambda: seen.append(process.identity()))
    thread.start()
    thread.join()
    mine = process.identity()
    assert seen[0][1] != mine[1]
    assert (seen[0][0], *seen[0][2:]) == (mine[0], *mine[2:])


@pytest.mark.parametrize("called", ["child", "a) R 1 (b", "((", "))"])
def test_identity_of_a_forked_child(start: Start, called: str) -> None:
    """A child does not answer with what its parent has found out about itself, whatever it is called."""
    process.identity()

    def tell(peer: Peer) -> None:
        Path("/proc/self/comm").write_text(called, encoding="ascii")
        peer.say((process.identity(), threading.get_native_id()))
        peer.hear()

    child = start(tell)
    (pid, tid, ticks, namespace), native = child.hear()
    assert (pid, tid) == (child.pid, native)
    assert ticks == pytest.approx(started(child.pid), abs=2)
    assert namespace == process.pid_namespace()


def test_boot_id() -> None:
    """16 bytes, the kernel's own."""
    boot = process.boot_id()
    assert len(boot) == 16
    assert boot.hex() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")


def test_name_of() -> None:
    """A process has its name; one that there is not is "?"."""
    assert process.name_of(os.getpid()) == psutil.Process().name()
    assert process.name_of(2**22 + 1) == "?"  # beyond the highest pid that Linux gives (PID_MAX_LIMIT)


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc does not tell, everything is 0, and nothing raises: nobody decides by it."""

    def no_proc(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "there is no /proc")

    def no_process(*_: object) -> None:
        raise psutil.NoSuchProcess(1)

    caches = (process.pid_namespace, process.started_at, process.boot_id)
    for cache in caches:
        cache.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", no_proc)
            patch.setattr("builtins.open", no_proc)
            patch.setattr(psutil, "Process", no_process)
            seen = process.identity(), process.boot_id(), process.name_of(1)
    finally:
        for cache in caches:
            cache.cache_clear()
    assert seen == ((os.getpid(), threading.get_native_id(), 0, 0), bytes(16), "?")
