"""The row of a function: what its compilations cost, and each edit in words."""

import ast
import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp

from eqx_fastjit._facts import Place
from eqx_fastjit._texts import show_array
from eqx_fastjit.insight._words import listed, shortened, show_place
from eqx_fastjit.insight.compare._objects import (
    is_literal,
    is_number,
    is_optimiser,
    Object,
)
from eqx_fastjit.insight.compare._table import Column, Table
from eqx_fastjit.insight.record._describe import argument_of, is_below, Leaf
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._reads import expressions_in
from eqx_fastjit.insight.record._why import costliest, line_of, name_of, show_placement

from ._diagnosis import diagnose, Diagnosis, NEEDED, OTHER_DATA
from ._rules import Part, part_of, Row


# What keeps the learning rates of an optimiser that is made once.
_RATES = "optax.inject_hyperparams for what changes"


def row_of(table: Table) -> tuple[Row, list[Event]] | None:
    """The row of a function, and the compilations that its edits spare.

    `None` if it compiled one program once.
    """
    if len(table.rows) < 2:
        return None
    own = [i for i, x in enumerate(table.rows) if not x.is_before]
    found = diagnose(table)
    total, again = found.total, found.saved(())
    same = found.saved(x for rule, x in found.edits if rule not in OTHER_DATA)
    parts = [_part(found, rule, x, gain) for rule, x, gain in found.ordered]
    if again.rows:  # which are like earlier ones in everything
        fields: Any = {"count": len(again.rows), "saves": again.seconds}
        parts.append(part_of("dropped", {}, gain=again.seconds, **fields))
    left = [i for i in own if i not in total.rows]
    parts += [
        _part(found, NEEDED, x, 0.0)
        for x in found.needed
        if not x.is_length and len({x.ids[i] for i in left}) > 1
    ]
    seconds = [table.rows[i].seconds for i in left]
    row = Row(
        name_of(table.rows[0].event.function),
        tuple(parts),
        costliest((line_of(x.event), x.seconds) for x in table.rows),
        seconds=sum(table.rows[i].seconds for i in own),
        saves=total.seconds,
        other_data=max(0.0, total.seconds - same.seconds),
        wanted=sum(seconds) - max(seconds, default=0.0),
        compilations=len(own),
        programs=len({table.programs[i] for i in own}),
    )
    return row, [table.rows[i].event for i in total.rows]


def _part(diagnosis: Diagnosis, rule: str, found: Object, gain: float | None) -> Part:
    values = _values(found, found.paths[0])
    facts = _facts(diagnosis.table, found, values)
    places = _places_of_edit(diagnosis.table, found)
    if len(places) > 1:
        facts["cells"] = f" by {listed(map(show_place, places), 3)}{facts['cells']}"
    return part_of(
        rule,
        facts,
        path=found.path,
        values=tuple(values),
        count=found.count,
        saves=0.0 if rule == NEEDED else diagnosis.alone(found),
        gain=gain,
        other_data=rule in OTHER_DATA,
        line=places[0] if len(places) == 1 else None,
    )


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


def _facts(table: Table, found: Object, values: list[str]) -> dict[str, Any]:
    leaf = table.leaf(found.paths[0])
    sizes = found.sizes or found.elements or [0]
    # The longest of each axis that differs.
    axes = {
        x: max((int(v) for v in table.values(x) if str(v).isdecimal()), default=0)
        for x in found.own
        if x.aspect == "axis"
    }
    is_size = found.kind == "size" and not found.is_model
    is_padded = is_size and len({*axes.values()}) > 1
    # Of what changes together, each.
    is_each = is_size or found.kind in ("number", "label")
    paths = found.paths if is_each else [found.path]
    if found.kind == "number":  # what the programs have as a literal is read
        paths = sorted(paths, key=lambda x: not is_literal(table, x))
    shown: dict[tuple[str, ...], list[str]] = {}  # by values, which several may share
    for path in paths:
        own = _values(found, path) if is_each else values
        shown.setdefault((*own,), []).append(path)
    groups = [*shown.items()][:3]
    given = _given(table) if found.kind == "number" else {}
    passed: list[str] = []
    for path in paths:
        name = argument_of(path)
        text = given.get(name, name)
        # Not a field of what is computed in the call.
        is_known = path == name or re.fullmatch(r"[\w.]+", text)
        passed.append(path.replace(name, text, 1) if is_known else path)
    # Where an `int` comes to some calls, arrays would have two dtypes.
    form = "float({})" if found.types == {"int", "float"} else "{}"
    dtypes = dict.fromkeys(x.dtype for x in found.leaves if x and x.dtype)
    return {
        "path": f"{found.path}()" if found.kind == "function" else found.path,
        "paths": listed(found.paths, 3),
        "differs": "; ".join(
            [f"{listed(x, 3)} {_some([*map(_short, own)])}" for own, x in groups]
            + [f"{len(shown) - 3} more"] * (len(shown) > 3)
        ),
        "array": listed((f"jnp.asarray({form.format(x)})" for x in passed), 3),
        "owner": (leaf and leaf.of) or "object",
        "programs": len({*table.programs}),
        "rates": _RATES,
        "dtype": _widest([*dtypes]) if found.kind == "dtype" else "",
        "first": values[0] if values else "",
        # Later ones may be of another model.
        "then": values[min(1, len(values) - 1)] if values else "",
        "first_size": sizes[0],
        "last_size": sizes[-1],
        # The last call may write one more than it was given.
        "room": sizes[-1] + max(1, sizes[-1] - sizes[-2:][0]),
        "most": " and ".join(_padded(table, x[0], axes) for _, x in groups)
        if is_padded
        else f"{max([*axes.values(), *sizes])}, the longest here",
        **_closure(table, found),
    }


