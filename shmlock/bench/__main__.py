"""The bench's command line: `python -m shmlock.bench [SCENARIO ...]`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shmlock._command_line import FINE, USAGE, Parser, fail
from shmlock.bench import peers
from shmlock.bench.crowd import ENDING
from shmlock.bench.page import page
from shmlock.bench.report import show, stamped, written
from shmlock.bench.runner import last_line, run
from shmlock.bench.samples import Results, stamp
from shmlock.bench.scenarios import NAMES, scenario

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from shmlock.bench.runner import Progress
    from shmlock.bench.scenario import Knobs, Scenario

WRONG = 1
INTERRUPTED = 128  # and the number of the signal: what a shell says of a process that it ended

_DESCRIPTION = """\
Measure shmlock side by side with what could be picked instead, on this machine.

Each SCENARIO asks one question; without any, all that the installed packages allow are run. The sides
take turns, round by round, so that whatever else the machine does hits all alike; what is compared is
compared within a round. Each side's data are checked, and a side that didn't keep them whole is named.
"""

_EPILOG = """\
examples:
  %(prog)s --list                          what can be asked, and the knobs of each
  %(prog)s --quick                         a first look, in a few minutes
  %(prog)s mix web --html page.html        two of them, with pictures, to pass on
  %(prog)s mix --set mix.workers=8 --set mix.rounds=9 --json samples.json

what others are compared with, and what draws, needs: pip install "shmlock-rw[bench]"
What isn't installed is skipped, and said so.

reading the tables:
  0.41 ± 0.02   the median, and half of the range that the middle half of the samples is in
  2.31x         times what shmlock takes in the same round (median of the rounds)
  n.s.          not significant: Student's t-test of the ratios' logarithms, 95 %%; one round never is
  never         it didn't come, and wasn't going to
A quiet machine, and no saving of power, make the ranges narrow. More rounds make small ratios significant.

exit codes:
  0    measured
  1    a side's data were wrong, or a scenario failed
  2    the command line can't be carried out
  130  Ctrl-C; --json has what was measured until then (143: SIGTERM, 129: SIGHUP)
"""


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m shmlock.bench") -> int:
    """Run the command line and return its exit code.

    `--help` and usage errors leave by SystemExit, as argparse does.
    """
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    wanted, skipped = _wanted(parser, arguments.scenarios)
    if arguments.list:
        _list(wanted, skipped)
        return FINE
    turned = _turned(parser, wanted, arguments)
    _check_outputs(parser, arguments)
    bench = Bench(stamp({peer.package: peers.version(peer) for peer in peers.peers() if peer.package}), skipped)
    _say(stamped(bench.stamp))
    for name, why in skipped.items():
        _say(f"{name} is skipped: {why}")
    pictures: dict[tuple[str, str], bytes] | None = None
    interrupted = 0
    try:
        with _interruptible():
            for place, each in enumerate(wanted, 1):
                bench.measure(each, turned[each.name], _progress(f"{each.name} ({place} of {len(wanted)})"))
            pictures = _pictures(bench.runs, arguments)
    except Interrupted as interruption:
        interrupted = interruption.number
    try:
        _write(bench, pictures, arguments)
    except OSError as error:
        return fail(prog, USAGE, f"{error.filename}: {error.strerror}")
    if interrupted:
        return INTERRUPTED + interrupted
    return WRONG if any(results.faults for results in bench.runs) else FINE


class Interrupted(BaseException):
    """A signal asks the bench to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise Interrupted for a signal that ends the bench, so that it cleans up; not for one that is ignored."""

    def raise_it(number: int, _: object) -> NoReturn:
        raise Interrupted(number)

    ours = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, raise_it) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(bench: Bench, pictures: Mapping[tuple[str, str], bytes] | None, arguments: argparse.Namespace) -> None:
    """What was asked for; only the samples, if it was interrupted and there are no pictures therefore."""
    if arguments.json is not None:
        told = bench.as_json(interrupted=pictures is None)
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if pictures is None:
        return
    if arguments.plots is not None:
        for (name, measure), png in pictures.items():
            (arguments.plots / f"{name}-{measure}.png").write_bytes(png)
    if arguments.html is not None:
        arguments.html.write_text(page(bench.stamp, bench.runs, pictures, bench.skipped), "utf-8")


class Bench:
    """What was measured so far."""

    def __init__(self, stamp: dict[str, Any], skipped: dict[str, str]) -> None:
        self.stamp = stamp
        self.skipped = skipped  # by scenario: why
        self.runs: list[Results] = []

    def measure(self, scenario: Scenario, knobs: Knobs, progress: Progress) -> None:
        """Run it and show it. A scenario that fails is a fault of it, and the next one's turn comes."""
        results = Results(scenario, knobs)
        self.runs.append(results)
        try:
            run(scenario, knobs, progress, results=results)
        except Exception as error:  # noqa: BLE001  hours of other scenarios are not lost for it
            results.faults.append(f"it ended early: {type(error).__name__}: {last_line(error)}")
        show(results, sys.stdout)

    def as_json(self, *, interrupted: bool) -> dict[str, Any]:
        """What a file has of it."""
        return {
            "format": 1,
            "stamp": self.stamp,
            "interrupted": interrupted,
            "skipped": self.skipped,
            "scenarios": [results.as_json() for results in self.runs],
        }


