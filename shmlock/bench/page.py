"""One page of HTML with all in it: nothing else is fetched, nothing runs, a phone and paper will do."""

from __future__ import annotations

import base64
import re
from html import escape
from typing import TYPE_CHECKING, Any, Final

from shmlock.bench.report import answered, command, stamped, tables, turned, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shmlock.bench.report import Cell, Table
    from shmlock.bench.samples import Results

_CSS: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #57606a; --line: #d0d7de; --tint: #f3f6f9;
        --link: #0057a3; --good: #00674b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171b; --soft: #a3adb7; --line: #3a424b; --tint: #1e2329;
          --link: #7cbcf5; --good: #5cd0a8; --bad: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.3rem; line-height: 1.25; margin-top: 3rem; padding-top: 1rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
a { color: var(--link); }
p, li, dd { max-width: 44rem; }
.stamp, .soft, figcaption, .ratio { color: var(--soft); font-size: .875rem; }
.answer { font-size: 1.1rem; font-weight: 600; border-left: 4px solid var(--link); padding-left: .75rem; }
.wrong { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; }
img { display: block; width: 100%; max-width: 36rem; height: auto; background: #fff; border-radius: 6px; padding: 4px; }
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; vertical-align: top; }
tr + tr > * { border-top: 1px solid var(--line); }
thead th { background: var(--tint); border-bottom: 1px solid var(--line); }
tbody th { text-align: left; font-weight: 500; position: sticky; left: 0; background: var(--paper); }
thead th:first-child { text-align: left; position: sticky; left: 0; }
.ratio { display: block; font-size: .92em; }
.best { color: var(--good); font-weight: 700; }
.knobs th { font-family: ui-monospace, monospace; } .knobs td { text-align: left; }
.knobs td:last-child { white-space: normal; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .75rem;
      white-space: pre-wrap; overflow-wrap: anywhere; font: .875rem/1.5 ui-monospace, monospace; }
@media (max-width: 30rem) { th, td { padding: .3rem .45rem; } table { font-size: .82rem; }
  .results tbody th { white-space: normal; min-width: 7.5rem; } }
@media print {
  :root { --ink: #000; --paper: #fff; --soft: #333; --line: #999; --tint: #fff; --link: #000; --good: #000;
          --bad: #900; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  section + section > h2 { break-before: page; }
  h2 { border: 0; margin-top: 0; }
  tbody th, thead th:first-child { position: static; }
  h2, h3, .answer { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  img { max-width: 10cm; padding: 0; }
  .table { overflow: visible; border: 0; }
  .results table { font-size: 8.5pt; }
  th, td { padding: .15rem .4rem; white-space: normal; }
}
"""


def page(
    stamp: Mapping[str, Any],
    runs: Sequence[Results],
    pictures: Mapping[tuple[str, str], bytes],
    skipped: Mapping[str, str],
) -> str:
    """The whole page. `pictures`: PNGs by (scenario, measure). `skipped`: by scenario, why."""
    contents = "".join(
        f'<li><a href="#{escape(each.scenario.name)}">{escape(each.scenario.title)}</a></li>' for each in runs
    )
    left_out = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>" for name, why in skipped.items())
    wrong = sum(len(each.faults) for each in runs)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>shmlock, side by side</title><style>{_CSS}</style></head><body>",
            "<h1>shmlock, side by side with what could be picked instead</h1>",
            f'<p class="stamp">{escape(stamped(stamp))}</p>',
            f'<p class="wrong">{wrong} {"fault was" if wrong == 1 else "faults were"} found.</p>' if wrong else "",
            f"<nav><h3>What was asked</h3><ol>{contents}</ol></nav><main>",
            *(_section(each, pictures) for each in runs),
            f"<h2>Not run</h2><ul>{left_out}</ul>" if left_out else "",
            "</main></body></html>\n",
        )
    )


def _section(results: Results, pictures: Mapping[tuple[str, str], bytes]) -> str:
    scenario = results.scenario
    sentence, shown = answered(results)
    parts = [
        f'<section><h2 id="{escape(scenario.name)}">{escape(scenario.title)}</h2>',
        f"<p>{escape(scenario.question)}</p>",
        f'<p class="soft">{escape(turned(results))}</p>' if turned(results) else "",
        f'<p class="answer">{escape(sentence)}</p>',
        *(f"<pre>{escape(each)}</pre>" for each in shown),
        *(f'<p class="wrong">Wrong: {escape(fault)}</p>' for fault in results.faults),
    ]
    for table in tables(results):
        parts += [f"<h3>{escape(table.title)}</h3>", _figure(table, pictures.get((scenario.name, table.name)))]
        parts += [_table(table), f'<p class="soft">{escape("; ".join(table.captions))}</p>' if table.captions else ""]
    if scenario.notes:
        parts.append(f"<h3>Notes</h3><p>{escape(scenario.notes)}</p>")
    if results.skipped:
        left_out = "".join(f"<li><b>{escape(side)}</b>: {escape(why)}</li>" for side, why in results.skipped.items())
        parts.append(f"<h3>Not measured here</h3><ul>{left_out}</ul>")
    parts += ["<h3>How to redo it</h3>", _knobs(results), f"<pre>{escape(command(results))}</pre>"]
    parts.append(f'<p class="soft">It took {results.seconds:,.0f} s.</p></section>')
    return "\n".join(parts)


def _figure(table: Table, png: bytes | None) -> str:
    if png is None:
        return ""
    said = f"{table.what} of {', '.join(side for side, _ in table.rows)}; the numbers are in the table below"
    data = base64.b64encode(png).decode()
    return f'<figure><img alt="{escape(said)}" src="data:image/png;base64,{data}"></figure>'


def _table(table: Table) -> str:
    columns = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_breakable(side)}</th>{"".join(map(_cell, row))}</tr>' for side, row in table.rows
    )
    over = f"{escape(table.over)} →" if table.over else ""
    return (
        f'<div class="table results" tabindex="0"><table><thead><tr><th scope="col">{over}</th>{columns}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _breakable(name: str) -> str:
    """A long name may go on in the next line after a dot, and before a capital."""
    return re.sub(r"(?<=[._)])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", escape(name))


def _cell(cell: Cell) -> str:
    value = f'<span class="best">* {escape(cell.value)}</span>' if cell.best else escape(cell.value)
    if value == "never":
        value = '<span class="wrong">never</span>'
    said = "" if cell.significant else ", not significant"
    return f"<td>{value}" + (f'<span class="ratio">{escape(cell.ratio)}{said}</span>' if cell.ratio else "") + "</td>"


def _knobs(results: Results) -> str:
    known = {**results.scenario.knobs, "rounds": results.scenario.rounds}
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(written(value))}</td>'
        f"<td>{escape(known[name].about if name in known else '')}</td></tr>"
        for name, value in results.knobs.items()
    )
    return f'<div class="table knobs" tabindex="0"><table><tbody>{rows}</tbody></table></div>'
