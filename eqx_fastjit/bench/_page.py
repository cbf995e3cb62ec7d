"""The results as one page of HTML that needs no network."""

import base64
from html import escape

from eqx_fastjit.doctor._page_parts import html_document, STYLE

from ._case import DESCRIPTIONS
from ._grids import EXPLANATION, Grid, grids, noise, present
from ._plots import render
from ._results import describe_devices, describe_machine, describe_versions, Results


# On top of what all pages have.
_STYLE = """
body { max-width: 75rem; }
dl, .soft { color: var(--dim); font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { font-weight: 600; color: var(--text); }
dd { margin: 0; overflow-wrap: anywhere; }
table { font-variant-numeric: tabular-nums; }
th, td { text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--card); }
.win, .loss { font-weight: 600; }
.win { color: var(--good); } .loss { color: var(--high); }
.even { color: var(--dim); } .warn { color: var(--medium); }
figure { margin: 1.2rem 0; overflow-x: auto; background: var(--card); }
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
        *[_section(grid) for grid in grids(results)],
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
    title = "eqx_fastjit: the cost of a jitted call"
    return html_document(title, "\n".join(parts), STYLE + _STYLE)


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


def _section(grid: Grid) -> str:
    return (
        f'<h2>{escape(grid.title)}</h2>\n<div class="scroll" tabindex="0">'
        f"{grid.html()}</div>"
    )
