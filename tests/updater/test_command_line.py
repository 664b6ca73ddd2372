"""The command line: what it says, what it exits with, and what it does on signals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.errors import LayoutMismatch
from shmlock.updater import __main__ as command_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HANG = 30.0


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, config: Any) -> list[Any]:
    """Open the configuration that isn't shared; return the arguments that it was opened with."""
    calls: list[Any] = []

    def open_it(*names: str, **options: Any) -> Any:
        calls.append((*names, options))
        return config

    monkeypatch.setattr(command_line, "SharedConfig", open_it)
    return calls


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a configuration."""
    file = tmp_path / "config.json"
    file.write_bytes(b'{"a": 1}')
    return file


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that runs the command line; it returns the exit code and what stderr got."""

    def run(*arguments: str) -> tuple[int, str]:
        try:
            code: Any = command_line.main(["site.config", *arguments])
        except SystemExit as left:
            code = left.code
        written = capfd.readouterr()
        assert written.out == ""
        return code, written.err

    return run


def error(message: str) -> str:
    """Return the one line that an error is."""
    return f"python -m shmlock.updater: error: {message}\n"


# Once


def test_published(run: Any, config: Any, file: Path) -> None:
    """Published, or unchanged, is exit code 0, and nothing is said."""
    assert run("--source", file.as_uri(), "--once") == (0, "")
    assert config.next() == ("published", {"a": 1})
    assert config.next() == ("left",)
    assert run("--source", file.as_uri(), "--once") == (0, "")
    assert config.next() == ("confirmed",)


def test_verbose(run: Any, file: Path) -> None:
    """With --verbose it is told what every fetch brought."""
    for last in ("INFO site.config: published version 1, 7 bytes", "DEBUG site.config: nothing new"):
        code, told = run("--source", file.as_uri(), "--once", "--verbose")
        assert code == 0
        assert told.endswith(f" {last}\n")


def test_nothing_fetched(run: Any, config: Any, tmp_path: Path) -> None:
    """A source without anything is exit code 1 and one line."""
    url = (tmp_path / "missing").as_uri()
    assert run("--source", url, "--once") == (
        1,
        error(f"{url}: No such file or directory; write the file or correct the URL"),
    )
    assert config.bytes_published is None


def test_nothing_published(run: Any, config: Any, file: Path) -> None:
    """A body that doesn't decode, or is larger than allowed, is exit code 1 and one line."""
    file.write_bytes(b"{")
    code, told = run("--source", file.as_uri(), "--once")
    assert code == 1
    assert told.startswith(error(f"{file.as_uri()}: not a good configuration: ").rstrip("\n"))
    assert told.count("\n") == 1
    code, told = run("--source", file.as_uri(), "--once", "--max-size", "0x1")
    assert code == 2
    file.write_bytes(b"{  }")
    code, told = run("--source", file.as_uri(), "--once", "--max-size", "3")
    assert code == 1
    assert "larger than 3 bytes" in told
    assert config.bytes_published is None


def test_too_large_for_the_segment(run: Any, config: Any, file: Path) -> None:
    """A value that doesn't fit the segment is exit code 1."""
    config.capacity = 3
    code, told = run("--source", file.as_uri(), "--once")
    assert code == 1
    assert told == error(f"{file.as_uri()}: 7 bytes don't fit 3")


def test_cached(run: Any, config: Any, file: Path, tmp_path: Path) -> None:
    """When the cache was published instead, the exit code is 1 and the line says so."""
    cache = ("--cache", str(tmp_path / "cache"))
    assert run("--source", file.as_uri(), "--once", *cache) == (0, "")
    config.bytes_published = None
    file.unlink()
    code, told = run("--source", file.as_uri(), "--once", *cache)
    assert code == 1
    assert told.endswith("(the cached configuration was published instead)\n")
    assert config.encoded() == b'{"a":1}'


def test_http(run: Any, config: Any, web: Any) -> None:
    """An http URL is fetched."""
    assert run("--source", web.serve(lambda _: web.reply(b"[1]")).url, "--once") == (0, "")
    assert config.next() == ("published", [1])


def test_timeout(run: Any, web: Any) -> None:
    """--timeout ends a fetch."""

    def answer(_: object) -> Any:
        while not server.closing.wait(0.01):
            yield b""

    server = web.serve(answer)
    code, told = run("--source", server.url, "--once", "--timeout", "0.2")
    assert code == 1
    assert told == error(f"{server.url}: no whole answer in 0.2 s; allow more time or look at the server")


