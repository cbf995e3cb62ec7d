"""Why a function was compiled again, as the objects that a user handles.

A *root* is an argument, or a part of one, with all columns that differ because of it: a
configuration and not its field, an optimiser and not its functions, the length of a
batch and not each array that has it. What only mirrors it belongs to it, such as the
copies of a model's leaves in the state of an optimiser.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from ._describe import Cause, is_below, Leaf, parent
from ._programs import difference_of, is_in_proportion, results_of
from ._savings import Column, Partition, Table


_ASPECTS = {
    "kind": Cause.STRUCTURE,
    "value": Cause.STATIC,
    "which": Cause.STATIC,
    "dtype": Cause.DTYPE,
    "rank": Cause.SHAPE,
    "axis": Cause.SHAPE,
    "placement": Cause.PLACEMENT,
    "setting": Cause.CONFIGURATION,
    "function": Cause.NEW_FUNCTION,
    "again": Cause.CONFIGURATION,
}

# Lengths, one more each time, that are no growth yet.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class Root:
    """An object, or a part of one, that is not the same in all calls."""

    table: Table
    cause: Cause
    # What differs in it; and what mirrors that.
    own: tuple[Column, ...]
    copies: tuple[Column, ...] = ()
    # Whether these are the parameters of models of several sizes.
    is_model: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of them."""
        return self.own + self.copies

    @functools.cached_property
    def paths(self) -> list[str]:
        """The leaves that differ, the first of which stands for all."""
        return list(dict.fromkeys(x.path for x in self.own))

    @property
    def leaf(self) -> str:
        """The path of the first of them."""
        return self.paths[0]

    @functools.cached_property
    def path(self) -> str:
        """That of the object which a user handles."""
        return argument_of(self.leaf) if self.is_model else common(self.paths)

    @functools.cached_property
    def ids(self) -> Partition:
        """In which rows it is the same."""
        return self.table.classes(self.columns)

    @property
    def count(self) -> int:
        """How often it became another one."""
        return len({*self.ids}) - 1

    @functools.cached_property
    def leaves(self) -> list[Leaf | None]:
        """What the leaf was, in order, each once; `None` where there was none."""
        found = self.table.leaves(self.leaf)
        return [leaf for i, leaf in enumerate(found) if self.ids[i] == i]

    @property
    def changes(self) -> list[tuple[int, int]]:
        """The rows before its leaf became another one, and those in which it did."""
        ids = self.table.columns[self.own[0]]
        return [(i - 1, i) for i in range(1, len(ids)) if ids[i] == i]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The lengths of the axis that differs, in order; empty if there are more."""
        axes = [x for x in self.own if x.aspect == "axis"]
        lengths = {self.table.values(x) for x in axes}
        if self.cause is not Cause.SHAPE or len(lengths) != 1:
            return []
        found = list(dict.fromkeys(lengths.pop()))
        return list(map(int, found)) if all(map(str.isdecimal, found)) else []

    @property
    def lengths(self) -> set[int]:
        """Those of all axes that differ."""
        axes = (self.table.values(x) for x in self.own if x.aspect == "axis")
        return {int(x) for x in itertools.chain(*axes) if str(x).isdecimal()}

    @property
    def is_ragged(self) -> bool:
        """Whether it is a batch, and then a smaller one."""
        sizes, axes = self.sizes, {x.axis for x in self.own}
        return len(sizes) == 2 and sizes[0] > sizes[1] and axes == {0}

    @functools.cached_property
    def is_growing(self) -> bool:
        """Whether it is a buffer, say, that becomes longer from call to call."""
        steps = {b - a for a, b in itertools.pairwise(self.sizes)}
        if not steps or min(steps) <= 0:
            return False
        # Without a trace that tells, a few lengths may be those that are wanted.
        return self.is_carried or (steps == {1} and len(self.sizes) > _FEW)

    @functools.cached_property
    def is_carried(self) -> bool:
        """Whether what it becomes was returned by the call before, by the traces."""
        found: list[bool] = []
        for i in range(1, len(self.ids)):
            before, row = self.table.rows[i - 1 : i + 1]
            if self.ids[i] == i and (results := results_of(before.event)):
                arrays = {
                    leaf.text
                    for path, leaf in row.leaves.items()
                    if leaf.kind == "array" and leaf != before.leaves.get(path)
                    if any(path == x or is_below(path, x) for x in self.paths)
                }
                found.append(bool(arrays) and arrays <= results)
        return bool(found) and all(found)

    @property
    def is_field(self) -> bool:
        """Whether these are numbers in a static object, such as a configuration."""
        leaves = [x for path in self.paths for x in self.table.leaves(path)]
        return all(x is not None and x.of and is_number(x) for x in leaves)

    @functools.cached_property
    def follows(self) -> str:
        """What follows a static that changes, by the traces.

        "nothing", "literals", "count" (how often operations are executed), "operations"
        (but results have the same shapes), "shapes", or "" if it is not known.
        """
        table, n = self.table, range(len(self.ids))
        rest = table.without(self.columns)
        pairs = [(rest[i], i) for i in n if self.ids[i] != self.ids[rest[i]]]
        # Where other objects differ each time, equal programs are an answer, too.
        same = (x for x in table.columns if x.aspect not in ("value", "function"))
        alike = table.classes(same)
        others = [(alike[i], i) for i in n if self.ids[i] != self.ids[alike[i]]]
        events = [
            (table.rows[i].event, table.rows[k].event) for i, k in pairs or others
        ]
        found = difference_of(events)
        if found in ("options", "shapes"):
            leaves = zip(table.leaves(self.leaf), table.rows, strict=True)
            values = [(str(x), row.event) for x, row in leaves if row.event is not None]
            found = "count" if is_in_proportion(values) else found
        if found == "shapes" and all(
            results_of(x) == results_of(y) != set() for x, y in events
        ):
            found = "operations"
        is_told = found in ("nothing", "literals") or (
            pairs and found in ("count", "operations", "shapes")
        )
        return found if is_told else ""

    def has_all(self, paths: Iterable[str]) -> bool:
        """Whether all these paths are in it."""
        return all(any(x == y or is_below(x, y) for y in self.paths) for x in paths)


NUMBER = re.compile(r"(numpy\.)?(bool|int|float|complex)\d*")


def is_number(leaf: Leaf) -> bool:
    """Whether a static is a number, and no flag."""
    return leaf.type != "bool" and bool(NUMBER.fullmatch(leaf.type))


def common(paths: list[str]) -> str:
    """The path of the innermost object that all are in, or that they are."""
    path = paths[0]
    while not all(x == path or is_below(x, path) for x in paths):
        shorter = parent(path)
        if not shorter:
            return paths[0]  # of several arguments, the first
        path = shorter
    return path


def argument_of(path: str) -> str:
    """The argument that a path begins with: `batch` of `batch['x'][0]`."""
    return re.split(r"[.\[<]", path, maxsplit=1)[0]


# --- finding them ---------------------------------------------------------------------


def roots_of(table: Table) -> list[Root]:
    """All roots of a table, those that changed most often first."""
    originals = _originals(table)
    models = _models(table)
    kinds = [x.path for x in table.columns if x.aspect == "kind"]
    top = [x for x in kinds if not any(is_below(x, y) for y in kinds)]
    groups: dict[object, list[Column]] = {}
    for column in table.columns:
        key = _key(table, originals.get(column, column), top, models)
        groups.setdefault(key, []).append(column)
    roots = [_root(table, columns, originals, models) for columns in groups.values()]
    return sorted(_joined(roots), key=lambda root: -root.count)


def _key(table: Table, column: Column, top: list[str], models: set[str]) -> object:
    """Columns with the same key are one root."""
    path, aspect, _ = column
    argument, ids = argument_of(path), table.columns[column]
    if aspect == "kind" or (path in top and aspect in ("value", "dtype")):
        # With all that is there in some calls only.
        node = next(x for x in top if path == x or is_below(path, x))
        return "kind", node if table.leaf(parent(node)) else argument
    if aspect in ("axis", "rank"):
        if any(
            x is not None and x.dtype.startswith("key<") for x in table.leaves(path)
        ):
            return "dtype", argument, ids  # old keys have a shape of their own
        # One length may be that of several arguments.
        return ("model", argument) if path in models else ("size", ids)
    if is_weak(table, column):
        return ("weak",)  # what is computed from one becomes strong with it
    if aspect in ("value", "which", "dtype"):
        return aspect, argument, ids
    return (aspect, path) if aspect == "setting" else (aspect,)


def _root(
    table: Table,
    columns: list[Column],
    originals: dict[Column, Column],
    models: set[str],
) -> Root:
    own = tuple(x for x in columns if x not in originals) or tuple(columns)
    aspects = {x.aspect for x in own}
    cause = next(_ASPECTS[x] for x in _ASPECTS if x in aspects)
    if cause is Cause.STRUCTURE and any(
        leaf is not None and leaf.kind == "static" for leaf in table.leaves(own[0].path)
    ):
        cause = Cause.STATIC  # a number in some calls, and an array in others
    if is_weak(table, own[0]):  # an argument comes before what may be computed from it
        own = tuple(sorted(own, key=lambda x: len(re.findall(r"[.\[<]", x.path))))
    is_model = own[0].path in models
    copies = tuple(x for x in columns if x not in own)
    return Root(table, cause, own, copies, is_model)


def _joined(roots: list[Root]) -> Iterator[Root]:
    """With a structure, and what grows inside it, as one root.

    And numbers that are fields of one static object, such as a configuration, and
    lengths of several axes of an array.
    """
    rest = [x for x in roots if x.cause is Cause.STRUCTURE and not x.is_model]
    parts: dict[tuple[Cause, str], list[Root]] = {}
    for root in roots:
        if root.is_field and root.follows in ("literals", "options", ""):
            parts.setdefault((Cause.STATIC, parent(root.leaf)), []).append(root)
            continue
        is_special = root.is_model or root.is_growing or root.is_ragged
        if root.cause is Cause.SHAPE and not is_special:
            parts.setdefault((Cause.SHAPE, root.leaf), []).append(root)
            continue
        around = [x for x in rest if root.is_growing and x.has_all(root.paths)]
        if around:
            rest.remove(around[0])
            copies = root.copies + around[0].columns
            root = dataclasses.replace(root, copies=copies)
        if root.cause is not Cause.STRUCTURE or root.is_model:
            yield root
    for (cause, _), own in parts.items():
        yield Root(
            own[0].table,
            cause,
            own=tuple(itertools.chain(*(x.own for x in own))),
            copies=tuple(itertools.chain(*(x.copies for x in own))),
        )
    yield from rest


def is_weak(table: Table, column: Column) -> bool:
    """Whether a dtype differs in being weak alone."""
    if column.aspect != "dtype":
        return False
    return len({dtype for dtype, _ in table.values(column)}) == 1


def _originals(table: Table) -> dict[Column, Column]:
    """What mirrors something else, and that."""
    found: dict[Column, Column] = {}
    # By what follows the argument in a path; by values; by lengths.
    tails: dict[object, Column] = {}
    equal: dict[object, Column] = {}
    for column, ids in table.columns.items():
        path, aspect, _ = column
        tail = path[len(argument_of(path)) :]
        if tail:
            tails.setdefault(_mirrored(tail, column, ids), column)
        if aspect in ("value", "axis"):
            equal.setdefault((aspect, table.values(column)), column)
    for column, ids in table.columns.items():
        path, aspect, _ = column
        if aspect == "value":
            values = table.values(column)
            lengths = tuple(str(x[-1]) for x in values if x is not None)
            known = equal.get(("axis", lengths)) or equal.get(("value", values))
            if known is not None and known != column and not _are_fields(known, column):
                found[column] = known
        for tail in _tails(path):
            known = tails.get(_mirrored(tail, column, ids))
            if known and argument_of(known.path) != argument_of(path):
                found[column] = known
    return {column: found.get(known, known) for column, known in found.items()}


def _are_fields(*columns: Column) -> bool:
    """Whether they are values of one object, which are all to be told."""
    owners = {parent(x.path) if x.aspect == "value" else "" for x in columns}
    return len(owners) == 1 and "" not in owners


def _mirrored(tail: str, column: Column, ids: Partition) -> object:
    # A dtype may come to what is computed from it in a later call.
    return tail, column.aspect, column.axis, None if column.aspect == "dtype" else ids


def _tails(path: str) -> Iterator[str]:
    """The ends of a path, without its argument; the longest comes last."""
    node = parent(path)
    while node:
        yield path[len(node) :]
        node = parent(node)


def _models(table: Table) -> set[str]:
    """The arrays with several shapes that are parameters of models of several sizes.

    A Module of which all arrays have one length in common is data, and so is one that
    grows.
    """
    sizes = [x for x in table.columns if x.aspect in ("axis", "rank")]
    found: set[str] = set()
    for argument in {argument_of(x.path) for x in sizes}:
        own = [x for x in sizes if argument_of(x.path) == argument]
        own = [x for x in own if is_in_module(table, x.path)]
        if not own:
            continue
        root = Root(table, Cause.SHAPE, tuple(own))
        lengths = {(x.axis, table.values(x)) for x in own}
        n_arrays = sum(
            leaf.kind == "array" and is_below(path, root.path) and leaf.shape != ()
            for path, leaf in table.rows[-1].leaves.items()
        )
        ids = {table.columns[x] for x in own}
        is_described = any(  # `in_features`, say
            x.aspect == "value" and is_below(x.path, argument) and y in ids
            for x, y in table.columns.items()
        )
        is_data = len(lengths) == 1 and len(own) == n_arrays and not is_described
        if not is_data and not root.is_growing:
            found.update(x.path for x in own)
    return found


def is_in_module(table: Table, path: str) -> bool:
    """Whether it is a part of a Module."""
    while path := parent(path):
        leaf = table.leaf(path)
        if leaf is not None and leaf.is_module:
            return True
    return False
