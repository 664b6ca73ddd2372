"""The guard against getting slower: what the fast paths execute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "operations.py"


def guard(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_no_fast_path_executes_more_than_it_did() -> None:
    """As many bytecode operations, and calls into C, as operations.json says, or less."""
    done = guard()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "with lock.reader" in done.stdout
    assert not done.stderr


def test_what_executes_more_is_said(tmp_path: Path) -> None:
    """Each path that does, by name, with both numbers; and then the exit code is 1."""
    copy = tmp_path / "operations.py"
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, str(copy)]
    subprocess.run([*command, "--write"], capture_output=True, timeout=60, check=True)
    kept = tmp_path / "operations.json"
    numbers = json.loads(kept.read_text())
    (paths,) = numbers.values()
    was = paths["config.get()"]["operations"]
    assert was > 5
    paths["config.get()"]["operations"] = was - 1
    kept.write_text(json.dumps(numbers))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"SLOWER  config.get(): {was} operations instead of {was - 1}" in done.stdout
    assert done.stdout.count("SLOWER") == 1
