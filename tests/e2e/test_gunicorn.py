"""Real gunicorn, with the hooks in its gunicorn.conf.py: what workers share, and what is left of it."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import shmlock
from shmlock import gunicorn as hooks
from shmlock._kernel import shm
from tests.ending import with_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start

HANG = 30.0
"""Seconds after which something that was waited for is taken not to come. No test is faster or slower by it."""

GUNICORN = Path(sys.executable).with_name("gunicorn")

CONFIGURATION = """\
import os
import time
from functools import partial
from pathlib import Path

import shmlock
from shmlock.gunicorn import *

NAME = {name!r}
bind = "127.0.0.1:0"
control_socket_disable = True
graceful_timeout = 5
shmlock_objects = {{
    NAME + ".lock": "RWLock",
    NAME + ".config": partial(shmlock.SharedConfig, capacity=10_000),
}}
"""

APPLICATION = """\
import json
import os
import signal
import time

import shmlock
from shmlock._kernel import robust

NAME = {name!r}
lock = shmlock.RWLock(NAME + ".lock", owner={owner})
config = shmlock.SharedConfig(NAME + ".config", owner={owner})


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/write-for-ever":
        lock.writer.acquire()
        time.sleep(3600)
    if path == "/stop-in-the-guard":
        robust.trylock(lock._segment.guard_address)
        os.kill(os.getpid(), signal.SIGSTOP)
    if path == "/sleep":  # on a semaphore, which has a name from then on
        config.wait(timeout=0.001)
    with lock.reader:
        answer = dict(
            pid=os.getpid(), master=os.getppid(), uid=os.geteuid(), version=config.version, value=config.get(None)
        )
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for what other processes bring about, and return it; fail when it does not come."""
    end = time.monotonic() + HANG
    while not (result := condition()):
        assert time.monotonic() < end, f"in {HANG:g} s it did not come that {what}"
        time.sleep(0.005)
    return result


class Site:
    """A folder with an application and its gunicorn.conf.py."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.config_name = f"{name}.config"
        self.lock_name = f"{name}.lock"
        self.program()
        self.configure()
        folder.chmod(0o755)  # for workers that run as another user

    def program(self, owner: tuple[int, int] | None = None) -> None:
        """Write the application, which trusts this owner of what it shares, beside root and itself."""
        (self.folder / "app.py").write_text(APPLICATION.format(name=self.name, owner=owner))

    def configure(self, more: str = "", **settings: Any) -> None:
        """Write gunicorn.conf.py, with these lines and settings in addition."""
        lines = "".join(f"{key} = {value!r}\n" for key, value in settings.items())
        (self.folder / "gunicorn.conf.py").write_text(CONFIGURATION.format(name=self.name) + lines + more)

    def config(self) -> shmlock.SharedConfig:
        """Attach to the configuration."""
        return shmlock.SharedConfig(self.config_name, create=False)

    def lock(self) -> shmlock.RWLock:
        """Attach to the lock."""
        return shmlock.RWLock(self.lock_name, create=False)

    def names(self) -> list[str]:
        """What is in /dev/shm on behalf of this site."""
        return sorted(entry for entry in shm.names() if self.name in entry)


