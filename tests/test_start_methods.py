"""Objects that travel to processes of every start method, and the silence with which processes end."""

from __future__ import annotations

import multiprocessing
import operator
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

import shmlock

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_objects_attach_by_name_in_every_kind_of_child(name: str, method: str) -> None:
    """Sent to a child of any start method, an object is the same one there; holds do not travel."""
    context = multiprocessing.get_context(method)
    mutex = shmlock.Mutex(f"{name}.m")
    config = shmlock.SharedConfig(f"{name}.c")
    timers = shmlock.TimerQueue(f"{name}.t")
    lock = shmlock.RWLock(name)
    timers.schedule(1, 0)
    config.publish({"a": [1]})
    try_it = operator.methodcaller("acquire", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the pool has some
        with context.Pool(1) as pool:
            with mutex, lock.writer:
                assert pool.apply(try_it, (mutex,)) is False
                assert pool.apply(operator.methodcaller("optimistic_stamp"), (lock,)) == 0
                assert pool.apply(operator.methodcaller("get"), (config,)) == {"a": [1]}
            assert pool.apply(operator.methodcaller("optimistic_stamp"), (lock,)) > 0
            assert pool.apply(try_it, (mutex,)) is True
            assert pool.apply(operator.methodcaller("wake_expired"), (timers,)) == [1]
            assert timers.wake_expired() == []
            pool.close()
            pool.join()
    with mutex:
        assert mutex.owner_died  # the child ended with it
    for each in (mutex, config, timers, lock):
        each.unlink()


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(3)", "raise KeyError('x')", "os._exit(0)", "os.kill(os.getpid(), 15)"]
)
def test_a_process_that_uses_everything_ends_in_silence(name: str, tmp_path: Path, ending: str) -> None:
    """Neither exit, nor an exception, nor collection prints anything of ours, and the names stay for the others."""
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, os, sys, threading, shmlock\n"
        f"lock = shmlock.RWLock({name!r})\n"
        f"mutex, config = shmlock.Mutex({name!r} + '.m'), shmlock.SharedConfig({name!r} + '.c')\n"
        "config.publish(1); config.get(); mutex.acquire(); lock.reader.acquire()\n"
        f"timers = shmlock.TimerQueue({name!r} + '.t'); timers.schedule(1, 0); timers.wake_expired()\n"
        "thread = threading.Thread(target=lock.reader.acquire, daemon=True); thread.start(); thread.join()\n"
        f"shmlock.RWLock({name!r}); gc.collect()\n" + ending
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == ""
    if "KeyError" in ending:
        assert done.stderr.count("Traceback") == 1
        assert "shmlock/" not in done.stderr
    else:
        assert done.stderr == ""
    with shmlock.RWLock(name, create=False) as lock, lock.write_lock(timeout=30):
        pass
    for suffix in (".m", ".c", ".t"):
        assert shmlock.unlink(name + suffix)


PROGRAM = """
import gc, os, sys, shmlock
lock, mutex = shmlock.RWLock(sys.argv[1]), shmlock.Mutex(sys.argv[1] + ".m")
lock.writer.acquire()
mutex.acquire()
if not os.fork():
    lock.close()
    mutex.close()
    del lock, mutex
    gc.collect()
    sys.exit(0)
os.wait()
print("held", flush=True)
input()
"""


def test_a_child_that_exits_gives_up_nothing_of_its_parent_s(name: str) -> None:
    """Its close, collection and exit, atexit hooks and all, leave the parent what it holds."""
    lock, mutex = shmlock.RWLock(name), shmlock.Mutex(f"{name}.m")
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "held\n"
            assert not lock.reader.acquire(timeout=0.05)
            assert mutex.locked()
            assert lock.reap() == 0
            program.communicate("\n", timeout=60)
        finally:
            program.kill()
    assert program.returncode == 0
    assert lock.writer.acquire(timeout=30)
    lock.writer.release()
    mutex.unlink()
