"""The tables: what is in them (`tables`), and how they look in a terminal (`show`) or as text (`text`)."""

from __future__ import annotations

import math
import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from shmlock.bench.samples import Results, Summary
    from shmlock.bench.scenario import Measure

# By unit: those that the same may be told in, the largest first, and how many of the last each is.
_TIMES: Final = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_SIZES: Final = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
_FAMILIES: Final = ({"s", "ms", "µs", "us", "ns"}, {"B", "KiB", "MiB", "GiB"})
NOTHING: Final = "-"


class Cell(NamedTuple):
    """One side in one column. `ratio` is empty for the side that the others are compared with."""

    value: str
    ratio: str = ""
    significant: bool = True
    best: bool = False


@dataclass(frozen=True)
class Table:
    """One measure: sides x columns."""

    name: str
    what: str
    unit: str  # may be empty
    better: str
    over: str  # what the columns are
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    reference: str | None  # the side that the others are compared with

    @property
    def title(self) -> str:
        """What is in it, in what unit."""
        return heading(self.what, self.unit)

    @property
    def captions(self) -> list[str]:
        """What its signs mean: those that it has."""
        cells = [cell for _, row in self.rows for cell in row]
        found = []
        if any("±" in cell.value for cell in cells):
            found.append("median ± half of the range that the middle half of the samples is in")
        if any(cell.best for cell in cells):
            found.append(f"* the best median: {self.better} is better")
        if any(cell.ratio for cell in cells):
            found.append(f"x: compared with {self.reference} in the same round")
        if any(not cell.significant for cell in cells):
            found.append("not significant (n.s.): the rounds don't tell the two apart")
        return found


def heading(what: str, unit: str) -> str:
    """A measure's name, with its unit."""
    what = what[:1].upper() + what[1:]
    return what + (f" ({'times' if unit == 'x' else unit})" if unit else "")


def answered(results: Results) -> tuple[str, list[str]]:
    """The scenario's answer, and what it shows beside it: to be told as it stands, line by line."""
    sentence, *shown = results.answer().split("\n\n")
    return sentence, shown


def reference(results: Results) -> str | None:
    """Ours, or the first of ours."""
    return next((side for side in results.sides if side.startswith("shmlock")), None)


def scale(unit: str, values: Iterable[float]) -> tuple[float, str]:
    """By what to multiply values of this unit so that the smallest are easy to read, and what the unit is then."""
    real = [abs(value) for value in values if value and math.isfinite(value)]
    for family, steps in zip(_FAMILIES, (_TIMES, _SIZES), strict=True):
        if unit in family and real:
            own = dict(steps)["µs" if unit == "us" else unit]
            fits = (step for step in steps if min(real) * own / step[1] >= 0.1)
            name, size = next(fits, steps[-1])
            return own / size, name
    return 1.0, unit


def number(value: float, decimals: int | None = None) -> str:
    """Three figures that count, thousands set apart; `inf` is never."""
    if math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "never"
    return f"{value:,.{places(value) if decimals is None else decimals}f}"


def places(value: float) -> int:
    """Decimals for three figures that count."""
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 6) if value else 0


def tables(results: Results) -> list[Table]:
    """One for each measure that there are samples of."""
    return [
        _table(results, name, measure)
        for name, measure in results.scenario.measures.items()
        if any(found == name for found, _, _ in results.samples)
    ]


def present(results: Results, name: str) -> tuple[list[str], list[str]]:
    """The sides, and the columns, that have samples of a measure."""
    keys = [(column, side) for measure, column, side in results.samples if measure == name]
    sides, columns = {side for _, side in keys}, {column for column, _ in keys}
    return [side for side in results.sides if side in sides], [each for each in results.columns if each in columns]


def _table(results: Results, name: str, measure: Measure) -> Table:
    sides, columns = present(results, name)
    to = reference(results)
    to = to if to in sides and len(sides) > 1 and measure.better else None
    medians = {(side, column): results.median(name, column, side) for side in sides for column in columns}
    factor, unit = scale(measure.unit, medians.values())
    best: dict[str, float] = {}
    for column in columns:
        real = [medians[side, column] for side in sides if math.isfinite(medians[side, column])]
        if measure.better and real and len(sides) > 1:
            best[column] = min(real) if measure.better == "less" else max(real)

    def cell(side: str, column: str) -> Cell:
        found = results.summary(name, column, side)
        if found is None:
            return Cell(NOTHING)
        told, significant = "", True
        if to is not None and side != to:
            ratio, significant = results.ratio(name, column, side, to)
            told = f"{number(ratio)}x" if math.isfinite(ratio) else ""  # never has said all
            significant = significant or not told
        return Cell(_value(found, factor), told, significant, best=medians[side, column] == best.get(column))

    rows = [(side, [cell(side, column) for column in columns]) for side in sides]
    return Table(
        name, measure.what, unit, measure.better, measure.columns or results.scenario.columns, columns, rows, to
    )


def _value(found: Summary, factor: float) -> str:
    median, low, high = (each * factor for each in (found.median, found.low, found.high))
    if math.isinf(median):
        return "never" if math.isinf(low) else f"never, once {number(low)}"
    if math.isinf(high):
        return f"{number(median)}, once never"
    if found.count < 2:
        return number(median)
    decimals = places(median)
    return f"{number(median)} ± {number((high - low) / 2, decimals)}"


def turned(results: Results) -> str:
    """The knobs that were not as the question has them; empty if all were."""
    usual = results.scenario.turned(quick=False)
    found = [
        f"{name} {written(value)} instead of {written(usual[name])}"
        for name, value in results.knobs.items()
        if value != usual.get(name, value)
    ]
    return f"Measured with {', '.join(found)}." if found else ""


