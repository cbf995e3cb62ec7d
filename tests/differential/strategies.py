"""Hypothesis strategies for sequences of calls."""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from .callables import BEHAVIOURS, KINDS, PARAMETERS, WITH_DATA
from .harness import Call, Sequence, Step
from .values import (
    Array,
    Description,
    GROUP_OF,
    GROUPS,
    Key,
    KEYS,
    ModuleInfo,
    ONE_CHILD,
    Static,
    Tree,
    TWO_CHILDREN,
    UNHASHABLE,
    WITH_KEYS,
)


_DTYPES = (
    "float32",
    "int32",
    "bool",
    "bfloat16",
    "float16",
    "uint8",
    "complex64",
    "float64",
    "int64",
    "float0",
)
_SHAPES = ((), (1,), (2,), (0,), (2, 0), (1, 2))
_DONATE = ("none", "none", "none", "all", "all-except-first", "warn")
_DONATE += ("warn-except-first",)

_static_names = st.sampled_from([name for group in GROUPS for name in group])
statics = st.one_of(
    st.sampled_from([name for group in GROUPS[:4] for name in group]), _static_names
).map(Static)


def _array(library: str, dtype: str, shape: Any, weak: bool, value: int) -> Array:
    weak = weak and library == "jax" and dtype in ("float32", "int32")
    if dtype == "float0":
        library = "numpy"
    if library == "scalar":
        shape = ()
    return Array(library, dtype, shape, weak, value)


arrays = st.builds(
    _array,
    st.sampled_from(("jax", "numpy", "scalar")),
    st.sampled_from((*_DTYPES[:2], *_DTYPES)),
    st.sampled_from((*_SHAPES[:1], *_SHAPES)),
    st.booleans(),
    st.integers(0, 3),
)
keys = st.builds(
    Key, st.sampled_from(("threefry2x32", "rbg", "unsafe_rbg")), st.integers(0, 3)
)
_names = list(KEYS)
# Only keys that can be sorted, since JAX refuses others. `tests/test_differential.py`
# covers those: in jaxlib 0.10.2 each such call permanently lowers Python's recursion
# limit by one, which a long run would not survive.
_key_sets = st.one_of(
    *[
        st.lists(st.sampled_from(group), unique_by=KEYS.__getitem__, max_size=3)
        for group in (_names[:3], _names[3:8], _names[8:10])
    ]
).map(tuple)


@st.composite
def _static_data(draw: Any, depth: int = 2) -> Description:
    """Values of a static field."""
    kinds = ("leaf", "leaf", "list", "tuple", "dict", "set", "module")
    kind = draw(st.sampled_from(kinds)) if depth else "leaf"
    if kind == "leaf":
        return draw(statics)
    n = draw(st.integers(0, 2))
    if kind == "set":
        return Tree("static set", (draw(statics),))
    if kind == "module":
        static = "s"[: draw(st.integers(0, 1))]
        info = ModuleInfo(tuple("ab"[:n]), tuple(static), 0, "plain")
        inside = [draw(_static_data(depth - 1)) for _ in (*info.dynamic, *info.static)]
        return Tree(kind, tuple(inside), info)
    children = tuple([draw(statics) for _ in range(n)])
    pairs = (("1", "2"), ("True", "2"), ("1.0", "2"), ("'a'", "'b'"))
    info = draw(st.sampled_from(pairs))[:n]
    return Tree(f"static {kind}", children, info if kind == "dict" else None)


@st.composite
def _nodes(draw: Any, below: Any) -> Description:
    kind = draw(
        st.sampled_from(
            (
                *("module", "module", "module"),
                *("list", "tuple", "none", "shared"),
                *(*ONE_CHILD, *TWO_CHILDREN, *WITH_KEYS),
                *("eqx.Partial", "jtu.Partial"),
            )
        )
    )
    if kind == "module":
        dynamic = "abc"[: draw(st.integers(0, 3))]
        static = "st"[: draw(st.integers(0, 2))]
        info = ModuleInfo(
            tuple(dynamic),
            tuple(static),
            draw(st.integers(0, 1)),
            draw(st.sampled_from(("plain", "plain", "derived", "generic"))),
        )
        children = [draw(below) for _ in dynamic]
        children += [draw(_static_data()) for _ in static]
        return Tree(kind, tuple(children), info)
    if kind in WITH_KEYS:
        info = draw(_key_sets)
        return Tree(kind, tuple([draw(below) for _ in info]), info)
    if kind == "none":
        return Tree(kind, ())
    n = draw(st.integers(0, 3))
    n = 1 if kind in ONE_CHILD or kind == "shared" else n
    n = 2 if kind in TWO_CHILDREN else n
    info = draw(_static_names) if kind in ONE_CHILD else None
    return Tree(kind, tuple([draw(below) for _ in range(n)]), info)


