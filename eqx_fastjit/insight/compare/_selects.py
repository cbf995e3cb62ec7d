"""What selects: values that literals or captured arrays of one program go with.

Two compilations are of one program whatever its literals and constants are. Where these
go with a static, that is no label: without it, results would be others.
"""

from collections.abc import Iterator, Sequence

from eqx_fastjit.insight.record._programs import number_text

from ._objects import Object
from ._table import differs_within, partition, Table


# Kinds whose edit keeps the value (a number becomes an array), or by which no code can
# select.
_OTHERS = ("number", "placement", "weak", "setting", "size", "dtype")


def selecting(table: Table, objects: Sequence[Object]) -> list[Object]:
    """The objects that select something in the calls of one program.

    A number that is a literal itself, and an array that is captured, are passed as
    arguments in any case.
    """
    explained = _explained(table)
    unexplained = [x for x in _unlike(table) if x not in explained]
    chosen = partition(zip(*unexplained, strict=True)) if unexplained else ()
    if not any(chosen):
        return []

    others = [x for x in objects if x.kind not in _OTHERS]
    alone = [x for x in others if not differs_within(x.ids, chosen)]
    numbers = [c for x in objects if x.kind == "number" for c in x.own]
    # Several select only together, unless numbers tell what was chosen.
    if alone or not differs_within(table.alike(numbers), chosen):
        return alone
    return others


def _unlike(table: Table) -> Iterator[tuple[str, ...]]:
    """The literals and constants that are not the same in all rows, each by row."""
    values = [x.program.values if x.program else () for x in table.rows]
    if len({*map(len, values)}) > 1:
        yield tuple(map(str, values))
    for each in {*zip(*values, strict=False)}:
        if len({*each}) > 1:
            yield each


def _explained(table: Table) -> set[tuple[str, ...]]:
    """What numbers, and arrays of JAX in statics, would be as literals and constants.

    (Of NumPy's it is not known: these are told by what is in them.)
    """
    explained: set[tuple[str, ...]] = set()
    for path in table.varying:
        leaves = [x for x in table.leaves(path) if x is not None]
        values = [x.value for x in leaves if x.value is not None]
        explained.add(tuple(map(number_text, values)))
        explained.add(tuple(number_text(-x) for x in values))
        explained.add(tuple(f"@{x.identity}" for x in leaves if x.dtype))
    return explained
