"""Whole updaters, as processes, with a shared configuration that is shared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from shmlock import RWLock, SharedConfig
from tests.ending import with_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HANG = 60.0


class Process:
    """An updater process. Its errors and log are read line by line."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "shmlock.updater", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            preexec_fn=with_us(),
        )
        self.pid = self._process.pid
        self.told = ""

    def tells(self, text: str) -> None:
        """Wait until it tells this."""
        assert self._process.stderr is not None
        while text not in self.told:
            line = self._process.stderr.readline()
            assert line, f"it ended, having told only {self.told!r}"
            self.told += line

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ends(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and all that it told."""
        _, rest = self._process.communicate(timeout=HANG)
        return self._process.returncode, self.told + rest

    def close(self) -> None:
        """End it, however it is, and show a test that failed what it told."""
        if self._process.returncode is None:
            self._process.kill()
            sys.stderr.write(f"updater {self.pid}: {self.ends()}\n")


@pytest.fixture
def shared(name: str) -> Iterator[SharedConfig]:
    """Yield the configuration as a worker sees it."""
    with SharedConfig(name) as config:
        yield config


@pytest.fixture
def spawn(name: str) -> Iterator[Callable[..., Process]]:
    """Return a function that starts updaters of the name, which end with the test."""
    with ExitStack() as processes:

        def spawn(*arguments: str, **environment: str) -> Process:
            process = Process(name, *arguments, **environment)
            processes.callback(process.close)
            return process

        yield spawn


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a configuration."""
    file = tmp_path / "config.json"
    file.write_bytes(b'{"flags": {"new": true}}')
    return file


def published(config: SharedConfig, after: int = 0) -> Any:
    """Wait for the next version and return its value."""
    snapshot = config.wait(after=after, timeout=HANG)
    assert snapshot is not None
    return snapshot.value


def hang(web: Any, asked: threading.Event) -> Any:
    """Start a server that tells when it is asked and doesn't answer."""

    def answer(_: object) -> Any:
        asked.set()
        while not server.closing.wait(0.05):
            yield b""

    server = web.serve(answer)
    return server


def test_publishes(spawn: Any, shared: SharedConfig, file: Path) -> None:
    """What the source has is what every worker gets; a change follows."""
    updater = spawn("--source", file.as_uri(), "--interval", "0.05")
    assert published(shared) == {"flags": {"new": True}}
    assert shared.updater_alive()
    assert shared.snapshot().publisher_pid == updater.pid
    new = file.with_name("new")
    new.write_bytes(b'{"flags": {"new": false}}')
    new.rename(file)
    assert published(shared, after=1) == {"flags": {"new": False}}
    new.write_bytes(b'{"flags": {')
    new.rename(file)
    updater.tells("not a good configuration")
    assert shared.get() == {"flags": {"new": False}}
    assert shared.version == 2


def test_first_request_of_a_new_worker(spawn: Any, name: str, file: Path) -> None:
    """A worker that starts later sees the current version with its first look."""
    updater = spawn("--source", file.as_uri())
    updater.tells("published version 1")
    with SharedConfig(name, create=False) as config:
        assert config.get() == {"flags": {"new": True}}


def test_unchanged_is_confirmed(spawn: Any, shared: SharedConfig, file: Path) -> None:
    """While the source has nothing new, the version stays and the age starts anew."""
    spawn("--source", file.as_uri(), "--interval", "0.05")
    published(shared)
    before = shared.age
    while (age := shared.age) >= before:
        before = age
        time.sleep(0.001)
    assert shared.version == 1


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_standby_takes_over(spawn: Any, shared: SharedConfig, file: Path, death: signal.Signals) -> None:
    """When the updater dies, or ends, one that stands by takes the seat and goes on."""
    other = file.with_name("other.json")
    other.write_bytes(b'"of the second"')
    first = spawn("--source", file.as_uri())
    published(shared)
    second = spawn("--source", other.as_uri())
    second.tells("standing by")
    first.send(death)
    assert published(shared, after=1) == "of the second"
    assert shared.snapshot().publisher_pid == second.pid
    assert shared.updater_alive()


def test_a_stopped_updater_keeps_its_seat(spawn: Any, shared: SharedConfig, file: Path) -> None:
    """An updater that is stopped lives: nobody takes its seat, and readers go on."""
    first = spawn("--source", file.as_uri())
    published(shared)
    first.send(signal.SIGSTOP)
    code, told = spawn("--source", file.as_uri(), "--once").ends()
    assert (code, told.count("\n")) == (4, 1)
    assert shared.get() == {"flags": {"new": True}}
    first.send(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("where", ["pause", "fetch", "standby", "failing"])
def test_ends_cleanly(
    spawn: Any, shared: SharedConfig, web: Any, file: Path, where: str, number: signal.Signals
) -> None:
    """SIGTERM and SIGINT end it with exit code 0, without a traceback, whatever it is doing."""
    asked = threading.Event()
    source = file.as_uri()
    if where == "fetch":
        source = hang(web, asked).url
    elif where == "failing":
        source += ".missing"
    elif where == "standby":
        spawn("--source", source)
        published(shared)
    updater = spawn("--source", source, "--interval", "1000", "--timeout", "1000")
    match where:
        case "fetch":
            assert asked.wait(HANG)
        case "pause":
            published(shared)
        case "failing":
            updater.tells("No such file")
        case "standby":
            updater.tells("standing by")
    updater.send(number)
    code, told = updater.ends()
    assert code == 0
    assert "Traceback" not in told
    assert shared.updater_alive() == (where == "standby")


def test_ends_while_it_waits_for_a_reader(spawn: Any, shared: SharedConfig, file: Path) -> None:
    """SIGTERM gets through a publish that waits for a reader to leave; the next updater publishes."""
    with shared._reader:
        updater = spawn("--source", file.as_uri())
        while not shared.statistics().seek.locks:
            time.sleep(0.001)
        updater.send(signal.SIGTERM)
        code, told = updater.ends()
        assert code == 0
        assert "Traceback" not in told
        assert shared.version == 0
    assert spawn("--source", file.as_uri(), "--once").ends() == (0, "")
    assert shared.get() == {"flags": {"new": True}}


def test_reload(spawn: Any, shared: SharedConfig, web: Any) -> None:
    """SIGHUP fetches at once what would have been fetched after the interval."""
    bodies = iter([b"1", b"2"])
    server = web.serve(lambda _: web.reply(next(bodies)))
    updater = spawn("--source", server.url, "--interval", "1000")
    assert published(shared) == 1
    updater.send(signal.SIGHUP)
    assert published(shared, after=1) == 2


def test_once(spawn: Any, name: str, file: Path) -> None:
    """The exit code of --once tells how it went, and it makes the segment when there is none."""
    source = ("--source", file.as_uri(), "--once")
    assert spawn(*source).ends() == (0, "")
    assert spawn(*source).ends() == (0, "")
    with SharedConfig(name, create=False) as config:
        assert config.version == 1
        file.write_bytes(b"nonsense")
        code, told = spawn(*source).ends()
        assert (code, told.count("\n")) == (1, 1)
        config.take_seat()
        code, told = spawn(*source).ends()
        assert (code, told) == (4, f"python -m shmlock.updater: error: another updater serves {name}\n")
        assert config.get() == {"flags": {"new": True}}


def test_segment_of_another_kind(spawn: Any, name: str, file: Path) -> None:
    """A name that means another kind of object is exit code 3 and one line, once or not."""
    with RWLock(name) as lock:
        for once in (["--once"], []):
            code, told = spawn("--source", file.as_uri(), *once).ends()
            assert code == 3
            assert told.startswith(f"python -m shmlock.updater: error: {name}: ")
            assert told.count("\n") == 1
        lock.unlink()


def test_impossible_name(file: Path) -> None:
    """A name that no object can have is exit code 2 and one line."""
    process = Process(".hidden", "--source", file.as_uri())
    code, told = process.ends()
    assert code == 2
    assert told.startswith("python -m shmlock.updater: error: argument NAME: ")
    assert told.count("\n") == 1


def test_capacity(spawn: Any, name: str, file: Path) -> None:
    """--capacity holds for a segment that is made; one that exists is taken as it is without it."""
    file.write_bytes(b'"%b"' % (b"x" * 8000))
    code, told = spawn("--source", file.as_uri(), "--once", "--capacity", "4096").ends()
    assert code == 1
    assert "8002 bytes are more than the 4096 that were reserved" in told
    code, told = spawn("--source", file.as_uri(), "--once").ends()
    assert code == 1
    assert "8002 bytes are more than the 4096 that were reserved" in told
    code, told = spawn("--source", file.as_uri(), "--once", "--capacity", "16384").ends()
    assert code == 3
    with SharedConfig(name, create=False) as config:
        assert config.version == 0


def test_name_that_is_made_anew(spawn: Any, name: str, file: Path) -> None:
    """An updater follows its name: a segment that replaces one that was unlinked gets the value, too."""
    updater = spawn("--source", file.as_uri(), "--interval", "1000")
    updater.tells("published version 1")
    with SharedConfig(name, create=False) as old:
        old.unlink()
    with SharedConfig(name) as new:
        assert published(new) == {"flags": {"new": True}}


def test_cache_at_the_start(spawn: Any, name: str, shared: SharedConfig, file: Path, tmp_path: Path) -> None:
    """After a boot with the source down, the cached configuration is published."""
    cache = ("--cache", str(tmp_path / "cache"))
    assert spawn("--source", file.as_uri(), "--once", *cache).ends() == (0, "")
    shared.unlink()
    file.unlink()
    updater = spawn("--source", file.as_uri(), *cache)
    updater.tells("the cached configuration was published")
    with SharedConfig(name, create=False) as config:
        assert config.get() == {"flags": {"new": True}}


def test_service(spawn: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager is told when it is ready, reloads and stops, and its watchdog is fed."""
    monkeypatch.chdir(tmp_path)  # the whole path may be too long for an address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("notify")
        manager.settimeout(HANG)
        fed = 0

        def told() -> str:
            nonlocal fed
            while (datagram := manager.recv(4096)) == b"WATCHDOG=1":
                fed += 1
            return datagram.decode().split("\n")[0]

        environment = {"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "100000"}
        updater = spawn("--source", file.as_uri(), "--interval", "1000", **environment)
        assert told() == "READY=1"
        updater.send(signal.SIGHUP)
        assert told() == "RELOADING=1"
        assert told() == "READY=1"
        while fed < 3:
            fed += manager.recv(4096) == b"WATCHDOG=1"
        updater.send(signal.SIGTERM)
        assert told() == "STOPPING=1"
        assert updater.ends()[0] == 0
