"""Shrinks a program to the smallest that still shows the same fault."""

import dataclasses
from collections.abc import Callable, Iterator

from ._programs import CALLS, Node, Program, RETURNS, STYLES, USED
from ._random import has_array, has_mutable


PLAIN_LEAF = Node("leaf", "float32")
_PLAIN_STATIC = "int"


def shrink(
    program: Program, shows: Callable[[Program], bool], attempts: int = 100
) -> Program:
    """Make a program smaller as long as it shows the fault.

    **Arguments:**

    - `program`: a program that shows it.
    - `shows`: whether another program shows it, too.
    - `attempts`: how many programs to test at most.

    **Returns:** a program that shows it, of which no smaller neighbour does; or the
    smallest one found within the attempts.
    """
    tried = {program}
    improved = True
    while improved:
        improved = False
        # Try the largest steps first.
        for smaller in sorted(set(_smaller(program)), key=_order):
            if smaller in tried or not _is_smaller(smaller, program):
                continue
            if len(tried) > attempts:
                return program
            tried.add(smaller)
            if shows(smaller):
                program, improved = smaller, True
                break
    return program


def size(program: Program) -> tuple[int, int, int]:
    """The size of a program, for comparison: less is simpler."""
    options = (
        tuple(CALLS).index(program.calls)
        + STYLES.index(program.style)
        + USED.index(program.used)
        + tuple(RETURNS).index(program.returns)
    )
    nodes = list(program.walk())
    special = sum(
        (node.kind == "leaf") * (node != PLAIN_LEAF)
        + (node.kind not in ("leaf", "module", "static"))
        + sum(s != _PLAIN_STATIC for s in node.statics)
        + sum(s.endswith("*") for s in node.statics)
        + (node.kind == "static") * ((node.of != _PLAIN_STATIC) + node.of.endswith("*"))
        + (node.kind not in ("leaf", "static") and node.of not in ("", "list", "str"))
        for node in nodes
    )
    return program.instances(), len(nodes), special + options


def _is_smaller(one: Program, other: Program) -> bool:
    changes = one.calls == "changed"
    return (
        size(one) < size(other) and has_array(one) and (not changes or has_mutable(one))
    )


def _order(program: Program) -> tuple[tuple[int, int, int], str]:
    return size(program), repr(program)


def _smaller(program: Program) -> Iterator[Program]:
    for i, arg in enumerate(program.args):
        before, after = program.args[:i], program.args[i + 1 :]
        if before or after:
            yield _with(program, before + after)
        for smaller in _smaller_node(arg):
            yield _with(program, (*before, smaller, *after))
    for name, simplest in (
        ("calls", "same"),
        ("style", "positional"),
        ("used", "all"),
        ("returns", "value"),
    ):
        yield dataclasses.replace(program, **{name: simplest})


def _with(program: Program, args: tuple[Node, ...]) -> Program:
    return dataclasses.replace(program, args=args)


def _smaller_node(node: Node) -> Iterator[Node]:
    """The nodes that are one step simpler."""
    if node.kind == "static":
        yield from (Node("static", s) for s in _simpler_static(node.of))
        return
    if node != PLAIN_LEAF:
        yield PLAIN_LEAF
    yield from node.children
    if node.kind == "repeat":
        for n in {1, 2, node.n // 4, node.n // 2, node.n - 1} - {0, node.n}:
            if n < node.n:
                yield dataclasses.replace(node, n=n)
        if node.of != "list":
            yield dataclasses.replace(node, of="list")
    elif node.kind in ("dict", "OrderedDict", "defaultdict") and node.of != "str":
        yield dataclasses.replace(node, of="str")
    elif node.kind == "module" and node.of:
        yield dataclasses.replace(node, of="")
    for i, static in enumerate(node.statics):
        before, after = node.statics[:i], node.statics[i + 1 :]
        yield dataclasses.replace(node, statics=before + after)
        for simpler in _simpler_static(static):
            yield dataclasses.replace(node, statics=(*before, simpler, *after))
    # The others need a fixed number of children.
    can_lose = node.kind not in ("repeat", "namedtuple", "optax")
    for i, child in enumerate(node.children):
        before, after = node.children[:i], node.children[i + 1 :]
        if can_lose:
            yield dataclasses.replace(node, children=before + after)
        for smaller in _smaller_node(child):
            yield dataclasses.replace(node, children=(*before, smaller, *after))


def _simpler_static(static: str) -> Iterator[str]:
    if static.endswith("*"):
        yield static[:-1]
        if static != f"{_PLAIN_STATIC}*":
            yield f"{_PLAIN_STATIC}*"
    elif static != _PLAIN_STATIC:
        yield _PLAIN_STATIC
