"""What the texts of rules may say of something that calls differ in."""

import contextlib
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from eqx_fastjit.insight._words import listed, shortened, show_place
from eqx_fastjit.insight.compare._objects import is_literal, Object
from eqx_fastjit.insight.compare._table import Table
from eqx_fastjit.insight.record._leaves import ancestors, FIELD, is_below, Leaf
from eqx_fastjit.insight.record._why import show_placement

from ._lines import definitions


class Wording:
    """The fields of texts: its attributes, each computed when a text asks for it."""

    # How the learning rate of an optimiser that is made once can still change.
    rates = "optax.inject_hyperparams for what changes"

    def __init__(self, table: Table, found: Object):
        # All compilations of the function.
        self._all = table
        # What calls differ in, and those of `_all` among which it differs: all of them,
        # or those of some programs.
        self._found, self._table = found, found.table
        self.values = _values(found, found.paths[0])

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def programs(self) -> int:
        """How many programs the function has."""
        return len({*self._all.programs})

    # --- what differs ---

    @property
    def path(self) -> str:
        """The object, as the user would write it; a function with its brackets."""
        brackets = "()" if self._found.kind == "function" else ""
        return f"{self._found.path}{brackets}"

    @property
    def which(self) -> str:
        """Its class, if that of other programs is another one."""
        path = self._found.path
        types = {x.type for x in self._all.leaves(path) if x is not None}
        return f" {_some(self._texts(path))}" if len(types) > 1 else ""

    def _texts(self, path: str) -> list[str]:
        """What a leaf was, in order, each once."""
        leaves = (x for x in self._table.leaves(path) if x is not None)
        return list(dict.fromkeys(map(str, leaves)))

    @property
    def paths(self) -> str:
        """The leaves that differ."""
        return listed(self._found.paths, 3)

    @property
    def differs(self) -> str:
        """What differs, with its values: `n 1, 2, 3`."""
        shown = [
            f"{listed(paths, 3)} {_some(values)}"
            for values, paths in [*self._by_values.items()][:3]
        ]
        if (more := len(self._by_values) - 3) > 0:
            shown.append(f"{more} more")
        return "; ".join(shown)

    @property
    def first(self) -> str:
        """What it was in the first call."""
        return self.values[0]

    @property
    def then(self) -> str:
        """What it was next. Later ones may be of another model."""
        return self.values[:2][-1]

    @property
    def owner(self) -> str:
        """The class of the static object that it is a field of."""
        leaf = self._table.leaf(self._found.paths[0])
        return (leaf and leaf.of) or "object"

    @property
    def _told(self) -> list[str]:
        """The paths that differ; those that the programs have as literals first, as
        these are read."""
        return sorted(self._found.paths, key=lambda x: not is_literal(self._table, x))

    @functools.cached_property
    def _by_values(self) -> dict[tuple[str, ...], list[str]]:
        """What differs by its values, which several may share.

        Of sizes of data, numbers and labels that change together, each is told.
        """
        found = self._found
        is_data = found.kind == "size" and not found.is_model
        if not is_data and found.kind not in ("number", "label"):
            return {tuple(self.values): [found.path]}
        shown: dict[tuple[str, ...], list[str]] = {}
        for path in self._told:
            shown.setdefault(tuple(_values(found, path)), []).append(path)
        return shown

    @property
    def array(self) -> str:
        """Numbers as arrays, by the function's parameters: `jnp.asarray(rate)`."""
        return listed(map(self._as_array, self._told), 3)

    def _as_array(self, path: str) -> str:
        # Where an `int` comes to some calls, or an array, there would be two dtypes.
        leaves = [x for x in self._all.leaves(path) if x is not None]
        dtypes = {x.dtype for x in leaves if x.kind == "array" and not x.weak_type}
        types = {x.type for x in leaves if x.kind == "static"}
        dtype = dtypes.pop() if len(dtypes) == 1 else ""
        if "float" in dtype or (dtype and types == {"int"}):
            return f"jnp.asarray({path}, {dtype!r})"
        is_mixed = types == {"int", "float"}
        return f"jnp.asarray(float({path}))" if is_mixed else f"jnp.asarray({path})"

    # --- sizes and dtypes ---

    @functools.cached_property
    def _sizes(self) -> list[int]:
        """Its lengths; 0 of several axes."""
        return self._found.lengths or [0]

    @property
    def first_size(self) -> int:
        """The first of these."""
        return self._sizes[0]

    @property
    def last_size(self) -> int:
        """The last of these."""
        return self._sizes[-1]

    @property
    def room(self) -> int:
        """What has room for all. The last call may write one more than it is given."""
        *_, before, last = self._sizes
        return last + (last - before)

    @property
    def most(self) -> str:
        """To what has to be padded: a length, or those of several axes."""
        longest = max(self._sizes)
        if not longest:
            return "each axis to its longest"
        return f"to {longest}, the longest here"

    @property
    def dtype(self) -> str:
        """The dtype that can have what all have; the last one, if there is none."""
        # (A number in place of an array has none.)
        dtypes = [x.dtype for x in self._found.leaves if x and x.dtype]
        # There is none of random keys, say.
        errors = contextlib.suppress(TypeError, ValueError)
        with errors, jax.numpy_dtype_promotion("standard"):
            return str(functools.reduce(jnp.promote_types, dtypes))
        return dtypes[-1]

    # --- what is in an object that is made again ---

    @functools.cached_property
    def _captured(self) -> list[str]:
        """The paths of what is not the same in it.

        Each number and label that `_is_readable`; of anything else the field, or the
        variable that the function refers to, which has it.
        """
        found = self._found
        outermost = FIELD if found.kind == "object" else _VARIABLE
        inside = [x for x in self._table.varying if is_below(x, found.path)]

        paths: list[str] = []
        for path in inside:
            leaf = self._table.leaf(path)
            outer = outermost.search(path, len(found.path))
            has_parts = any(is_below(x, path) for x in inside)
            if leaf and leaf.of and outer and not has_parts:
                is_value = leaf.category in ("number", "label")
                is_value = is_value and self._is_readable(path)
                paths.append(path if is_value else path[: outer.end()])
        return list(dict.fromkeys(paths))

    def _is_readable(self, path: str) -> bool:
        """Whether all functions that lead to it, from the object on, are the user's.

        And whether nothing on the way is an optimiser.
        """
        around = [x for x in ancestors(path) if is_below(x, self._found.path)]
        leaves = [x for x in map(self._table.leaf, around) if x is not None]
        libraries = [x for x in leaves if x.type == "function" and x.place is None]
        return not libraries and all(x.category != "optimiser" for x in leaves)

    @property
    def cells(self) -> str:
        """What differs in it, with values, and which lines it was defined by."""
        shown: list[str] = []
        for path in self._captured:
            texts = [shortened(x, 24) for x in self._texts(path)]
            shown.append(f"{_innermost(path)} {_some(texts, 2)}")
        text = f": {listed(shown, 3)}" if shown else ""
        places = definitions(self._found)
        if len(places) > 1:
            return f" by {listed(map(show_place, places), 3)}{text}"
        return text

    @property
    def passed(self) -> str:
        """What to do with that: what is passed as an argument, what is made once."""
        texts = {
            **dict.fromkeys(("number", "array", "module"), _PASS),
            "label": _SELECTS if self._found.selects else "; keep {} out of it",
            "optimiser": f"; make {{}} once, too ({self.rates})",
        }
        advice: dict[str, list[str]] = {}
        for path in self._captured:
            name, role = _innermost(path), self._role(path)
            text = texts.get(role, "; make {} once, too")
            if role == "number":
                name = f"jnp.asarray({name})"
                if any(is_below(path, x) for x in self._captured):
                    text = _WITH
            advice.setdefault(text, []).append(name)

        if self._found.selects and advice.keys().isdisjoint((_PASS, _SELECTS)):
            # Made once, it would select the same in all calls.
            advice = {_SELECTS: [*itertools.chain(*advice.values())] or ["it"]}
        return "".join(text.format(listed(names)) for text, names in advice.items())

    def _role(self, path: str) -> str:
        """The category of something captured.

        "array", which is passed, if it has arrays, or is an object whose text differs,
        such as a range.
        """
        leaf = self._table.leaf(path)
        category = leaf.category if leaf else ""
        inside = (self._table.leaf(x) for x in self._table.varying if is_below(x, path))
        is_passed = any(x.dtype for x in inside if x)
        if category == "object":
            is_passed |= len(self._texts(path)) > 1
        return "array" if is_passed and category != "optimiser" else category