class Server:
    """A gunicorn, with all that comes of it: one process group."""

    def __init__(self, folder: Path, number: int) -> None:
        self._log = folder / f"log{number}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, GUNICORN, "app"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
                preexec_fn=with_us(),
            )
        self.pid = self.process.pid

    def log(self) -> str:
        """All that it has logged."""
        return self._log.read_text()

    def tells(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait until it has logged this so many times; the last match."""
        end = time.monotonic() + HANG
        while len(matches := list(re.finditer(pattern, self.log()))) < count:
            assert time.monotonic() < end, f"it did not tell {pattern!r} {count} times:\n{self.log()}"
            time.sleep(0.005)
        return matches[-1]

    def url(self) -> str:
        """Where it listens."""
        return self.tells(r"Listening at: (http://\S+)")[1]

    def asked(self, path: str = "/") -> Any:
        """Return its answer to a request."""
        with urllib.request.urlopen(self.url() + path, timeout=HANG) as response:  # noqa: S310  of our own server
            return json.load(response)

    def answers_from(self, number: int) -> list[Any]:
        """Ask until so many workers have answered; an answer of each."""
        answers: dict[int, Any] = {}
        end = time.monotonic() + HANG
        while len(answers) < number:
            assert time.monotonic() < end, f"only {len(answers)} workers answered:\n{self.log()}"
            answer = self.asked()
            answers[answer["pid"]] = answer
        return list(answers.values())

    def signal(self, number: int, pid: int | None = None) -> None:
        """Send the master, or another process of this server, a signal."""
        os.kill(pid or self.pid, number)

    def ends(self) -> int:
        """Wait for the end of the master that was started first; its exit code."""
        return self.process.wait(HANG)

    def close(self) -> None:
        """Kill whatever is left, and wait for its end."""
        members = [process for process in psutil.process_iter() if _group(process.pid) == self.pid]
        if members:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(HANG)
        until(lambda: all(is_gone(process.pid) for process in members), "all processes of the server end")


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_stopped(pid: int) -> bool:
    """Whether a process stands still."""
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture
def site(name: str) -> Iterator[Site]:
    """A site of its own name, of which nothing may be left."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        site = Site(Path(folder), name)
        yield site
        left = site.names()
        for entry in left:
            (Path(shm.ROOT) / entry).unlink()
        assert not left


@pytest.fixture
def serve(site: Site) -> Iterator[Callable[..., Server]]:
    """`serve(workers=2, ...)` starts gunicorn with these settings and waits until it listens, if it is to.

    All of it ends with the test.
    """
    with ExitStack() as servers:
        count = itertools.count()

        def serve(more: str = "", *, listens: bool = True, **settings: Any) -> Server:
            site.configure(more, **settings)
            server = Server(site.folder, next(count))
            servers.callback(server.close)
            if listens:
                server.url()
            return server

        yield serve


def in_background(function: Callable[[], object]) -> threading.Thread:
    """Run it in a thread, silently: a request to a worker that is to be killed fails."""

    def run() -> None:
        with suppress(OSError):
            function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


WORKERS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"preload_app": preload, "worker_class": kind, "threads": threads}, id=f"{kind}{word}")
        for kind, threads in (("sync", 1), ("gthread", 4))
        for preload, word in ((False, ""), (True, "-preloaded"))
    ],
)


@WORKERS
def test_workers_share(site: Site, serve: Callable[..., Server], settings: dict[str, Any]) -> None:
    """All workers have one lock and one configuration, however they are started, and nothing is left of them."""
    server = serve(workers=2, **settings)
    server.answers_from(2)
    lock, config = site.lock(), site.config()
    config.publish("one")
    with lock.writer:
        asking = [in_background(server.asked) for _ in range(2)]
        until(lambda: "2 waiting" in repr(lock), "two requests wait for the lock")
    for thread in asking:
        thread.join(HANG)
    assert {(answer["version"], answer["value"]) for answer in server.answers_from(2)} == {(1, "one")}
    config.publish("two")
    assert {(answer["version"], answer["value"]) for answer in server.answers_from(2)} == {(2, "two")}
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    assert site.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers that run as another user")
@pytest.mark.parametrize("preload", [False, True])
def test_workers_that_drop_privileges(site: Site, serve: Callable[..., Server], *, preload: bool) -> None:
    """What a master makes that runs as root belongs to the workers' user, and so do the semaphores."""
    nobody = pwd.getpwnam("nobody")
    server = serve(workers=2, preload_app=preload, user=nobody.pw_uid, group=nobody.pw_gid)
    server.answers_from(2)
    config = shmlock.SharedConfig(site.config_name, create=False, owner=(nobody.pw_uid, nobody.pw_gid))
    config.publish("one")
    assert {(answer["uid"], answer["value"]) for answer in server.answers_from(2)} == {(nobody.pw_uid, "one")}
    server.asked("/sleep")
    status = [(Path(shm.ROOT) / name).stat() for name in site.names()]
    assert len(status) > 2
    assert {(one.st_uid, one.st_gid, one.st_mode & 0o777) for one in status} == {(nobody.pw_uid, nobody.pw_gid, 0o600)}
    server.signal(signal.SIGTERM)
    assert server.ends() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers that run as another user")