def test_schema(run: Any, config: Any, file: Path, tmp_path: Path) -> None:
    """Only what fits --schema is published."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"a": {"type": "integer"}}}')
    assert run("--source", file.as_uri(), "--once", "--schema", str(schema)) == (0, "")
    file.write_bytes(b'{"a": "1"}')
    code, told = run("--source", file.as_uri(), "--once", "--schema", str(schema))
    assert code == 1
    assert "at $.a it breaks the schema's rule" in told
    assert config.encoded() == b'{"a":1}'


def test_seat_taken(run: Any, config: Any, file: Path) -> None:
    """While another updater holds the seat, --once is exit code 4."""
    config.seat.acquire()
    assert run("--source", file.as_uri(), "--once") == (4, error("another updater serves site.config"))


# The segment


def test_options_of_the_segment(run: Any, opened: list[Any], file: Path) -> None:
    """Without options the segment is found as it is, or made with the defaults; options are passed on."""
    run("--source", file.as_uri(), "--once")
    run(
        *("--source", file.as_uri(), "--once", "--capacity", "4096"),
        *("--codec", "bytes", "--mode", "640", "--owner", "12:34"),
    )
    assert opened == [
        ("site.config", {"mode": 0o600, "owner": None, "capacity": None, "codec": "json"}),
        ("site.config", {"mode": 0o640, "owner": (12, 34), "capacity": 4096, "codec": "bytes"}),
    ]


def test_owner_by_name(run: Any, opened: list[Any], file: Path) -> None:
    """An owner can be named, and a user comes with its own group."""
    for owner in ("root", "root:root", "0", "0:root"):
        run("--source", file.as_uri(), "--once", "--owner", owner)
    assert [options["owner"] for _, options in opened] == [(0, 0)] * 4


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (LayoutMismatch("site.config: is a\nlock"), 3, "site.config: is a lock"),
        (OSError(28, "No space left on device"), 3, "[Errno 28] No space left on device"),
        (ValueError("a name is ..."), 2, "argument NAME: a name is ... (--help tells more)"),
    ],
)
@pytest.mark.parametrize("once", [["--once"], []])
def test_segment_that_cannot_be_opened(
    run: Any,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    code: int,
    told: str,
    once: list[str],
) -> None:
    """A segment that can't be used is exit code 3, one that can't be asked for is 2, in one line."""

    def refuse(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(command_line, "SharedConfig", refuse)
    assert run("--source", file.as_uri(), *once) == (code, error(told))


# Usage


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "the following arguments are required: --source"),
        (["--source", "config.json"], "argument --source: config.json: the URL has no scheme"),
        (["--source", "ftp://h/"], "argument --source: ftp://h/: can't fetch from ftp: URLs"),
        (["--source", "file:///x", "--interval", "0"], "argument --interval: '0' is not a number of seconds"),
        (["--source", "file:///x", "--interval", "-1"], "argument --interval: "),
        (["--source", "file:///x", "--interval", "nan"], "argument --interval: 'nan' is not"),
        (["--source", "file:///x", "--interval", "inf"], "argument --interval: 'inf' is not"),
        (["--source", "file:///x", "--timeout", "1e9"], "argument --timeout: '1e9' is not"),
        (["--source", "file:///x", "--timeout", "soon"], "argument --timeout: 'soon' is not"),
        (["--source", "file:///x", "--max-size", "0"], "argument --max-size: '0' is not a number of bytes"),
        (["--source", "file:///x", "--capacity", "1M"], "argument --capacity: '1M' is not a number of bytes"),
        (["--source", "file:///x", "--mode", "888"], "argument --mode: '888' is not an octal mode"),
        (["--source", "file:///x", "--mode", "1777"], "argument --mode: '1777' is not an octal mode"),
        (["--source", "file:///x", "--owner", "no such user"], "argument --owner: 'no such user' names no"),
        (["--source", "file:///x", "--owner", "root:no such"], "argument --owner: 'root:no such' names no"),
        (["--source", "file:///x", "--codec", "pickle"], "argument --codec: invalid choice"),
        (["--source", "file:///x", "--schema", "/missing"], "argument --schema: /missing: No such file"),
        (["--source", "file:///x", "--schema", "/dev/null"], "argument --schema: /dev/null: Expecting value"),
        (
            ["--source", "file:///x", "--schema", "/x", "--codec", "bytes"],
            "argument --schema: only with --codec json",
        ),
        (["--source", "file:///x", "--onc"], "unrecognized arguments: --onc"),
    ],
)
def test_usage(run: Any, opened: list[Any], arguments: list[str], told: str) -> None:
    """A bad argument is exit code 2 and one line that names it, before anything is opened."""
    code, line = run(*arguments)
    assert code == 2
    assert line.startswith(error(told).rstrip("\n"))
    assert line.endswith("(--help tells more)\n")
    assert line.count("\n") == 1
    assert opened == []


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("urllib3", ["--source", "http://config.example/"], "http"),
        ("jsonschema", ["--source", "file:///x", "--schema", "/x"], "schema"),
    ],
)
def test_missing_extras(
    run: Any, monkeypatch: pytest.MonkeyPatch, missing: str, arguments: list[str], extra: str
) -> None:
    """A missing extra is exit code 2 and the command that installs it."""
    for module in list(sys.modules):
        if module.partition(".")[0] == missing or module.startswith("shmlock.updater."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    code, line = run(*arguments)
    assert code == 2
    assert f'pip install "shmlock-rw[{extra}]"' in line
    assert line.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--help tells how to call it, what is needed, what signals do, and what the exit codes mean."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as left:
        command_line.main(["--help"], prog="shmlock updater")
    assert left.value.code == 0
    text = capsys.readouterr().out
    for phrase in (
        "usage: shmlock updater [-h] --source URL [--interval S] [--timeout S] [--max-size BYTES]",
        "shmlock updater site.config --source file:///etc/site/config.json --interval 5",
        "leaves the last good configuration in place",
        "seconds from a success to the next fetch (default: 30)",
        'pip install "shmlock-rw[http]"',
        'pip install "shmlock-rw[schema]"',
        "SIGHUP            fetch now",
        "SIGTERM, SIGINT   end, with exit code 0",
        "Type=notify-reload",
        "0  ended by a signal; with --once: fetched, and published if it differed",
        "3  the shared memory can't be used",
        "4  with --once: another updater serves this NAME",
    ):
        assert phrase in text
    assert max(map(len, text.splitlines())) <= 110


def test_module(tmp_path: Path) -> None:
    """`python -m shmlock.updater` is this command line."""
    done = subprocess.run(
        [sys.executable, "-m", "shmlock.updater", "--source", "file:///x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr == error("the following arguments are required: NAME (--help tells more)")


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_end_in_a_fetch(run: Any, config: Any, web: Any, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end it with exit code 0 in the middle of a fetch, and the seat is left."""

    def answer(_: object) -> Any:
        os.kill(os.getpid(), number)
        while not server.closing.wait(0.01):
            yield b""

    server = web.serve(answer)
    assert run("--source", server.url, "--timeout", "1000") == (0, "")
    assert config.next() == ("left",)


