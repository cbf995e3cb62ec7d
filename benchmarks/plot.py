"""The figure: a call's time under each library over Equinox's, and each case's."""

import operator
import statistics
from pathlib import Path
from typing import Any

from .results_file import Results
from .table import NAMES


# Of each figure. They are told apart by the colour-blind as well (Okabe and Ito, 2008).
_COLOURS = {
    "calls": {"ours": "#D55E00", "others": "#8C959F", "text": "#24292F"},
    "calls-dark": {"ours": "#E69F00", "others": "#6E7681", "text": "#E6EDF3"},
}
_SHOWN = ("eqx", "jit", "ours")


def _shares(results: Results) -> dict[str, list[float]]:
    """Times until the result is ready over Equinox's, of each whole function."""
    cases = [e["times"]["blocked"] for e in results["cases"] if e["group"] == "zoo"]

    def share(times: dict[str, list[float]], contender: str) -> float:
        of_rounds = map(operator.truediv, times[contender], times["eqx"])
        return statistics.median(of_rounds)

    return {name: [share(times, name) for times in cases] for name in _SHOWN}


def _draw(rows: dict[str, dict[str, list[float]]], figure: Any, colours: Any) -> None:
    """For each device a bar a library, with the median in figures, and its points."""
    axes = figure.subplots()
    y = 0.0
    beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
    for device, shares in rows.items():
        for name, points in shares.items():
            median = statistics.median(points)
            axes.barh(y, median, 0.72, color=colours.get(name, colours["others"]))
            if name != "eqx":
                axes.plot(points, [y] * len(points), "|", color=colours["text"], ms=7)

            weight = "bold" if name == "ours" else None
            label = f"{NAMES[name]}, {device.upper()}"
            axes.text(-0.02, y, label, ha="right", weight=weight, **beside)
            axes.text(1.02, y, f"{median:.2f}", weight=weight, **beside)
            y -= 1
        y -= 0.5

    axes.set(xlim=(0, 1), ylim=(y + 1, 0.6), yticks=[], xticks=[0, 0.5, 1])
    axes.set_xlabel("time of a call; equinox is 1, and less is faster")
    axes.spines[["left", "right", "top"]].set_visible(False)


def save_figures(by_device: dict[str, Results], folder: Path) -> None:
    """Write the figure, for light and for dark pages.

    `by_device` has what a results file has, for each platform.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = {device: _shares(results) for device, results in by_device.items()}
    # The width is that of a telephone, where a larger figure would be scaled down.
    size = 4.6, 0.6 + 1.05 * len(rows)
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
