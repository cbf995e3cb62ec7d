"""Tables in Markdown, and the figures in them."""

import statistics

from .timing import interval, ratios


# Times of each contender, in each round.
Times = dict[str, list[float]]

# The heads of columns, in their order.
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
    "whole interval is below 1. A dash: the interval, or for a ratio that of one of "
    "its times, is wider than the median."
)

_NOISE = "–"  # noqa: RUF001
# It keeps a figure and its interval on one line.
_NO_BREAK_SPACE = "\u00a0"


def markdown_table(head: list[str], rows: list[list[str]], title: str = "") -> str:
    """A table whose first column has names, and the others figures."""
    columns = []
    for i, column in enumerate(zip(head, *rows, strict=True)):
        align, rule = ("<", "---") if i == 0 else (">", "---:")
        width = max(map(len, (rule, *column)))
        name, *cells = [f"{text:{align}{width}}" for text in column]
        columns.append([name, rule.rjust(width, "-"), *cells])

    lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    if title:
        lines = [f"**{title}**", "", *lines]
    return "\n".join(lines)


def number(x: float) -> str:
    """Three digits, or all before the point; from 0.01 on, and without an exponent."""
    if x >= 99.95:
        return f"{x:.0f}"
    if x >= 9.995:
        return f"{x:.1f}"
    return f"{x:.2f}"


def _is_noise(values: list[float]) -> bool:
    low, median, high = interval(values)
    return high - low > median


def median_cell(values: list[float], with_interval: bool = True) -> str:
    """A median with half of its interval in percent; empty if there are no values."""
    if not values:
        return ""
    if _is_noise(values):
        return _NOISE

    text = number(statistics.median(values))
    if with_interval:
        low, median, high = interval(values)
        text += f"{_NO_BREAK_SPACE}±{50 * (high - low) / median:.0f}%"
    return text


def ratio_cell(times: Times, rival: str, with_interval: bool = True) -> str:
    """Our time over a rival's; empty if one of them was not timed.

    It is bold if the whole interval, as it is printed, is below 1.
    """
    of_rounds = ratios(times, rival)
    if not of_rounds:
        return ""
    if any(map(_is_noise, (times["ours"], times[rival], of_rounds))):
        return _NOISE

    low, median, high = interval(of_rounds)
    text = f"{median:.2f}"
    if with_interval:
        text += f"{_NO_BREAK_SPACE}({low:.2f}–{high:.2f})"  # noqa: RUF001
    if round(high, 2) < 1:
        text = f"**{text}**"
    return text


def times_table(cases: dict[str, Times], mode: str) -> str:
    """The times of each contender, for cases by name."""
    timed = {contender for times in cases.values() for contender in times}
    contenders = [contender for contender in NAMES if contender in timed]
    rows = [
        [name, *(median_cell(times.get(contender, [])) for contender in contenders)]
        for name, times in cases.items()
    ]
    head = ["case", *(NAMES[contender] for contender in contenders)]
    return markdown_table(head, rows, TITLES[mode])


def ratios_table(cases: dict[str, Times], mode: str) -> str:
    """Our time over each rival's, for cases by name; empty if nothing is compared."""
    rivals = [
        rival
        for rival in RIVALS
        if any(ratios(times, rival) for times in cases.values())
    ]
    if not rivals:
        return ""

    rows = [
        [name, *(ratio_cell(times, rival) for rival in rivals)]
        for name, times in cases.items()
    ]
    head = ["case", *(f"over {NAMES[rival]}" for rival in rivals)]
    what, _, _ = TITLES[mode].partition(",")
    title = f"eqx_fastjit over each: {what[0].lower()}{what[1:]}"
    return markdown_table(head, rows, title)
