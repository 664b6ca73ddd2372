"""python -m tests.soak: see --help."""

from __future__ import annotations

import secrets
import signal
import sys
from pathlib import Path

from shmlock._command_line import Parser
from tests.soak.conductor import Conductor, Settings

_DESCRIPTION = """\
Torture: processes take every lock in every mode, convert, time out, publish, record and set timers, while they are
killed, stopped, forked, replaced by exec and recycled, and others create, attach, reap and unlink. What each of them
does is drawn from the seed; when it happens is not.

Checked all the time, by those who are in the middle of it: exclusion, phase-fair bounds (in phases, not in seconds),
configurations, counts, timers, that deaths are told, that nobody hangs, and that nothing grows.

    scripts/soak                                    a minute, another seed each time
    scripts/soak --seconds 3600 --report soak.json  an hour
    scripts/soak --seed 7 --seconds 10              the same processes with the same steps again

Exit code: 0 all promises were kept, 1 one was broken, 2 wrong arguments, 130 interrupted."""


def _arguments() -> Parser:
    parser = Parser(prog="scripts/soak", description=_DESCRIPTION)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long (default: 60)")
    parser.add_argument("--seed", type=int, metavar="N", help="what is drawn from (default: another one each time)")
    parser.add_argument("--processes", type=int, default=8, metavar="N", help="how many at once (default: 8)")
    parser.add_argument(
        "--blows", type=float, default=20.0, metavar="N", help="kills, stops, ... a second (default: 20)"
    )
    parser.add_argument(
        "--patience", type=float, default=120.0, metavar="S", help="a step that takes longer is a hang (default: 120)"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the report there, too: JSON if it ends in .json"
    )
    parser.add_argument(
        "--p99", type=float, metavar="MS", help="fail when recovery takes longer than this at the 99th percentile"
    )
    return parser


def main() -> int:
    """Run it, and tell by the exit code whether all promises were kept."""
    parser = _arguments()
    given = parser.parse_args()
    if given.seconds <= 0 or given.processes < 1 or given.blows <= 0 or given.patience <= 0:
        parser.error("--seconds, --processes, --blows and --patience must be more than 0")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    live = sys.stdout.isatty()

    def tell(line: str) -> None:
        if live:
            sys.stdout.write(f"\r\x1b[K{line}")
            sys.stdout.flush()

    sys.stdout.write(f"seed {seed}\n")
    conductor = Conductor(Settings(given.seconds, seed, given.processes, given.blows, given.patience), tell)
    interrupted = 0

    def interrupt(number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = number
        conductor.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    report = conductor.run()
    if live:
        sys.stdout.write("\r\x1b[K")
    if interrupted:
        sys.stdout.write("interrupted; all that was started has ended\n")
        return 128 + interrupted
    sys.stdout.write(report.text() + "\n")
    if given.report is not None:
        given.report.write_text(report.json() if given.report.suffix == ".json" else report.text() + "\n")
    slow = given.p99 is not None and report.quantile(0.99) > given.p99
    if slow:
        sys.stdout.write(f"recovery took {report.quantile(0.99):.1f} ms at the 99th percentile, not {given.p99:g}\n")
    return 1 if report.faults or slow else 0


if __name__ == "__main__":
    sys.exit(main())
