"""The updater's command line: `python -m shmlock.updater NAME --source URL`."""

from __future__ import annotations

import argparse
import contextlib
import grp
import logging
import pwd
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shmlock._command_line import FINE, Parser, fail
from shmlock.config import SharedConfig
from shmlock.errors import ShmlockError
from shmlock.updater.cache import Cache
from shmlock.updater.daemon import Updater
from shmlock.updater.notify import Notifier
from shmlock.updater.source import SourceError, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SOURCE_FAILED = 1
SEGMENT_FAILED = 3
SEAT_TAKEN = 4

_LONGEST = 1_000_000  # seconds; poll(2) takes milliseconds in an int, 2_147_483 s
_LARGEST = 1 << 40
_PATIENCE = 0.2  # seconds

_DESCRIPTION = """\
Keep the shared configuration NAME fresh from a file or a web server.

Whatever decodes, fits the schema (if one is given) and differs from what is published is published.
Whatever goes wrong leaves the last good configuration in place, is logged when it begins, changes and
ends, and is tried again: after up to a second at first, then less and less often. The segment is made
when it is missing, also when its name is unlinked later on.
"""

_EPILOG = """\
examples:
  %(prog)s site.config --source file:///etc/site/config.json --interval 5
  %(prog)s site.config --source https://config.example/site.json \\
      --schema /etc/site/schema.json --cache /var/lib/site/config.json
  %(prog)s site.config --source file:///etc/site/config.json --once

sources:
  file:///PATH             read again when the file was touched; replace it by rename, not in place
  http://... https://...   asked with ETag and Last-Modified; needs: pip install "shmlock-rw[http]"
                           user and password may stand in the URL, but ps(1) shows them;
                           http_proxy and the like are not read
--schema needs: pip install "shmlock-rw[schema]"

more than one:
  One updater at a time serves a NAME. Others stand by and take over when it ends, however it ends.

signals:
  SIGHUP            fetch now
  SIGTERM, SIGINT   end, with exit code 0

systemd:
  Type=notify-reload and WatchdogSec= are supported. A unit is ready when a configuration is published,
  or when it stands by.

exit codes:
  0  ended by a signal; with --once: fetched, and published if it differed
  1  with --once: nothing good could be fetched (also when the cache was published instead)
  2  the command line can't be carried out: a bad argument, or a missing extra
  3  the shared memory can't be used
  4  with --once: another updater serves this NAME
"""


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m shmlock.updater") -> int:
    """Run the command line in the main thread and return its exit code.

    `--help` and usage errors leave by SystemExit, as argparse does.
    """
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    updater = _updater(parser, arguments)
    level = logging.DEBUG if arguments.verbose else logging.WARNING if arguments.once else logging.INFO
    with _logging_to_stderr(level), _signals(updater):
        try:
            if not arguments.once:
                updater.run()
            elif not updater.run_once():
                return fail(prog, SEAT_TAKEN, f"another updater serves {arguments.name}")
        except SourceError as error:
            return fail(prog, SOURCE_FAILED, str(error))
        except (ShmlockError, OSError) as error:
            return fail(prog, SEGMENT_FAILED, str(error))
    return FINE


