"""Figures of the results, for files and for the page."""

import functools as ft
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ._case import DESCRIPTIONS
from ._grids import by_device, present
from ._results import Entry, indistinct, ratio, ratios, Results, spread


# Told apart by the colour-blind as well, on white and on black (Okabe and Ito, 2008).
_COLOURS = {
    "ours": "#D55E00",
    "jit": "#0072B2",
    "flat": "#56B4E9",
    "aot": "#009E73",
    "eqx": "#CC79A7",
    "eager": "#999999",
    "nnx_jit": "#E69F00",
    "nnx_cached_partial": "#B8A000",
}
_MARKERS = dict(zip(_COLOURS, "osv^DPX*", strict=True))
_MODES = {"dispatch": "until the call returns", "blocked": "until the result is ready"}


def _panels(
    entries: list[Entry], key: str, heading: str, label: str, figure: Figure
) -> None:
    """Time against a size, log-log, a panel for each mode."""
    figure.suptitle(heading)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    sizes = sorted({e["size"][key] for e in entries})
    for axes, (mode, title) in zip(panels, _MODES.items(), strict=True):
        for contender in present(entries):
            points = sorted(
                (e["size"][key], *spread(e["times"][mode][contender]))
                for e in entries
                if contender in e["times"][mode]
            )
            x, low, median, high = zip(*points, strict=True)
            style = {
                "color": _COLOURS[contender],
                "marker": _MARKERS[contender],
                "linewidth": 2.4 if contender == "ours" else 1.4,
                "zorder": 3 if contender == "ours" else 2,
            }
            axes.plot(x, median, label=contender, **style)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15)
        axes.set(xscale="log", yscale="log", title=title, xlabel=label, xticks=sizes)
        axes.tick_params(axis="x", which="minor", length=0)
        axes.grid(alpha=0.3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("microseconds a call")
    handles, names = panels[0].get_legend_handles_labels()
    labels = [f"{name}: {DESCRIPTIONS[name].split(',')[0]}" for name in names]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )


def _width(entries: list[Entry]) -> Callable[[Figure], None] | None:
    """The overhead against width: MLPs of three linear layers."""
    entries = [e for e in entries if e["group"] == "mlp" and e["size"]["layers"] == 3]
    heading = "The cost of a call against the work in it"
    label = "width of an MLP of 3 linear layers"
    several = len(entries) > 1
    return ft.partial(_panels, entries, "width", heading, label) if several else None


def _nodes(entries: list[Entry]) -> Callable[[Figure], None] | None:
    """The cost against the number of nodes: the narrowest MLPs, of any depth."""
    entries = [e for e in entries if e["group"] == "mlp"]
    width = min((e["size"]["width"] for e in entries), default=None)
    entries = [e for e in entries if e["size"]["width"] == width]
    heading = "The cost of a call against the size of the pytree"
    label = f"pytree nodes of an MLP of width {width}"
    several = len(entries) > 1
    return ft.partial(_panels, entries, "nodes", heading, label) if several else None


def _ratios(entries: list[Entry]) -> Callable[[Figure], None] | None:
    """Ours over each rival, a bar for each case."""
    entries = [e for e in entries if ratios(e, "dispatch")]
    if not entries:
        return None
    rivals = [c for c in ("jit", "flat", "eqx") if c in present(entries)]

    def draw(figure: Figure) -> None:
        figure.set_figheight(2.2 + 0.34 * len(entries))
        figure.suptitle("Ours over its rivals, until the call returns")
        panels = figure.subplots(1, len(rivals), sharey=True, squeeze=False).ravel()
        names = [e["name"] for e in entries]
        for axes, rival in zip(panels, rivals, strict=True):
            _bars(axes, entries, rival)
            axes.set(title=f"ours / {rival}", xlabel="below 1: ours is cheaper")
        panels[0].set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()

    return draw


