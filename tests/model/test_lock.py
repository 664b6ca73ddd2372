"""The Promela model of the whole lock (docs/model.md), and its mutants: each is caught, for the reason it should be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

MODEL: Final = Path(__file__).with_name("lock.pml")
LONG: Final = 900  # seconds; no run that is not marked large takes more than a few alone

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("spin") and shutil.which("cc")),
        reason="the model checker spin, or a C compiler, is not installed",
    ),
    pytest.mark.timeout(3 * LONG),
]

ANY: Final[list[str]] = []
ASLEEP: Final = ["-A"]
ASSERTED: Final = ["-E"]
"""Which faults are looked for: all; somebody who sleeps for ever; a claim that does not hold."""

EXCLUSION: Final = r"assertion violated +!\(\((hw\[i\]&&|hs\[i\]&&|hr\[i\]&&hw\[n\])"
FOR_EVER: Final = r"invalid end state"
DUE: Final = r"assertion violated .*&7\)!=1\)"
BOUND: Final = r"assertion violated \(met\[n\]<=1\)"
LIVING: Final = r"assertion violated +!\(latch\[target\]\)"
LEFT_BEHIND: Final = r"assertion violated \( !\(m\[j\]\)"
NOT_GIVEN_UP: Final = r"assertion violated .*==hr\[i\]\)"


def check(tmp_path: Path, options: str, faults: list[str]) -> str:
    """What the checker prints of the whole state space, or until the first fault."""
    optimised = "-O2" if os.environ.get("MODEL") else "-O0"  # the small ones take longer to compile than to check
    for command in (
        ["spin", "-a", *(f"-D{option}" for option in options.split()), str(MODEL)],
        ["cc", optimised, "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4000", "-opan", "pan.c"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=LONG)
    pan = [str(tmp_path / "pan"), "-m1000000", *faults]
    printed = subprocess.run(pan, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=LONG).stdout
    assert "max search depth too small" not in printed
    assert "out of memory" not in printed
    return printed


SMALL: Final = ["NR=1 NW=1", "NR=1 NW=2 PHASES", "NR=1 NW=1 NS=1"]
LARGE: Final = [
    "NR=1 NW=1 PHASES",
    "NR=1 NW=1 RESTS",
    "NR=1 NW=1 SLOW_MODE",
    "NR=1 NW=1 NK=1",
    "NR=2 NW=1 PHASES",
    "NR=2 NW=1 RESTS",
    "NR=2 NW=1 SLOW_MODE",
    "NR=2 NW=1 ITER=2",
    "NR=2 NW=2 PHASES",
    # Seekers.
    "NR=0 NW=1 NS=1 CONVERSIONS=1",
    "NR=0 NW=2 NS=1",
    "NR=1 NW=1 NS=1 CONVERSIONS=1",
    "NR=2 NW=0 NS=1 CONVERSIONS=1",
    # A death.
    "NR=1 NW=1 DEATHS=1 LOOKS TWICE",
    "NR=2 NW=1 DEATHS=1 LOOKS TWICE",
    "NR=1 NW=2 DEATHS=1 LOOKS",
    "NR=1 NW=1 NS=1 DEATHS=1 LOOKS TWICE",
    "NR=1 NW=1 NK=1 DEATHS=1 LOOKS",
    # A time-out.
    "NR=1 NW=1 LATE=1 LOOKS",
    "NR=2 NW=1 LATE=1 LOOKS",
    "NR=1 NW=2 LATE=1 LOOKS",
    "NR=1 NW=1 NS=1 LATE=1 LOOKS",
    "NR=1 NW=1 DEATHS=1 LATE=1 LOOKS",
    # An exception in the middle of a slow path.
    "NR=1 NW=1 INTERRUPTIONS=1 LOOKS",
    "NR=2 NW=1 INTERRUPTIONS=1 LOOKS",
    "NR=1 NW=2 INTERRUPTIONS=1 LOOKS",
    "NR=1 NW=1 NS=1 INTERRUPTIONS=1 LOOKS",
]
MUTANTS: Final[list[tuple[str, list[str], str]]] = [
    ("NR=1 NW=1 NO_MEMBARRIER", ASSERTED, EXCLUSION),
    ("NR=1 NW=2 SATURATES=1", ASLEEP, FOR_EVER),
    ("NR=2 NW=1 DEATHS=1 LOOKS NO_REPAIR", ANY, FOR_EVER),
    ("NR=2 NW=1 LATE=1 WITHDRAWS_BLINDLY", ANY, DUE),
    ("NR=1 NW=2 INTERRUPTIONS=1 LOOKS DIRTY_CLEARED_EARLY", ANY, FOR_EVER),
]
MORE_MUTANTS: Final[list[tuple[str, list[str], str]]] = [
    ("NR=2 NW=1 WAKE_FIRST", ASLEEP, FOR_EVER),
    ("NR=2 NW=1 BLIND", ASLEEP, FOR_EVER),
    ("NR=2 NW=1 LEAVES_BLINDLY", ASLEEP, FOR_EVER),
    ("NR=2 NW=1 NO_SECOND_LOOK", ASLEEP, FOR_EVER),
    ("NR=2 NW=1 LATE=1 LOOKS KEEPS_ITS_WANT", ANY, LEFT_BEHIND),
    ("NR=2 NW=1 IGNORES_ONE", ASSERTED, EXCLUSION),
    ("NR=1 NW=1 NS=1 CONVERSIONS=1 QUEUED_WRITER_ENTERS", ASSERTED, EXCLUSION),
    ("NR=1 NW=1 NK=1 CHILD_USES_PARENTS_SLOT", ASSERTED, LEFT_BEHIND),
    ("NR=1 NW=2 OWED_LOST PHASES", ASSERTED, BOUND),
    ("NR=2 NW=1 DEATHS=1 LOOKS EVICTS_THE_LIVING", ASSERTED, LIVING),
    ("NR=1 NW=1 LATE=1 TAKES_NO_LATE_GRANT", ASSERTED, NOT_GIVEN_UP),
]
large = pytest.mark.skipif(not os.environ.get("MODEL"), reason="minutes; asked for with MODEL=large (docs/model.md)")


@pytest.mark.parametrize("options", [*SMALL, *(pytest.param(options, marks=large) for options in LARGE)])
def test_all_that_the_model_claims(tmp_path: Path, options: str) -> None:
    """In every interleaving, with every death: exclusion, the bounds, and nobody sleeps for ever."""
    assert "errors: 0" in check(tmp_path, options, ANY)


@pytest.mark.parametrize(
    ("options", "faults", "reason"), [*MUTANTS, *(pytest.param(*mutant, marks=large) for mutant in MORE_MUTANTS)]
)
def test_mutants_are_caught(tmp_path: Path, options: str, faults: list[str], reason: str) -> None:
    """A lock with this one fault breaks this one claim."""
    printed = check(tmp_path, options, faults)
    assert "errors: 1" in printed
    assert re.search(reason, printed), printed
