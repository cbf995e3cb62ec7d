"""Numbers, lines and lists in words."""

import os
import pathlib
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


def listed(items: Iterable[str], most: int = 5) -> str:
    """The different items, `and 3 more` of many."""
    unique = list(dict.fromkeys(items))
    rest = len(unique) - most
    return ", ".join(unique[:most]) + (f" and {rest} more" if rest > 0 else "")


def shortened(text: str, most: int = 60) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _cell(file: str) -> str | None:
    """`In[5]`, if a file is the code of a notebook's cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        return shell.compile.format_code_name(file)[1]  # pyright: ignore
    except (AttributeError, TypeError):  # no notebook, or not of this one
        return None


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
    if os.sep not in file:
        return file

    # Of a package that is installed from its folder, the path from there, too.
    path = pathlib.Path(file)
    top = next((x for x in path.parents if not (x / "__init__.py").exists()), path)
    below = path.relative_to(top).parts
    return os.path.join(*(below if len(below) > 1 else path.parts[-2:]))


def show_place(place: "Place | None") -> str:
    """`train.py:12`."""
    return f"{show_file(place.file)}:{place.line}" if place else "an unknown line"


def show_chain(frames: "Sequence[Place]", most: int = 4) -> str:
    """A line and the lines that led to it: `model.py:4, from train.py:12`."""
    lines = dict.fromkeys(map(show_place, frames))
    return ", from ".join(list(lines)[:most]) or show_place(None)


def wrapped(text: str, indent: str = "", columns: int = 80) -> list[str]:
    """The lines of a text that fit so many columns."""
    return textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
