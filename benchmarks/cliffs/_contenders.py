"""A program as each contender calls it."""

import dataclasses
import functools as ft
import itertools
import zlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._build import Builder, described, is_array
from ._programs import Program


Call = Callable[[], Any]

NAMES = ("ours", "jit", "flat", "eqx")
# More trees than a cache of the last few could hold.
_REBUILT = 16
_VARIANTS = 3


# --- the function --------------------------------------------------------------------


def _as_floats(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x).ravel()[0]
    if x.dtype != jnp.float32:
        x = x.astype(jnp.float32)
    return x if x.shape in ((), (3,)) else x.ravel()[0]


def _updated(x: Any) -> Any:
    if is_array(x) and jnp.issubdtype(x.dtype, jnp.number):
        return x + x
    return x


class Function:
    """The function of a program: a sum over its arrays, which depends on its statics.

    **Arguments:**

    - `program`: says how many arrays are used, and what is returned.
    """

    def __init__(self, program: Program):
        self._program = program
        self.traces = 0

    def __call__(self, *args: Any) -> Any:
        self.traces += 1
        arrays = [x for x in jtu.tree_leaves(args) if is_array(x)]
        arrays = [x for x in arrays if x.dtype != jax.dtypes.float0]
        used = {"all": 1, "half": 2, "one": len(arrays)}[self._program.used]
        statics = zlib.crc32(described(args).encode()) % 997
        value = jnp.full((3,), float(statics), jnp.float32)
        for x in arrays[::used]:
            value = value + _as_floats(x)
        if self._program.returns == "tree":
            return jtu.tree_map(_updated, args[0]), value
        if self._program.returns == "mixed":
            return {"aux": (value * 2, None, "text", value.shape), "value": value}
        return value


def _value(out: Any) -> Any:
    """The array that the result of every program contains."""
    if isinstance(out, tuple | list):
        return out[-1]
    return out["value"] if isinstance(out, dict) else out


# --- its arguments -------------------------------------------------------------------


def _one_tree(program: Program, variant: int) -> tuple[Any, ...]:
    builder = Builder(variant)
    return tuple([builder.build(arg) for arg in program.args])


def _trees(program: Program) -> list[tuple[Any, ...]]:
    """The arguments of successive calls."""
    if program.calls == "turns":
        return [_one_tree(program, variant) for variant in range(_VARIANTS)]
    copies = _REBUILT if program.calls == "rebuilt" else 1
    return [_one_tree(program, 0) for _ in range(copies)]


def _changeable(program: Program) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """Arguments, and a function that changes their mutable statics in place."""
    builder = Builder(0, mutable_variant=1)
    return tuple([builder.build(arg) for arg in program.args]), builder.change


# --- the contenders ------------------------------------------------------------------


@dataclasses.dataclass
class Contender:
    """A program as called by one contender.

    **Arguments:**

    - `call`: calls it once, with the next arguments.
    - `turns`: number of calls after which the arguments repeat.
    - `functions`: the functions that were jitted, each of which counts its traces.
    """

    call: Call
    turns: int
    functions: list[Function]

    @property
    def traces(self) -> int:
        """The number of traces so far."""
        return sum(function.traces for function in self.functions)


def _holder(function: Function, jit: Any) -> Any:
    """A Module with a field, a jitted method and `__call__`."""

    class Holder(eqx.Module):
        held: Any

        @jit
        def f(self, *args: Any) -> Any:
            return function(self.held, *args)

        def __call__(self, *args: Any) -> Any:
            return function(self.held, *args)

    return Holder


def _keywords(args: tuple[Any, ...]) -> dict[str, Any]:
    return {chr(ord("a") + i): arg for i, arg in enumerate(args)}


def _with_keywords(function: Function, n: int) -> Any:
    """The function with a named parameter for each argument."""
    names = ", ".join(_keywords((None,) * n))
    return eval(f"lambda {names}: function({names})", {"function": function})


def _filtered(program: Program, jit: Any, trees: list[Any]) -> tuple[list[Call], Any]:
    """Calls of `equinox.filter_jit` or ours."""
    function = Function(program)
    if program.style in ("method", "callable"):
        holder = _holder(function, jit)
        held = [(holder(args[0]), args[1:]) for args in trees]
        if program.style == "callable":
            return [ft.partial(jit(m), *rest) for m, rest in held], [function]
        # The method is read again for each call, as users do.
        return [_method_call(m, rest) for m, rest in held], [function]
    if program.style == "keyword":
        jitted = jit(_with_keywords(function, len(program.args)))
        return [ft.partial(jitted, **_keywords(args)) for args in trees], [function]
    jitted = jit(function)
    return [ft.partial(jitted, *args) for args in trees], [function]