leaves = st.one_of(arrays, arrays, statics, keys)
arguments = st.recursive(leaves, lambda below: _nodes(below), max_leaves=6)
_unhashable = st.sampled_from(UNHASHABLE).map(Static)


# --- small changes -------------------------------------------------------------------


def _places(description: Description) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    if isinstance(description, Tree):
        for i, child in enumerate(description.children):
            out += [(i, *place) for place in _places(child)]
    return out


def _at(description: Any, place: tuple[int, ...]) -> Description:
    for i in place:
        description = description.children[i]
    return description


def _in_static(description: Any, place: tuple[int, ...]) -> bool:
    for i in place:
        if description.kind == "module" and i >= len(description.info.dynamic):
            return True
        description = description.children[i]
    return False


def _replaced(description: Any, place: tuple[int, ...], new: Description) -> Any:
    if not place:
        return new
    children = list(description.children)
    children[place[0]] = _replaced(children[place[0]], place[1:], new)
    return dataclasses.replace(description, children=tuple(children))


@st.composite
def changed(draw: Any, description: Description) -> Description:
    """An argument that differs slightly."""
    place = draw(st.sampled_from(_places(description)))
    old = _at(description, place)
    in_static = _in_static(description, place)
    if in_static and isinstance(old, Tree):
        return _replaced(description, place, draw(_static_data()))
    return _replaced(description, place, draw(_replacement(old, in_static)))


def _replacement(old: Any, in_static: bool) -> st.SearchStrategy[Description]:
    if isinstance(old, Static):
        alike = st.sampled_from(GROUP_OF.get(old.name, ("1",))).map(Static)
        options = [alike, alike, statics]
        return st.one_of(options if in_static else [*options, arrays, _unhashable])
    if isinstance(old, Array):
        return st.one_of(
            st.integers(0, 3).map(lambda n: dataclasses.replace(old, value=n)),
            st.sampled_from(("jax", "numpy", "scalar")).map(
                lambda x: _array(x, old.dtype, old.shape, old.weak, old.value)
            ),
            st.sampled_from(_DTYPES).map(
                lambda x: _array(old.library, x, old.shape, old.weak, old.value)
            ),
            st.sampled_from(_SHAPES).map(
                lambda x: _array(old.library, old.dtype, x, old.weak, old.value)
            ),
            st.just(_array("jax", old.dtype, old.shape, not old.weak, old.value)),
            statics,
            st.just(Tree("none", ())),
        )
    if isinstance(old, Key):
        return st.one_of(keys, arrays)
    return _other_nodes(old)


def _other_nodes(old: Tree) -> st.SearchStrategy[Description]:
    """Nodes of other kinds with the same children."""
    kinds: list[Tree] = []
    for group in (("list", "tuple"), TWO_CHILDREN, ("eqx.Partial", "jtu.Partial")):
        if old.kind in group:
            kinds += [dataclasses.replace(old, kind=kind) for kind in group]
    if old.kind in ("list", "tuple", "eqx.Partial", "jtu.Partial"):
        kinds.append(dataclasses.replace(old, children=old.children[1:]))
        kinds.append(dataclasses.replace(old, children=old.children * 2))
    if old.kind in TWO_CHILDREN:
        kinds.append(Tree("list", old.children))
    if old.kind in WITH_KEYS:
        kinds += [dataclasses.replace(old, kind=kind) for kind in WITH_KEYS]
        if len(old.children) == 1:
            one_key = (("1",), ("True",), ("1.0",), ("'a'",))
            kinds += [dataclasses.replace(old, info=info) for info in one_key]
        else:
            kinds.append(Tree(old.kind, old.children[::-1], old.info[::-1]))
    if old.kind == "module":
        info = old.info
        kinds.append(dataclasses.replace(old, info=info._replace(tag=1 - info.tag)))
        kinds += [
            dataclasses.replace(old, info=info._replace(kind=kind))
            for kind in ("plain", "derived", "generic")
        ]
    if old.kind in ONE_CHILD:
        kinds += [dataclasses.replace(old, kind=kind) for kind in ONE_CHILD]
        kinds += [dataclasses.replace(old, info=x) for x in GROUP_OF[old.info]]
    if old.kind == "none":
        kinds += [Tree("list", ()), Tree("tuple", ())]
    kinds = [x for x in kinds if x != old] or [Tree("none", ())]
    return st.one_of(st.sampled_from(kinds), leaves)


