"""By count, not by belief: a process is killed before every place in the code that stores to shared memory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import shmlock
from tests.crash.mortal import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(shmlock.__file__).parent
HERE = Path(__file__).parent
KILLING = ["test_death_at_every_store.py", "test_death_among_all.py", "test_timers_at_every_store.py"]

ROOMS = [
    *sorted((ROOT / "_engine").glob("*.py")),
    *(ROOT / "_segment" / room for room in ("participants.py", "segment.py", "header.py")),
    *(ROOT / room for room in ("_batches.py", "_rolling.py", "_timetable.py", "config.py", "metrics.py", "timers.py")),
]

PRIVATE = {
    # Memory of this process alone.
    *("reads", "wants", "counted", "found", "copies", "self._decoded"),
    *("self._participants", "self._posts", "_mapped"),
    # The image of a segment that has no name yet, and a baseline before it is copied: `segment._image`, `Tally.block`.
    *("store words", "_image words", "block header", "block block", "read_statistics total"),
}

RARE = {
    # What only an interruption, or a race, leads to: see test_every_check and test_interruptions. And what of the pure
    # timetable depends on the order of operations: see test_timetable. Nor what only noise leads to: see tests/hostile.
    ("acquire.py", "self.words[me.base + ABANDONED] = 1 << mode"),
    ("engine.py", "words[reads] -= 1"),
    # And what only a close() by another thread leads to: see test_every_switch.
    ("membership.py", "words[me.base + ABANDONED] = me.asked"),
    ("holds.py", "self.words[me.base + READS] = 0"),
    ("participants.py", "segment.words[slot(number) + IN_USE] = 0"),
    ("_batches.py", "self._slots[slot(number) + BATCH] = 0"),
    ("_timetable.py", "words[_FREE] = words[at + _PLACE]"),
    ("_timetable.py", "words[gap] = entry"),
    ("timers.py", "self._payload[DIRTY] = 1  # noise"),
    ("guard.py", "words[_KIND] = 0  # noise"),
    ("mutual.py", "words[_KIND] = 0  # noise: nobody can leave it any more, and all are told"),
}

CALLS = {
    *("pthread_mutex_trylock", "pthread_mutex_unlock", "pthread_mutex_consistent", "pthread_mutex_clocklock"),
    *("sem_open", "sem_clockwait", "post", "syscall", "mmap", "pthread_mutex_init"),
    *("open", "link", "unlink", "posix_fallocate", "fchmod", "pwrite", "close"),
}


def stores(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int, int]]:
    """What each assignment to an index stores to (of which function), from which line to which."""
    for child in ast.iter_child_nodes(tree):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else function
        if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield f"{function} {ast.unparse(target.value)}", child.lineno, child.end_lineno or child.lineno
        yield from stores(child, inner)


def shared(room: Path) -> Iterator[tuple[int, int]]:
    """The lines of the room's stores to shared memory."""
    for what, first, last in stores(ast.parse(room.read_text("utf-8"))):
        if what not in PRIVATE and what.split()[-1] not in PRIVATE:
            yield first, last


def test_a_process_is_killed_before_every_store_and_every_kind_of_call(tmp_path: Path) -> None:
    """The tests that kill are run once more, in a moment, so that each only records its steps."""
    record = tmp_path / "steps"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *(str(HERE / name) for name in KILLING)],
        env=os.environ | {RECORD: str(record)},
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    seen = set(record.read_text("utf-8").split("\n"))
    missing = [
        f"{room.relative_to(ROOT.parent)}:{first}"
        for room in ROOMS
        for first, last in shared(room)
        if (room.name, room.read_text("utf-8").split("\n")[first - 1].strip()) not in RARE
        and not any(f"{room}:{line}" in seen for line in range(first, last + 1))
    ]
    assert not missing, "\n".join(missing)
    assert seen >= CALLS, CALLS - seen


def test_a_store_is_seen() -> None:
    """In all forms, and those to private things are told apart by their names."""
    text = "def f():\n words[1] = 2\n self.words[a] += 1\n x = words[b] = 3\n words[1:2] = y\n z = words[1]\n"
    assert [line for _, line, _ in stores(ast.parse(text))] == [2, 3, 4, 5]
