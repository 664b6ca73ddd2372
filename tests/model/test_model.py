"""The Promela model of readers that ask and leave without the guard, checked exhaustively, and its mutants."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("ask.pml")


def check(tmp_path: Path, *options: str) -> str:
    """What the checker prints of the whole state space."""
    for command in (
        ["spin", "-a", *(f"-D{option}" for option in options), str(MODEL)],
        ["cc", "-O1", "-DCOLLAPSE", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    done = subprocess.run(
        [str(tmp_path / "pan"), "-m1000000"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100
    )
    assert "max search depth too small" not in done.stdout
    return done.stdout


needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("cc")),
    reason="the model checker spin, or a C compiler, is not installed",
)


@needs_spin
@pytest.mark.parametrize("patient", [(), ("PATIENT",)], ids=["some give up", "nobody gives up"])
def test_exclusion_and_no_lost_wake_up(tmp_path: Path, patient: tuple[str, ...]) -> None:
    """In every interleaving nobody overlaps a writer, and nobody sleeps for ever."""
    assert "errors: 0" in check(tmp_path, "NR=2", "NW=1", "ITER=1", *patient)


@needs_spin
@pytest.mark.parametrize("mutant", [("NOLOOK", "PATIENT"), ("NOAGAIN",), ("BLIND",)], ids=" ".join)
def test_mutants_are_caught(tmp_path: Path, mutant: tuple[str, ...]) -> None:
    """Without any one of the three looks, somebody sleeps for ever, and the checker sees it."""
    assert "errors: 1" in check(tmp_path, "NR=2", "NW=1", "ITER=2", *mutant)
