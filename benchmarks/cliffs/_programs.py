"""Programs: descriptions of a call, small enough to read, store and shrink.

A description consists of plain values, so that it can be written to a results file and
read again. `_build.py` builds the arguments that it describes.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any


CALLS = {
    "same": "the same objects each time",
    "rebuilt": "an equal tree each time, no part of it identical to the last one's",
    "turns": "three trees in turn, whose statics differ",
    "changed": "one tree, whose mutable statics were changed after a first call",
}
STYLES = ("positional", "keyword", "method", "callable")
USED = ("all", "half", "one")
RETURNS = {
    "value": "one array",
    "mixed": "arrays and statics in a dictionary",
    "tree": "the first argument, updated, and an array",
}


@dataclasses.dataclass(frozen=True)
class Node:
    """A part of an argument.

    **Arguments:**

    - `kind`: `"leaf"`, `"static"`, `"repeat"`, or one of `_build.NODES`.
    - `of`: which leaf or static; the type of a dictionary's keys; the container of a
        repeat.
    - `n`: the length of a leaf, where 0 is a scalar; the number of repeats.
    - `children`: its parts. A repeat has one, which is built `n` times.
    - `statics`: the kinds of its static fields. A kind that ends with `*` has a
        different value in each instance of a repeat.
    """

    kind: str
    of: str = ""
    n: int = 0
    children: tuple["Node", ...] = ()
    statics: tuple[str, ...] = ()

    def walk(self) -> Iterator["Node"]:
        """This node and all nodes below."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, its arguments, and how it is called.

    **Arguments:**

    - `args`: the arguments.
    - `calls`: what changes between calls; a key of `CALLS`.
    - `style`: how it is called; one of `STYLES`.
    - `used`: how many of the arrays the function uses; one of `USED`.
    - `returns`: what it returns; a key of `RETURNS`.
    """

    args: tuple[Node, ...]
    calls: str = "same"
    style: str = "positional"
    used: str = "all"
    returns: str = "value"

    def walk(self) -> Iterator[Node]:
        """All nodes of all arguments."""
        for arg in self.args:
            yield from arg.walk()

    def instances(self) -> int:
        """Approximate number of parts of all arguments."""
        return sum(instances(arg) for arg in self.args)


def features(program: Program) -> frozenset[str]:
    """The features of a program other than its size."""
    out = {f"calls {program.calls}", f"style {program.style}"}
    for node in program.walk():
        out.add(f"{node.kind} {node.of}")
        out.update(f"static {static.removesuffix('*')}" for static in node.statics)
    return frozenset(out - _PLAIN)


_PLAIN = {
    "calls same",
    "style positional",
    "leaf float32",
    "module ",
    "repeat list",
    "static int",
    "list ",
}


# A layer of Equinox has about ten parts. Most optimisers keep two copies.
_WEIGHTS = {"nn": 10, "optax": 2}


def instances(node: Node) -> int:
    """Approximate number of parts of an argument."""
    inside = 1 + len(node.statics) + sum(map(instances, node.children))
    return inside * (node.n if node.kind == "repeat" else _WEIGHTS.get(node.kind, 1))


# --- JSON ----------------------------------------------------------------------------


def to_json(program: Program) -> dict[str, Any]:
    """The description as plain values, without defaults."""

    def of_node(node: Node) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": node.kind}
        for name in ("of", "n"):
            if getattr(node, name):
                out[name] = getattr(node, name)
        if node.children:
            out["children"] = [of_node(child) for child in node.children]
        if node.statics:
            out["statics"] = list(node.statics)
        return out

    out: dict[str, Any] = {"args": [of_node(arg) for arg in program.args]}
    for field in dataclasses.fields(program)[1:]:
        value = getattr(program, field.name)
        if value != field.default:
            out[field.name] = value
    return out


def from_json(description: dict[str, Any]) -> Program:
    """The inverse of `to_json`. Raises `TypeError` or `KeyError` for anything else."""

    def node(values: dict[str, Any]) -> Node:
        children = tuple([node(child) for child in values.get("children", ())])
        statics = tuple(values.get("statics", ()))
        return Node(**{**values, "children": children, "statics": statics})

    args = tuple([node(arg) for arg in description["args"]])
    return Program(**{**description, "args": args})


def dumps(program: Program) -> str:
    """The description in one line, as `--replay` reads it."""
    return json.dumps(to_json(program), separators=(",", ":"))


# --- words ---------------------------------------------------------------------------

_NAMES = "abcdefghijklmnopqrstuvwxyz"
_BRACKETS = {"list": "[]", "tuple": "()"}


def text(program: Program) -> str:
    """The program as text that looks like code."""
    args = [text_of(arg) for arg in program.args]
    if program.style == "keyword":
        args = [f"{_NAMES[i]}={arg}" for i, arg in enumerate(args)]
    call = f"f({', '.join(args)})"
    if program.style == "method":
        call = f"Holder({args[0]}).f({', '.join(args[1:])})"
    elif program.style == "callable":
        call = f"jit(Holder({args[0]}))({', '.join(args[1:])})"
    return (
        f"{call}\n  calls: {CALLS[program.calls]}; uses {program.used} of the arrays; "
        f"returns {RETURNS[program.returns]}"
    )


def text_of(node: Node) -> str:
    """A part of a program as text."""
    if node.kind == "leaf":
        return f"{node.of}[{node.n}]" if node.n else f"{node.of}[]"
    if node.kind == "static":
        return _static(node.of)
    inside = [text_of(child) for child in node.children]
    if node.kind == "repeat":
        made = f"{inside[0]} for i in range({node.n})"
        if node.of == "dict":
            return "{f'layer{i}': " + made + "}"
        return f"[{made}]" if node.of == "list" else f"tuple({made})"
    if node.kind in _BRACKETS:
        left, right = _BRACKETS[node.kind]
        return left + ", ".join(inside) + right
    if node.kind == "nn":
        return f"eqx.nn.{node.of}"
    of = f" of {node.of}" if node.of else ""
    statics = [f"s{i}={_static(s)}" for i, s in enumerate(node.statics)]
    return f"<{node.kind}{of}>({', '.join(inside + statics)})"


def _static(name: str) -> str:
    if name.endswith("*"):
        return f"static {name[:-1]}, each another"
    return f"static {name}"