def _wanted(parser: argparse.ArgumentParser, names: Sequence[str]) -> tuple[list[Scenario], dict[str, str]]:
    """Those to run, and those that can't be."""
    found, skipped = [], {}
    for name in dict.fromkeys(names or NAMES):
        try:
            found.append(scenario(name))
        except KeyError as error:
            parser.error(str(error.args[0]))
        except ImportError as error:
            missing = error.name or str(error)
            ours = missing.startswith("shmlock.bench")
            skipped[name] = "this version doesn't have it" if ours else f"{missing} is not installed"
            if names:
                parser.error(f"{name} can't be run: {skipped[name]}")
    return found, skipped


def _turned(
    parser: argparse.ArgumentParser, wanted: Sequence[Scenario], arguments: argparse.Namespace
) -> dict[str, Knobs]:
    """Their knobs, by scenario."""
    by_name = {each.name: each for each in wanted}
    given: dict[str, dict[str, Any]] = {name: {} for name in by_name}
    for text in arguments.set:
        where, _, value = text.partition("=")
        name, _, knob = where.partition(".")
        if not (name and knob and value):
            parser.error(f"argument --set: {text!r} is not scenario.knob=value")
        if name not in by_name:
            parser.error(f"argument --set: {name!r} is not run; {', '.join(by_name)} are")
        try:
            usual = by_name[name].turned(quick=arguments.quick)
            given[name][knob] = read = _read(value, usual.get(knob))
            by_name[name].turned(quick=arguments.quick, given={knob: read})
        except KeyError as error:
            parser.error(f"argument --set: {error.args[0]}")
        except ValueError:
            parser.error(f"argument --set: {text!r}: {knob} is like {written(usual[knob])}")
        if knob == "rounds" and int(read) < 1:
            parser.error("argument --set: there is at least one of rounds")
    return {name: each.turned(quick=arguments.quick, given=given[name]) for name, each in by_name.items()}


def _read(text: str, usual: Any) -> Any:
    """A knob's value; several, with commas between, where it has several."""
    if isinstance(usual, bool):
        if text not in {"True", "False"}:
            raise ValueError(text)
        return text == "True"
    if isinstance(usual, (list, tuple)):
        return type(usual)((type(usual[0]) if usual else str)(each) for each in text.split(","))
    return text if usual is None else type(usual)(text)


