"""Processes that begin together."""

from __future__ import annotations

import functools
import multiprocessing
import os
import select
import signal
import time
from typing import TYPE_CHECKING

import pytest

from shmlock.bench.crowd import Start, context, gather, manager
from shmlock.bench.scenario import WrongData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Peer
    from tests.conftest import Start as Start_


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    """Whatever happened: no process is left."""
    yield
    assert multiprocessing.active_children() == []


def job(value: int, start: Start) -> tuple[int, int]:
    """What it was given, and who it was."""
    start.wait()
    return value, os.getpid()


def test_each_has_a_process_and_its_result_in_order() -> None:
    """As many processes as jobs, none of them this one; the results are in the order of the jobs."""
    found = gather([functools.partial(job, value) for value in range(4)])
    assert [value for value, _ in found.results] == [0, 1, 2, 3]
    assert len({os.getpid(), *(pid for _, pid in found.results)}) == 5


def test_what_it_cost_is_told() -> None:
    """Wall time and CPU are seconds, memory is that of a Python at least, and who slept has switched."""

    def burn(start: Start) -> None:
        start.wait()
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        time.sleep(0.001)

    found = gather([burn])
    assert found.wall >= 0.05
    assert found.cpu >= 0.05
    assert found.rss > 1000
    assert found.voluntary > 0


def test_who_has_done_its_job_stays_for_the_others() -> None:
    """A process is taken down when all have done theirs: what that costs is nobody's who is measured."""
    first = context.RawValue("i")

    def early(start: Start) -> None:
        start.wait()
        first.value = os.getpid()

    def late(start: Start) -> bool:
        start.wait()
        while not first.value:
            time.sleep(0.001)
        other = os.pidfd_open(first.value)
        return not select.select([other], [], [], 0.2)[0]

    assert gather([early, late]).results == [None, True]


def test_they_are_stopped() -> None:
    """Who asks whether it is over is told so after the seconds that were given, and not before."""

    def until_stopped(start: Start) -> bool:
        start.wait()
        early = start.stopped
        while not start.stopped:
            time.sleep(0.001)
        return early

    found = gather([until_stopped], 0.05)
    assert found.results == [False]
    assert found.wall >= 0.05


def test_wrong_data_are_raised_here() -> None:
    """A finding in a process is the crowd's; the others, who would wait for long, end."""

    def wrong(start: Start) -> None:
        start.wait()
        raise WrongData("two were in")

    def wait(start: Start) -> None:
        start.wait()
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(WrongData, match="two were in"):
        gather([wait, wrong, wait])
    assert time.monotonic() - began < 50


def test_an_interrupt_is_for_the_parent_alone() -> None:
    """Ctrl-C reaches all of the terminal's processes: those of a crowd go on, and so leave no lock locked."""

    def interrupted(start: Start) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        start.wait()
        return "went on"

    assert gather([interrupted] * 2).results == ["went on"] * 2


def test_an_interrupt_ends_them() -> None:
    """What comes to the parent meanwhile is raised there, and all processes end."""

    def interrupt(start: Start) -> None:
        start.wait()
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        gather([interrupt])


def test_one_that_is_killed_is_told() -> None:
    """Not as an end of file, which would say nothing."""

    def killed(start: Start) -> None:
        start.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="was it killed"):
        gather([killed])


def test_they_end_with_their_parent(start: Start_) -> None:
    """Also when it is killed and can do nothing about it: those of a crowd, and a manager's."""

    def lead(peer: Peer) -> None:
        held = manager()
        peer.say(held._process.pid)  # type: ignore[attr-defined]

        def stay(begun: Start) -> None:
            begun.wait()
            peer.say(os.getpid())
            time.sleep(60)

        gather([stay] * 2)

    leader = start(lead)
    led = [os.pidfd_open(leader.hear()) for _ in range(3)]
    os.kill(leader.pid, signal.SIGKILL)
    for each in led:
        assert select.select([each], [], [], 30)[0]
        os.close(each)


def test_an_error_is_raised_with_its_traceback() -> None:
    """The one that reads it must know where it was, though it was in another process."""

    def fail(start: Start) -> None:
        start.wait()
        raise LookupError("not there")

    with pytest.raises(RuntimeError, match=r"(?s)in fail.*LookupError: not there"):
        gather([fail])