def _updater(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Updater:
    try:
        source = open_source(arguments.source, timeout=arguments.timeout, max_size=arguments.max_size)
    except SourceError as error:
        parser.error(f"argument --source: {error}")
    if arguments.schema is not None and arguments.codec != "json":
        parser.error("argument --schema: only with --codec json")

    def open_config() -> SharedConfig:
        try:
            return SharedConfig(
                arguments.name,
                mode=arguments.mode,
                owner=arguments.owner,
                capacity=arguments.capacity,
                codec=arguments.codec,
            )
        except ValueError as error:
            parser.error(f"argument NAME: {error}")

    return Updater(
        open_config,
        source,
        interval=arguments.interval,
        timeout=arguments.timeout,
        check=None if arguments.schema is None else _checked_by(parser, arguments.schema),
        cache=None if arguments.cache is None else Cache(arguments.cache, max_size=arguments.max_size),
        notifier=Notifier(),
    )


def _checked_by(parser: argparse.ArgumentParser, path: Path) -> Callable[[bytes], None]:
    try:
        from shmlock.updater.schema import Schema  # noqa: PLC0415  jsonschema is an extra
    except ImportError:
        parser.error('argument --schema: needs jsonschema, not installed; run: pip install "shmlock-rw[schema]"')
    try:
        return Schema(path).check
    except OSError as error:
        parser.error(f"argument --schema: {path}: {error.strerror}")
    except ValueError as error:
        parser.error(f"argument --schema: {path}: {error}")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("name", metavar="NAME", help="the shared configuration")
    add = parser.add_argument
    add(
        "--source",
        metavar="URL",
        required=True,
        help="where it comes from: file:///PATH, http://... or https://...",
    )
    add(
        "--interval",
        metavar="S",
        type=_seconds,
        default=30.0,
        help="seconds from a success to the next fetch (default: 30)",
    )
    add(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=10.0,
        help="seconds for one whole fetch (default: 10)",
    )
    add(
        "--max-size",
        metavar="BYTES",
        type=_size,
        default=4 << 20,
        help="most bytes to fetch, decompressed (default: 4194304)",
    )
    add("--schema", metavar="FILE", type=Path, help="publish only what fits this JSON schema")
    add(
        "--cache",
        metavar="FILE",
        type=Path,
        help="keep the last good one here, and publish it when the source has none and nothing is published",
    )
    add("--once", action="store_true", help="fetch once, and tell by the exit code how it went")
    add(
        "--codec",
        choices=["json", "bytes"],
        default="json",
        help="how it is encoded in shared memory (default: json)",
    )
    add(
        "--capacity",
        metavar="BYTES",
        type=_size,
        help="room for it, encoded, when the segment must be created (default: 1048576)",
    )
    add(
        "--mode",
        metavar="OCTAL",
        type=_mode,
        default=0o600,
        help="permissions when the segment must be created (default: 600)",
    )
    add(
        "--owner",
        metavar="USER[:GROUP]",
        type=_owner,
        help="owner when the segment must be created, for workers that drop privileges",
    )
    add("--verbose", action="store_true", help="log every fetch, and not only what changes")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) <= _LONGEST:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {_LONGEST}")


def _size(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 < (size := int(text)) <= _LARGEST:
            return size
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0 and up to {_LARGEST}")


def _mode(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= (mode := int(text, 8)) <= 0o777:
            return mode
    raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode from 0 to 777")


def _owner(text: str) -> tuple[int, int]:
    user, given, group = text.partition(":")
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
        if not given:
            return uid, pwd.getpwuid(uid).pw_gid
        return uid, int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except (KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} names no user and group of this machine") from None


@contextlib.contextmanager
def _logging_to_stderr(level: int) -> Iterator[None]:
    log = logging.getLogger("shmlock.updater")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = log.level
    log.setLevel(level)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextlib.contextmanager
def _signals(updater: Updater) -> Iterator[None]:
    # The handlers set flags, which the loop looks at wherever it waits: an exception could strike anywhere,
    # such as between the cache's temporary file and its rename. Only what waits for the lock can't look at
    # a flag; if it still does after a while, perhaps for a stopped reader, it is left by an exception.
    def end(*_: object) -> None:
        updater.stop()
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE, _PATIENCE)

    handlers: dict[signal.Signals, Callable[..., None]] = {
        signal.SIGTERM: end,
        signal.SIGINT: end,
        signal.SIGHUP: lambda *_: updater.refresh(),
    }
    with contextlib.ExitStack() as undo:
        # First in, last out: an alarm that nobody handles kills.
        undo.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, lambda *_: updater.interrupt()))
        undo.callback(signal.setitimer, signal.ITIMER_REAL, *signal.getitimer(signal.ITIMER_REAL))
        for number, handler in handlers.items():
            undo.callback(signal.signal, number, signal.signal(number, handler))
        yield


if __name__ == "__main__":
    sys.exit(main())
