"""An exception at every place where CPython runs signal handlers, one after the other, in every kind of use.

Handlers run at the start of a Python function, after a call into C has returned, and at a backward jump
(`_Py_HandlePending` in CPython's ceval). A tracer counts these places, in our code alone, and raises at the nth.
"""

from __future__ import annotations

import ast
import dis
import functools
import gc
import re
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock import _faces, locks
from shmlock._engine import acquire, bias, engine, guard, holds, membership, mutual, recovery, state
from shmlock._kernel import robust
from shmlock._segment import participants
from shmlock._segment.layout import DIRTY, HIGH_WATER
from shmlock.errors import WouldDeadlock
from tests.conftest import HANG
from tests.crash import situations, uses
from tests.crash.situations import nothing, what_is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tests.conftest import Start

ROOT = str(Path(shmlock.__file__).parent)
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}


ROOMS = [_faces, acquire, bias, engine, guard, holds, locks, membership, mutual, recovery, state, participants, robust]
# No slow paths: what is made or told, and protocols.
TOLD = re.compile(
    r"(.*\.)?(__init__|_make_faces|_faces|_arguments|_describe|describe(\..*)?|statistics|name|check_policy|_takes_argument"
    r"|engine_of|mutual_exclusion_of|block|initialise|_check|.*\._broken)|(Words|Fencing|_Acquirable|Lock)\..*"
    # At the end of a thread or a process, or in its child.
    r"|.*\.depart|_leave_quietly|_forget_parent|.*\.forget|_hold_nothing|_Latches.*|.*\.leave"
    # After an interruption only.
    r"|.*\.must_end|.*\._abort_claim|abort|MutualExclusion.holds"
    # What stores nothing, or is somebody else's; a reader that comes in just then; a semaphore that can't be had.
    r"|RWLock.read_consistent|_Exclusive._taken|State.try_write|Acquisition._(made_)?bed"
    # When another thread closes it meanwhile: see test_every_switch.
    r"|.*\._?closed|.*\._?give_read_back|.*\._withdraw_all"
    # Among others that write, watch, or wait as well: see test_interruptions.
    r"|Engine\._(seek|turn_to_seek|watch)(\..*)?|.*\.wake_watchers\..*|lock_within"
)


def line(code: CodeType, offset: int) -> int | None:
    """Of the source."""
    return next((line for start, end, line in code.co_lines() if start <= offset < end), None)


class Interrupted(Exception):  # noqa: N818  it is no error
    """What the tracer raises."""


@functools.cache
def names(code: CodeType) -> dict[int, str]:
    """The operation at each offset. A beginning without a check is not a RESUME here (see `begins_at_once`)."""
    return {
        instruction.offset: "no RESUME"
        if instruction.opname == "RESUME" and (instruction.arg or 0) & 3 >= 2
        else instruction.opname
        for instruction in dis.get_instructions(code)
    }


@functools.cache
def looks(code: CodeType) -> dict[int, tuple[str, bool]]:
    """At each offset: the operation if it looks for signals, else nothing; and whether a function begins there."""
    return {offset: (name if name in LOOKS else "", name.endswith("RESUME")) for offset, name in names(code).items()}


@functools.cache
def beginning(code: CodeType) -> str:
    """The operation with which a function begins, if it looks for signals."""
    return next(look for look, begins in looks(code).values() if begins)


def interrupt() -> None:
    """What happens there, if nothing else is said."""
    raise Interrupted


