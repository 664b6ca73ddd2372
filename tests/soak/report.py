"""What is said at the end, and on the way."""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmlock import LockStatistics
    from tests.soak.board import Fault

PROMISES: Final = {
    "exclusion": "a writer is alone, a seeker is alone among seekers",
    "fairness": "one write phase for a reader; one read phase, and those ahead, for a writer",
    "counts": "no write, publish or record is lost but those of the killed",
    "owner died": "a writer's death is told",
    "config": "a configuration is whole, never goes backwards, and none is lost",
    "timers": "each timer comes once, not early, and none is lost",
    "hang": "nobody hangs",
    "leak": "descriptors, memory and names do not grow",
    "left behind": "no names are left",
    "error": "nobody fails, crashes, or prints anything",
}
_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_GROWTH_KIB: Final = 8192
_GROWTH_FILES: Final = 3
_GROWTH_NAMES: Final = 40  # a slot's semaphore is made when somebody first waits in it


@dataclass
class Report:
    """One run's."""

    seed: int
    asked_seconds: float
    processes: int
    name: str
    seconds: float = 0.0
    kills: int = 0
    infants: int = 0
    killed_holding: int = 0
    killed_in: Counter[str] = field(default_factory=Counter)
    stops: int = 0
    terminated: int = 0
    ended: int = 0
    started: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    done: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)  # ms
    recoveries_beside_stops: int = 0
    resources: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    names: list[int] = field(default_factory=lambda: [0, 0])
    shared_kib: list[int] = field(default_factory=lambda: [0, 0])
    faults: list[Fault] = field(default_factory=list)
    hung: bool = False
    scene: str = ""

    def sum_up(self, seen: dict[str, int], statistics: Sequence[LockStatistics]) -> None:
        """What the boards and the locks have counted."""
        self.seen = seen
        for name in ("evictions", "repairs", "owner_deaths", "timeouts", "revocations"):
            self.seen[name] = sum(getattr(one, name) for one in statistics)

    def grown(self) -> list[str]:
        """What is more at the end than after the beginning."""
        wrong = []
        for who, what in self.resources.items():
            for kind, most in (("descriptors", _GROWTH_FILES), ("private KiB", _GROWTH_KIB)):
                first, last = what[kind]
                if last > first + most:
                    wrong.append(f"{who}: {kind} {first} at first, {last} at last")
        if self.names[1] > self.names[0] + _GROWTH_NAMES:
            wrong.append(f"names: {self.names[0]} at first, {self.names[1]} at last")
        return wrong

    def quantile(self, share: float) -> float:
        """Of the recoveries, ms; NaN without any."""
        ranked = sorted(self.recoveries)
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else math.nan

    def line(self, seconds: float) -> str:
        """How far it is."""
        return (
            f"{seconds:6.1f} of {self.asked_seconds:g} s: {self.kills:,} killed, {self.stops:,} stopped, "
            f"{self.steps:,} steps, {len(self.faults)} faults"
        )

    def json(self) -> str:
        """All of it, for programs."""
        data: dict[str, Any] = {
            name: value for name, value in vars(self).items() if name not in {"recoveries", "faults"}
        }
        data["recovery_ms"] = {
            "count": len(self.recoveries),
            **{f"p{share * 100:g}": self.quantile(share) for share in (0.5, 0.99)},
            "max": max(self.recoveries, default=math.nan),
            "histogram": self.histogram(),
        }
        data["faults"] = [{"kind": fault.kind, "what": fault.what} for fault in self.faults]
        data["python"] = platform.python_version()
        return json.dumps(data, indent=2)

    def histogram(self) -> dict[str, int]:
        """How many recoveries took up to so many ms."""
        counts = dict.fromkeys([f"<= {bound}" for bound in _BOUNDS_MS] + [f"> {_BOUNDS_MS[-1]}"], 0)
        for took in self.recoveries:
            bound = next((bound for bound in _BOUNDS_MS if took <= bound), None)
            counts[f"> {_BOUNDS_MS[-1]}" if bound is None else f"<= {bound}"] += 1
        return counts

    def text(self) -> str:
        """All of it, for people."""
        seen, per_second = self.seen, self.kills / self.seconds if self.seconds else 0
        told = {
            what: ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts)
            for what, counts in (
                ("killed in", self.killed_in.most_common()),
                ("started", sorted(self.started.items())),
                ("done", self.done.items()),
                ("seen", seen.items()),
                ("took", [(f"{bound} ms:", count) for bound, count in self.histogram().items() if count]),
            )
        }
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, Python {platform.python_version()}, {self.processes} processes",
            "",
            f"  {self.kills:,} killed, {per_second:.1f} a second",
            f"    {self.infants:,} in their first milliseconds, {self.killed_holding:,} with a lock in their hands",
            f"    in {told['killed in']}",
            f"  {self.stops:,} stopped and continued, {self.terminated:,} terminated, {self.ended:,} ended in order",
            f"  started: {told['started']}",
            f"  {self.steps:,} steps; done: {told['done']}",
            f"  seen: {told['seen']}",
            "",
        ]
        if self.recoveries:
            quantiles = ", ".join(f"p{100 * share:g} {self.quantile(share):.1f}" for share in (0.5, 0.99, 1))
            lines += [
                f"  from a holder's kill to the next one, which waited, {len(self.recoveries):,} times: {quantiles} ms",
                f"    {told['took']}",
                f"    and {self.recoveries_beside_stops:,} more, while somebody was stopped",
            ]
        for who, what in self.resources.items():
            grew = ", ".join(f"{kind} {first:,} -> {last:,}" for kind, (first, last) in what.items())
            lines.append(f"  {who}: {grew}")
        (first, last), (before, after) = self.names, self.shared_kib
        lines.append(f"  in /dev/shm: names {first} -> {last}, KiB {before:,} -> {after:,}")
        lines.append("")
        broken = Counter(fault.kind for fault in self.faults)
        for kind, promise in PROMISES.items():
            lines.append(f"  {f'BROKEN, {broken[kind]} times' if broken[kind] else 'kept':18}{promise}")
        lines += [f"\n{fault.kind}: {fault.what}" for fault in self.faults]
        if self.scene:
            lines += ["", "What everybody was doing:", self.scene]
        lines += ["", "All promises were kept." if not self.faults else f"{len(self.faults)} faults."]
        return "\n".join(lines)
