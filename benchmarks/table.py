"""Results as tables."""

from collections.abc import Iterable
from typing import NamedTuple

from .results_file import Results
from .timing import Interval, interval, ratios


NAMES = {
    "jit": "jax.jit",
    "flat": "flat",
    "eqx": "equinox",
    "trick": "trick",
    "ours": "eqx_fastjit",
    "install": "install()",
    "eager": "no jit",
}
RIVALS = ("eqx", "trick", "jit", "flat", "eager")
TITLES = {
    "blocked": "Until the result is ready, microseconds",
    "dispatch": "Until the call returns, microseconds",
    "iteration": "An iteration of a loop, microseconds",
    "total": "First calls, milliseconds",
}
EXPLANATION = (
    "All contenders take turns in each round. Times are medians over rounds, ± half of "
    "their 95% confidence interval. Ratios are medians over rounds, too, with their "
    "interval in parentheses. Below 1, eqx_fastjit is faster. A ratio is bold if its "
    "whole interval is below 1. A dash: the interval is wider than the median."
)


class Cell(NamedTuple):
    """A cell, and whether it is a ratio that is below 1."""

    text: str
    is_faster: bool = False


_NOISE = Cell("–")  # noqa: RUF001


class Table(NamedTuple):
    """A table, whose first column has names, and the others figures."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


def number(x: float) -> str:
    """Three digits, without an exponent."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def median_cell(values: list[float]) -> Cell:
    """A median with half of its interval in percent."""
    if not values:
        return Cell("")
    low, median, high = interval(values)
    if high - low > median:
        return _NOISE
    return Cell(f"{number(median)} ±{50 * (high - low) / median:.0f}%")


def ratio_cell(x: Interval, with_interval: bool = True) -> Cell:
    """A ratio, with its interval or without.

    Whether the whole interval is below 1 is decided by its ends as they are printed.
    """
    if x.high - x.low > x.median:
        return _NOISE
    low, high = f"{x.low:.2f}", f"{x.high:.2f}"
    spread = f" ({low}–{high})" if with_interval else ""  # noqa: RUF001
    return Cell(f"{x.median:.2f}{spread}", float(high) < 1)


# The name of a row, and the times of each contender.
Row = tuple[str, dict[str, list[float]]]


def _tables(title: str, rows: list[Row]) -> list[Table]:
    """The times, and the ratios."""
    found = {name for _, times in rows for name in times}
    names = [name for name in NAMES if name in found]
    rivals = [x for x in RIVALS if any(ratios(times, x) for _, times in rows)]
    of_times = [
        [Cell(case), *(median_cell(times.get(name, [])) for name in names)]
        for case, times in rows
    ]
    of_ratios = [
        [Cell(case), *(ratio(times, rival) for rival in rivals)] for case, times in rows
    ]
    columns = ["case", *(NAMES[name] for name in names)]
    over = ["case", *(f"over {NAMES[name]}" for name in rivals)]
    out = [Table(title, columns, of_times)]
    what = f"eqx_fastjit over each: {title[0].lower()}{title[1:].partition(',')[0]}"
    return [*out, Table(what, over, of_ratios)] if rivals else out


def ratio(times: dict[str, list[float]], rival: str, with_interval: bool = True):
    """The cell of eqx_fastjit over a rival; empty if one of them was not timed."""
    found = ratios(times, rival)
    if found and _NOISE in (median_cell(times[name]) for name in ("ours", rival)):
        return _NOISE
    return ratio_cell(interval(found), with_interval) if found else Cell("")


def rows_of(results: Results, mode: str) -> list[Row]:
    """The times of all cases that were timed in this way."""
    cases = results["cases"]
    return [(e["name"], e["times"][mode]) for e in cases if mode in e["times"]]


def tables(results: Results, modes: Iterable[str] = TITLES) -> list[Table]:
    """The tables of what a results file has, two for each mode."""
    out = []
    for mode in modes:
        rows = rows_of(results, mode)
        if mode == "dispatch":  # Equinox's calls return when the result is ready
            rows = [
                (case, {name: x for name, x in times.items() if name != "eqx"})
                for case, times in rows
            ]
        out += _tables(TITLES[mode], rows) if rows else []
    return out
