"""Tables, sizes and durations as plain text."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


_NUMBER = re.compile(r"[~<]?[-+]?\d[\d.,e+-]*( ?(min|s|ms|us|[KMG]?i?B|%|x))?( \d+ s)?")
# Rows that are shown of a long table.
_MOST_ROWS = 12


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table under its title, with numbers to the right; nothing if it is empty."""
    cells = [[str(x) for x in row] for row in rows]
    rest = len(cells) - _MOST_ROWS
    del cells[_MOST_ROWS:]
    if not cells:
        return ""
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_number = [all(map(_is_number, column[1:])) for column in columns]

    def line(row: Sequence[str]) -> str:
        padded = [
            x.rjust(width) if right else x.ljust(width)
            for x, width, right in zip(row, widths, is_number, strict=True)
        ]
        return f"  {'  '.join(padded)}".rstrip()

    more = [f"  and {rest} more"] if rest > 0 else []
    return "\n".join([title, line(header), *map(line, cells), *more])


def _is_number(text: str) -> bool:
    return text in ("", "-") or _NUMBER.fullmatch(text) is not None


def show_bytes(n: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def show_time(seconds: float) -> str:
    """A duration with a unit, to three digits: also one of microseconds."""
    if abs(seconds) >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if abs(seconds) * factor >= 0.9995:  # rounded, that is 1
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
