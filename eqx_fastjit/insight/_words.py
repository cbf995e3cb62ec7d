"""Numbers, lines and lists in words."""

import os
from collections.abc import Iterable, Sequence

from eqx_fastjit._place import Place


def show_seconds(seconds: float) -> str:
    """A duration with a unit."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.001 else "<1 ms"


def plural(n: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def times(n: int) -> str:
    """`once`, `3 times`."""
    return "once" if n == 1 else f"{n} times"


def listed(items: Iterable[str], most: int = 5) -> str:
    """The different items, `and 3 more` of many."""
    unique = list(dict.fromkeys(items))
    rest = len(unique) - most
    return ", ".join(unique[:most]) + (f" and {rest} more" if rest > 0 else "")


def show_file(file: str) -> str:
    """A path below the working directory without it; of others, the last two parts.

    Of an installed package, the path from there.
    """
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


def show_place(place: Place | None) -> str:
    """`train.py:12`."""
    if place is None:
        return "?"
    short = Place(show_file(place.file), place.line, place.function)
    return str(place) if str(place).startswith("<cell>") else str(short)


def show_chain(frames: Sequence[Place], most: int = 4) -> str:
    """A line and the lines that led to it: `model.py:4, from train.py:12`."""
    lines = [show_place(place) for place in frames[:most]]
    return ", from ".join(lines) or "?"
