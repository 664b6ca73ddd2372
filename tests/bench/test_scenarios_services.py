"""The scenarios that run services: what they measure, what they don't let pass, and that nothing of them stays."""

from __future__ import annotations

import functools
import http.client
import math
import os
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from shmlock._kernel import shm
from shmlock.bench import web_site
from shmlock.bench.crowd import Crowd
from shmlock.bench.runner import run
from shmlock.bench.samples import Results
from shmlock.bench.scenario import WrongData
from shmlock.bench.scenarios import config, scenario, timers, web
from shmlock.bench.scenarios._said import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import shmlock
    from tests.conftest import Peer, Start

TINY_LOAD = {"number": 50, "interval": 20_000_000, "processes": 2, "seconds": 0.2}
TINY_SITE = {"workers": 2, "threads": 2, "rate": 50_000.0, "interval": 0.02, "request_work": 0.001}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Neither in /dev/shm nor running."""
    before = _children()
    yield
    assert not [entry for entry in shm.names() if f"bench-{os.getpid()}-" in entry]
    assert _children() <= before


@pytest.mark.parametrize("name", ["timers", "config", "web"])
def test_a_scenario_says_what_it_asks_and_measures(name: str) -> None:
    """Each has a question, knobs that can be turned, and measures with a direction where there is one."""
    found = scenario(name)
    assert found.name == name
    assert len(found.question) > 100
    assert found.turned(quick=True).keys() == found.turned(quick=False).keys()
    assert all(measure.better or not measure.unit for measure in found.measures.values())


# --- timers


def _run_timers() -> Results:
    knobs = scenario("timers").turned(
        quick=True, given={"timers": 50, "milliseconds": 20, "processes": 2, "seconds": 0.2, "rounds": 2}
    )
    return run(scenario("timers"), knobs)


def test_both_patterns_are_measured_and_their_tables_shown() -> None:
    """Each side has a sample of each measure for each round, and the answer has both tables of statistics."""
    results = _run_timers()
    assert results.faults == []
    assert results.sides == list(timers.PATTERNS)
    assert results.columns == ["2 processes"]
    for measure in results.scenario.measures:
        for side in results.sides:
            assert len(results.samples[measure, "2 processes", side]) == 2
    said = results.as_json()["answer"]
    assert said.count("Stats about Lock") == 2
    assert said.count("wait time for write/lock") == 2


def _losing(queue: shmlock.TimerQueue) -> Callable[[], list[int]]:
    return lambda: [ident for ident in queue.wake_expired() if ident != 7]


def _early(queue: shmlock.TimerQueue) -> Callable[[], list[int]]:
    return lambda: queue.wake_expired(time.monotonic_ns() + 10_000_000_000)


def _twice(queue: shmlock.TimerQueue) -> Callable[[], list[int]]:
    return lambda: 2 * queue.wake_expired()


@pytest.mark.parametrize(("pattern", "said"), [(_losing, "lost, 7"), (_early, "early"), (_twice, "twice")])
def test_a_timer_that_is_lost_early_or_double_is_wrong_data(pattern: Any, said: str) -> None:
    """A pattern that loses one, has them before their time, or hands them out twice, is found out."""
    with pytest.raises(WrongData, match=said):
        timers.load("broken", pattern, **TINY_LOAD)  # type: ignore[arg-type]


# --- config


@pytest.mark.parametrize("side", config.SIDES, ids=lambda side: side.name)
def test_each_side_shares_whole_and_current_values(side: type[config.Side]) -> None:
    """What can be used here passes all checks, and has a finite time for each measure."""
    missing = config.unavailable()
    if side.name in missing:
        pytest.skip(missing[side.name])
    found = config.share(side, 1000, 2, 2)
    assert found.keys() == scenario("config").measures.keys()
    assert all(0 < value < math.inf for value in found.values())


class _Broken(config.File):
    """Changes what it gives to its readers."""

    def opened(self) -> config.Opened:
        opened = super().opened()
        return opened._replace(get=lambda: self.changed(opened.get()))

    def changed(self, value: config.Value) -> config.Value:
        raise NotImplementedError


class _Old(_Broken):
    first: config.Value | None = None

    def changed(self, value: config.Value) -> config.Value:
        self.first = self.first or value
        return self.first


class _Mixed(_Broken):
    def changed(self, value: config.Value) -> config.Value:
        return {**value, "items": [*value["items"], *config.value_of(value["first"] + 1, 94)["items"]]}


@pytest.mark.parametrize(("side", "said"), [(_Old, r"had \[0\] after it was told of 1"), (_Mixed, r"had \[0, 1\]")])
def test_an_old_or_mixed_value_is_wrong_data(side: type[config.Side], said: str) -> None:
    """A reader that was told of a value, and has another, or parts of two, is found out."""
    with pytest.raises(WrongData, match=said):
        config.share(side, 1000, 2, 2)


class _Silent(config.File):
    def opened(self) -> config.Opened:
        return super().opened()._replace(wait=lambda _: None)


def test_what_never_comes_takes_for_ever() -> None:
    """A side whose waiters are never told has no time for that, and is measured in all else."""
    found = config.share(_Silent, 1000, 2, 2)
    assert found["all"] == math.inf
    assert found["steady"] < math.inf


def test_a_side_that_is_not_installed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no cases then; the others have, for each size and number of workers."""
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.setitem(sys.modules, "redis", None)
    assert config.unavailable() == {"lmdb": "lmdb is not installed", "Redis": "redis is not installed"}
    knobs = scenario("config").turned(quick=True, given={"kilobytes": (1, 10), "workers": (1, 2)})
    cases, _ = scenario("config").measurable(knobs)
    assert {case.side for case in cases} == {"shmlock.SharedConfig", "Manager().dict", "file, by mtime"}
    assert list(dict.fromkeys(case.column for case in cases)) == ["1 KB, 1", "1 KB, 2", "10 KB, 1", "10 KB, 2"]


