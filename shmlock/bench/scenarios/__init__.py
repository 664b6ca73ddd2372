"""The scenarios, one a file, each after an experiment of the discussions that the project comes from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shmlock.bench.scenario import Scenario

NAMES: Final = ("mix", "web", "record", "read", "timers", "config", "fairness", "recovery")


def scenario(name: str) -> Scenario:
    """The one of this name. Raises KeyError."""
    if name not in NAMES:
        raise KeyError(f"there is no scenario {name!r}; there are {', '.join(NAMES)}")
    found: Scenario = importlib.import_module(f"{__name__}.{name}").SCENARIO
    return found
