"""The command line: what it says, what it writes, and what it exits with."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from shmlock.bench import __main__ as command_line
from shmlock.bench import peers
from shmlock.bench.scenario import WrongData
from shmlock.bench.scenarios import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shmlock.bench.scenario import Scenario

    Sides = Mapping[str, Callable[[], Mapping[str, float]]]


@pytest.fixture
def sides() -> dict[str, Callable[[], Mapping[str, float]]]:
    """Return what `mix` measures here."""
    return {"shmlock.RWLock": lambda: {"wall": 1.0}, "other": lambda: {"wall": 2.0}}


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Scenario],
    sides: Sides,
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command line; it returns the exit code, and what was written.

    There is one scenario, and one that needs what isn't installed; the others, nobody has written.
    """

    def scenario(name: str) -> Scenario:
        if name not in NAMES:
            raise KeyError(f"there is no scenario {name!r}")
        if name == "mix":
            return make(sides)
        missing = "gunicorn.app" if name == "web" else f"shmlock.bench.scenarios.{name}"
        raise ImportError(name=missing)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code: Any = command_line.main(arguments)
        except SystemExit as left:
            code = left.code
        written = capfd.readouterr()
        return code, written.out, written.err

    monkeypatch.setattr(command_line, "scenario", scenario)
    monkeypatch.setattr(peers, "peers", list)
    return run


def test_help_teaches(run: Callable[..., tuple[int, str, str]]) -> None:
    """Examples, how to read what comes out, what to install, and what the exit codes mean."""
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for part in (
        "usage: python -m shmlock.bench [-h]", "examples:", "--quick", "--set SCENARIO.KNOB=VALUE", "--json FILE",
        "--plots DIR", "--html FILE", "--list", "reading the tables:", "not significant", "exit codes:",
        'pip install "shmlock-rw[bench]"', *NAMES,
    ):  # fmt: skip
        assert part in out


