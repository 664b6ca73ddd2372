"""The promises, and what came of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from demo_site.clients import Tally

WORKERS = 4
_TAKEOVER = 1.0  # seconds


@dataclass
class Outcome:
    """What the demo has measured."""

    tally: Tally
    changes: int = 0
    """Of the configuration, at its source."""
    killed: list[int] = field(default_factory=list)
    """Workers, each in the middle of a write."""
    ports_of_killed: set[int] = field(default_factory=set)
    """The clients' ports of the requests that they had accepted."""
    takeover: float | None = None
    """Seconds from the first updater's death to the standby's first publish."""
    evicted: int = 0
    mended: int = 0
    exits: list[int] = field(default_factory=list)
    """Exit codes of those that were asked to end."""
    left: list[str] = field(default_factory=list)
    """Names in /dev/shm after the end."""

    @property
    def dead(self) -> int:
        """How many have been killed: the workers, and an updater."""
        return len(self.killed) + 1

    def failures(self, *, on_killed: bool) -> list[str]:
        """What happened to requests that a killed worker had accepted, or to all others."""
        return [why for port, why in self.tally.failures if (port in self.ports_of_killed) == on_killed]

    def delays(self) -> list[float]:
        """Seconds from each publish to its first use by the last of the workers that were there, sorted.

        Left out are versions that fewer than three workers have used before the next one came.
        """
        arrived: dict[int, float] = {}
        for uses in self.tally.first_use.values():
            for pid, at in uses.items():
                arrived[pid] = min(at, arrived.get(pid, at))
        delays = []
        for version, uses in self.tally.first_use.items():
            published = self.tally.published[version]
            there = [at - published for pid, at in uses.items() if arrived[pid] < published]
            if len(there) >= WORKERS - 1:  # one may be dead
                delays.append(max(there))
        return sorted(delays)


@dataclass(frozen=True)
class _Row:
    """A line of the table; `promise` is empty where there is none."""

    what: str
    measured: str
    promise: str = ""
    kept: bool = True


def _rows(outcome: Outcome) -> list[_Row]:
    tally = outcome.tally
    delays = outcome.delays()
    otherwise = outcome.failures(on_killed=False)
    takeover = "never" if outcome.takeover is None else _milliseconds(outcome.takeover)
    ranks = [delays[math.ceil(share * len(delays)) - 1] if delays else math.nan for share in (0.5, 0.99, 1)]
    return [
        _Row("requests answered", f"{tally.answers.total():,}", "some", bool(tally.answers)),
        _Row("failed on a killed worker (1)", str(len(outcome.failures(on_killed=True)))),
        _Row("failed otherwise", str(len(otherwise)), "0", not otherwise),
        _Row("longest wait for an answer", _milliseconds(tally.slowest)),
        _Row("changes at the source", str(outcome.changes)),
        _Row("versions seen", str(len(tally.published)), "12 or more", len(tally.published) >= 12),
        _Row("mixed reads (2)", str(len(tally.mixed)), "0", not tally.mixed),
        _Row("backward reads (3)", str(len(tally.backward)), "0", not tally.backward),
        _Row("publish to last worker's first use (4)", f"{len(delays)} versions", "some", bool(delays)),
        _Row("  p50", _milliseconds(ranks[0])),
        _Row("  p99", _milliseconds(ranks[1])),
        _Row("  longest", _milliseconds(ranks[2])),
        _Row(
            "updater's death to standby's publish",
            takeover,
            f"up to {_TAKEOVER * 1e3:,.0f} ms",
            outcome.takeover is not None and outcome.takeover <= _TAKEOVER,
        ),
        _Row("dead participants evicted", str(outcome.evicted), f"{outcome.dead}", outcome.evicted >= outcome.dead),
        _Row(
            "half-done writes mended by the next",
            str(outcome.mended),
            str(len(outcome.killed)),
            outcome.mended == len(outcome.killed),
        ),
        _Row(
            "exit codes of standby and gunicorn",
            " and ".join(map(str, outcome.exits)),
            "0 and 0",
            outcome.exits == [0, 0],
        ),
        _Row("names left in /dev/shm", str(len(outcome.left)), "0", not outcome.left),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


_LEGEND = """\
(1) Requests that a worker had accepted when it was killed, told by their ports.
(2) Two fields of one version differ, or one version in two answers, or the ledger is half written.
(3) Answers with an older version than one that anybody had got before the request was sent.
(4) From the stamp that the publisher puts on a version just before it switches to it, to the moment when the last \
of the workers that had answered before has it decoded in its hands, both by the clock of this machine. It contains \
the wait for the next request to that worker. Left out are versions that fewer than three workers have used."""


def show(outcome: Outcome, console: Console) -> list[str]:
    """Print what was measured; return the promises that were broken."""
    tally = outcome.tally
    workers = Table(title="What each worker answered with", title_justify="left")
    workers.add_column("worker", justify="right")
    for heading in ("answers", "versions", "first", "last"):
        workers.add_column(heading, justify="right")
    workers.add_column("")
    for pid, versions in sorted(tally.versions.items(), key=lambda item: min(item[1])):
        numbers = (tally.answers[pid], len(versions), min(versions), max(versions))
        fate = "killed in the middle of a write" if pid in outcome.killed else ""
        workers.add_row(str(pid), *map(str, numbers), fate)
    console.print(workers)

    rows = _rows(outcome)
    table = Table(title="Promises", title_justify="left")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("promised", justify="right")
    table.add_column("")
    for row in rows:
        verdict = "" if not row.promise else "[green]kept" if row.kept else "[bold red]BROKEN"
        table.add_row(row.what, row.measured, row.promise, verdict)
    console.print(table)
    console.print(_LEGEND, style="dim", highlight=False)
    for detail in [*tally.mixed, *tally.backward, *outcome.failures(on_killed=False), *outcome.left][:20]:
        console.print(f"  {detail}", style="red", highlight=False)
    return [f"{row.what}: {row.measured}, promised: {row.promise}" for row in rows if not row.kept]
