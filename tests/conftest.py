"""What all tests share: a name of their own in shared memory, and forked children that surely end.

    def test_a_killed_writer_is_evicted(name: str, start: Start) -> None:
        def hold(peer: Peer) -> None:
            lock = shmlock.RWLock(name)
            with lock.writer:
                peer.say("in")
                peer.hear()  # until it is killed

        child = start(hold)
        assert child.hear() == "in"
        child.kill()
        ...

Steps are put in order by what one side says and the other hears, never by sleeping.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

import shmlock
from shmlock._kernel import shm
from tests.ending import die_with

if TYPE_CHECKING:
    from collections.abc import Iterator

HANG = 30.0
"""Seconds after which something that was waited for is taken not to come. No test is faster or slower by it."""

# The same examples in each run, however slow the machine is, and nothing kept from one to the next.
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# On the pipe: what was said, or the traceback of what the child died of.
_SAID, _DIED = "said", "died"


def pytest_addoption(parser: pytest.Parser) -> None:
    """What can be had more of than a run of all tests has time for."""
    parser.addoption("--times", type=int, default=1000, help="signals that come in each test of interruptions")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The bench's tests come last: after its pictures each fork of this process, of many thousands, costs twice."""
    items.sort(key=lambda item: "bench" in item.path.parts[-2:])


@pytest.fixture
def name() -> Iterator[str]:
    """A segment name that nobody else has. Afterwards it is unlinked, and nothing named after it may stay."""
    fresh = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield fresh
    shmlock.unlink(fresh)
    left = [entry for entry in shm.names() if fresh in entry]
    for entry in left:
        shm.unlink(entry)
    assert not left, f"left behind in {shm.ROOT}: {left}"


class Peer:
    """The parent, as the child sees it."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def say(self, what: object) -> None:
        """Send the parent something that pickles."""
        self._pipe.send((_SAID, what))

    def told(self) -> bool:
        """Whether there is something to hear."""
        return self._pipe.poll()

    def hear(self, timeout: float = HANG) -> Any:
        """Wait for what the parent says. EOFError when it has ended, TimeoutError when it says nothing."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"the parent said nothing for {timeout} s")
        return self._pipe.recv()

    def said(self) -> bool:
        """Whether there is something to hear."""
        return self._pipe.poll()


class Child:
    """A forked child, as the parent sees it. It leads a process group of its own."""

    def __init__(self, function: Callable[[Peer], None]) -> None:
        """Fork; `function` runs in the child, which ends with it: without atexit hooks or destructors."""
        self._pipe, theirs = Pipe()
        self._code: int | None = None
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # From 3.12 on fork warns of the parent's other threads. What they do to a child is what we test.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            self._pipe.close()
            _run(function, theirs, parent)
        theirs.close()
        with suppress(OSError):  # it has done so itself by now, or is gone
            os.setpgid(self.pid, self.pid)
        self._ended = os.pidfd_open(self.pid)  # readable from its end on, reaped or not

    def say(self, what: object) -> None:
        """Send the child something that pickles."""
        self._pipe.send(what)

    def hear(self, timeout: float = HANG) -> Any:
        """Wait for what the child says. Fails when it has ended, or says nothing."""
        if not wait([self._pipe, self._ended], timeout):
            pytest.fail(f"child {self.pid} said nothing for {timeout} s")
        try:
            if self._pipe.poll():
                return self._received()
        except (EOFError, ConnectionResetError):
            self._wait_for_end(HANG)
        pytest.fail(f"child {self.pid} has ended ({self._reap()}) without a word")

    def says_something(self, timeout: float) -> bool:
        """Whether there is something to hear, at the end of this time at the latest."""
        return self._pipe.poll(timeout)

    def _received(self) -> Any:
        kind, what = self._pipe.recv()
        if kind == _DIED:
            pytest.fail(f"in child {self.pid}:\n{what}")
        return what

    def kill(self, signum: int = signal.SIGKILL, *, reap: bool = True) -> None:
        """Kill it, and wait for its end. With `reap=False` it stays a zombie until `join` or the test's end."""
        self.signal(signum)
        self._wait_for_end(HANG)
        if reap:
            self._reap()

    def signal(self, signum: int) -> None:
        """Send it a signal."""
        assert self._code is None, "reaped already: the pid may be another process's by now"
        os.kill(self.pid, signum)

    def stop(self) -> None:
        """Stop it, and wait until all of its threads stand still."""
        self.signal(signal.SIGSTOP)
        seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, f"child {self.pid} has ended"

    def cont(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return not wait([self._ended], 0)

    def join(self, timeout: float = HANG) -> int:
        """Wait for its end: the exit code, or minus the signal that killed it. Fails if it raised something."""
        self._wait_for_end(timeout)
        code = self._reap()
        if code:
            with suppress(EOFError, OSError):
                while self._pipe.poll():
                    self._received()
        return code

    def _wait_for_end(self, timeout: float) -> None:
        if self._code is None and not wait([self._ended], timeout):
            pytest.fail(f"child {self.pid} did not end within {timeout} s")

    def _reap(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def end(self) -> None:
        """End it whatever it does, with what it started, unless it was reaped; keep nothing open."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap()
        self._pipe.close()
        os.close(self._ended)


def _run(function: Callable[[Peer], None], pipe: Connection[Any, Any], parent: int) -> NoReturn:
    """Be the child."""
    code = 1
    gc.freeze()  # a look for garbage among all that pytest has made would copy it (120 ms)
    try:
        os.setpgid(0, 0)
        die_with(parent)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite started in the background ignores it
        function(Peer(pipe))
        code = 0
    except BaseException:  # noqa: BLE001  the parent is told, whatever it was
        traceback.print_exc()
        with suppress(OSError):
            pipe.send((_DIED, traceback.format_exc()))
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


Start: TypeAlias = Callable[[Callable[[Peer], None]], Child]


@pytest.fixture
def start(name: str) -> Iterator[Start]:  # noqa: ARG001  children are ended before the name is looked after
    """`start(function)` runs `function(peer)` in a forked child that is ended and reaped with the test."""
    children: list[Child] = []

    def _start(function: Callable[[Peer], None]) -> Child:
        children.append(Child(function))
        return children[-1]

    yield _start
    for child in children:
        child.end()
