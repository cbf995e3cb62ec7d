"""Straight-line code that takes one pytree structure apart, or puts it together.

Flattening a model module by module costs a Python call each. A generated function
handles a module with everything inside it in one: it checks each type, length and
static, and gathers the arrays. It reads every container again on every call, so a
changed model is never mistaken for what it was, and it gives up on anything that it
does not expect. Flattening the four modules of an MLP takes a quarter of the time that
Equinox's functions take.

The source of a generated function is on its `__source__`.
"""

import dataclasses
import functools as ft
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from ._compat import (
    hide_from_tracebacks,
    INSTANCE_DICT,
    instance_dict,
    unflatten_function,
)
from ._statics import BUILT_IN, is_stable, token


hide_from_tracebacks(__file__)

# Larger structures are handled in pieces: compiling the code costs about 0.1 ms a node.
_MAX_NODES = 1500
_MAX_DEPTH = 100


class NotGeneratable(Exception):
    """No code is generated for this object; the general functions handle it."""


def is_module_class(cls: type) -> bool:
    return eqx.Module in cls.__mro__


def _fields(cls: type) -> tuple[list[str], list[str]]:
    """Names of the dynamic and of the static fields of a Module class, in order."""
    dynamic, static = [], []
    for field in dataclasses.fields(cls):
        is_static = field.metadata.get("static", False)
        (static if is_static else dynamic).append(field.name)
    return dynamic, static


def _is_regular(module: Any) -> bool:
    """Whether the instance holds its fields and nothing else.

    Not so for modules under construction or with fields missing, wrappers
    (`module_update_wrapper` adds `__name__` and others), and `SomeModule[int](...)`,
    which gets an `__orig_class__`.
    """
    names = {f.name for f in dataclasses.fields(module)}
    return instance_dict(module).keys() == names


def _is_namedtuple(x: Any) -> bool:
    cls = type(x)
    return (
        isinstance(x, tuple)
        and cls is not tuple
        and hasattr(cls, "_fields")
        and cls.__iter__ is tuple.__iter__
    )


class _Source:
    """Lines of code, and the objects that they refer to by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self.variables = 0
        self.nodes = 0

    def constant(self, value: Any) -> str:
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def count_node(self) -> None:
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise NotGeneratable("too many nodes")

    def compile(self, name: str, source: str) -> Callable[..., Any]:
        exec(compile(source, f"{__file__}:{name}", "exec"), self.namespace)
        out = self.namespace.pop(name)
        out.__source__ = source
        return out


def _static_check(source: _Source, expression: str, value: Any) -> str:
    """Code that is true if a static is no longer what it was."""
    if is_stable(value):
        return f"{expression} is not {source.constant(value)}"
    # It may have changed in place: compare with a snapshot.
    return f"token({expression}) != {source.constant(token(value))}"


class _FlattenSource(_Source):
    """The body of a flatten function, gathered node by node."""

    def __init__(
        self, is_static_leaf: Callable[[Any], bool], node_types: Container[type]
    ):
        super().__init__()
        self.is_static_leaf = is_static_leaf
        self.node_types = node_types
        # Breadth first, so that a module of another structure is found out early.
        self.todo: deque[tuple[str, Any, int]] = deque()
        # The variables directly below each node, to put the children in JAX's order.
        self.below: dict[str, list[str]] = {}
        # Types of static leaves, which a program may yet register as nodes.
        self.leaf_types: set[type] = set()

    def give_up_if(self, conditions: list[str]) -> None:
        if conditions:
            self.lines.append(f"if {' or '.join(conditions)}: return otherwise(v0)")

    def node(self, name: str, node: Any, depth: int) -> None:
        """Check a node, and read what is below it."""
        self.count_node()
        self.below[name] = []
        # Pairs of code that reads a child, and the child.
        reads: list[tuple[str, Any]]
        checks: list[str] = []
        cls = type(node)
        if is_module_class(cls):
            dynamic, static = _fields(cls)
            values = instance_dict(node)
            self.lines.append(f"d = getdict({name})")
            checks.append(f"len(d) != {len(values)}")
            reads = [(f"d[{field!r}]", values[field]) for field in dynamic]
            static_reads = [(f"d[{field!r}]", values[field]) for field in static]
        elif cls is dict:
            reads = [(f"{name}[{k!r}]", node[k]) for k in sorted(node)]
            static_reads = []
        else:
            variables = [self.variable() for _ in node]
            if variables:
                self.lines.append(f"{', '.join(variables)}, = {name}")
            reads = list(zip(variables, node, strict=True))
            static_reads = []
        # Static leaves before static fields: they differ between a model and its
        # gradients, which hold `None` for an activation function, say.
        is_static = [x is None or self.is_static_leaf(x) for _, x in reads]
        checked = [r for r, static in zip(reads, is_static, strict=True) if static]
        self.leaf_types |= {type(x) for _, x in checked} - BUILT_IN
        checks += [_static_check(self, *read) for read in checked + static_reads]
        self.give_up_if(checks)
        types: list[str] = []
        for (read, child), static in zip(reads, is_static, strict=True):
            if not static:
                types += self.child(name, read, child, depth)
        self.give_up_if(types)

    def child(self, parent: str, read: str, child: Any, depth: int) -> list[str]:
        """Read a child; returns the checks that it needs."""
        variable = read
        if not read.isidentifier():
            variable = self.variable()
            self.lines.append(f"{variable} = {read}")
        self.below[parent].append(variable)
        if depth >= _MAX_DEPTH or not _can_enter(child, self.node_types):
            return []
        self.todo.append((variable, child, depth + 1))
        checks = [f"type({variable}) is not {self.constant(type(child))}"]
        if not is_module_class(type(child)):
            checks.append(f"len({variable}) != {len(child)}")
        return checks

    def children(self) -> list[str]:
        """The variables that hold arrays or unknown nodes, in JAX's order."""
        out = []
        pending = ["v0"]
        while pending:
            name = pending.pop()
            if name in self.below:
                pending.extend(reversed(self.below[name]))
            else:
                out.append(name)
        return out