def test_once_is_not_fine_when_it_is_ended(run: Any, web: Any) -> None:
    """With --once, SIGTERM in the middle of the fetch is exit code 1: nobody knows what the source has."""

    def answer(_: object) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        while not server.closing.wait(0.01):
            yield b""

    server = web.serve(answer)
    code, told = run("--source", server.url, "--timeout", "1000", "--once")
    assert code == 1
    assert told == error(f"{server.url}: stopped before the end")


def test_end_in_a_standby(run: Any, config: Any, file: Path) -> None:
    """SIGTERM ends a standby with exit code 0."""
    config.seat.acquire()
    take_seat = config.take_seat

    def killed(timeout: float) -> bool:
        if timeout:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(take_seat(timeout))

    config.take_seat = killed
    code, told = run("--source", file.as_uri())
    assert code == 0
    assert told.endswith("INFO site.config: standing by, another updater holds the seat\n")


def test_end_in_a_publish(run: Any, config: Any, file: Path) -> None:
    """SIGTERM gets out of a publish that waits for the lock."""

    def killed(_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(HANG)
        raise AssertionError("nobody interrupted it")

    config.publish = killed
    assert run("--source", file.as_uri()) == (0, "")
    assert not config.seat.locked()


def test_reload(run: Any, config: Any, web: Any) -> None:
    """SIGHUP fetches now, and not after the interval."""
    bodies = iter([b"1", b"2"])
    publish = config.publish

    def publish_and_signal(value: object) -> int:
        version: int = publish(value)
        os.kill(os.getpid(), signal.SIGHUP if value == 1 else signal.SIGTERM)
        return version

    config.publish = publish_and_signal
    code, _ = run("--source", web.serve(lambda _: web.reply(next(bodies))).url, "--interval", "1000")
    assert code == 0
    assert [config.next() for _ in range(3)] == [("published", 1), ("published", 2), ("left",)]


def test_nothing_is_left_behind(run: Any, file: Path) -> None:
    """Whoever called it finds the handlers of signals and of the log as they were."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
    log = logging.getLogger("shmlock.updater")

    def state() -> list[Any]:
        timer = signal.getitimer(signal.ITIMER_REAL)[0] > 0  # of pytest-timeout
        return [*map(signal.getsignal, numbers), timer, list(log.handlers), log.level]

    before = state()
    run("--source", file.as_uri(), "--once")
    assert state() == before
