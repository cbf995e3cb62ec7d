"""Results as figures: the cost of a call against width, and ratios of each case."""

import functools as ft
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .case import CONTENDERS
from .results_file import Entry, Results
from .table import NAMES, RIVALS
from .timing import interval, ratios


# They are told apart by the colour-blind as well (Okabe and Ito, 2008).
_COLOURS = {
    "ours": "#D55E00",
    "jit": "#0072B2",
    "flat": "#56B4E9",
    "eqx": "#CC79A7",
    "eager": "#999999",
}
_MARKERS = dict(zip(_COLOURS, "osvPX", strict=True))
_PANELS = {
    "dispatch": "until the call returns",
    "blocked": "until the result is ready",
}


def _width(entries: list[Entry], figure: Any) -> None:
    """Time against the width of an MLP, log-log, with a panel for each mode."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure.suptitle("The time of a call by the width of the model")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    widths = [e["width"] for e in entries]
    for axes, (mode, title) in zip(panels, _PANELS.items(), strict=True):
        for name in [x for x in _COLOURS if x in entries[0]["times"][mode]]:
            spreads = [interval(e["times"][mode][name]) for e in entries]
            low, median, high = zip(*spreads, strict=True)
            style = {"color": _COLOURS[name], "zorder": 3 if name == "ours" else 2}
            axes.plot(widths, median, label=name, marker=_MARKERS[name], **style)
            axes.fill_between(widths, low, high, alpha=0.15, **style)
        axes.set(xscale="log", yscale="log", title=title, xticks=widths)
        axes.set_xlabel("width of an MLP of 3 linear layers")
        axes.tick_params(axis="x", which="minor", length=0)
        axes.grid(alpha=0.3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("microseconds a call")
    handles, names = panels[0].get_legend_handles_labels()
    labels = [
        CONTENDERS[name].partition(", which")[0].replace("`", "") for name in names
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)


def _ratios(entries: list[Entry], figure: Any) -> None:
    """Ours over each rival, with a point and an interval for each case."""
    rivals = [x for x in RIVALS if any(_dispatch(e, x) for e in entries)]
    figure.set_figheight(1.9 + 0.28 * len(entries))
    figure.suptitle("Time until a call returns: eqx_fastjit over each alternative")
    panels = figure.subplots(1, len(rivals), sharey=True, squeeze=False)[0]
    for axes, rival in zip(panels, rivals, strict=True):
        for row, entry in enumerate(entries):
            if values := _dispatch(entry, rival):
                low, median, high = interval(values)
                colour = _COLOURS["ours" if high < 1 else "eager"]
                axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
                axes.plot(median, row, "o", color=colour, markersize=5)
                axes.annotate(
                    f"{median:.2f}",
                    (high, row),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
        axes.axvline(1, linewidth=1, color=_COLOURS["eager"], linestyle="--")
        axes.set(title=f"over {NAMES[rival]}", xlabel="below 1: eqx_fastjit is faster")
        axes.grid(axis="y", alpha=0.2)
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
    panels[0].set_yticks(range(len(entries)), [e["name"] for e in entries])
    panels[0].invert_yaxis()


def _dispatch(entry: Entry, rival: str) -> list[float]:
    return ratios(entry["times"]["dispatch"], rival)


def _figures(results: Results) -> dict[str, Callable[[Any], None]]:
    """The figures for which the results have data, as functions that draw them."""
    calls = [e for e in results["cases"] if "dispatch" in e["times"]]
    widths = [e for e in calls if e["group"] == "table" and e["width"]]
    compared = [e for e in calls if any(_dispatch(e, rival) for rival in RIVALS)]
    out = {}
    if len(widths) > 1:
        out["width"] = ft.partial(_width, widths)
    if compared:
        out["ratios"] = ft.partial(_ratios, compared)
    return out


def render(results: Results, suffix: str) -> dict[str, bytes]:
    """Draw what the results have data for.

    **Arguments:**

    - `results`: what a results file has.
    - `suffix`: `"png"` or `"svg"`.

    **Returns:** the content of each file: `width` (log-log, against the width of an
    MLP), and `ratios`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    out = {}
    metadata: Any = {"Date": None} if suffix == "svg" else None
    for name, draw in _figures(results).items():
        # With the salt and no date, the same results give the same file.
        with matplotlib.rc_context({"svg.hashsalt": "eqx_fastjit"}):
            figure = Figure(figsize=(9, 4.8), layout="constrained")
            draw(figure)
            file = io.BytesIO()
            figure.savefig(file, format=suffix, dpi=150, metadata=metadata)
        out[name] = file.getvalue()
    return out


def save_figures(results: Results, folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Write the figures in each format; returns the paths."""
    paths = []
    for suffix in suffixes:
        for name, content in render(results, suffix).items():
            paths.append(folder / f"{name}.{suffix}")
            paths[-1].write_bytes(content)
    return paths
