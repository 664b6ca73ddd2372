"""The soak for a minute; and that it does find what it looks for, in objects that are broken in one way each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest

import shmlock
from shmlock import _faces
from shmlock._engine import state
from shmlock._engine.modes import MODE_MASK, QUEUES
from shmlock._engine.phases import next_turn
from shmlock._kernel import shm
from shmlock._segment.layout import WANT, WRITER
from tests.ending import with_us
from tests.order import until
from tests.soak import roles
from tests.soak.board import LIVES, Board, Fault
from tests.soak.conductor import Conductor, Settings, _Process
from tests.soak.plan import Plan, dice_of
from tests.soak.report import Report
from tests.soak.roles import Objects, open_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import Peer, Start

    Opener = Callable[..., Objects]

ROOT = Path(__file__).parents[2]
HANG = 120.0
"""Seconds after which something that was waited for is taken not to come. No test is faster or slower by it."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def soak() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`soak(*arguments)` starts one, which ends with the test, and of which nothing may be left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.soak", *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=0,
                preexec_fn=with_us(),
            )
        )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        until(partial(has_no_names, process.pid), HANG)


def names_of(pid: int) -> list[str]:
    """What is in /dev/shm on behalf of a soak."""
    return [entry for entry in shm.names() if f"soak-{pid}-" in entry]


def has_no_names(pid: int) -> bool:
    """Whether nothing of it is left there."""
    return not names_of(pid)