# --- web


needs_gunicorn = pytest.mark.skipif(bool(web.unavailable()), reason="gunicorn is not installed")


@needs_gunicorn
@pytest.mark.parametrize("mode", web.SIDES)
def test_each_mode_serves_whole_reads(mode: str) -> None:
    """With each kind of lock all requests succeed, and the report is whole and in order."""
    found = web.serve(mode, TINY_SITE, connections=4, seconds=0.2)
    assert found.keys() == scenario("web").measures.keys()
    assert found["requests"] >= 4
    assert found["success"] == 100
    ordered = [found[measure] for measure in ("min", "p50", "p90", "p95", "p99", "max")]
    assert ordered == sorted(ordered)
    assert found["min"] <= found["mean"] <= found["max"]


def test_the_report_counts_as_vegeta_does() -> None:
    """Percentiles are by rank; the throughput counts what succeeded, until the last answer."""
    seen = web.Attack([number / 1000 for number in range(100, 0, -1)], 80, 0, attack=10.0, whole=20.0)
    found = web.report(seen)
    assert (found["requests"], found["rate"], found["throughput"], found["success"]) == (100, 10, 4, 80)
    assert [found[key] for key in ("min", "mean", "p50", "p90", "p95", "p99", "max")] == pytest.approx(
        [1, 50.5, 50, 90, 95, 99, 100]
    )