def _method_call(m: Any, rest: tuple[Any, ...]) -> Call:
    return lambda: m.f(*rest)


class _Held(eqx.Module):
    """The Module whose method is called, as the first argument of a function."""

    held: Any


def _by_hand(program: Program, flat: bool, trees: list[Any]) -> tuple[list[Call], Any]:
    """Calls of `jax.jit` with the statics removed by hand."""
    functions: list[Function] = []
    is_method = program.style in ("method", "callable")
    if is_method:
        trees = [(_Held(args[0]), *args[1:]) for args in trees]

    def jitted(args: tuple[Any, ...]) -> Any:
        function = Function(program)
        functions.append(function)
        run = (lambda m, *rest: function(m.held, *rest)) if is_method else function
        return _without_statics(run, args, flat, program.style == "keyword")

    # Trees with different statics need different functions.
    by_variant = program.calls == "turns"
    shared = None if by_variant else jitted(trees[0])
    calls: list[Call] = []
    for args in trees:
        jit: Any = jitted(args) if by_variant else shared
        arrays = eqx.filter(args, is_array)
        if flat:
            calls.append(ft.partial(jit, jtu.tree_leaves(arrays)))
        elif program.style == "keyword":
            calls.append(ft.partial(jit, **_keywords(arrays)))
        else:
            calls.append(ft.partial(jit, *arrays))
    return calls, functions


def _without_statics(
    function: Callable[..., Any], args: tuple[Any, ...], flat: bool, keywords: bool
) -> Any:
    arrays, statics = eqx.partition(args, is_array)
    treedef = jtu.tree_structure(arrays)

    def on_trees(*arrays: Any) -> Any:
        return eqx.filter(function(*eqx.combine(arrays, statics)), eqx.is_array)

    def on_keywords(**arrays: Any) -> Any:
        return on_trees(*arrays.values())

    def on_leaves(leaves: list[Any]) -> Any:
        return jtu.tree_leaves(on_trees(*jtu.tree_unflatten(treedef, leaves)))

    return jax.jit(on_leaves if flat else on_keywords if keywords else on_trees)


def _in_turn(calls: list[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls).__next__
    return lambda: following()()


def contender(program: Program, name: str) -> Contender:
    """A program as one contender calls it.

    **Arguments:**

    - `program`: the program.
    - `name`: one of `NAMES`.
    """
    import eqx_fastjit  # asv imports this module beside old commits

    if name in ("jit", "flat"):
        calls, functions = _by_hand(program, name == "flat", _trees(program))
    else:
        jit = eqx_fastjit.filter_jit if name == "ours" else eqx.filter_jit
        if program.calls == "changed":
            tree, change = _changeable(program)
            calls, functions = _filtered(program, jit, [tree])
            calls[0]()
            change()
        else:
            calls, functions = _filtered(program, jit, _trees(program))
    call = _in_turn(calls)
    return Contender(call, len(calls), functions)


# --- whether all give the same -------------------------------------------------------


def _arrays(out: Any) -> list[np.ndarray]:
    from eqx_fastjit.bench._timing import output_arrays

    arrays = [x for x in jtu.tree_leaves(out) if not _is_float0(x)]
    return output_arrays(lambda: arrays)


def _is_float0(x: Any) -> bool:
    return is_array(x) and x.dtype == np.dtype([("float0", np.void, 0)])


def _structure(out: Any) -> tuple[Any, list[str]]:
    """The structure of a result, and its leaves that are not arrays."""
    leaves, treedef = jtu.tree_flatten(out)
    return treedef, ["array" if is_array(x) else repr(x) for x in leaves]


def difference(program: Program, by_name: dict[str, Contender]) -> str:
    """How our results or traces differ from those of the others; empty if they do not.

    **Arguments:**

    - `program`: the program.
    - `by_name`: all contenders. Each is called until its arguments repeat.
    """
    from eqx_fastjit.bench._timing import same_arrays

    rivals = [name for name in NAMES if name != "ours"]
    if program.calls == "changed":
        rivals.remove("eqx")  # Equinox keeps the old trace
    for _ in range(by_name["ours"].turns):
        results = {name: c.call() for name, c in by_name.items()}
        ours = results["ours"]
        for name in rivals:
            if not same_arrays(_arrays(ours), _arrays(results[name])):
                return f"ours gives other arrays than {name}"
        if "eqx" in rivals and _structure(ours) != _structure(results["eqx"]):
            return "ours gives a result of another structure than eqx"
    traces = {name: c.traces for name, c in by_name.items()}
    if "eqx" in rivals and traces["ours"] > traces["eqx"]:
        return f"ours traced {traces['ours']} times, eqx {traces['eqx']}"
    return ""