def test_what_the_workers_may_not_open(site: Site, serve: Callable[..., Server]) -> None:
    """A segment that root made for itself is refused at the start, with a line that says how to make it."""
    nobody = pwd.getpwnam("nobody")
    with shmlock.SharedConfig(site.config_name, capacity=10_000) as config:
        server = serve(listens=False, user=nobody.pw_uid, group=nobody.pw_gid)
        assert server.ends() == 1
        assert re.search(rf"Error: .*{site.config_name}: .* --owner {nobody.pw_uid}:{nobody.pw_gid}", server.log())
        assert "Traceback" not in server.log()
        assert not config.is_stale()
        config.unlink()


def test_killed_worker_is_evicted(site: Site, serve: Callable[..., Server]) -> None:
    """A worker that is killed while it writes is evicted by the master, although nobody waits for it."""
    server = serve(workers=2)
    server.answers_from(2)
    lock = site.lock()
    asking = in_background(lambda: server.asked("/write-for-ever"))
    writer = until(lambda: re.search(r"written by process (\d+)", repr(lock)), "a worker writes")
    server.signal(signal.SIGKILL, int(writer[1]))
    until(lambda: lock.statistics().evictions == 1, "the master evicts it")
    assert "free" in repr(lock)
    server.tells(rf"{site.lock_name}: dead participants evicted: 1")
    asking.join(HANG)
    server.answers_from(2)
    server.signal(signal.SIGTERM)
    assert server.ends() == 0


def test_eviction_does_not_hang(site: Site, serve: Callable[..., Server]) -> None:
    """A process that was stopped in the middle of a change delays the master by a fraction of a second."""
    server = serve(workers=2)
    pids = {answer["pid"] for answer in server.answers_from(2)}
    lock = site.lock()
    asking = in_background(lambda: server.asked("/stop-in-the-guard"))
    stopped = until(lambda: [pid for pid in pids if is_stopped(pid)], "a worker is stopped")
    server.signal(signal.SIGKILL, *pids.difference(stopped))
    server.tells(f"{site.lock_name}: the dead could not be evicted")
    server.tells("Booting worker", 3)
    server.signal(signal.SIGKILL, *stopped)
    until(lambda: lock.statistics().evictions == 2, "both are evicted")
    asking.join(HANG)
    server.answers_from(2)
    server.signal(signal.SIGTERM)
    assert server.ends() == 0


def test_first_request_of_a_new_worker(site: Site, serve: Callable[..., Server]) -> None:
    """A worker that was not there when a version was published knows it with its first request."""
    server = serve(workers=1)
    config = site.config()
    for version in range(1, 6):
        before = server.asked()["pid"]
        server.signal(signal.SIGKILL, before)
        config.publish("next")
        server.tells("Booting worker", version + 1)
        answer = server.asked()
        assert answer["pid"] != before
        assert answer["version"] == version
    server.signal(signal.SIGTERM)
    assert server.ends() == 0


def test_recycled_workers_leave_nothing(site: Site, serve: Callable[..., Server]) -> None:
    """200 workers come and go: there are as many names, and as many descriptors in the master, as before."""
    server = serve(workers=4, max_requests=1, preload_app=True)
    master, lock = psutil.Process(server.pid), site.lock()

    def use_up_all_workers() -> None:
        with lock.writer:
            asking = [in_background(server.asked) for _ in range(4)]
            until(lambda: "4 waiting" in repr(lock), "all workers have a request, and sleep")
        for thread in asking:
            thread.join(HANG)

    def left() -> tuple[list[str], int]:
        return site.names(), master.num_fds()

    use_up_all_workers()
    use_up_all_workers()  # which is when the first four have ended
    before = left()
    for _ in range(49):
        use_up_all_workers()
    server.tells("Booting worker", 200)
    until(lambda: left() == before, "names and descriptors are those of before")
    server.signal(signal.SIGTERM)
    assert server.ends() == 0


@pytest.mark.parametrize("whole_tree", [False, True])
def test_start_after_a_kill(site: Site, serve: Callable[..., Server], *, whole_tree: bool) -> None:
    """A killed master leaves the configuration to the next start, which evicts the dead."""
    killed = serve(workers=2, timeout=2)  # so that an orphan looks for its master every second
    pids = [answer["pid"] for answer in killed.answers_from(2)]
    site.config().publish("one")
    if whole_tree:
        killed.close()
    else:
        killed.signal(signal.SIGKILL)
        killed.ends()
    server = serve(workers=2)
    assert server.asked()["version"] == 1
    if whole_tree:
        server.tells(f"{site.lock_name}: dead participants evicted: [12]")
    until(lambda: all(map(is_gone, pids)), "orphans end")
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    assert site.names() == []


