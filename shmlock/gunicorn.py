"""Hooks for gunicorn.conf.py: make the shared objects for the workers, evict dead workers, unlink at the end.

    # gunicorn.conf.py
    from functools import partial

    import shmlock
    from shmlock.gunicorn import *

    workers = 4
    shmlock_objects = {
        "site": "RWLock",
        "site.config": partial(shmlock.SharedConfig, capacity=10_000_000),
    }

`shmlock_objects` is the one setting: the name of each object and what it is, the name of a class of this package or
`functools.partial` of one with arguments. `owner` is added to them: the user and group of the workers, so that they
can open what a master made that runs as root. The application opens the same names, at module level if it likes,
with and without `preload_app`: `config = shmlock.SharedConfig("site.config")`.

Whoever imports the hooks by name imports all of them. A hook of your own calls ours:

    from shmlock import gunicorn as shared

    def child_exit(server, worker):
        shared.child_exit(server, worker)
        ...

No hook waits for a worker, an updater or the network. An object that can't be made or attached to ends the start
with one line that says why; in a reload (HUP) that line is logged, and the server goes on with what it has. A
start that fails removes what it has made, and nothing else.

Who removes the names? The last master. Each keeps a descriptor of the segment with a shared flock(2) on it. A
forked process has the same open file, and the lock goes when its last copy is closed: so from the moment of the
fork that begins a hot restart (USR2) the new master keeps the names, too, and the old one's exit leaves them. If
the new one ends first (a roll-back, a failed upgrade), they are the old one's again, and when both end together,
the last to look finds no other. Workers close their copies. A master that is killed leaves the names, and the
next start goes on with what it finds.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import shmlock
from shmlock._engine.handle import Handle
from shmlock._kernel import shm
from shmlock._segment.segment import PREFIX, unlink
from shmlock.errors import ForeignSegment, LayoutMismatch, ShmlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gunicorn.arbiter import Arbiter
    from gunicorn.workers.base import Worker

__all__ = [
    "child_exit",
    "nworkers_changed",
    "on_exit",
    "on_reload",
    "on_starting",
    "post_fork",
    "pre_exec",
    "when_ready",
]

_SETTING: Final = "shmlock_objects"
_HOLDS: Final = "SHMLOCK_HOLDS"  # in the environment of a new master: "NAME=DESCRIPTOR NAME=DESCRIPTOR"

_PATIENCE: Final = 0.1  # seconds for the dead, should a process have been stopped in the middle of a change


@dataclass(frozen=True)
class _Kept:
    """An object that this master keeps the names of."""

    handle: Handle
    hold: int  # a descriptor of the segment, with a shared flock


_kept: dict[str, _Kept] = {}


# --- the hooks, in the order in which gunicorn calls them


def nworkers_changed(server: Arbiter, _new: int, old: int | None) -> None:
    """Make the objects, the first time: with `preload_app` the application is loaded before `on_starting`."""
    if old is None:
        _start(server)


def on_starting(server: Arbiter) -> None:
    """Make the objects, or attach to those that are there, with the workers as their owner."""
    _start(server)


def when_ready(server: Arbiter) -> None:
    """Evict the dead of an earlier run, now that this one is sure to start."""
    _evict(server)


def post_fork(_server: Arbiter, _worker: Worker) -> None:
    """In the worker: keep no names. It takes part in each object when it first uses it."""
    for kept in _kept.values():
        os.close(kept.hold)
    _kept.clear()


def child_exit(server: Arbiter, _worker: Worker) -> None:
    """Evict the dead worker at once, instead of when somebody waits for what it held."""
    _evict(server)


def on_reload(server: Arbiter) -> None:
    """Make the objects that the setting has got since; what it has lost is kept until the end."""
    try:
        _keep_all(server)
    except RuntimeError as error:
        server.log.error("%s", error)  # noqa: TRY400  one line for the administrator, not a traceback


def pre_exec(server: Arbiter) -> None:
    """In the fork that is about to become the new master: pass the holds on to it."""
    for kept in _kept.values():
        os.set_inheritable(kept.hold, True)
    server.cfg.env_orig[_HOLDS] = " ".join(f"{name}={kept.hold}" for name, kept in _kept.items())


def on_exit(server: Arbiter) -> None:
    """Remove the names, unless another master keeps them."""
    while _kept:
        name, kept = _kept.popitem()
        try:
            if not _release(name, kept.hold):
                server.log.info("%s goes on: another master keeps it", name)
        except OSError as error:
            server.log.error("%s: its names could not be removed: %s", name, error)  # noqa: TRY400  as above


# --- what they do


def _start(server: Arbiter) -> None:
    if not _kept:
        atexit.register(_undo, os.getpid(), shm.names())
    _keep_all(server)


def _undo(master: int, found: list[str]) -> None:
    """The master ends without `on_exit`, most likely at its start: remove what was not there before it."""
    if os.getpid() == master:
        for name, kept in _kept.items():
            if PREFIX + name not in found:
                _release(name, kept.hold)


def _keep_all(server: Arbiter) -> None:
    """Keep all that the setting names. Raises RuntimeError, with one line for the administrator."""
    owner = server.cfg.uid, server.cfg.gid
    inherited = _inherited(server)
    for name, kind in _setting(server).items():
        hold = _kept[name].hold if name in _kept else inherited.pop(name, None)
        try:
            _kept[name] = _keep(name, partial(_maker(kind), name, owner=owner), hold)
            _check_access(name, _kept[name].hold, *owner)
        except (ShmlockError, OSError, TypeError, ValueError) as error:
            raise RuntimeError(_explained(name, error)) from error
    for name, hold in inherited.items():  # the new master's setting has lost them
        _release(name, hold)


def _setting(server: Arbiter) -> dict[str, object]:
    """`shmlock_objects`, from the module that gunicorn has made of its configuration file."""
    location: str = server.cfg.config
    module = sys.modules.get(location.removeprefix("python:") if location.startswith("python:") else "__config__")
    objects = getattr(module, _SETTING, None)
    if not isinstance(objects, dict):
        raise RuntimeError(  # noqa: TRY004  the one that gunicorn prints without a traceback
            f"{location}: has hooks of shmlock.gunicorn, and needs a setting for them such as "
            f'{_SETTING} = {{"site.config": "SharedConfig"}}'
        )
    return objects


def _maker(kind: object) -> Callable[..., Handle]:
    """What makes objects of a kind that the setting says. Raises TypeError."""
    found = getattr(shmlock, kind, None) if isinstance(kind, str) else kind
    made = found.func if isinstance(found, partial) else found
    if not (isinstance(made, type) and issubclass(made, Handle)):
        raise TypeError(
            f'{kind!r} is not the name of a class such as "RWLock", and not functools.partial of such a class'
        )
    return cast("Callable[..., Handle]", found)


def _explained(name: str, error: Exception) -> str:
    text = f"{_SETTING}[{name!r}]: {error}"
    if isinstance(error, LayoutMismatch):
        text += (
            ". For gunicorn that is: stop it (a reload or USR2 won't do), remove what a killed master may have "
            f"""left with python -c 'import shmlock; shmlock.unlink("{name}")', and start it"""
        )
    return text


def _check_access(name: str, hold: int, uid: int, gid: int) -> None:
    """Refuse what somebody made for himself alone: else each worker would fail, again and again."""
    status = os.fstat(hold)
    if status.st_uid != uid and not status.st_mode & 0o066:
        raise ForeignSegment(
            errno.EACCES,
            f"{name}: was made by user {status.st_uid} for that user alone, and the workers run as user {uid}; have "
            f"it made with owner=({uid}, {gid}) (the updater: --owner {uid}:{gid}), or by this server first",
        )


def _evict(server: Arbiter) -> None:
    for name, kept in _kept.items():
        try:
            number = kept.handle.reap(timeout=_PATIENCE)
        except ShmlockError as error:
            server.log.warning("%s: the dead could not be evicted: %s", name, error)
        else:
            if number:
                server.log.info("%s: dead participants evicted: %d", name, number)


# --- the names, and who keeps them


def _keep(name: str, make: Callable[[], Handle], hold: int | None) -> _Kept:
    """Make or attach, and keep the name, with the hold if there is one that is still worth something."""
    while True:
        handle = make()
        if hold is not None and _is_hold(hold, name):
            return _Kept(handle, hold)
        if hold is not None:
            os.close(hold)
        # And then all over again: only from now on nobody removes the name, and somebody may just have.
        hold = _hold(name)


def _hold(name: str) -> int | None:
    """Have a say in when the name goes. None when it has gone already."""
    try:
        descriptor = _open(name)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for one that removes the name, if for anybody
    return descriptor


def _is_hold(descriptor: int, name: str) -> bool:
    """Whether it is a hold on what the name means now."""
    return _identity(descriptor) == shm.identity(PREFIX + name)


def _release(name: str, hold: int) -> bool:
    """Give a hold up, and remove the names if it was the last; False when it was not."""
    held = _identity(hold)
    os.close(hold)
    with suppress(FileNotFoundError):
        descriptor = _open(name)
        try:
            if _identity(descriptor) == held:  # not another object of this name
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unlink(name)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
    return True


def _inherited(server: Arbiter) -> dict[str, int]:
    """In a new master, the first time: the holds that the old one has passed on."""
    server.cfg.env_orig.pop(_HOLDS, None)
    holds = {}
    for entry in os.environ.pop(_HOLDS, "").split():
        name, _, number = entry.partition("=")
        with suppress(OSError, ValueError):  # not ours: nothing is known of that descriptor
            if _is_hold(int(number), name):
                os.set_inheritable(int(number), False)
                holds[name] = int(number)
    return holds


def _open(name: str) -> int:
    return os.open(shm.path(PREFIX + name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