def generate_flatten(
    module: Any,
    is_static_leaf: Callable[[Any], bool],
    node_types: Container[type],
    key: Any,
) -> Callable[[Any], tuple[tuple[Any, ...], Any]]:
    """A function that flattens a module of just this structure.

    **Arguments:**

    - `module`: the Module to generate the function for.
    - `is_static_leaf`: tells the static leaves from arrays and unknown nodes.
    - `node_types`: the types that are registered with JAX as nodes.
    - `key`: the node data for a module of this structure, and for no other.

    **Returns:**

    A function of a module. For one of the same structure it returns the children, which
    are the arrays and any nodes left to the dispatcher, and `key`. For any other it
    returns `otherwise(module)`, to be set in the function's `__globals__`. Raises
    `NotGeneratable`.
    """
    if not _is_regular(module):
        raise NotGeneratable("irregular module")
    source = _FlattenSource(is_static_leaf, node_types)
    source.namespace.update(
        getdict=instance_dict, token=token, key=key, node_types=node_types
    )
    source.todo.append(("v0", module, 0))
    while source.todo:
        source.node(*source.todo.popleft())
    # 0.04 us for each type, of which a model has one or two.
    leaf_types = map(source.constant, source.leaf_types)
    source.give_up_if([f"{cls} in node_types" for cls in leaf_types])
    body = "\n        ".join(source.lines)
    children = "".join(f"{name}, " for name in source.children())
    flatten = source.compile(
        "flatten",
        f"def flatten(v0):\n"
        f"    try:\n        {body}\n"
        # E.g. a field or a key is missing. The general function says what is wrong.
        f"    except Exception:\n        return otherwise(v0)\n"
        f"    return ({children}), key\n",
    )
    _check_order(flatten, module, is_static_leaf)
    return flatten


class _Placeholder:
    """Stands for an array, each for another."""


