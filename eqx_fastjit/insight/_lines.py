"""Rows as lines of text, the same in the report, in `explain` and in a notebook."""

from collections.abc import Iterator

from ._rules import Part, Row
from ._words import plural, show_place, show_seconds, wrapped


# The columns of the number and the seconds; edits that are shown, unless all are.
_INDENT = 13
_PARTS = 10


def row_lines(
    row: Row, columns: int, verbose: bool = False, number: int | None = None
) -> Iterator[str]:
    """A row: first what it saves and where, then each edit."""
    saves = f"{'~' * row.about}{show_seconds(row.saves)}" if row.saves else ""
    begin = f"{number or '':<2} {'wrong' if row.is_wrong else saves:>9} "
    if row.later:  # of no line, and of no function
        first, *rest = wrapped(part_text(row.parts[0]), columns=columns - len(begin))
        yield begin + first
        yield from (f"{'':{_INDENT}}{line}" for line in rest)
        return
    count = ""
    if row.compilations > 1:
        count = f": {plural(row.compilations, 'compilation')}"
        count += f" of {plural(row.programs, 'program')}" if row.programs else ""
    title = f"{begin}{row.function}{count}"
    place = f"  {show_place(row.line)}" if row.line else ""
    if len(title) + len(place) > columns:
        yield title
        yield place.rjust(columns)
    else:
        yield title + place.rjust(columns - len(title)) if place else title
    is_single = sum(x.gain != 0.0 for x in row.parts) < 2
    shown = row.parts if verbose else row.parts[:_PARTS]
    for part in shown:
        yield from _part_lines(part, row, columns, is_single)
    if len(shown) < len(row.parts):
        more = plural(len(row.parts) - len(shown), "more edit")
        yield f"{'':{_INDENT}}and {more}: --verbose"


def _part_lines(part: Part, row: Row, columns: int, is_single: bool) -> Iterator[str]:
    cell = ""
    if not part.edit:
        cell = f"({show_seconds(row.wanted)})"
    elif not is_single:
        cell = "and" if part.gain is None else show_seconds(part.gain)
    text = part_text(part)
    if part.line is not None and part.line != row.line:
        text += f" ({show_place(part.line)})"
    lines = wrapped(text, columns=columns - _INDENT)
    yield f"{cell:>{_INDENT - 1}} {lines[0]}"
    yield from (f"{'':{_INDENT}}{line}" for line in lines[1:])


def part_text(part: Part) -> str:
    """What, by which rule, and the edit: `n 1, 2 [number]: jnp.asarray(n)`."""
    edit = f": {part.edit}" if part.edit else ""
    other = " (other data)" * part.other_data
    return f"{part.what} [{part.rule}]{edit}{other}"
