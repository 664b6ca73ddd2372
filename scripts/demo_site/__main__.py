"""What happens when."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import shmlock
from demo_site import report
from demo_site.clients import Clients, Tally, ask
from demo_site.ledger import Ledger
from demo_site.processes import DemoError, Process, kill_worker, wait_for
from demo_site.source import Source

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

HERE = Path(__file__).parent
GUNICORN = Path(sys.executable).with_name("gunicorn")
CLIENTS = 8
CHANGE_EVERY = 0.15  # seconds
INTERVAL = "0.05"  # seconds between the updater's questions


class Demo:
    """One run."""

    def __init__(self, seconds: float, console: Console) -> None:
        self.seconds = seconds
        self.console = console
        self.name = f"demo-{os.getpid()}-{secrets.token_hex(3)}"
        self.outcome = report.Outcome(Tally())
        self.began = time.monotonic()

    def run(self) -> report.Outcome:
        """All of it. Ends what it has started, however that ends."""
        try:
            with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
                processes: list[Process] = []
                try:
                    self._run_in(Path(folder), started, processes)
                except DemoError:
                    self._show_logs(processes)
                    raise
        finally:
            self.outcome.left = [entry for entry in os.listdir("/dev/shm") if self.name in entry]  # noqa: PTH208, S108
            for kind in ("lock", "config"):
                shmlock.unlink(f"{self.name}.{kind}")
        return self.outcome

    def _run_in(self, folder: Path, started: ExitStack, processes: list[Process]) -> None:
        def start(title: str, *arguments: str, **environment: str) -> Process:
            process = started.enter_context(Process(title, folder, *arguments, **environment))
            processes.append(process)
            return process

        self.ledger = Ledger(folder / "ledger")
        self.source = started.enter_context(Source())
        self._tell(f"the configuration is at {self.source.url}")
        gunicorn = start(
            "gunicorn",
            *(str(GUNICORN), "--config", str(HERE / "gunicorn.conf.py"), "--chdir", str(HERE), "app"),
            DEMO_NAME=self.name,
            DEMO_LEDGER=str(folder / "ledger"),
        )
        self.host = gunicorn.tells(r"Listening at: http://(\S+)")[1]
        self._tell(f"gunicorn {gunicorn.pid} listens at http://{self.host}")
        self.lock = started.enter_context(shmlock.RWLock(f"{self.name}.lock", create=False))
        self.config = started.enter_context(shmlock.SharedConfig(f"{self.name}.config", create=False))
        arguments = ("-m", "shmlock.updater", self.config.name, "--source", self.source.url, "--interval", INTERVAL)
        updater = start("updater", *arguments)
        updater.tells("published version 1")
        self._tell(f"updater {updater.pid} has published version 1")
        standby = start("standby", *arguments)
        standby.tells("standing by")
        self._tell(f"updater {standby.pid} stands by")

        with Clients(CLIENTS, self.host, self.outcome.tally), closing(self._ticks()) as ticks:
            wait_for(lambda: len(self.outcome.tally.answers) >= report.WORKERS, "all workers answer")
            self._tell(f"{CLIENTS} clients ask, {report.WORKERS} workers answer")
            self._change_until(1 / 4, ticks)
            self._kill_worker_that_writes()
            self._change_until(2 / 4, ticks)
            self._kill_updater(updater, standby)
            self._change_until(3 / 4, ticks)
            self._kill_worker_that_writes()
            self._change_until(1, ticks)
        with suppress(DemoError):  # the table says so
            wait_for(lambda: self._evictions() >= self.outcome.dead, "the dead are evicted")
        self.outcome.evicted = self._evictions()
        self.outcome.changes = self.source.changes

        self._tell("all is asked to end")
        self.outcome.exits = [standby.end(), gunicorn.end()]

    # --- as time goes by

    def _ticks(self) -> Generator[float]:
        """How much of the time is over, each time that the configuration is to change."""
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), console=self.console, disable=not self.console.is_terminal
        )
        began = time.monotonic()
        with bar:
            task = bar.add_task("", total=1)
            for tick in range(1, int(self.seconds / CHANGE_EVERY) + 1):
                time.sleep(max(0.0, began + tick * CHANGE_EVERY - time.monotonic()))
                over = tick * CHANGE_EVERY / self.seconds
                tally = self.outcome.tally
                told = f"{tally.answers.total():6,} answers, version {tally.highest}"
                bar.update(task, completed=over, description=told)
                if tick % 20 == 0 and not self.console.is_terminal:
                    self._tell(told)
                yield over
            bar.update(task, completed=1)

    def _change_until(self, end: float, ticks: Iterator[float]) -> None:
        for over in ticks:
            self.source.change()
            if over >= end:
                break

    def _kill_worker_that_writes(self) -> None:
        request = threading.Thread(target=ask, args=(self.host, "/die", self.outcome.tally))
        request.start()
        writer: int = wait_for(lambda: self.ledger.numbers[2], "a worker is in the middle of a write")
        self.ledger.numbers[2] = 0
        self.outcome.ports_of_killed |= kill_worker(writer)
        killed = time.monotonic()
        self.outcome.killed.append(writer)
        with suppress(DemoError):  # the table says so
            wait_for(self.ledger.agrees, "the next writer mends the ledger")
            self.outcome.mended += 1
        milliseconds = (time.monotonic() - killed) * 1e3
        self._tell(f"[yellow]worker {writer} killed in the middle of a write[/]; mended after {milliseconds:.0f} ms")
        request.join()

    def _kill_updater(self, updater: Process, standby: Process) -> None:
        updater.kill()
        killed = time.time()
        self.source.change()
        self._tell(f"[yellow]updater {updater.pid} killed[/]")
        with suppress(DemoError):  # the table says so
            wait_for(lambda: self.config.snapshot().publisher_pid == standby.pid, "the standby publishes", 3)
            self.outcome.takeover = self.config.snapshot().published_at - killed
            self._tell(f"updater {standby.pid} has taken over")

    def _evictions(self) -> int:
        return sum(shared.statistics().evictions for shared in (self.lock, self.config))

    # --- what is said about it

    def _tell(self, what: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/]  {what}", highlight=False)

    def _show_logs(self, processes: list[Process]) -> None:
        for process in processes:
            self.console.rule(f"the end of {process.title}'s log", align="left")
            self.console.print("".join(process.log().splitlines(keepends=True)[-15:]), markup=False, highlight=False)


def _interrupted(number: int, _frame: object) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)  # what was started is being ended
    sys.exit(128 + number)


def main() -> int:
    """Run it, and tell by the exit code whether all promises were kept."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Real gunicorn, a configuration that changes, workers and an updater that are killed.",
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="how long clients ask (default: %(default)s)")
    seconds = parser.parse_args().seconds
    console = Console(width=None if sys.stdout.isatty() else 120)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        broken = report.show(Demo(seconds, console).run(), console)
    except DemoError as error:
        console.print(f"[bold red]FAILED[/]: {error}", highlight=False)
        return 1
    except SystemExit:
        console.print("interrupted; all that was started has ended", highlight=False)
        raise
    for promise in broken:
        console.print(f"[bold red]BROKEN[/]: {promise}", highlight=False)
    if not broken:
        console.print("[bold green]All promises were kept.[/]", highlight=False)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
