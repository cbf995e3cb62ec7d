"""The figure: eqx_fastjit over each alternative, with a point for each case."""

import statistics
from pathlib import Path
from typing import Any

from .case import CONTENDERS
from .results_file import Results
from .timing import ratios


# Of each figure. They are told apart by the colour-blind as well (Okabe and Ito, 2008).
_COLOURS = {
    "ratios": {"cpu": "#0072B2", "gpu": "#D55E00", "text": "#24292F"},
    "ratios-dark": {"cpu": "#56B4E9", "gpu": "#E69F00", "text": "#E6EDF3"},
}
_OVER = ("eqx", "jit")
_TICKS = (0.1, 0.2, 0.5, 1, 2)


def _points(results: Results, rival: str) -> list[float]:
    """The median ratios of the cases; of whole functions alone, if there are any."""
    cases = [e for e in results["cases"] if "blocked" in e["times"]]
    cases = [e for e in cases if e["group"] == "zoo"] or cases
    found = [ratios(e["times"]["blocked"], rival) for e in cases]
    return sorted(map(statistics.median, filter(None, found)))


def _draw(rows: dict[str, dict[str, list[float]]], figure: Any, colours: Any) -> None:
    """A strip of points for each alternative and device, with the median in figures."""
    axes, y = figure.subplots(), 0.0
    beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
    for rival, by_device in rows.items():
        name = CONTENDERS[rival].partition(",")[0].replace("`", "")
        axes.text(0, y, f"over {name}", **beside)
        for device, points in by_device.items():
            y -= 1
            # Neighbours are at three heights, for points that would cover each other.
            heights = [y + 0.16 * (i % 3 - 1) for i in range(len(points))]
            axes.plot(points, heights, "o", color=colours[device], ms=5, alpha=0.6)
            middle = statistics.median(points)
            axes.plot([middle] * 2, [y - 0.4, y + 0.4], color=colours["text"], lw=2)
            axes.text(1.01, y, f"{middle:.2f}", weight="bold", **beside)
            axes.text(-0.01, y, device.upper(), ha="right", **beside)
        y -= 1.2
    axes.axvline(1, lw=1, color=colours["text"], linestyle="--")
    axes.set(xscale="log", ylim=(y + 0.5, 0.6), yticks=[])
    axes.set_xlabel("time until the result is ready; below 1, eqx_fastjit is faster")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.1), max(high, 1.5))
    axes.set_xticks(_TICKS, [f"{x:g}" for x in _TICKS])
    axes.minorticks_off()
    axes.spines[["left", "right", "top"]].set_visible(False)


def save_figures(by_device: dict[str, Results], folder: Path) -> None:
    """Write the figure, for light and for dark pages, unless nothing is compared.

    `by_device` has what a results file has, for each platform.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = {}
    for rival in _OVER:
        found = {device: _points(x, rival) for device, x in by_device.items()}
        rows[rival] = {device: points for device, points in found.items() if points}
    if not any(rows.values()):
        return
    # The width is that of a telephone, where a larger figure would be scaled down.
    size = 4.6, 1.1 + 0.35 * sum(map(len, rows.values())) + 0.2 * len(rows)
    for name, colours in _COLOURS.items():
        keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color")
        style = {**dict.fromkeys(keys, colours["text"]), "svg.hashsalt": "eqx_fastjit"}
        with matplotlib.rc_context(style):
            figure = Figure(figsize=size, layout="constrained")
            _draw(rows, figure, colours)
            # Without a date, the same results give the same file.
            metadata: Any = {"Date": None}
            path = folder / f"{name}.svg"
            figure.savefig(path, dpi=150, transparent=True, metadata=metadata)