def test_a_minute(soak: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """Whatever is killed, stopped and recycled when, all promises are kept, and everything has been tried."""
    report = tmp_path / "report.json"
    process = soak("--seconds", 60, "--seed", 20261130, "--patience", 240, "--report", report)
    output, _ = process.communicate(timeout=580)
    assert process.returncode == 0, output
    assert "All promises were kept." in output
    told = json.loads(report.read_text())
    assert told["faults"] == []
    assert all(told["done"].values()), told["done"]
    assert all(told["seen"][what] for what in ("together", "told", "optimistic", "handed", "evictions", "owner_deaths"))
    assert told["kills"] > told["infants"] > 0
    assert told["killed_holding"]
    assert set(told["started"]) == {"worker", "churner", "stranger"}


def test_wrong_arguments(soak: Callable[..., subprocess.Popen[str]]) -> None:
    """They are said to be wrong in one line; --help says what the soak does, and how it ends."""
    process = soak("--seconds", 0)
    output, _ = process.communicate(timeout=HANG)
    assert (process.returncode, output.count("\n")) == (2, 1)
    process = soak("--help")
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0
    assert all(word in output for word in ("--seconds", "--seed", "--report", "Exit code", "exclusion"))


def test_the_plan_is_that_of_its_seed() -> None:
    """The same seed brings the same processes, steps and blows, another one brings others."""

    def drawn(seed: int) -> list[object]:
        plan = Plan(seed, 10)
        return [*((plan.casting(), plan.blow()) for _ in range(20)), dice_of(seed, 8).random()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_ends_with_it(soak: Callable[..., subprocess.Popen[str]], number: signal.Signals) -> None:
    """However the soak ends, what it has started ends with it, and its names are removed."""
    process = soak("--seconds", 60, "--seed", 1)
    conductor = psutil.Process(process.pid)
    until(lambda: len(conductor.children()) > 5 and len(names_of(process.pid)) > 5, HANG)
    started = conductor.children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=HANG)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert psutil.wait_procs(started, timeout=HANG)[1] == []
    until(partial(has_no_names, process.pid), HANG)


# --- what it finds


def found(start: Start, opener: Opener, **settings: Any) -> tuple[list[Fault], str]:
    """The faults that it finds in such objects, and its report; it ends with the first one."""
    given = {"seconds": 300, "seed": 1, "patience": 120, "most_faults": 1, **settings}

    def run(peer: Peer) -> None:
        report = Conductor(Settings(opener=opener, **given)).run()
        peer.say(([tuple(fault) for fault in report.faults], report.text()))

    faults, text = start(run).hear(timeout=500)
    sys.stdout.write(text)  # shown when the test fails
    assert "BROKEN" in text
    assert f"{len(faults)} faults." in text
    return [Fault(*fault) for fault in faults], text


def kinds(start: Start, opener: Opener, **settings: Any) -> set[str]:
    """Of the faults."""
    return {fault.kind for fault in found(start, opener, **settings)[0]}


def unlike_others(name: str, policy: Any = "flag") -> Objects:
    """The objects as they are: what is broken is in this process and its children, and not in others."""
    return open_objects(name, policy)


class Open(_faces.Writer):
    """Lets everybody in."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # noqa: ARG002
        """At once."""
        return True

    def acquire_nowait(self) -> bool:
        """As always."""
        return True

    def release(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.mark.parametrize("name_of_lock", ["rw", "seek"])
def test_a_lock_that_does_not_lock(start: Start, name_of_lock: str) -> None:
    """Two that write at once, and one that reads beside a writer, are seen."""

    def opener(name: str, policy: Any = "flag") -> Objects:
        objects = open_objects(name, policy)
        lock = getattr(objects, name_of_lock)
        lock.writer = Open(lock._engine, lock._policy)
        return objects

    assert "exclusion" in kinds(start, opener)


def test_a_death_that_is_not_told(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-done write that comes without owner_died is seen."""
    monkeypatch.setattr(_faces._Face, "owner_died", property(lambda _: False))

    def opener(name: str, _: Any = "flag") -> Objects:
        return open_objects(name)  # whose handles don't mend

    assert kinds(start, opener, blows=100) == {"owner died"}


@pytest.mark.parametrize("killed", [True, False])
def test_a_hold_that_is_gone_while_its_holder_lives(start: Start, name: str, *, killed: bool) -> None:
    """A forked child that gets a writer's lock beside its parent's read is an error, unless the parent was killed.

    The kernel frees what the killed hold some milliseconds before it ends their children.
    """

    def run(peer: Peer) -> None:
        board, objects = Board(roles.DESKS), open_objects(name)
        part = roles.Part(board, name, seed=1, desk=0, life=LIVES, threads=1, steps=0)
        parent = roles.Worker(part, 0, objects)
        if killed:
            board.note_kill(part.life)
        pid = roles.forked(partial(parent._be_forked, part.life + roles.DESKS, objects.rw, inside=True), board)
        os.waitpid(pid, 0)
        for opened in objects.all():
            opened.unlink()
        peer.say([fault.what for fault in board.faults()])

    faults = start(run).hear()
    assert len(faults) == (not killed)
    assert killed or "the parent's hold is gone" in faults[0]


def starve_readers(self: state.State, wants: list[int]) -> None:
    """Let in no readers as long as anybody else waits."""
    if not any(want & QUEUES for want in wants):
        ADMIT(self, wants)


def last_come_first_served(seeker: int, wants: Sequence[int]) -> tuple[int, int]:
    """The youngest of those that queue is next."""
    queue = [want for want in wants if want & QUEUES]
    if seeker or not queue:
        return next_turn(seeker, wants)
    return max(queue) & MODE_MASK, wants.index(max(queue))


def starve_writers(self: state.State) -> None:
    """Let in readers in any case, if nobody writes."""
    DECIDE(self)
    wants = self.column(WANT)
    if not self._words[WRITER] and any(wants):
        self._admit(wants)


ADMIT = state.State._admit
DECIDE = state.State.decide


@pytest.mark.parametrize("who", ["the reader", "the writer", "a second read phase"])
def test_an_unfair_lock(start: Start, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """A reader that sees a second write phase, a writer that is passed by younger ones, or by readers, is seen."""
    place, name_of_function, function = {
        "the reader": (state.State, "_admit", starve_readers),
        "the writer": (state, "next_turn", last_come_first_served),
        "a second read phase": (state.State, "decide", starve_writers),
    }[who]
    monkeypatch.setattr(place, name_of_function, function)

    faults, _ = found(start, unlike_others, blows=1)
    assert faults[0].kind == "fairness"
    assert faults[0].what.startswith(who)


class Backward(shmlock.SharedConfig):
    """Keeps the first version that it has seen."""

    def snapshot(self) -> shmlock.Snapshot:
        """Always the same."""
        first: shmlock.Snapshot = self.__dict__.setdefault("first", super().snapshot())
        return first


class Torn(shmlock.SharedConfig):
    """Mixes two versions."""

    def snapshot(self) -> shmlock.Snapshot:
        """Of this version, with the end of the one before."""
        now = super().snapshot()
        value = {**now.value, "again": now.value["serial"] - 1}
        return shmlock.Snapshot(now.version, value, now.published_at, now.publisher_pid, now.size)


class Forgetful(shmlock.SharedConfig):
    """Loses every fifth publish."""

    def publish(self, value: Any) -> int:
        """Unless it is the fifth."""
        return super().publish(value) if value["serial"] % 5 else self.version


class Careless(shmlock.RTMetrics):
    """Loses every hundredth record."""

    count = 0

    def record(self, code: int, seconds: float) -> None:
        """Unless it is the hundredth."""
        self.count += 1
        if self.count % 100:
            super().record(code, seconds)


class Twice(shmlock.TimerQueue):
    """Hands out the first timer again."""

    def wake_expired(self, now_ns: int | None = None, limit: int | None = None) -> list[int]:
        """With the first of the last time."""
        last: list[int] = self.__dict__.get("last", [])
        self.__dict__["last"] = due = super().wake_expired(now_ns, limit)
        return last[:1] + due


class Early(shmlock.TimerQueue):
    """Does not know what time it is."""

    def wake_expired(self, now_ns: int | None = None, limit: int | None = None) -> list[int]:
        """Half a second early."""
        return super().wake_expired(time.monotonic_ns() + 500_000_000 if now_ns is None else now_ns, limit)


class Losing(shmlock.TimerQueue):
    """Keeps every tenth timer to itself."""

    def wake_expired(self, now_ns: int | None = None, limit: int | None = None) -> list[int]:
        """But for every tenth."""
        return [ident for ident in super().wake_expired(now_ns, limit) if ident % 10]


@pytest.mark.parametrize(
    ("attribute", "broken", "kind", "seconds"),
    [
        ("config", Backward, "config", 300),
        ("config", Torn, "config", 300),
        ("config", Forgetful, "counts", 300),
        ("metrics", Careless, "counts", 300),
        ("timers", Twice, "timers", 300),
        ("timers", Early, "timers", 300),
        ("timers", Losing, "timers", 4),  # it is told at the end
    ],
)
def test_what_is_built_on_locks(
    start: Start, attribute: str, broken: Callable[..., Any], kind: str, seconds: float
) -> None:
    """A configuration that is old, torn or lost, a record that is lost, a timer that comes wrongly: all are seen."""

    def opener(name: str, policy: Any = "flag") -> Objects:
        objects = open_objects(name, policy)
        sizes = {"capacity": 1 << 16} if attribute == "config" else {}
        setattr(objects, attribute, broken(f"{name}.{attribute}", max_participants=64, **sizes))
        return objects

    assert kind in kinds(start, opener, seconds=seconds)


def test_a_hang(start: Start) -> None:
    """A step that does not end is told, with what everybody was doing: objects, processes and stacks."""

    class Stuck(shmlock.Mutex):
        def __enter__(self) -> Self:
            time.sleep(500)
            return self

    def opener(name: str, policy: Any = "flag") -> Objects:
        objects = open_objects(name, policy)
        objects.mutex = Stuck(f"{name}.mutex")
        return objects

    faults, text = found(start, opener, patience=8, processes=2, blows=1)
    assert [fault.kind for fault in faults] == ["hang"]
    assert "is in `lock_mutex`" in faults[0].what
    assert "<shmlock.SeekLock" in text
    assert "Stats about Lock" in text
    assert f'"{__file__}", line' in text
    assert "in __enter__" in text


def test_a_hang_tells_of_children_too(name: str, start: Start) -> None:
    """A worker that waits for its forked child is not the one that hangs."""
    conductor = Conductor(Settings(seconds=0, seed=1))
    conductor._objects = open_objects(name)
    for each in conductor._objects.all():
        each.unlink()  # their names are not asked for

    def do_not_end(peer: Peer) -> None:
        peer.say("it hangs")
        time.sleep(500)

    def work(peer: Peer) -> None:
        roles.prepare(conductor._board)
        roles.forked(partial(do_not_end, peer), conductor._board)
        peer.hear()

    worker = start(work)
    assert worker.hear() == "it hangs"
    conductor._processes[worker.pid] = _Process(worker.pid, "worker", 0, 0, 0)
    conductor._hang("somebody")
    assert "in do_not_end" in conductor.report.scene
    assert "in work" in conductor.report.scene
    assert worker.alive()


def test_a_process_that_fails(start: Start) -> None:
    """An exception in a process, and a crash, are told, with what it was."""

    def opener(name: str, policy: Any = "flag") -> Objects:
        objects = open_objects(name, policy)
        objects.rw.optimistic_stamp = lambda: 1 // 0  # type: ignore[method-assign]
        return objects

    faults, _ = found(start, opener)
    assert faults[0].kind == "error"
    assert "ZeroDivisionError" in faults[0].what


def test_a_name_that_is_left(start: Start) -> None:
    """A name that nobody removes is told, and removed in the end."""

    def opener(name: str, policy: Any = "flag") -> Objects:
        shmlock.Mutex(f"{name}.another").close()
        return open_objects(name, policy)

    faults, _ = found(start, opener, seconds=0.1)
    assert [fault.kind for fault in faults] == ["left behind"]
    entry = faults[0].what.split()[0]
    until(lambda: entry not in shm.names(), HANG)


def test_what_grows() -> None:
    """More descriptors, memory or names at the end than after the beginning are told; the same is not."""
    report = Report(seed=1, asked_seconds=1, processes=1, name="soak")
    report.resources["elder"] = {"descriptors": (10, 10), "private KiB": (20_000, 20_100)}
    report.names = [50, 60]
    assert report.grown() == []
    report.resources["elder"] = {"descriptors": (10, 20), "private KiB": (20_000, 40_000)}
    report.names = [50, 160]
    assert [wrong.split(":")[0] for wrong in report.grown()] == ["elder", "elder", "names"]