def _ask(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _answer(path: str) -> tuple[str, bytes]:
    """The application's, without a server."""
    statuses: list[str] = []

    def start_response(status: str, *_: Any) -> Any:
        statuses.append(status)

    body = b"".join(web_site.application({"PATH_INFO": path}, start_response))
    return statuses[0], body


def test_a_torn_read_is_answered_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application says so when a writer is in together with its read."""
    monkeypatch.setattr(web_site, "MODE", "mutex")
    monkeypatch.setattr(web_site, "_opened", {})
    monkeypatch.setattr(web_site._data, "value", 1)
    assert _answer("/") == ("500 Internal Server Error", web_site.TORN)


def test_it_is_ready_when_all_workers_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it says that it is not, so that no client begins among some of them."""
    monkeypatch.setattr(web_site, "_up", [1, 1, 0, 1])
    assert _answer(web_site.READY) == ("503 Service Unavailable", b"not all are up")
    web_site.post_worker_init(types.SimpleNamespace(age=web_site.workers + 2))
    assert _answer(web_site.READY) == ("200 OK", b"all are up")


@needs_gunicorn
def test_a_torn_read_is_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is told of one ends the side."""
    seen = web.Attack([0.01, 0.02], 1, 1, attack=1.0, whole=1.0)
    monkeypatch.setattr(web, "gather", lambda _jobs, _seconds: Crowd([seen], 1.0, 0.0, 0, 0, 0))
    with pytest.raises(WrongData, match="in 1 of 2 requests"):
        web.serve("none", TINY_SITE, connections=1, seconds=0.1)


@needs_gunicorn
def test_the_server_ends_whatever_happens() -> None:
    """An error beside it ends it, with all of its workers; that nothing stays is seen after each test."""

    def use() -> None:
        with web.serving("rwlock", TINY_SITE) as port:
            ports.append(port)
            assert _ask(port) == (200, b"Hello, wat is love?")
            assert len(_children()) >= 2  # the master and at least one worker
            raise KeyboardInterrupt

    ports: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        use()
    with pytest.raises(ConnectionRefusedError):
        _ask(ports[0])


@needs_gunicorn
@pytest.mark.parametrize("up", [True, False], ids=["up", "just started"])
def test_the_server_ends_with_whoever_started_it(start: Start, monkeypatch: pytest.MonkeyPatch, up: bool) -> None:
    """Also when that was killed, and could end nothing."""

    def serve(peer: Peer) -> None:
        def say(*_: object) -> bool:
            peer.say([child.pid for child in psutil.Process().children(recursive=True)])
            return bool(peer.hear())

        if not up:
            monkeypatch.setattr(web, "_answers", say)
        with web.serving("config", TINY_SITE):
            say()

    child = start(serve)
    servers = [psutil.Process(pid) for pid in child.hear()]
    assert len(servers) >= 1 + up  # the master and at least one worker
    child.kill()
    _, left = psutil.wait_procs(servers, timeout=20)
    assert left == []
    assert not [entry for entry in shm.names() if f"bench-{child.pid}-" in entry]


@needs_gunicorn
def test_a_server_that_does_not_start_says_why() -> None:
    """What gunicorn printed is in the error."""
    with (
        pytest.raises(RuntimeError, match=r"(?s)gunicorn does not serve.*could not convert"),
        web.serving(
            "none",
            {"rate": "much"},  # type: ignore[dict-item]
        ),
    ):
        pass


def test_without_gunicorn_all_sides_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is nothing to run."""
    monkeypatch.setattr(web, "find_spec", lambda _: None)
    assert web.unavailable().keys() == set(web.SIDES.values())
    knobs = scenario("web").turned(quick=True)
    assert scenario("web").measurable(knobs)[0] == []
    assert "nothing to compare" in web.answer(Results(scenario("web"), knobs))


# --- what is said


def _results(samples: Mapping[tuple[str, str], list[float]], rounds: int = 3) -> Results:
    results = Results(scenario("web"), scenario("web").turned(quick=False, given={"rounds": rounds}))
    for (measure, side), values in samples.items():
        for value in values:
            results.add(measure, "20 connections", side, value)
    return results


def test_what_is_within_the_noise_is_said_to_be() -> None:
    """A difference is only told as one when the rounds agree on it, and there is more than one."""
    say = functools.partial(compared, measure="rate", column="20 connections", side="a", to="b")
    sure = _results({("rate", "a"): [2, 2.1, 2.2], ("rate", "b"): [1, 1, 1]})
    unsure = _results({("rate", "a"): [0.8, 1.0, 1.3], ("rate", "b"): [1, 1, 1]})
    once = _results({("rate", "a"): [2], ("rate", "b"): [1]}, rounds=1)
    assert say(sure) == "2.1 times that of b"
    assert "within the noise" in say(unsure)
    assert "too few rounds" in say(once)
    assert say(_results({("rate", "a"): [2]})) == "not to be compared with that of b"


def test_the_answer_says_when_ours_is_slower() -> None:
    """Losing is told as plainly as winning."""
    rates = {"no lock": 100.0, "multiprocessing.Lock": 90.0, "shmlock.RWLock": 45.0, "shmlock.SharedConfig": 99.0}
    results = _results(
        {(measure, side): [rate] * 3 for measure in ("throughput", "p99") for side, rate in rates.items()}
    )
    assert "with shmlock.RWLock is 0.5 times that of multiprocessing.Lock;" in web.answer(results)