class Tracer:
    """Has something happen at one place: the nth in one call, by number, of a function of ours. By default, nowhere.

    `where` says in which function that was, and whether at its start.
    """

    def __init__(self, call: int = -1, nth: int = -1, happen: Callable[[], object] = interrupt) -> None:
        self._call = call
        self._nth = nth
        self._happen = happen
        self._calls = 0
        self.where: tuple[str, bool] | None = None
        self._last: dict[FrameType, list[str]] = {}  # of each frame: what it has done last, if that looks for signals

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """A function begins."""
        caller = self._last.get(frame.f_back) if frame.f_back else None
        if caller:
            caller[0] = ""  # a call of Python's own, in which it has looked
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        call = self._calls
        self._calls += 1
        if call != self._call and self._call >= 0:
            return None  # of a use with n places each is traced n times: only where it must be
        last = self._last[frame] = [beginning(frame.f_code)]
        at = looks(frame.f_code)

        def step(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "opcode":
                look, begins = at[frame.f_lasti]
                if last[0] and not begins:
                    self._place(call, frame, last[0])
                last[0] = look
            elif event == "return":
                self._last.pop(frame, None)
            return step

        frame.f_trace = step  # 3.13 switches opcode events on for a frame only if it has one
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return step

    def _place(self, _call: int, frame: FrameType, look: str) -> None:
        if self._nth == 0:
            self.where = frame.f_code.co_name, look == "RESUME"
            self._happen()
        self._nth -= 1


class Counting(Tracer):
    """Raises nowhere; all places there are, as the arguments of a tracer that raises there."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = []
        self._found: Counter[int] = Counter()

    def _place(self, call: int, _frame: FrameType, _look: str) -> None:
        self.places.append((call, self._found[call]))
        self._found[call] += 1


@contextmanager
def traced(tracer: Tracer) -> Iterator[None]:
    """With this tracer, and afterwards with the one that was there.

    Garbage is collected afterwards: a finalizer that runs at a place takes that place from the tracer, which sees its
    call there.
    """
    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def counted(
    use: Callable[[], object], prepare: Callable[[], object] = nothing, check: Callable[[], object] = nothing
) -> list[tuple[int, int]]:
    """The places of a use. It runs twice: 3.12 has opcode events only when there has been a tracer before."""
    for _ in range(2):
        prepare()
        tracer = Counting()
        with traced(tracer):
            use()
        check()
    assert tracer.places, "the tracer sees where it could raise"
    return tracer.places


def interrupted(
    use: Callable[[], object], prepare: Callable[[], object] = nothing, check: Callable[[], object] = nothing
) -> Iterator[tuple[str, bool] | None]:
    """Run the use again and again, each time interrupted at another of its places.

    None for one that was not there this time: how often a wait looks depends on others, and on the time.
    """
    for place in counted(use, prepare, check):
        prepare()
        tracer = Tracer(*place)
        try:
            with traced(tracer):
                use()
        except Interrupted:
            pass
        except Exception as error:  # a codec's, as far as a configuration can tell
            if not isinstance(error.__cause__, Interrupted):
                raise
        try:
            check()
        except BaseException as error:
            error.add_note(f"interrupted in {tracer.where}, place {place}")
            raise
        yield tracer.where


class Cycle:
    """Garbage with a finalizer."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        """Here, what the tracer must not take for a part of the use."""


def test_each_place_is_met_whenever_garbage_is_collected(name: str) -> None:
    """Also where a collection falls due on the way there: 3.12 makes it at such a place."""
    lock = shmlock.SeekLock(name, max_participants=4)
    first = counted(lambda: uses.read(lock))[0]
    before = gc.get_threshold()
    kept: list[set[int]] = []
    try:
        for made in range(120):
            kept.clear()
            gc.collect(0)
            gc.set_threshold(120)
            Cycle()
            kept.extend(set() for _ in range(made))  # one more each time, until it is due before
            tracer = Tracer(*first, nothing)
            with traced(tracer):
                uses.read(lock)
            assert tracer.where, f"after {len(kept)}"
    finally:
        gc.set_threshold(*before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from finalizers, as CPython has it
@pytest.mark.parametrize("situation", situations.SITUATIONS)
def test_nothing_is_left_of_what_was_interrupted(name: str, start: Start, situation: str) -> None:
    """Wherever it was, also at the very end of a `with`: nothing is held or wanted, and nothing is half done."""
    before, use, check = situations.SITUATIONS[situation](name, start)
    found = list(interrupted(use, before, check))
    assert len(list(filter(None, found))) >= 2
    if situation.startswith(("alone", "counted")):  # where nobody else is, it is the same each time
        assert all(found)


@pytest.mark.parametrize("opened", [True, False], ids=["used before", "first use"])
@pytest.mark.parametrize("use", [uses.read, uses.write, uses.upgrade, uses.read_to_write_and_back, situations.timed])
def test_a_handler_may_use_the_lock_that_its_thread_is_busy_with(
    name: str, use: Callable[[shmlock.SeekLock], object], opened: bool
) -> None:
    """Wherever it runs: it gets each mode, or an error at once; and what it interrupted goes on as if nothing was."""
    handled = 0
    lock = shmlock.SeekLock(name, max_participants=4)

    def handle() -> None:
        nonlocal handled
        for face in (lock.reader, lock.seeker, lock.writer):
            try:
                got = face.acquire(timeout=0)
            except WouldDeadlock:
                got = False
            if got:
                face.release()
                handled += 1

    def anew() -> None:
        nonlocal lock
        if not opened:
            lock.close()
            lock = shmlock.SeekLock(name, max_participants=4)

    for place in counted(lambda: use(lock), anew):
        anew()
        tracer = Tracer(*place, handle)
        with traced(tracer):
            use(lock)
        assert not what_is_held(lock), tracer.where
        assert lock._words[HIGH_WATER] <= 2, tracer.where
        assert lock._words[DIRTY] == 0
    situations.nothing_left(lock)
    assert handled


@pytest.mark.parametrize("mode", ["R", "S", "W"])
def test_a_handler_that_opens_what_its_thread_closes_keeps_what_it_gets(name: str, mode: str) -> None:
    """Wherever it runs: it, or an error at once. And its handle goes on as if the other had been closed before."""
    got = 0
    closing: list[shmlock.SeekLock] = []
    came: list[tuple[shmlock.SeekLock, bool]] = []

    def anew() -> None:
        closing[:] = [shmlock.SeekLock(name, max_participants=4)]
        uses.read(closing[0])
        came.clear()

    def handle() -> None:
        ours = shmlock.SeekLock(name)
        held = False
        with suppress(WouldDeadlock):
            held = situations.face(ours, mode).acquire(timeout=HANG)
            assert held
        came.append((ours, held))

    for place in counted(lambda: closing[0].close(), anew):  # noqa: PLW0108  another one each time
        anew()
        tracer = Tracer(*place, handle)
        with traced(tracer):
            closing[0].close()
        for ours, held in came:
            assert what_is_held(ours) == ({mode} if held else set()), tracer.where
            if held:
                situations.face(ours, mode).release()
            got += held
            uses.upgrade(ours)
            ours.close()
        with shmlock.SeekLock(name) as after:
            situations.nothing_left(after)
    assert got


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
                assert where is not None
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


class Recorder(Tracer):
    """Raises nowhere, and keeps each place at which CPython may look for signals."""

    def __init__(self, seen: set[tuple[CodeType, int]]) -> None:
        super().__init__()
        self._seen = seen

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        """A function begins."""
        self._seen.update((frame.f_code, offset) for offset, name in names(frame.f_code).items() if name == "RESUME")
        step = super().__call__(frame, event, argument)
        if step is None:
            return None
        at = looks(frame.f_code)

        def record(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode" and at[frame.f_lasti][0]:
                self._seen.add((frame.f_code, frame.f_lasti))
            step(frame, event, argument)
            return record

        frame.f_trace = record
        return record


def codes(of: object, path: str) -> Iterator[CodeType]:
    """All code in a room: of its functions, its classes and what is nested in them."""
    if isinstance(of, property):
        yield from codes(of.fget, path)
    elif isinstance(of, staticmethod | classmethod):
        yield from codes(of.__func__, path)
    elif isinstance(of, FunctionType):
        yield from codes(of.__code__, path)
    elif isinstance(of, CodeType) and of.co_filename == path:
        yield of
        for constant in of.co_consts:
            yield from codes(constant, path)
    elif isinstance(of, type) and getattr(sys.modules.get(of.__module__), "__file__", None) == path:
        for member in vars(of).values():
            yield from codes(member, path)


def places(room: ModuleType) -> set[tuple[CodeType, int]]:
    """Where CPython may look for signals in this room."""
    return {
        (code, offset)
        for of in vars(room).values()
        for code in codes(of, str(room.__file__))
        for offset, name in names(code).items()
        if name in LOOKS
    }


@functools.cache
def after_an_interruption(room: ModuleType) -> set[int]:
    """The lines of `except BaseException`, which run because of one exception. A second one in them is not promised.

    And those that speak of noise: to a segment that was overwritten nothing is promised but what tests/hostile asks.
    Nor to a handle that another thread closes meanwhile, but what test_every_switch asks.
    """
    text = Path(str(room.__file__)).read_text("utf-8")
    tree = ast.parse(text)
    elsewhere = re.compile(r"noise|_closed\(|_withdraw_all\(")
    others = {number for number, line in enumerate(text.split("\n"), 1) if elsewhere.search(line)}
    return others | {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)  # of an error, which is on its way already
        or (isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name) and node.type.id == "BaseException")
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }


def test_every_place_is_one_of_them(name: str, start: Start) -> None:
    """By count: what the rooms that change shared state have of such places is all reached, and so raised at, above."""
    seen: set[tuple[CodeType, int]] = set()
    for number, make in enumerate(situations.SITUATIONS.values()):
        before, use, check = make(f"{name}.{number}", start)
        for _ in range(2):  # 3.12 has opcode events only when there has been a tracer before
            before()
            with traced(Recorder(seen)):
                use()
            check()
        shmlock.unlink(f"{name}.{number}")
    lines = {(code, line(code, offset)) for code, offset in seen}  # a `finally` is there twice
    missing = {
        f"{Path(code.co_filename).stem}.{code.co_qualname} {line(code, offset)}"
        for room in ROOMS
        for code, offset in places(room) - seen
        if (code, line(code, offset)) not in lines
        and not TOLD.fullmatch(code.co_qualname)
        and line(code, offset) not in after_an_interruption(room)
    }
    assert not missing, "\n".join(sorted(missing))


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