# --- sequences -----------------------------------------------------------------------


@st.composite
def _first_call(draw: Any, kind: str, parameters: str) -> Call:
    p = PARAMETERS[parameters]
    data = draw(arguments) if kind in WITH_DATA else None
    named = []
    for name in p.names:
        omit = p.default(name) is not None and draw(st.booleans())
        named.append(None if omit else draw(arguments))
    extra: tuple[Any, ...] = ()
    keywords: tuple[Any, ...] = ()
    if p.var_positional:
        extra = tuple([draw(arguments) for _ in range(draw(st.integers(0, 2)))])
    if p.var_keyword:
        names = ("z", "y")[: draw(st.integers(0, 2))]
        keywords = tuple([(name, draw(arguments)) for name in names])
    return Call(data, tuple(named), extra, keywords)


@st.composite
def _another_call(draw: Any, call: Call, parameters: str) -> Call:
    """A call that differs in one argument."""
    p = PARAMETERS[parameters]
    options: list[tuple[str, int]] = [("data", 0)] * (call.data is not None)
    options += [("named", i) for i in range(len(call.named))]
    options += [("var_positional", i) for i in range(len(call.var_positional))]
    options += [("var_keyword", i) for i in range(len(call.var_keyword))]
    if not options:
        return call
    field, i = draw(st.sampled_from(options))
    if field == "data":
        return call._replace(data=draw(changed(call.data)))
    values = list(getattr(call, field))
    if field == "var_keyword":
        values[i] = (values[i][0], draw(changed(values[i][1])))
    elif field == "named" and (default := p.default(p.names[i])) is not None:
        # Include the default itself, both omitted and passed.
        old = values[i]
        options_ = [None, default, *([] if old is None else [draw(changed(old))])]
        values[i] = draw(st.sampled_from([x for x in options_ if x != old]))
    else:
        values[i] = draw(changed(values[i]))
    return call._replace(**{field: tuple(values)})


_SOURCES = ("fresh", "same", "fresh", "changed")


@st.composite
def sequences(draw: Any) -> Sequence:
    """A callable, a few similar calls of it, and the order of the steps."""
    kind = draw(st.sampled_from(KINDS))
    parameters = draw(st.sampled_from(list(PARAMETERS)))
    # Runtime errors are chosen rarely: each compiles a program with a callback.
    behaviours = [b for b in BEHAVIOURS if b != "check"] * 2 + ["check"]
    behaviour = draw(st.sampled_from(behaviours))
    calls = [draw(_first_call(kind, parameters))]
    for _ in range(draw(st.integers(1, 4))):
        calls.append(draw(_another_call(draw(st.sampled_from(calls)), parameters)))
    n = draw(st.sampled_from((16, 40, 80)))
    order = draw(st.binary(min_size=n, max_size=n))
    # Each byte gives a call, how many arguments are positional, and their source.
    steps = [Step((b & 15) % len(calls), (b >> 4) & 3, _SOURCES[b >> 6]) for b in order]
    return Sequence(
        kind=kind,
        parameters=parameters,
        behaviour=behaviour,
        donate=draw(st.sampled_from(_DONATE)),
        eager=draw(st.booleans()),
        calls=tuple(calls),
        steps=tuple(steps),
        clear_before=draw(st.sampled_from((None,) * 15 + (n // 2,))),
    )
