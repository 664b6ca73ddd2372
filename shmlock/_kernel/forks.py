"""The one at-fork registration. A child owns nothing of its parent's slots, locks or holds.

Hooks run in the child, in its only thread, and must be short: no I/O, no waiting. There is no hook before
the fork, so a fork never waits for us; and since another thread may hold one of our Python locks at the
moment of the fork, each room makes its locks anew in its hook.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_hooks: list[Callable[[], None]] = []


def in_child(hook: Callable[[], None]) -> Callable[[], None]:
    """Have `hook` called in every forked child, first registered first. Usable as a decorator."""
    _hooks.append(hook)
    return hook


def _run() -> None:
    for hook in _hooks:
        hook()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run)