# --- hot restarts

GATE = """
if "GUNICORN_PID" in os.environ:
    Path("waiting").touch()
    while not Path("go-on").exists():
        time.sleep(0.005)
"""


def heir(server: Server) -> int:
    """The pid of the second master, once it listens."""
    return int(server.tells(r"Listening at: \S+ \((\d+)\)", 2)[1])


def test_hot_restart(site: Site, serve: Callable[..., Server]) -> None:
    """The new master's workers have the configuration, which outlives the old master and goes with the new one."""
    server = serve(workers=2)
    config = site.config()
    config.publish("one")
    server.signal(signal.SIGUSR2)
    new = heir(server)
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    server.tells(f"{site.config_name} goes on")
    assert {(answer["master"], answer["version"]) for answer in server.answers_from(2)} == {(new, 1)}
    assert not config.is_stale()
    server.signal(signal.SIGTERM, new)
    until(lambda: is_gone(new), "the new master ends")
    assert site.names() == []


def test_hot_restart_with_haste(site: Site, serve: Callable[..., Server]) -> None:
    """The old master ends before the new one has begun to look at anything: the configuration is kept."""
    server = serve(workers=2)
    config = site.config()
    config.publish("one")
    site.configure(GATE)
    server.signal(signal.SIGUSR2)
    until((site.folder / "waiting").exists, "the new master waits at the gate")
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    assert not config.is_stale()
    (site.folder / "go-on").touch()
    new = heir(server)
    answer = server.asked()
    assert (answer["master"], answer["version"]) == (new, 1)
    server.signal(signal.SIGTERM, new)
    until(lambda: is_gone(new), "the new master ends")
    assert site.names() == []


def test_second_hot_restart(site: Site, serve: Callable[..., Server]) -> None:
    """What one new master has inherited it passes on to the next, also after a roll-back."""
    server = serve(workers=1)
    config = site.config()
    config.publish("one")
    master = server.pid
    for generation, rolled_back in ((2, True), (3, False), (4, False)):
        server.signal(signal.SIGUSR2, master)
        new = int(server.tells(r"Listening at: \S+ \((\d+)\)", generation)[1])
        ending, staying = (new, master) if rolled_back else (master, new)
        server.signal(signal.SIGTERM, ending)
        if ending == server.pid:
            server.ends()
        until(lambda pid=ending: is_gone(pid), "one of the masters ends")  # type: ignore[misc]
        until(lambda pid=staying: server.asked()["master"] == pid, "the other one's workers answer")  # type: ignore[misc]
        assert server.asked()["version"] == 1
        master = staying
        if not rolled_back:  # or USR2 is ignored
            server.tells("Master has been promoted", generation - 2)
    server.signal(signal.SIGTERM, master)
    until(lambda: is_gone(master), "the last master ends")
    assert config.is_stale()
    assert site.names() == []


@pytest.mark.parametrize("how", ["told to", "killed", "can't start"])
def test_roll_back(site: Site, serve: Callable[..., Server], how: str) -> None:
    """The new master ends first, in whatever way: the names are the old one's again, and go with it."""
    server = serve(workers=2)
    config = site.config()
    config.publish("one")
    if how == "can't start":
        site.configure("shmlock_objects[NAME + '.config'] = shmlock.RWLock\n")
    server.signal(signal.SIGUSR2)
    if how == "can't start":
        server.tells(rf"Error: .*{site.config_name}: is a SharedConfig, not a RWLock.*USR2")
        assert "Traceback" not in server.log()
    else:
        new = heir(server)
        server.signal(signal.SIGTERM if how == "told to" else signal.SIGKILL, new)
        until(lambda: is_gone(new), "the new master ends")
    until(lambda: server.asked()["master"] == server.pid, "the old master's workers answer")
    assert not config.is_stale()
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    assert site.names() == []