def _check_outputs(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Better before than after an hour of measuring."""
    if arguments.plots is not None:
        if importlib.util.find_spec("matplotlib") is None:
            parser.error('argument --plots: needs matplotlib, not installed; run: pip install "shmlock-rw[bench]"')
        try:
            arguments.plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"argument --plots: {arguments.plots}: {error.strerror}")
    for option, file in (("--json", arguments.json), ("--html", arguments.html)):
        if file is not None:
            try:
                file.open("a", encoding="utf-8").close()
            except OSError as error:
                parser.error(f"argument {option}: {file}: {error.strerror}")


def _pictures(runs: Sequence[Results], arguments: argparse.Namespace) -> dict[tuple[str, str], bytes]:
    if arguments.plots is None and arguments.html is None:
        return {}
    try:
        plots = importlib.import_module("shmlock.bench.plots")
    except ImportError:
        _say('the page is without pictures: matplotlib is not installed (pip install "shmlock-rw[bench]")')
        return {}
    return {
        (results.scenario.name, measure): png for results in runs for measure, png in plots.pictures(results).items()
    }


def _list(found: Sequence[Scenario], skipped: Mapping[str, str]) -> None:
    for each in found:
        print(f"{each.name}: {each.title}\n{textwrap.indent(textwrap.fill(each.question, 96), '  ')}")  # noqa: T201
        for name, knob in {**each.knobs, "rounds": each.rounds}.items():
            setting = f"{each.name}.{name}={written(knob.usual)}"
            quick = f" (--quick: {written(knob.quick)})" if knob.quick != knob.usual else ""
            print(f"  --set {setting:<28} {knob.about}{quick}")  # noqa: T201
    for name, why in skipped.items():
        print(f"{name}: can't be run: {why}")  # noqa: T201


class Lines:
    """Progress without rich or a terminal: a line a step."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._done = self._steps = 0

    def begin(self, scenario: Scenario, steps: int) -> None:  # noqa: ARG002  the title names it
        """Count them."""
        self._steps = steps

    def step(self, what: str) -> None:
        """A line."""
        self._done += 1
        _say(f"{self._title}: {self._done}/{self._steps} {what}")

    def end(self) -> None:
        """Nothing to take away."""


class Bar:
    """A bar. It is drawn between the steps only: a thread that draws would take from the CPU that is measured."""

    def __init__(self, title: str) -> None:
        from rich import progress  # noqa: PLC0415  an extra
        from rich.console import Console  # noqa: PLC0415

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[what]}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._title = title
        self._begun = time.monotonic()
        self._task: Any = None

    def begin(self, scenario: Scenario, steps: int) -> None:  # noqa: ARG002  the title names it
        """Draw it."""
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=steps, what="")
        self._progress.refresh()

    def step(self, what: str) -> None:
        """One more begins; those before it are done."""
        done = self._progress.tasks[0].fields.get("begun", 0)
        passed = time.monotonic() - self._begun
        left = f", about {passed / done * ((self._progress.tasks[0].total or 0) - done):.0f} s left" if done else ""
        self._progress.update(self._task, completed=done, begun=done + 1, what=what + left, refresh=True)

    def end(self) -> None:
        """Take it away."""
        self._progress.stop()


def _progress(title: str) -> Progress:
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return Bar(title)
    return Lines(title)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("scenarios", metavar="SCENARIO", nargs="*", help=f"one of {', '.join(NAMES)} (default: all)")
    add("--list", action="store_true", help="tell what they ask, with their knobs, and measure nothing")
    add("--quick", action="store_true", help="turn all knobs to a first look: fewer processes, fewer rounds")
    add(
        "--set",
        metavar="SCENARIO.KNOB=VALUE",
        action="append",
        default=[],
        help="turn one knob (--list tells them); several times for several; commas where it has several values",
    )
    add("--json", metavar="FILE", type=Path, help="write the raw samples, the stamp, and what was skipped")
    add("--plots", metavar="DIR", type=Path, help="write a picture of each measure, SCENARIO-MEASURE.png")
    add("--html", metavar="FILE", type=Path, help="write one self-contained page with all of it")
    return parser


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