def _given(table: Table) -> dict[str, str]:
    """What calls pass for each argument, by the source of their lines, if known."""
    event, found = table.rows[-1].event, list[dict[Any, str]]()
    paths = [x.path for x in event.signature if x.kind != "configuration"]
    names = [x for x in paths if x == argument_of(x) != event.function.name]
    for line in {x for row in table.rows if (x := line_of(row.event))}:
        for node in expressions_in(line.file).values():
            if not isinstance(node, ast.Call) or node.lineno != line.line:
                continue
            match node.func:
                case ast.Name(id=name):
                    passed = node.args
                case ast.Attribute(value=owner, attr=name):  # perhaps a method
                    passed = [owner] * (names[:1] == ["self"]) + node.args
                case _:
                    continue
            is_starred = any(isinstance(x, ast.Starred) for x in passed)
            pairs = [] if is_starred else [*zip(names, passed, strict=False)]
            pairs += [(x.arg or "", x.value) for x in node.keywords]
            if name == event.function.name:
                found.append({x: ast.unparse(y) for x, y in pairs})
    # Where calls pass several expressions, it has its own name.
    return {
        name: text
        for name, text in (found[0] if found else {}).items()
        if all(x.get(name) == text for x in found)
    }


def _widest(dtypes: list[str]) -> str:
    """The dtype that can have what all have; the last one, if there is none."""
    # There is none of random keys, say.
    errors = contextlib.suppress(TypeError, ValueError)
    with errors, jax.numpy_dtype_promotion("standard"):
        return str(jnp.result_type(*dtypes))
    return dtypes[-1]


def _padded(table: Table, path: str, axes: dict[Column, int]) -> str:
    """An array with the longest of each axis: `float32[12,21,2]`."""
    leaf = next(x for x in table.leaves(path) if x is not None and x.dtype)
    shape = [axes.get(Column(path, "axis", i), n) for i, n in enumerate(leaf.shape)]
    return show_array(tuple(shape), leaf.dtype)


def _some(values: list[str], most: int = 3) -> str:
    return ", ".join(values[:most] + ["..."] * (len(values) > most))


def _short(text: str) -> str:
    """A number with four digits."""
    is_long = re.fullmatch(r"-?\d*\.\d{5,}(e-?\d+)?", text)
    return f"{float(text):.4g}" if is_long else text


# In a path: a variable that a function refers to, or that a partial binds; or a field.
_CELL = re.compile(r"<(\w+)>|\.keywords\['(\w+)'\]|\.(args\[\d+\])")
_MADE = {"function": _CELL, "callable": _CELL, "object": re.compile(r"\.(\w+)")}


def _closure(table: Table, found: Object) -> dict[str, str]:
    """What a function refers to that is not the same, and what to do with that."""
    if found.kind not in _MADE:
        return {"cells": "", "passed": ""}
    cells: dict[str, str] = {}
    for path in table.varying:
        leaf = table.leaf(path)
        if is_below(path, found.path) and leaf is not None and leaf.of:
            cell = _MADE[found.kind].search(path, len(found.path))
            if cell is not None:  # of all that is in one, the variable is told
                cells.setdefault(cell[cell.lastindex or 0], path[: cell.end()])
    shown, passed, made = list[str](), list[str](), list[str]()
    for name, path in cells.items():
        captured = table.leaf(path)
        below = [x for x in table.varying if x == path or is_below(x, path)]
        inside = {x: leaf for x in below if (leaf := table.leaf(x)) is not None}
        # Of an object, its field; of a function, a variable around it.
        own = path if found.kind == "object" else name
        numbers = [own + x.removeprefix(path) for x in inside if is_number(inside[x])]
        texts = dict.fromkeys(str(x) for x in table.leaves(path) if x is not None)
        shown.append(f"{name} {_some([shortened(_short(x), 24) for x in texts], 2)}")
        is_module = captured is not None and captured.is_module
        if is_module or any(x.dtype for x in inside.values()):
            passed.append(name)  # as a whole, such as a model
        elif numbers:
            # Of a configuration with many it is not known which it reads.
            arrays = [f"jnp.asarray({x})" for x in numbers]
            passed += arrays if len(arrays) < 3 else [f"what it reads of {name}"]
        # What is equal but for being made again has nothing that could be passed.
        elif len(texts) > 1 and not is_optimiser(captured):
            passed.append(name)
        else:
            made.append(name)
    text = f"; pass {listed(passed)}" if passed else ""
    text += f"; make {listed(made)} once, too" if made else ""
    if any(is_optimiser(table.leaf(cells[x])) for x in made):
        text += f" ({_RATES})"
    return {"cells": f": {listed(shown, 3)}" if shown else "", "passed": text}


def _places_of_edit(table: Table, found: Object) -> list[Place]:
    """The lines that make what differs, if they are known."""
    if found.kind == "function":
        places = [table.rows[-1].event.function.place]
    else:
        places = [x.place for x in found.leaves if x and found.kind == "callable"]
    return list(dict.fromkeys(x for x in places if x is not None))