def _check_order(
    flatten: Callable[[Any], Any], module: Any, is_static_leaf: Callable[[Any], bool]
) -> None:
    """Make sure that the children come in the order in which JAX flattens them.

    Raises `NotGeneratable`.
    """
    leaves, treedef = jtu.tree_flatten(module)
    marked = [x if is_static_leaf(x) else _Placeholder() for x in leaves]
    flatten.__globals__["otherwise"] = lambda _: ((), None)
    try:
        children, _ = flatten(jtu.tree_unflatten(treedef, marked))
        found = jtu.tree_leaves(list(children))
    except Exception as e:
        raise NotGeneratable("a node does not take placeholders") from e
    placeholders = [x for x in marked if type(x) is _Placeholder]
    found = [x for x in found if type(x) is _Placeholder]
    if len(found) != len(placeholders) or any(
        x is not y for x, y in zip(found, placeholders, strict=True)
    ):
        raise NotGeneratable("another order than JAX's")


def _can_enter(x: Any, node_types: Container[type]) -> bool:
    cls = type(x)
    if cls is tuple or cls is list:
        return True
    if cls is dict:
        return all(type(k) is str for k in x)
    if is_module_class(cls):
        return _is_regular(x)
    # A namedtuple may have been registered as a node of another kind.
    return _is_namedtuple(x) and type(x) not in node_types


def generate_rebuild(
    sample: Any,
    arrays: Sequence[Any],
    flatten_one_level: Callable[[Any], Any],
    node_entries: Mapping[type, Any],
) -> Callable[[Sequence[Any]], Any]:
    """A function that makes results of the structure that `sample` has.

    **Arguments:**

    - `sample`: a result, made by JAX's own unflatten.
    - `arrays`: the arrays in it, in JAX's order.
    - `flatten_one_level`, `node_entries`: how JAX takes a node apart and rebuilds it.

    **Returns:**

    A function of a sequence of arrays. Raises `NotGeneratable`.
    """
    source = _Source()
    source.namespace.update(setdict=INSTANCE_DICT.__set__)
    names = [f"a{i}" for i in range(len(arrays))]
    remaining = deque(zip(names, arrays, strict=True))

    def expression(x: Any, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise NotGeneratable("too deep")
        source.count_node()
        if remaining and x is remaining[0][1]:
            return remaining.popleft()[0]
        if x is None:
            return "None"
        one_level = flatten_one_level(x)
        if one_level is None:
            if isinstance(x, jax.Array | np.ndarray):
                raise NotGeneratable("an array that is not among the results")
            return source.constant(x)
        children, aux = one_level
        cls = type(x)
        parts = [expression(child, depth + 1) for child in children]
        if cls is tuple:
            return f"({''.join(f'{p}, ' for p in parts)})"
        if cls is list:
            return f"[{', '.join(parts)}]"
        if cls is dict:
            keys = [source.constant(k) for k in aux]
            items = zip(keys, parts, strict=True)
            return "{" + ", ".join(f"{k}: {p}" for k, p in items) + "}"
        if is_module_class(cls) and _is_regular(x):
            dynamic, static = _fields(cls)
            fields = instance_dict(x)
            # Copying a dictionary that has the static fields and writing the others
            # into it is quicker than making one of all fields (0.2 us against 0.3).
            template = {name: fields[name] for name in static}
            variable, content = source.variable(), source.variable()
            new = source.constant(ft.partial(object.__new__, cls))
            lines = [f"{variable} = {new}()"]
            writes = []
            for field, part in zip(dynamic, parts, strict=True):
                template[field] = None
                if part in source.namespace:
                    template[field] = source.namespace[part]
                elif part != "None":
                    writes.append(f"{content}[{field!r}] = {part}")
            lines.append(f"{content} = {source.constant(template)}.copy()")
            lines += [*writes, f"setdict({variable}, {content})"]
            source.lines += lines
            return variable
        if cls not in node_entries and _is_namedtuple(x):
            return f"{source.constant(cls)}({', '.join(parts)})"
        unflatten = unflatten_function(node_entries, cls)
        if unflatten is None:
            raise NotGeneratable("a node that JAX alone can rebuild")
        joined = "".join(f"{p}, " for p in parts)
        return f"{source.constant(unflatten)}({source.constant(aux)}, ({joined}))"

    result = expression(sample, 0)
    if remaining:
        raise NotGeneratable("arrays that are not in the result")
    unpack = f"{', '.join(names)}, = arrays" if names else "pass"
    body = "\n    ".join([unpack, *source.lines])
    return source.compile(
        "rebuild", f"def rebuild(arrays):\n    {body}\n    return {result}\n"
    )
