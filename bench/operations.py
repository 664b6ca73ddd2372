"""A guard against getting slower: how many bytecode operations, and calls into C, each fast path executes, exactly.

    scripts/perf            # compare with operations.json, and exit with 1 if a path executes more than it says
    scripts/perf --write    # have operations.json say what is executed now, for this version of Python

Instruction counts of the processor (callgrind) were tried, and vary by 1 % from run to run, and with the compiler that
Python was built with. These counts are the same each time, on any machine, for one version of Python. They do not see
what happens within a C call, but each such call.
"""

from __future__ import annotations

import argparse
import dis
import functools
import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shmlock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

BASELINE = Path(__file__).with_name("operations.json")
OURS = str(Path(shmlock.__file__).parent)
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}
# What only tells the interpreter something, and differs between its releases.
NOTHING = {"CACHE", "NOP", "PRECALL", "RESUME", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL"}


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


class Counter:
    """A tracer that counts what is executed in our code."""

    def __init__(self) -> None:
        self.operations = 0
        self.calls = 0
        self._calling: FrameType | None = None  # has just executed a call, of whatever

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """A function begins."""
        self.calls -= self._calling is not None and frame.f_back is self._calling  # not into C, but into Python
        self._calling = None
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace = self._step
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            name = _names(frame.f_code)[frame.f_lasti]
            self.operations += name not in NOTHING
            self.calls += name in CALLS
            self._calling = frame if name in CALLS else None
        return self._step


def count(path: Callable[[], object]) -> dict[str, int]:
    """Of one use. `calls`: into C."""
    found = []
    for _ in range(3):  # 3.12 has events only when there has been a tracer before
        counter = Counter()
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # a finalizer of ours would be counted
        sys.settrace(counter)
        try:
            path()
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
        found.append({"operations": counter.operations, "calls": counter.calls})
    return found[-1]


def paths(name: str) -> dict[str, Callable[[], object]]:
    """The fast paths, each used once before, so that nothing is to be made any more."""
    lock, mutex = shmlock.SeekLock(name), shmlock.Mutex(f"{name}.m")
    config, metrics = (
        shmlock.SharedConfig(f"{name}.c"),
        shmlock.RTMetrics(f"{name}.r", max_participants=4, clock=_still),
    )
    config.publish({})

    def read() -> None:
        with lock.reader:
            pass

    def write() -> None:
        with lock.writer:
            pass

    def upgrade() -> None:
        with lock.upgraded():
            pass

    def seek_and_upgrade() -> None:
        with lock.seeker:
            upgrade()

    def exclude() -> None:
        with mutex:
            pass

    def look() -> bool:
        return lock.validate(lock.optimistic_stamp())

    found: dict[str, Callable[[], object]] = {
        "with lock.reader": read,
        "with lock.writer": write,
        "with lock.seeker, lock.upgraded()": seek_and_upgrade,
        "optimistic_stamp and validate": look,
        "with mutex": exclude,
        "config.get()": config.get,
        "metrics.record()": functools.partial(metrics.record, 200, 0.0123),
    }
    for path in found.values():
        path()
        path()
    return found


def _still() -> float:
    return 1000.0


def forget(name: str) -> None:
    """Unlink what `paths` made."""
    for what in ("", ".m", ".c", ".r"):
        shmlock.unlink(f"{name}{what}")


def measure() -> dict[str, dict[str, int]]:
    """All paths."""
    name = f"bench-{os.getpid()}-operations"
    try:
        return {what: count(path) for what, path in paths(name).items()}
    finally:
        forget(name)


def slower(now: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> list[str]:
    """What executes more than it did."""
    return [
        f"{what}: {numbers[kind]} {kind} instead of {before[what][kind]}"
        for what, numbers in now.items()
        for kind in ("operations", "calls")
        if what in before and numbers[kind] > before[what][kind]
    ]


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is executed now as what is expected")
    options = parser.parse_args()
    now = measure()
    kept: dict[str, Any] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if options.write:
        kept[VERSION] = now
        BASELINE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    before = kept.get(VERSION)
    for what, numbers in now.items():
        was = f"   (was {before[what]['operations']}, {before[what]['calls']})" if before and what in before else ""
        print(f"{what:36} {numbers['operations']:5} operations {numbers['calls']:4} calls{was}")
    if before is None:
        print(f"operations.json says nothing of Python {VERSION}: nothing to compare with")
        return 0
    worse = slower(now, before)
    for line in worse:
        print(f"SLOWER  {line}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
