"""Numbers, lines, lists and tables in words."""

import linecache
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:  # it imports JAX, which a program may want to do itself
    from eqx_fastjit._facts import Place


def show_seconds(seconds: float) -> str:
    """A duration with a unit, to three digits."""
    if abs(seconds) >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(seconds) * factor >= 0.9995:  # rounded, that is 1
            return f"{seconds * factor:.3g} {unit}"
    return "<1 us"


def show_bytes(n: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def plural(n: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def times(n: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def listed(items: Iterable[str], most: int = 5) -> str:
    """The different items, `and 3 more` of many."""
    unique = list(dict.fromkeys(items))
    rest = len(unique) - most
    return ", ".join(unique[:most]) + (f" and {rest} more" if rest > 0 else "")


def shortened(text: str, most: int = 60) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


# How ipykernel names the code of a cell, in other processes and event files.
_CELL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\d+\.py|<ipython-input-.*>")


def _cell(file: str) -> str | None:
    """`In[5]`, if a file is the code of a notebook's cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        _, name = shell.compile.format_code_name(file)  # pyright: ignore
        return str(name)
    except (AttributeError, TypeError):  # no notebook, or not of this one
        return "<cell>" if _CELL.fullmatch(file) else None


def show_file(file: str) -> str:
    """A path below the working directory without it; of others, the last two parts.

    Of an installed package, the path from there; of a notebook's cell, its number.
    """
    if (cell := _cell(file)) is not None:
        return cell
    _, installed, below = file.rpartition(f"{os.sep}site-packages{os.sep}")
    if installed:
        return below
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # another drive, or a directory that is gone
        return file
    if not relative.startswith(os.pardir):
        return relative
    return os.path.join(*file.split(os.sep)[-2:]) if os.sep in file else file


def show_place(place: "Place | None") -> str:
    """`train.py:12`."""
    return f"{show_file(place.file)}:{place.line}" if place else "an unknown line"


def source_line(place: "Place | None") -> str:
    """The text of a line; empty if it is not known."""
    return "" if place is None else linecache.getline(place.file, place.line).strip()


def show_chain(frames: "Sequence[Place]", most: int = 4) -> str:
    """A line and the lines that led to it: `model.py:4, from train.py:12`."""
    lines = dict.fromkeys(map(show_place, frames))
    return ", from ".join(list(lines)[:most]) or show_place(None)


# Of texts that are wrapped; a narrow terminal has fewer.
_MOST_COLUMNS = 88


def wrapped(text: str, indent: str = "", columns: int | None = None) -> list[str]:
    """The lines of a text that fit so many columns, or the terminal."""
    if columns is None:
        columns = shutil.get_terminal_size((_MOST_COLUMNS, 24)).columns
        columns = min(columns, _MOST_COLUMNS)
    return textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# Rows that are shown of a long table.
_MOST_ROWS = 12


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table under its title, with numbers to the right; nothing if it is empty."""
    cells = [[str(x) for x in row] for row in rows]
    shown = cells[:_MOST_ROWS]
    if not shown:
        return ""
    columns = list(zip(header, *shown, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_number = [
        all(x[:1] in "0123456789~<-" for x in column[1:]) for column in columns
    ]
    lines = [title]
    for row in (header, *shown):
        padded = [
            x.rjust(width) if right else x.ljust(width)
            for x, width, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    if len(cells) > len(shown):
        lines.append(f"  and {len(cells) - len(shown)} more")
    return "\n".join(lines)