def _bars(axes: Any, entries: list[Entry], rival: str) -> None:
    for row, entry in enumerate(entries):
        value = ratio(entry, "dispatch", rival)
        if value is None:
            continue
        low, median, high = value
        bar = axes.barh(
            row,
            median,
            color=_COLOURS["ours"] if median < 1 else _COLOURS["eager"],
            alpha=0.45 if indistinct(value) else 1,
            xerr=[[median - low], [high - median]],
            error_kw={"ecolor": matplotlib.rcParams["text.color"], "capsize": 2},
        )
        axes.bar_label(bar, fmt="%.2f", padding=4, fontsize=8)
    axes.axvline(1, linewidth=1, color=_COLOURS["eager"], linestyle="--")
    axes.margins(x=0.25)
    axes.set_xlim(left=0)


_PREPARE = {"width": _width, "ratios": _ratios, "nodes": _nodes}
# What each needs.
FIGURES = {
    "width": "MLPs of 3 linear layers and several widths, such as the cases 'table'",
    "ratios": "a case with ours and a rival",
    "nodes": "MLPs of several depths, such as the cases 'mlp'",
}
_DARK = {
    "text.color": "#e6e6e6",
    "axes.labelcolor": "#e6e6e6",
    "axes.edgecolor": "#888888",
    "xtick.color": "#c8c8c8",
    "ytick.color": "#c8c8c8",
    "grid.color": "#888888",
}


def _digest(figure: Figure) -> str:
    """Of what is drawn, however a version of matplotlib puts that into a file."""
    shown: list[Any] = []
    for axes in figure.axes:
        labels = (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        shown += [(x.get_text(), x.get_color()) for x in labels]
        shown += [(x.get_label(), x.get_color()) for x in axes.lines]
        shown += [_digits(x.get_xydata()) for x in axes.lines]
        bars: Any = axes.patches
        shown += [(x.get_facecolor(), _digits(x.get_bbox().bounds)) for x in bars]
        # Areas and the lines of errors; where they begin is matplotlib's affair.
        paths = [path for x in axes.collections for path in x.get_paths()]
        shown += [sorted(map(_digits, np.asarray(x.vertices))) for x in paths]
    text = json.dumps([figure.get_suptitle(), shown])
    return hashlib.sha256(text.encode()).hexdigest()


def _digits(numbers: Any) -> list[str]:
    return [f"{x:.6g}" for x in np.ravel(numbers)]


def render(results: Results, suffix: str, dark: bool = False) -> dict[str, bytes]:
    """Draw what the results have data for, as `"png"` or `"svg"`.

    For a `dark` page, text is light, and there is no background.

    **Returns:** the files' contents: `width` (overhead against width, log-log),
    `ratios` (bars), `nodes` (cost against the number of nodes). For results of more
    than one device, each of these for each: `width_cpu`, `width_gpu`. The
    metadata of an SVG have a digest of what it shows as its identifier.
    """
    out = {}
    settings: Any = {
        "svg.hashsalt": "eqx_fastjit",  # the same file for the same results
        "font.size": 10,
    } | (_DARK if dark else {})
    timed = by_device([e for e in results["cases"] if "dispatch" in e["times"]])
    for device, entries in timed.items():
        for name, prepare in _PREPARE.items():
            if (draw := prepare(entries)) is None:
                continue
            with matplotlib.rc_context(settings):
                figure = Figure(figsize=(9, 4.8), layout="constrained")
                draw(figure)
                if len(timed) > 1:
                    figure.suptitle(f"{figure.get_suptitle()} ({device})")
                svg_metadata = {"Date": None, "Identifier": _digest(figure)}
                file = io.BytesIO()
                figure.savefig(
                    file,
                    format=suffix,
                    dpi=150,
                    transparent=dark,
                    metadata=svg_metadata if suffix == "svg" else None,
                )
            out[name if len(timed) == 1 else f"{name}_{device}"] = file.getvalue()
    return out
