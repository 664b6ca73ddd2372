"""Starts processes, kills, stops and continues them, sees that nobody hangs, and counts when all is quiet."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil

import shmlock
from shmlock._kernel import shm
from tests.soak import roles
from tests.soak.board import DOING, KILLED_AT, LIVES, MOST_LIVES, RECOVERED_AT, Board, Fields
from tests.soak.checks import Desk, Timers, counted, lost_timers
from tests.soak.plan import Casting, Plan
from tests.soak.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.soak.plan import Blow

_PR_SET_CHILD_SUBREAPER: Final = 36
_CALLS: Final = 60  # for the timers that are left: 3 seconds at least
_LOOK: Final = 0.2  # seconds between two looks at the faults, and who hangs


@dataclass
class Settings:
    """What is asked for."""

    seconds: float
    seed: int
    processes: int = 8
    blows: float = 20.0
    patience: float = 120.0
    most_faults: int = 20  # after which it ends, for one fault often brings more
    opener: Callable[..., roles.Objects] = roles.open_objects


@dataclass
class _Process:
    """One that was started. `desk`, `life`: the first of those that it has."""

    pid: int
    kind: str
    desk: int
    life: int
    born: int
    dies_at: float | None = None
    stopped_at: int = 0
    goes_on_at: float = 0.0
    killed: bool = False


@dataclass
class Conductor:
    """One run."""

    settings: Settings
    tell: Callable[[str], None] = lambda _: None
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.name = f"soak-{os.getpid()}-{secrets.token_hex(3)}"
        # Nobody sits for a while where somebody was killed, so that it can be seen what becomes of its holds.
        teams = 4 * (settings.processes + 1)
        self._board = Board(teams * roles.DESKS + 1)
        self._own = Desk(self._board, teams * roles.DESKS, 0)
        self._free = deque(team * roles.DESKS for team in range(teams))
        self._next_life = LIVES
        self._processes: dict[int, _Process] = {}
        self._plan = Plan(settings.seed, settings.blows)
        self._stops: list[tuple[int, int]] = []
        self._interrupted = False
        self.report = Report(
            seed=settings.seed, asked_seconds=settings.seconds, processes=settings.processes, name=self.name
        )

    def interrupt(self) -> None:
        """End it soon, and count nothing. For signal handlers: an exception could come in the middle of a fork."""
        self._interrupted = True

    def run(self) -> Report:
        """All of it. Whatever happens, nothing that it has started is left."""
        began = time.monotonic()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the children of the killed are ours
        with _Janitor(self.name) as janitor:
            self._janitor = janitor
            try:
                self._objects = self.settings.opener(self.name)
                self._go_on(began + self.settings.seconds)
                if not self._interrupted:
                    self._quiet()
                if not self._interrupted:
                    self._count()
            finally:
                self._end_all()
                self._remove_names()
        self.report.seconds = time.monotonic() - began
        return self.report

    # --- while it runs

    def _go_on(self, end: float) -> None:
        settings, began = self.settings, time.monotonic()
        warm_at = began + min(10.0, settings.seconds / 4)
        self._start(Casting("worker", threads=2, steps=0, infancy=None), lasts=True)
        blow = self._plan.blow()
        blow_at = began + blow.after
        look_at = began
        while (now := time.monotonic()) < end and len(self.report.faults) < settings.most_faults:
            if self._interrupted:
                return
            self._reap()
            self._fill()
            self._strike_infants()
            self._continue()
            if now >= blow_at:
                self._strike(blow)
                blow = self._plan.blow()
                blow_at = max(now, blow_at) + blow.after
            if now >= look_at:
                look_at = now + _LOOK
                self._look(now - began)
                if self.report.hung:
                    return
                if not self._board.warm and now >= warm_at:
                    self._board.warm_up()
                    self._look_at_resources(0)
            soon = [blow_at, look_at, end, *(one.dies_at for one in self._processes.values() if one.dies_at)]
            soon += [one.goes_on_at for one in self._processes.values() if one.stopped_at]
            time.sleep(max(0.0, min(0.005, min(soon) - time.monotonic())))
        if self._board.warm:
            self._look_at_resources(1)

    def _fill(self) -> None:
        """See that as many as asked for are there, beside the one that lasts."""
        while len(self._processes) <= self.settings.processes:
            casting = self._plan.casting()
            if casting.kind == "stranger" and self.settings.opener is not roles.open_objects:
                continue  # it would not know what to open
            self._start(casting)

    def _start(self, casting: Casting, *, lasts: bool = False) -> None:
        life, desk = self._next_life, self._free.popleft()
        self._next_life += LIVES
        part = roles.Part(
            self._board,
            self.name,
            self.settings.seed,
            desk=desk,
            life=life,
            threads=casting.threads,
            steps=casting.steps,
            opener=self.settings.opener,
            lasts=lasts,
        )
        for number in range(roles.DESKS):  # nobody has begun there
            self._board.words[self._board.desk(desk + number) + Fields.BEAT] = 0
        play = {"worker": roles.work, "churner": roles.churn, "stranger": roles.stranger}[casting.kind]

        def begin() -> None:
            self._janitor.let_go()
            roles.inherited.append(self._objects)
            play(part)

        pid = roles.forked(begin, self._board)
        self.report.started[casting.kind] += 1
        one = _Process(pid, "elder" if lasts else casting.kind, desk, life, time.monotonic_ns())
        if casting.infancy is not None:
            one.dies_at = time.monotonic() + casting.infancy
        self._processes[pid] = one

    def _strike_infants(self) -> None:
        now = time.monotonic()
        for one in self._processes.values():
            if one.dies_at is not None and now >= one.dies_at:
                self._kill(one, infant=True)

    def _strike(self, blow: Blow) -> None:
        victims = [
            one
            for one in self._processes.values()
            if not one.killed
            and not (blow.kind != "stop" and one.kind == "elder")
            and not (blow.kind == "stop" and one.stopped_at)
            and self._has_begun(one)  # infants have been killed before
        ]
        if not victims:
            return
        one = victims[int(blow.victim * len(victims))]
        if blow.kind == "kill":
            self._kill(one)
        elif blow.kind == "stop":
            os.kill(one.pid, signal.SIGSTOP)
            one.stopped_at = time.monotonic_ns()
            one.goes_on_at = time.monotonic() + blow.lasts
            self.report.stops += 1
        else:
            self._note(one)
            os.kill(one.pid, signal.SIGTERM)
            self.report.terminated += 1
            one.killed = True

    def _has_begun(self, one: _Process) -> bool:
        return self._board.words[self._board.desk(one.desk) + Fields.BEAT] != 0

    def _kill(self, one: _Process, *, infant: bool = False) -> None:
        words, desk = self._board.words, self._board.desk(one.desk)
        self._note(one)
        os.kill(one.pid, signal.SIGKILL)
        one.killed, one.dies_at = True, None
        self.report.kills += 1
        self.report.infants += infant
        begun = self._has_begun(one)
        self.report.killed_in[DOING[words[desk + Fields.DOING]] if begun else "start"] += 1
        desks = range(desk, self._board.desk(one.desk + roles.DESKS), self._board.desk(1) - self._board.desk(0))
        holding = (words[at + Fields.HOLDING + lock] for at in desks for lock in range(3))
        self.report.killed_holding += begun and any(held and held >> 2 >= one.life for held in holding)

    def _note(self, one: _Process) -> None:
        """All lives of it, before the blow."""
        for life in range(one.life, one.life + LIVES):
            self._board.note_kill(life)

    def _continue(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for one in self._processes.values():
            if one.stopped_at and (all_of_them or now >= one.goes_on_at):
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGCONT)
                self._noted_stop(one)

    def _noted_stop(self, one: _Process) -> None:
        self._stops.append((one.stopped_at, time.monotonic_ns()))
        one.stopped_at = 0

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._janitor.reaped(pid)
            one = self._processes.pop(pid, None)
            if one is None:
                continue  # a child of one that was killed
            if one.stopped_at:
                self._noted_stop(one)
            self._free.append(one.desk)
            code = os.waitstatus_to_exitcode(status)
            if code < 0 and not one.killed:
                self._board.fault("error", f"a {one.kind}, process {pid}, was ended by signal {-code}")
            elif code == 0 and not one.killed:
                self.report.ended += 1

    def _look(self, seconds: float) -> None:
        """At faults, and at who has not taken a step for long."""
        report, board = self.report, self._board
        report.faults = [*board.faults()]
        report.steps = sum(board.column(Fields.STEPS))
        now = time.monotonic_ns()
        for one in self._processes.values():
            if one.stopped_at or one.killed:
                continue
            beats = [(one.born, "its start")] if not self._has_begun(one) else []
            for number in range(roles.DESKS):
                desk = board.desk(one.desk + number)
                beat, life = board.words[desk + Fields.BEAT], board.words[desk + Fields.LIFE]
                if beat and one.life <= life < one.life + LIVES and not board.was_killed(life):
                    beats.append((beat, DOING[board.words[desk + Fields.DOING]]))
            for beat, doing in beats:
                if now - beat > self.settings.patience * 1e9:
                    self._hang(f"process {one.pid} ({one.kind}) is in `{doing}` for {(now - beat) / 1e9:.0f} s")
                    return
        self.tell(report.line(seconds))

    def _hang(self, who: str) -> None:
        """Say what everybody was doing."""
        self.report.hung = True
        self._board.fault("hang", who)
        self._continue(all_of_them=True)
        lines = [who, *map(repr, self._objects.all()), str(self._objects.rw.statistics())]
        before = len(self._board.printed())
        for one in self._processes.values():
            lines.append(f"process {one.pid}, a {one.kind}, at desks {one.desk} to {one.desk + roles.DESKS - 1}")
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                for pid in (one.pid, *(child.pid for child in psutil.Process(one.pid).children())):
                    if _handles(pid, signal.SIGUSR1):  # else that would end it
                        self._ask_where(pid)
        lines.append(self._board.printed()[before:])
        self.report.scene = "\n".join(lines)
        self.report.faults = [*self._board.faults()]

    def _ask_where(self, pid: int) -> None:
        """Have a process print where it is, and wait until it has: what two print at once is mixed letter by letter."""
        before = seen = len(self._board.printed())
        os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.2)
            printed = len(self._board.printed())
            if before < printed == seen:
                return
            seen = printed

    def _look_at_resources(self, when: int) -> None:
        roles.look_at_resources(self._board, self._own.base)
        entries = [entry for entry in shm.names() if self.name in entry and ".churn" not in entry]
        self.report.names[when] = len(entries)
        total = 0
        for entry in entries:
            with suppress(FileNotFoundError):
                total += Path(shm.path(entry)).stat().st_blocks * 512
        self.report.shared_kib[when] = total // 1024

    # --- when it is over

    def _quiet(self) -> None:
        """Let all end, in order."""
        if self.report.hung:
            return
        self._board.end()
        began = time.monotonic()
        while self._processes and not self._interrupted and time.monotonic() < began + self.settings.patience:
            self._reap()
            self._strike_infants()
            self._continue(all_of_them=True)
            time.sleep(0.002)
        if self._processes and not self._interrupted:
            self._hang(f"{len(self._processes)} processes do not end")

    def _count(self) -> None:
        """What must be true when nobody else is there."""
        report, board, objects = self.report, self._board, self._objects
        if not report.hung:
            timers = Timers(self._own, objects.timers)
            # What a killed collector had is found by the first call that comes 100 ms after the last look for such.
            for _ in range(_CALLS):
                if self._interrupted or not lost_timers(board):
                    break
                time.sleep(0.05 * (not timers.collect(None)))
            for desk, serial in lost_timers(board)[:5]:
                board.fault("timers", f"timer {serial} of desk {desk} never came")
            for wrong in counted(board, partial(objects.counts, board)):
                board.fault("counts", wrong)
            for lock in (objects.rw, objects.seek):
                if lock.writer.acquire(timeout=self.settings.patience):
                    lock.writer.release()
                else:
                    board.fault("hang", f"nobody is there, and it is not to be had: {lock!r}")
        done, meant = board.sums(Fields.DONE), board.sums(Fields.MEANT)
        deaths = sum(
            board.was_killed(life) > 0 and board.words[board.life(life) + KILLED_AT] > 0
            for life in range(min(self._next_life, MOST_LIVES))
        )
        report.done = done
        for what in done:
            if meant[what] - done[what] > deaths:
                board.fault("counts", f"{what}: {meant[what] - done[what]} were not done, and {deaths} were killed")
        report.sum_up(
            {
                name: sum(board.column(getattr(Fields, name.upper())))
                for name in ("together", "told", "optimistic", "handed")
            },
            [shared.statistics() for shared in objects.all()],
        )
        self._sum_up_recoveries()
        self._sum_up_resources()
        if not report.hung and (printed := board.printed()):
            board.fault("error", f"something was printed:\n{printed[:4000]}")
        report.faults = [*board.faults()]

    def _sum_up_recoveries(self) -> None:
        """Those in which nobody was stopped meanwhile: the living, however slow, are waited for."""
        words, board = self._board.words, self._board
        for life in range(self._next_life):
            killed_at, recovered_at = (words[board.life(life) + at] for at in (KILLED_AT, RECOVERED_AT))
            if not recovered_at:
                continue
            if any(begin < recovered_at and end > killed_at for begin, end in self._stops):
                self.report.recoveries_beside_stops += 1
            else:
                self.report.recoveries.append((recovered_at - killed_at) / 1e6)

    def _sum_up_resources(self) -> None:
        board, words = self._board, self._board.words
        elder = board.desk(0)
        for who, desk in (("conductor", self._own.base), ("elder", elder)):
            files = words[desk + Fields.FILES], words[desk + Fields.FILES + 1]
            memory = words[desk + Fields.MEMORY], words[desk + Fields.MEMORY + 1]
            if files[1]:
                self.report.resources[who] = {"descriptors": files, "private KiB": memory}
        for wrong in self.report.grown():
            board.fault("leak", wrong)

    def _end_all(self) -> None:
        for one in self._processes.values():
            one.killed = True
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        # Also the children of the killed, which end with them: who still runs could make a name anew.
        end = time.monotonic() + self.settings.patience
        while self._janitor.others() and time.monotonic() < end:
            self._reap()
            time.sleep(0.001)

    def _remove_names(self) -> None:
        if hasattr(self, "_objects"):
            for opened in self._objects.all():
                opened.unlink()
        for number in range(roles.CHURNED):
            shmlock.unlink(f"{self.name}.churn{number}")
        left = [entry for entry in shm.names() if self.name in entry]
        for entry in left:
            self._board.fault("left behind", entry)
        self.report.faults = [*self._board.faults()]


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines())
    return bool(int(status["SigCgt"], 16) >> number - 1 & 1)


class _Janitor:
    """A process that removes the names when the conductor has ended without having done so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Self:
        theirs, self._ours = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ours)
            _clean_up_after(theirs, self._name)
        os.close(theirs)
        return self

    def let_go(self) -> None:
        """In another child: this end is the conductor's alone."""
        os.close(self._ours)

    def others(self) -> list[int]:
        """The conductor's other children."""
        return [child.pid for child in psutil.Process().children() if child.pid != self._pid]

    def reaped(self, pid: int) -> None:
        """Somebody was; it may have been this one, if it was killed."""
        if pid == self._pid:
            self._pid = 0

    def __exit__(self, *exception: object) -> None:
        os.close(self._ours)
        if self._pid:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _clean_up_after(pipe: int, name: str) -> None:
    try:
        os.setsid()  # whoever kills the conductor's group leaves this one
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        select.select([pipe], [], [])
        for _ in range(10):  # those that end with the conductor may be creating just now
            for entry in shm.names():
                if name in entry:
                    shm.unlink(entry)
            time.sleep(0.05)
    finally:
        os._exit(0)
