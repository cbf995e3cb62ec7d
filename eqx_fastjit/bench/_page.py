"""The results as one page of HTML that needs no network."""

import base64
from html import escape

from ._case import DESCRIPTIONS
from ._grids import Cell, EXPLANATION, Grid, grids, noise, present
from ._plots import render
from ._results import describe_devices, describe_machine, describe_versions, Results


_STYLE = """
:root { color-scheme: light dark; --fg: #1d1d1f; --bg: #fff; --soft: #6a6a70;
  --line: #dcdce0; --win: #0a7a3d; --loss: #b3261e; --stripe: #f6f6f8;
  --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --fg: #e8e8ea; --bg: #17181b;
  --soft: #a0a0a8; --line: #35363c; --win: #5ad08b; --loss: #ff8a80;
  --stripe: #1f2024; --warn: #e0b050; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1.5rem 1rem 4rem; color: var(--fg);
  background: var(--bg); font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.soft, dl, footer { color: var(--soft); font-size: .9rem; }
p.warn { color: var(--warn); font-size: .9rem; }
p.loss { color: var(--loss); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { font-weight: 600; color: var(--fg); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--bg); }
thead th { border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) td { background: var(--stripe); }
.win { color: var(--win); font-weight: 650; }
.loss { color: var(--loss); font-weight: 650; }
.even { color: var(--soft); }
figure { margin: 1.2rem 0; overflow-x: auto; }
figure img { width: 100%; min-width: 34rem; height: auto; }
"""
_ALT = {
    "width": "Microseconds a call against the width of an MLP, for each contender.",
    "ratios": "Time of ours relative to each rival, with a bar for each case.",
    "nodes": "Microseconds a call against the number of pytree nodes.",
}


def page(results: Results) -> str:
    """A page with all tables and figures of the results."""
    facts = {
        "Machine": describe_machine(results["machine"]),
        "Device": ", ".join(describe_devices(results)),
        "Versions": describe_versions(results),
        "Commit": results.get("commit", "unknown"),
        "Engine": results["engine"],
        "Command": results["command"],
        "Date": results["date"],
    }
    names = present(results["cases"])
    parts = [
        "<h1>The cost of a jitted call</h1>",
        '<p class="soft">eqx_fastjit compared with jax.jit and equinox.filter_jit, '
        "each in its own processes, in interleaved rounds, on one machine.</p>",
        *_figures(results),
        *[_table(grid) for grid in grids(results)],
        f'<p class="soft">{escape(EXPLANATION)}</p>',
        *[f'<p class="warn">{escape(line)}</p>' for line in noise(results)],
        *[
            f'<p class="loss">Not timed: {escape(line)}</p>'
            for line in results["problems"]
        ],
        "<h2>Contenders</h2>" + _list({name: DESCRIPTIONS[name] for name in names}),
        "<h2>Cases</h2>" + _list({e["name"]: e["title"] for e in results["cases"]}),
        "<h2>Made on</h2>" + _list(facts),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>eqx_fastjit: the cost of a jitted call</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _list(facts: dict[str, str]) -> str:
    rows = [f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()]
    return f"<dl>{''.join(rows)}</dl>"


def _alt(name: str) -> str:
    what, _, device = name.partition("_")
    return f"{_ALT[what]} On {device}." if device else _ALT[what]


def _figures(results: Results) -> list[str]:
    light, dark = render(results, "svg"), render(results, "svg", dark=True)

    def url(svg: bytes) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()

    return [
        '<figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{url(dark[name])}"><img alt="{escape(_alt(name))}" '
        f'src="{url(svg)}"></picture></figure>'
        for name, svg in light.items()
    ]


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{_heading(c)}</th>' for c in grid.columns)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    return (
        f'<h2>{escape(grid.title)}</h2>\n<div class="scroll" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _heading(name: str) -> str:
    """A contender's name, which may break where it has an underscore."""
    return escape(name).replace("_", "_<wbr>").replace("/", "/<wbr>")


def _cell(cell: Cell) -> str:
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<td{kind}>{escape(cell.text)}</td>"