# What to do with something captured.
_PASS = "; pass {}"
_WITH = "; with {} in it"
_SELECTS = "; pass what {} selects, as an array"

# In a path: a variable that a function refers to, or that a partial binds.
_VARIABLE = re.compile(r"<(\w+)>|\.keywords\['(\w+)'\]|\.(args\[\d+\])")


def _innermost(path: str) -> str:
    """What a path is called in the innermost function that it leads through."""
    variables = [*_VARIABLE.finditer(path)]
    if not variables:
        return path
    last = variables[-1]
    return last[last.lastindex or 0] + path[last.end() :]


def _values(found: Object, path: str) -> list[str]:
    """What a leaf of it was, in order, each once."""
    if found.kind == "function":
        return []

    def show(x: Leaf | None) -> str:
        if x is None:
            return "nothing"
        if found.kind == "placement":
            return show_placement(x)
        if found.kind == "dtype" and x.dtype:
            return x.dtype
        # A class that is not Python's own stands in the text.
        is_clear = len(found.types) < 2 or x.kind != "static" or "." in x.type
        return str(x) if is_clear else f"{x} ({x.type})"

    return list(dict.fromkeys(map(show, found.table.leaves(path))))


def _some(values: Sequence[str], most: int = 3) -> str:
    """The first values, with short numbers if they are then still told apart."""
    short = [*map(_short, values)]
    shown = short if len({*short}) == len(values) else values
    rest = ["..."] if len(values) > most else []
    return ", ".join([*shown[:most], *rest])


def _short(text: str) -> str:
    """A number with four digits."""
    is_long = re.fullmatch(r"-?\d*\.\d{5,}(e[+-]\d+)?", text)
    return f"{float(text):.4g}" if is_long else text