def test_list_tells_questions_and_knobs(run: Callable[..., tuple[int, str, str]]) -> None:
    """With what they are set to, and why a scenario can't be run; nothing is measured."""
    code, out, err = run("--list")
    assert (code, err) == (0, "")
    assert out.startswith("mix: A title & more\n  What is <asked>?\n  --set mix.workers=100 ")
    assert "processes (--quick: 20)" in out
    assert "mix.counts=1,2" in out
    assert "web: can't be run: gunicorn.app is not installed" in out
    assert "timers: can't be run: this version doesn't have it" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "there is no scenario 'nosuch'"),
        (["web"], "web can't be run: gunicorn.app is not installed"),
        (["--set", "mix.wokers=8"], "mix has no knob 'wokers'; it has counts, rounds, workers"),
        (["--set", "mix.workers"], "'mix.workers' is not scenario.knob=value"),
        (["--set", "mix.workers=many"], "'mix.workers=many': workers is like 100"),
        (["--set", "mix.counts=1,x"], "'mix.counts=1,x': counts is like 1,2"),
        (["--set", "web.rounds=8"], "'web' is not run; mix are"),
        (["--set", "mix.rounds=0"], "at least one"),
        (["--json", "/nosuch/file"], "/nosuch/file: No such file or directory"),
        (["--html", "/"], "/: Is a directory"),
        (["--plots", "/dev/null"], "/dev/null: File exists"),
        (["--nosuch"], "unrecognized arguments: --nosuch"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Callable[..., tuple[int, str, str]], arguments: list[str], message: str
) -> None:
    """And said before anything is measured."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("python -m shmlock.bench: ")
    assert message in err


def test_plots_need_matplotlib(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who asked for pictures only is told so at once; a page is made without them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "shmlock.bench.plots", None)
    code, _, err = run("--plots", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "needs matplotlib" in err
    code, _, err = run("--html", str(tmp_path / "page.html"))
    assert code == 0
    assert "the page is without pictures" in err
    assert "It takes 1.00 &lt;s&gt;." in (tmp_path / "page.html").read_text("utf-8")


def test_it_measures_and_tells(run: Callable[..., tuple[int, str, str]]) -> None:
    """Tables to stdout; the stamp, what is skipped, and how far it is to stderr."""
    code, out, err = run("--quick")
    assert code == 0
    assert out.startswith("mix: A title & more\n")
    assert "2.00x" in out
    assert "web is skipped: gunicorn.app is not installed\n" in err
    assert "mix (1 of 1): 8/8 other 2\n" in err


def test_files(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """Raw samples, the knobs that they were taken with, and the stamp; pictures by scenario and measure; the page."""
    pytest.importorskip("matplotlib")
    code, _, _ = run(
        *("--quick", "--set", "mix.workers=8", "--set", "mix.counts=3,4", "--set", "mix.rounds=3"),
        *("--json", str(tmp_path / "j"), "--html", str(tmp_path / "h"), "--plots", str(tmp_path / "new" / "p")),
    )
    assert code == 0
    told = json.loads((tmp_path / "j").read_text("utf-8"))
    assert set(told) == {"format", "stamp", "interrupted", "skipped", "scenarios"}
    assert (told["format"], told["interrupted"], len(told["skipped"])) == (1, False, len(NAMES) - 1)
    (mix,) = told["scenarios"]
    assert set(mix) == {*("scenario", "knobs", "measures", "samples", "skipped", "faults", "seconds", "answer")}
    assert mix["knobs"] == {"workers": 8, "counts": [3, 4], "rounds": 3}
    assert mix["samples"][0] == {"measure": "wall", "column": "1", "side": "shmlock.RWLock", "values": [1, 1, 1]}
    assert [file.name for file in (tmp_path / "new" / "p").iterdir()] == ["mix-wall.png"]
    assert "data:image/png" in (tmp_path / "h").read_text("utf-8")


def test_wrong_data_are_the_exit_code(
    run: Callable[..., tuple[int, str, str]], sides: dict[str, Callable[[], Mapping[str, float]]]
) -> None:
    """1, and the side is named."""

    def wrong() -> NoReturn:
        raise WrongData("two were in")

    sides["other"] = wrong
    code, out, _ = run("mix")
    assert code == 1
    assert "WRONG: other, 1: two were in" in out


def test_a_scenario_that_fails_is_told(
    run: Callable[..., tuple[int, str, str]], sides: dict[str, Callable[[], Mapping[str, float]]]
) -> None:
    """1, with what it said last and no traceback; what it had measured is shown."""

    def fail() -> NoReturn:
        raise RuntimeError("in a process\nTraceback\nOSError: no more")

    sides["other"] = fail
    code, out, err = run("mix")
    assert code == 1
    assert "WRONG: other, 1: RuntimeError: OSError: no more" in out
    assert "1.00" in out
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_what_it_has(
    run: Callable[..., tuple[int, str, str]],
    sides: dict[str, Callable[[], Mapping[str, float]]],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """As a shell has it, no traceback, and --json has the samples that there are; then signals are what they were."""
    before = signal.getsignal(number)

    def interrupted() -> Mapping[str, float]:
        os.kill(os.getpid(), number)
        return {"wall": 3.0}

    sides["other"] = interrupted
    file, page = tmp_path / "samples.json", tmp_path / "page.html"
    code, out, err = run("mix", "--json", str(file), "--html", str(page))
    assert (code, out) == (128 + number, "")
    assert signal.getsignal(number) == before
    assert "Traceback" not in err
    told = json.loads(file.read_text("utf-8"))
    assert told["interrupted"] is True
    assert told["scenarios"][0]["samples"][0]["values"] == [1.0]


def test_an_ignored_signal_is_ignored(
    run: Callable[..., tuple[int, str, str]], sides: dict[str, Callable[[], Mapping[str, float]]]
) -> None:
    """`nohup` has a run go on when its terminal has gone."""

    def hung_up() -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGHUP)
        return {"wall": 3.0}

    sides["other"] = hung_up
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("mix")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sides_that_are_missing_are_told(
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Scenario],
    sides: Sides,
) -> None:
    """As the scenario says it, with the reason."""
    missing = {"missing.Lock": "missing is not installed (pip install missing)"}
    monkeypatch.setattr(command_line, "scenario", lambda _: make(sides, missing=lambda: missing))
    assert "skipped missing.Lock: missing is not installed (pip install missing)" in run("mix")[1]