def test_both_masters_end_together(site: Site, serve: Callable[..., Server]) -> None:
    """When all is told to end in the middle of a hot restart, the names go."""
    server = serve(workers=2)
    server.signal(signal.SIGUSR2)
    new = heir(server)
    os.killpg(server.pid, signal.SIGTERM)
    assert server.ends() == 0
    until(lambda: is_gone(new), "the new master ends")
    assert site.names() == []


def test_setting_of_the_new_master(site: Site, serve: Callable[..., Server]) -> None:
    """What the new master's setting has lost goes when the last master that knew it has ended."""
    server = serve(workers=1)
    server.answers_from(1)  # the worker has loaded the application: found empty, it would end the master
    assert site.lock_name in " ".join(site.names())
    site.configure("del shmlock_objects[NAME + '.lock']\n" + GATE)
    (site.folder / "app.py").write_text("def application(*_): raise NotImplementedError\n")
    server.signal(signal.SIGUSR2)
    until((site.folder / "waiting").exists, "the new master waits at the gate")
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    (site.folder / "go-on").touch()
    new = heir(server)
    assert site.names() == [f"shmlock.{site.config_name}"]
    server.signal(signal.SIGTERM, new)
    until(lambda: is_gone(new), "the new master ends")


def test_masters_that_release_at_once(name: str, start: Start) -> None:
    """Of masters that give up a name at the same moment, one removes it."""

    def keep(peer: Peer) -> None:
        for _ in range(50):
            kept = hooks._keep(name, lambda: shmlock.RWLock(name, max_participants=1), None)
            peer.say("kept")
            peer.hear()
            peer.say(hooks._release(name, kept.hold))
            peer.hear()

    masters = [start(keep) for _ in range(3)]
    for _ in range(50):
        assert [master.hear() for master in masters] == ["kept"] * 3
        for master in masters:
            master.say("release")
        assert True in [master.hear() for master in masters]
        assert shm.identity(f"shmlock.{name}") is None
        for master in masters:
            master.say("again")


def test_what_is_no_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new master adopts nothing that isn't a hold, whatever its environment says, and closes nothing else."""
    server = SimpleNamespace(cfg=SimpleNamespace(env_orig={"SHMLOCK_HOLDS": "stale"}))
    reading, writing = os.pipe()
    monkeypatch.setenv("SHMLOCK_HOLDS", f"{name}={reading} {name}=1000000 {name}=x {name}")
    assert hooks._inherited(server) == {}
    assert "SHMLOCK_HOLDS" not in os.environ
    assert server.cfg.env_orig == {}
    os.close(reading)
    os.close(writing)


def test_setting_in_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is found in a module, too: gunicorn --config python:site.server."""
    objects = {"site": "RWLock"}
    monkeypatch.setitem(sys.modules, "site.server", SimpleNamespace(shmlock_objects=objects))
    assert hooks._setting(SimpleNamespace(cfg=SimpleNamespace(config="python:site.server"))) is objects


# --- several servers, reloads, starts that fail


def test_two_servers_share(site: Site, serve: Callable[..., Server]) -> None:
    """Two servers may share an object; the first to end leaves it to the other."""
    servers = [serve(workers=1), serve(workers=1)]
    site.config().publish("one")
    assert [server.asked()["version"] for server in servers] == [1, 1]
    servers[0].signal(signal.SIGTERM)
    assert servers[0].ends() == 0
    assert servers[1].asked()["version"] == 1
    servers[1].signal(signal.SIGTERM)
    assert servers[1].ends() == 0
    assert site.names() == []


def test_reload(site: Site, serve: Callable[..., Server]) -> None:
    """A reload makes what the setting has got since; what can't be made is logged, and the server goes on."""
    server = serve(workers=1)
    config = site.config()
    config.publish("one")
    site.configure("shmlock_objects[NAME + '.new'] = shmlock.Mutex\n")
    server.signal(signal.SIGHUP)
    until(lambda: f"shmlock.{site.name}.new" in site.names(), "the new object is there")
    site.configure("shmlock_objects[NAME + '.config'] = partial(shmlock.SharedConfig, capacity=1)\n")
    server.signal(signal.SIGHUP)
    server.tells(rf"ERROR.* {site.config_name}: capacity is 10000 in the segment and 1 was asked for")
    server.tells("Booting worker", 3)
    assert server.asked()["version"] == 1
    server.signal(signal.SIGTERM)
    assert server.ends() == 0
    assert site.names() == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("del shmlock_objects", "gunicorn.conf.py: has hooks .* needs a setting"),
        ("shmlock_objects['x'] = 'unlink'", "'x'.: 'unlink' is not the name of a class such as"),
        ("shmlock_objects['x'] = shmlock.unlink", "'x'.: <function unlink .* is not .* functools.partial"),
        ("shmlock_objects['.x'] = shmlock.RWLock", "a name is .* not '.x'"),
        ("shmlock_objects['x'] = partial(shmlock.RWLock, capacity=1)", "unexpected keyword argument 'capacity'"),
        ("shmlock_objects[NAME + '.found'] = shmlock.Mutex", "found: is a RWLock, not a Mutex.*unlink"),
    ],
)
@pytest.mark.parametrize("preload", [False, True])
def test_start_that_fails(
    site: Site, serve: Callable[..., Server], line: str, complaint: str, *, preload: bool
) -> None:
    """A setting that can't be carried out is one line and exit code 1; what was found stays, what was made goes."""
    with shmlock.RWLock(f"{site.name}.found", max_participants=1) as found:
        server = serve(line + "\n", listens=False, preload_app=preload)
        assert server.ends() == 1
        assert re.search(f"Error: .*{complaint}", server.log())
        assert "Traceback" not in server.log()
        assert site.names() == [f"shmlock.{found.name}"]
        found.unlink()


