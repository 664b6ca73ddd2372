"""An exception at every place where CPython runs signal handlers, one after the other, in every kind of use.

Handlers run at the start of a Python function, after a call into C has returned, and at a backward jump
(`_Py_HandlePending` in CPython's ceval). A tracer counts these places, in our code alone, and raises at the nth.
"""

from __future__ import annotations

import ast
import dis
import functools
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._engine.modes import WRITE
from shmlock._segment.layout import ABANDONED, DIRTY, READS, SEEKER, WANT, WRITER
from tests.crash import uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

ROOT = str(Path(shmlock.__file__).parent)
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}


class Interrupted(Exception):  # noqa: N818  it is no error
    """What the tracer raises."""


@functools.cache
def names(code: CodeType) -> dict[int, str]:
    """The operation at each offset."""
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


class Tracer:
    """Raises at the nth place; `where` says in which function that was, and whether at its start."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.where: tuple[str, bool] | None = None
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """A function begins."""
        if frame.f_back in self._last:
            self._last[frame.f_back] = "a call of Python's own, in which it has looked"
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        frame.f_trace = self._step  # 3.13 switches opcode events on for a frame only if it has one
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._last[frame] = "RESUME"
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            before, now = self._last.get(frame), names(frame.f_code)[frame.f_lasti]
            self._last[frame] = now
            if before in LOOKS and now != "RESUME":
                if not self.left:
                    self.where = frame.f_code.co_name, before == "RESUME"
                    raise Interrupted
                self.left -= 1
        return self._step


def interrupted(use: Callable[[], object]) -> Iterator[tuple[str, bool]]:
    """Run the use again and again, interrupted one place later each time, until it comes through."""
    nth = -1  # at first nowhere: 3.12 has opcode events only when there has been a tracer before
    while True:
        tracer = Tracer(nth)
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            use()
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        if tracer.where is not None:
            yield tracer.where
        elif nth >= 0:
            assert nth, "the tracer sees where it could raise"
            return
        nth += 1


USES = [
    *(uses.seek, uses.write, uses.read, uses.upgrade, uses.seek_to_read, uses.seek_to_write_to_read),
    *(uses.write_to_seek, uses.read_to_seek, uses.read_to_seek_and_back, uses.read_to_write_and_back),
]


def what_is_held(lock: shmlock.SeekLock) -> set[str]:
    """By the calling thread, or left of what it did."""
    words, me = lock._words, lock._engine.me()
    if words[me.base + ABANDONED]:
        lock._engine.prepare()
    return {
        name
        for name, there in (
            ("W", words[WRITER]),
            ("S", words[SEEKER]),
            ("R", words[me.base + READS]),
            ("a want", words[me.base + WANT]),
            ("something abandoned", words[me.base + ABANDONED]),
            ("busy", me.busy),
        )
        if there
    }


def free_for_another_thread(lock: shmlock.SeekLock) -> bool:
    """Whether a thread that has nothing to do with it can write at once."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.writer.acquire(timeout=30))
        lock.writer.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got == [True]


@pytest.mark.parametrize("use", USES)
def test_nothing_is_left_of_what_was_interrupted(name: str, use: Callable[[shmlock.SeekLock], None]) -> None:
    """Wherever it was but at the very start of `__exit__`: nothing is held or wanted. There, all of one hold is."""
    lock = shmlock.SeekLock(name, max_participants=4)
    use(lock)
    places = 0
    for where in interrupted(functools.partial(use, lock)):
        places += 1
        held = what_is_held(lock)
        if where == ("__exit__", True):
            # Nothing, if it is the inner one of two.
            assert held in ({"R"}, {"S"}, {"W"}) or use is uses.upgrade, where
            lock.reader.release() if held == {"R"} else lock._engine.end(WRITE, vouch=False)
            held = what_is_held(lock)
        assert not held, where
        assert free_for_another_thread(lock), where
    assert lock._words[DIRTY] == 0
    assert places > (3 if use is uses.read else 30)
    lock.close()


def test_what_is_caught_inside_a_seek_leaves_it(name: str) -> None:
    """An exception anywhere in an upgrade, or on its way back, leaves the seek that it began with, and W never."""
    lock = shmlock.SeekLock(name, max_participants=4)

    def there_and_back() -> None:
        lock.seek_to_write()
        lock.write_to_seek()

    with lock.seeker:
        for where in interrupted(there_and_back):
            held = what_is_held(lock)
            # Just when write_to_seek begins it has not given anything up, and has said so by the exception.
            if held == {"S", "W"}:
                assert where[1], where
                lock.write_to_seek()
                held = what_is_held(lock)
            assert held == {"S"}, where
    assert not what_is_held(lock)
    lock.close()


def test_timers_survive_an_exception_anywhere(name: str) -> None:
    """Whatever call of a timer queue is interrupted wherever: no timer is lost, none comes twice, nothing is held."""
    timers = shmlock.TimerQueue(name, capacity=8, max_participants=4)
    timers.schedule(1, 10)
    timers.wake_expired(0)
    for use in (
        lambda: timers.schedule(2, 20),
        lambda: timers.schedule(1, 5),
        lambda: timers.postpone(2, 30),
        lambda: timers.wake_expired(15),
        timers.next_expiry,
    ):
        for where in interrupted(use):
            timers.cancel(2)
            timers.cancel(1)
            timers.schedule(1, 10)
            timers.schedule(2, 20)
            assert timers.wake_expired(9) == [], where
            found = timers.wake_expired(25)
            assert sorted(found) == [1, 2], where
            assert timers.wake_expired(25) == [], where
            timers.schedule(1, 10)
            timers.schedule(2, 20)
    timers.close()


def test_metrics_survive_an_exception_anywhere(name: str) -> None:
    """An interrupted record counts or not; resets are done or not; what comes next counts."""
    metrics = shmlock.RTMetrics(name, max_participants=4, buckets=1, windows=1, figures=1, clock=lambda: 1000.0)
    metrics.record(200, 0.1)
    for use in (lambda: metrics.record(200, 0.1), metrics.reset):
        for where in interrupted(use):
            before = metrics.total_count()
            metrics.record(200, 0.1)
            assert metrics.total_count() == before + 1, where
    metrics.reset()
    assert metrics.total_count() == 0
    metrics.close()


def loops_in_a_try(tree: ast.AST, function: str = "", inside: bool = False) -> Iterator[str]:
    """The functions with a `while` within a `try`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from loops_in_a_try(child, getattr(child, "name", ""))
            continue
        if isinstance(child, ast.While) and inside:
            yield function
        yield from loops_in_a_try(child, function, inside or isinstance(child, ast.Try))


BELOW = ["_kernel", "_segment", "_engine", "_faces.py", "locks.py", "config.py", "metrics.py", "timers.py"]


@pytest.mark.parametrize("place", BELOW)
def test_no_loop_relies_on_a_try_around_it(place: str) -> None:
    """An exception at its backward jump may go past it (cpython#130279). The guard's jumps while it holds nothing."""
    paths = [Path(ROOT, place)] if place.endswith(".py") else sorted(Path(ROOT, place).glob("*.py"))
    found = [f"{path.stem}.{name}" for path in paths for name in loops_in_a_try(ast.parse(path.read_text("utf-8")))]
    assert found == (["guard.run"] if place == "_engine" else [])


def test_a_loop_in_a_try_is_seen() -> None:
    """At any depth of the same function, and in no other."""
    text = (
        "def f():\n try:\n  if 1:\n   while 1: pass\n finally: pass\ndef g():\n while 1:\n  try: pass\n  finally: pass"
    )
    assert list(loops_in_a_try(ast.parse(text))) == ["f"]