def command(results: Results) -> str:
    """How to run it again: with the knobs that were not as usual."""
    usual = results.scenario.turned(quick=False)
    options = [
        f" --set {results.scenario.name}.{name}={written(value)}"
        for name, value in results.knobs.items()
        if value != usual.get(name)
    ]
    return f"python -m shmlock.bench {results.scenario.name}" + "".join(options)


def written(value: Any) -> str:
    """A knob's value, as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def stamped(stamp: Mapping[str, Any]) -> str:
    """Where and when, in a line."""
    packages = "".join(f", {name} {version}" for name, version in stamp["packages"].items())
    return (
        f"{stamp['when']}, {stamp['cpu']} x {stamp['cpus']}, Linux {stamp['kernel']}, {stamp['libc']}, "
        f"Python {stamp['python']}, shmlock {stamp['shmlock']}{packages}"
    )


def _lines(cell: Cell) -> tuple[str, str]:
    """A cell in a terminal: value, ratio."""
    value = f"{'* ' if cell.best else ''}{cell.value}"
    return value, cell.ratio + ("" if cell.significant else " n.s.")


def _parts(table: Table, width: int) -> Iterator[list[int]]:
    """Its columns, as many at a time as fit."""
    left = max(len(side) for side, _ in table.rows)
    part: list[int] = []
    room = width - left
    for index, column in enumerate(table.columns):
        need = 3 + max(len(column), *(len(line) for _, row in table.rows for line in _lines(row[index])))
        if part and need > room:
            yield part
            part, room = [], width - left
        part.append(index)
        room -= need
    yield part


def text(results: Results, width: int = 100) -> str:
    """All of a scenario as plain text."""
    scenario = results.scenario
    title = f"{scenario.name}: {scenario.title}"
    lines = [title, "=" * len(title), *textwrap.wrap(scenario.question, width)]
    lines += [*textwrap.wrap(turned(results), width), ""]
    sentence, shown = answered(results)
    lines += [*textwrap.wrap(f"Answer: {sentence}", width), ""]
    for each in shown:
        lines += [*each.split("\n"), ""]
    for table in tables(results):
        lines += [table.title + (f", by {table.over}" if table.over else "")]
        for part in _parts(table, width - 2):
            lines += _grid([["", *(table.columns[index] for index in part)], *_rows(table, part)])
        for caption in table.captions:
            lines += textwrap.wrap(caption, width, initial_indent="  ", subsequent_indent="    ")
        lines.append("")
    return "\n".join([*lines, *_remarks(results, width)]) + "\n"


def _rows(table: Table, part: Sequence[int]) -> Iterator[list[str]]:
    for side, row in table.rows:
        told = [_lines(row[index]) for index in part]
        yield [side, *(value for value, _ in told)]
        if any(ratio for _, ratio in told):
            yield ["", *(ratio for _, ratio in told)]


def _grid(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    found = []
    for first, *others in rows:
        cells = (other.rjust(width) for other, width in zip(others, widths[1:], strict=True))
        found.append("   ".join(["  " + first.ljust(widths[0]), *cells]).rstrip())
    return [line for line in found if line]


def _remarks(results: Results, width: int) -> list[str]:
    lines = [*textwrap.wrap(results.scenario.notes, width)]
    lines += [f"WRONG: {fault}" for fault in results.faults]
    lines += [f"skipped {side}: {why}" for side, why in results.skipped.items()]
    return lines


def show(results: Results, file: TextIO) -> None:
    """In a terminal with colours, if it is one and rich is installed; else as text."""
    width = shutil.get_terminal_size((100, 24)).columns if file.isatty() else 100
    try:
        from rich.console import Console  # noqa: PLC0415  an extra
    except ImportError:
        console = None
    else:
        console = Console(file=file, highlight=False)
    if console is None or not console.is_terminal:
        file.write(text(results, width))
        file.flush()
        return
    _paint(results, console)


def _paint(results: Results, console: Any) -> None:
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    scenario = results.scenario
    console.rule(f"[bold]{escape(scenario.name)}: {escape(scenario.title)}")
    console.print(Text(f"{scenario.question}\n{turned(results)}".strip(), style="dim"))
    console.print(Text(results.answer(), style="bold"), "", sep="\n")
    for table in tables(results):
        over = f", by {table.over}" if table.over else ""
        for part in _parts(table, console.width - 6):
            grid = Grid(
                title=Text(table.title + over, style="bold"),
                title_justify="left",
                caption=Text("\n".join(table.captions)),
                caption_justify="left",
            )
            grid.add_column("")
            for index in part:
                grid.add_column(Text(table.columns[index]), justify="right", no_wrap=True)
            for side, row in table.rows:
                ours = "bold" if side == table.reference else ""
                grid.add_row(Text(side, style=ours), *(_painted(row[index]) for index in part))
            console.print(grid, "")
    if scenario.notes:
        console.print(Text(scenario.notes, style="dim"))
    for fault in results.faults:
        console.print(Text(f"WRONG: {fault}", style="bold red"))
    for side, why in results.skipped.items():
        console.print(Text(f"skipped {side}: {why}", style="yellow"))


def _painted(cell: Cell) -> Any:
    from rich.text import Text  # noqa: PLC0415

    value, ratio = _lines(cell)
    style = "bold green" if cell.best else "red" if value == "never" else ""
    told = ("\n" + ratio, "dim" if cell.significant else "dim italic")
    return Text.assemble((value, style), told) if ratio else Text(value, style=style)