def test_application_that_fails(site: Site, serve: Callable[..., Server]) -> None:
    """When the application can't be loaded, before or after the fork, nothing stays."""
    with (site.folder / "app.py").open("a") as app:
        app.write('raise ImportError("broken")\n')
    for preload in (True, False):
        server = serve(listens=False, workers=1, preload_app=preload)
        assert server.ends() != 0
        assert "broken" in server.log()
        assert site.names() == []


# --- the example with a page for Prometheus


EXAMPLE = Path(__file__).parents[2] / "examples" / "metrics"


def fetched(url: str) -> str:
    """What a server answers, whatever the status."""
    try:
        with urllib.request.urlopen(url, timeout=HANG) as response:  # noqa: S310  of our own server
            return str(response.read(), "utf-8")
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read(), "utf-8")


def counters(server: Server) -> dict[str, float]:
    """Scrape it: each counter by its name and labels, as they are printed."""
    lines = fetched(server.url() + "/metrics").splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    kinds = ("_total{", "_count{", "_sum{", "_bucket{")
    return {sample: float(value) for sample, value in samples.items() if any(kind in sample for kind in kinds)}


def test_metrics_example(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any worker's page has the exact number of all workers' responses; nothing on it goes back when one is killed."""
    shutil.copytree(EXAMPLE, site.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with (site.folder / "gunicorn.conf.py").open("a") as configuration:
        configuration.write('bind = "127.0.0.1:0"\ncontrol_socket_disable = True\ngraceful_timeout = 5\n')
    monkeypatch.setenv("SITE", site.name)
    asked = {"/": 0, "/nowhere": 0}

    def ask(path: str) -> int:
        asked[path] += 1
        return int(fetched(server.url() + path))

    def answered() -> list[int]:
        page = counters(server)
        name = f'name="{site.name}.metrics"'
        return [int(page.get(f'shmlock_requests_total{{code="{code}",{name}}}', 0)) for code in (200, 404)]

    with closing(Server(site.folder, 0)) as server:
        before = counters(server)
        for killed in range(1, 6):
            pids: set[int] = set()
            while len(pids) < 2:
                pids.add(ask("/"))
                ask("/nowhere")
            # A worker records a response a moment after its client has it: so not at once, but never more.
            until(lambda: answered() == list(asked.values()), "all responses are recorded")
            server.signal(signal.SIGKILL, pids.pop())
            for _ in range(10):
                after = counters(server)
                assert all(after[counter] >= before[counter] for counter in before)
                before = after
            server.tells("Booting worker", 2 + killed)
            assert answered() == list(asked.values())
        assert len(before) > 50
        server.signal(signal.SIGTERM)
        assert server.ends() == 0
        assert "Traceback" not in server.log()
    assert site.names() == []
