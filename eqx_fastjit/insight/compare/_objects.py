"""What calls differ in, by the object that a user handles, rather than leaf by leaf.

An optimiser is a tuple of functions, a new length comes to several arrays, and the
moments of a model that changes change with it. What is a copy of something else is told
with the original.
"""

import dataclasses
import functools

from eqx_fastjit.insight.record._leaves import (
    ancestors,
    is_below,
    Leaf,
)
from eqx_fastjit.insight.record._programs import number_text

from ._table import Column, differs_within, Partition, Table


@dataclasses.dataclass(frozen=True, eq=False)
class Object:
    """An object, or a part of one, that is not the same in all calls."""

    table: Table
    # "function" (the jitted one), "optimiser", "callable", "object", "number", "label",
    # "array" (of a static object), "structure", "size", "dtype", "weak", "placement" or
    # "setting".
    kind: str
    # The path of what is mended.
    path: str
    # What differs in it; and what mirrors that.
    own: tuple[Column, ...]
    copies: tuple[Column, ...] = ()
    # Whether literals or captured arrays of one program go with its values.
    selects: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them."""
        return self.own + self.copies

    @functools.cached_property
    def ids(self) -> Partition:
        """In which rows it is the same."""
        return self.table.alike(self.own)

    @property
    def count(self) -> int:
        """How many others it became."""
        return len({*self.ids}) - 1

    @functools.cached_property
    def paths(self) -> list[str]:
        """The leaves that differ, the first of which stands for all."""
        return list(dict.fromkeys(x.path for x in self.own))

    @functools.cached_property
    def leaves(self) -> list[Leaf | None]:
        """What its first leaf was, in order, each once; `None` where there was none."""
        return list(dict.fromkeys(self.table.leaves(self.paths[0])))

    @property
    def types(self) -> set[str]:
        """The types of what is static of that."""
        return {x.type for x in self.leaves if x is not None and x.kind == "static"}

    def differs_within(self, classes: Partition) -> bool:
        """Whether it differs between rows of one class."""
        return differs_within(classes, self.ids)

    @property
    def is_no_shape(self) -> bool:
        """Whether it is of a type that nothing can take for a length.

        It is made again, such as an optimiser, or a number with a fraction, or one that
        is a literal of the programs, or the length of an array that is told itself.
        """
        if self.kind == "number":
            is_fraction = all(x is None or is_float(x) for x in self.leaves)
            is_value = is_fraction or is_literal(self.table, self.paths[0])
            return not self.is_mixed and (is_value or self.is_length)
        return self.kind in ("optimiser", "function", "callable", "object")

    @functools.cached_property
    def is_length(self) -> bool:
        """Whether it is a number that is the length of an axis wherever that is."""
        table = self.table
        numbers = [x and x.value for x in table.leaves(self.paths[0])]

        def is_length_of(x: Column) -> bool:
            rows = zip(numbers, table.values[x], table.leaves(x.path), strict=True)
            return all(a == b for a, b, leaf in rows if leaf and leaf.shape[x.axis :])

        axes = (x for x in table.columns if x.aspect == "axis")
        return self.kind == "number" and any(map(is_length_of, axes))

    @property
    def lengths(self) -> list[int]:
        """Those of the axis, or numbers of elements: each once, as they first came."""
        return self.sizes or self.elements

    @property
    def is_mixed(self) -> bool:
        """Whether it is a number in some calls, and an array in others."""
        kinds = {x.kind for x in self.leaves if x is not None}
        return self.kind == "number" and kinds == {"static", "array"}

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The lengths of the axis that differs, in order; empty if there are more."""
        lengths = {self.table.values[x] for x in self.own if x.aspect == "axis"}
        if self.kind != "size" or len(lengths) != 1:
            return []
        # A length may be a symbol.
        found = list(dict.fromkeys(lengths.pop()))
        return found if all(type(x) is int for x in found) else []

    @functools.cached_property
    def elements(self) -> list[int]:
        """Of a list, tuple or dictionary: how many elements it had, in order."""
        if self.kind != "structure":
            return []
        known = [x for x in self.leaves if x is not None and x.category == "container"]
        return [x.size for x in known] if len(known) == len(self.leaves) else []

    @functools.cached_property
    def is_carried(self) -> bool:
        """Whether an earlier call had returned what it becomes, by the traces."""
        table, returned = self.table, set[str]()
        own = [
            x
            for x in table.varying
            if any(x == y or is_below(x, y) for y in self.paths)
        ]

        before: dict[str, str] | None = None
        known, found = set[int](), list[bool]()
        for i, row in zip(self.ids, table.rows, strict=True):
            there = (x for path in own if (x := row.leaves.get(path)))
            arrays = {x.path: x.text for x in there if x.kind == "array"}
            # A shape that nothing has yet is that of the next call.
            if arrays or self.kind not in ("size", "dtype"):
                if before is not None and i not in known:
                    new = {x for path, x in arrays.items() if x != before.get(path)}
                    found.append(bool(new) and new <= returned)
                known.add(i)
                before = arrays

            returned.update(row.program.returns if row.program else ())
        return bool(found) and all(found)

    @functools.cached_property
    def is_model(self) -> bool:
        """Whether these are the parameters of models of several sizes.

        A Module of which all arrays have one length in common is data.
        """
        table = self.table
        modules = {x.path: module_of(table, x.path) for x in self.own}
        own = [x for x in self.own if modules[x.path]]
        if self.kind == "structure":
            leaves = filter(None, self.leaves)
            return bool(own) or any(map(_is_module_node, leaves))
        if self.kind != "size" or not own:
            return False
        top, same = modules[own[0].path], {x.path for x in own}
        is_told = any(  # `in_features`, say
            x.aspect == "value" and is_below(x.path, top) and ids == self.ids
            for x, ids in table.columns.items()
        )
        return is_told or any(
            leaf.kind == "array" and leaf.shape and is_below(path, top)
            for path, leaf in table.rows[-1].leaves.items()
            if path not in same
        )


def is_float(leaf: Leaf | None) -> bool:
    """Whether a static is a number with a fraction."""
    return leaf is not None and "float" in leaf.type


def is_literal(table: Table, path: str) -> bool:
    """Whether a number is one of the literals of the programs, mostly."""
    is_there: list[bool] = []
    for row in table.rows:
        leaf = row.leaves.get(path)
        if row.program is not None and leaf is not None and leaf.value is not None:
            is_there.append(number_text(leaf.value) in row.program.values)
    return sum(is_there) > len(is_there) / 2


def _is_module_node(leaf: Leaf) -> bool:
    return leaf.kind == "structure" and leaf.category == "module"


def module_of(table: Table, path: str) -> str:
    """The path of the outermost Module that it is a part of, or nothing."""
    nodes = [x for x in ancestors(path) if (y := table.leaf(x)) and _is_module_node(y)]
    return nodes[-1] if nodes else ""
