"""What a service manager is told."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from math import inf
from typing import TYPE_CHECKING

import pytest

from shmlock.updater.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[socket.socket, str]]:
    """Yield a service manager's socket, and its `NOTIFY_SOCKET`."""
    monkeypatch.chdir(tmp_path)  # the whole path may be too long for an address
    name = "notify" if request.param == "path" else f"@shmlock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0"))
        receiver.settimeout(30)
        yield receiver, name


def test_datagrams(manager: tuple[socket.socket, str]) -> None:
    """Fields sent together arrive as one datagram, at a socket in the file system and an abstract one."""
    receiver, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.send("READY=1", "STATUS=zufrieden \N{WHITE SMILING FACE}")
    assert receiver.recv(4096).decode() == "READY=1\nSTATUS=zufrieden \N{WHITE SMILING FACE}"


def test_reloading(manager: tuple[socket.socket, str]) -> None:
    """A reload is told with its time on the monotonic clock in microseconds, as Type=notify-reload asks."""
    receiver, name = manager
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    Notifier({"NOTIFY_SOCKET": name}).reloading()
    first, second = receiver.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    key, value = second.split("=")
    assert key == "MONOTONIC_USEC"
    assert before - 1e-6 <= int(value) / 1e6 <= time.clock_gettime(time.CLOCK_MONOTONIC)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "@shmlock-nobody"},
        {"NOTIFY_SOCKET": "vsock:2:1"},
        {"NOTIFY_SOCKET": "/" + "x" * 200},
    ],
)
def test_nobody_listens(environment: dict[str, str]) -> None:
    """Without a manager, or with one that is gone, telling it something does nothing."""
    Notifier(environment).send("READY=1")


def test_full_queue(manager: tuple[socket.socket, str]) -> None:
    """A manager that is stopped, and whose queue is full, doesn't hold us up."""
    _, name = manager
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
        flood.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                flood.sendto(b"x", name.replace("@", "\0"))
    Notifier({"NOTIFY_SOCKET": name}).send("READY=1")


def test_watchdog(manager: tuple[socket.socket, str]) -> None:
    """The watchdog is fed when it is due, and it is due at half of its timeout."""
    receiver, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3600000000"})
    assert notifier.feed_watchdog() == pytest.approx(1800, abs=10)
    assert receiver.recv(4096) == b"WATCHDOG=1"
    assert notifier.feed_watchdog() == pytest.approx(1800, abs=10)
    notifier.send("END")
    assert receiver.recv(4096) == b"END"


@pytest.mark.parametrize(
    ("environment", "fed"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "1000000"}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "{own}"}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "me"}, False),
    ],
)
def test_who_feeds_the_watchdog(environment: dict[str, str], fed: bool) -> None:
    """The watchdog is fed if it is there and meant for this process."""
    environment = {key: value.format(own=os.getpid()) for key, value in environment.items()}
    assert (Notifier({"NOTIFY_SOCKET": "@nobody"} | environment).feed_watchdog() < inf) == fed
