"""The engine in use: the C extension, or the plain Python reference."""

import collections
import contextlib
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TYPE_CHECKING

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from . import _blocking, _facts, _reference, _statics
from ._blocking import COPIED_BYTES, Observer, transferred
from ._errors import hide_callback_log
from ._fallback import Misconfigured
from ._private import flatten_one_level, instance_dict
from ._result import flat_output, Handle, steps_of


_ENGINES = ("auto", "native", "python")


def _why_absent() -> str:
    """Why there is no C extension beside this file."""
    here = os.path.dirname(__file__)
    folders = [os.path.join(x, os.path.basename(here)) for x in sys.path]
    installed = importlib.machinery.PathFinder.find_spec("_native", folders)
    if installed is None or installed.origin is None:
        return "was not built"
    return (
        f"was not built in {here}, which is imported in place of the installed "
        f"{os.path.dirname(installed.origin)} (`pip install -e .` builds it there, or "
        "run the program in another folder)"
    )


# What the C engine needs of Python, by name.
_NEEDED_BY_C = {
    "reader_of": _statics.reader_of,
    "state_of": _statics.state_of,
    "is_flattened": _statics.is_flattened,
    "sorted_keys": _statics.sorted_keys,
    "flatten_one_level": flatten_one_level,
    "flat_output": flat_output,
    "transferred": transferred,
    "copied_bytes": COPIED_BYTES,
}


def _choose() -> Any:
    wanted = os.environ.get("EQX_FASTJIT_ENGINE", "auto")
    if wanted not in _ENGINES:
        raise Misconfigured(
            f"EQX_FASTJIT_ENGINE={wanted!r} is not an engine; expected one of "
            f"{', '.join(map(repr, _ENGINES))}."
        )
    chosen: Any = _reference if wanted == "python" else _native_engine(wanted)

    # A handle has no children, and is its own aux data: of another one, JAX would not
    # repeat a call by itself. (If this module failed before, it is registered already.)
    with contextlib.suppress(ValueError):
        jtu.register_pytree_node(Handle, lambda x: ((), x), chosen.same_handle)

    if not _agrees_with_jax(chosen):
        raise ImportError("pytrees are not read as JAX reads them")
    hide_callback_log(chosen.is_calling)
    _facts.listen(chosen)
    return chosen


def _native_engine(wanted: str) -> Any:
    """The C engine; or the plain Python one, with a warning, where it is not there."""
    try:
        native = importlib.import_module("._native", __package__)
        native.setup(_NEEDED_BY_C)
        return native
    except (ImportError, TypeError) as e:  # or of another version of this library
        is_absent = isinstance(e, ModuleNotFoundError)
        why = _why_absent() if is_absent else f"cannot be loaded ({e})"

    if wanted == "native":
        raise Misconfigured(f"EQX_FASTJIT_ENGINE=native, but the C extension {why}.")
    warnings.warn(
        f"eqx_fastjit: the C extension {why}, so calls use the plain "
        "Python engine, which is not made for speed. "
        "EQX_FASTJIT_ENGINE=python chooses it without this warning.",
        stacklevel=3,
    )
    return _reference


# --- the self-check -------------------------------------------------------------------


def _agrees_with_jax(engine: Any) -> bool:
    """Whether an engine reads and builds a pytree as this version of JAX does.

    Runs nothing on a device: a program may still choose its devices.
    """

    def array() -> Any:
        return np.zeros(2, np.float32)

    def unsorted() -> dict[str, Any]:
        return {"b": array(), "a": array()}

    # Each kind of node that the engine reads or builds by itself: dictionaries by texts
    # and by numbers, a Module, a named tuple; and some that only JAX flattens.
    module = object.__new__(eqx.nn.Linear)  # to define a class takes milliseconds
    statics = {"in_features": 2, "out_features": 2, "use_bias": True}
    instance_dict(module).update(weight=array(), bias=array(), **statics)
    by_text = {"B": unsorted(), "10": array(), "9": array(), "": None}
    by_number = {10: array(), -9: array()}
    tree = (
        [by_text, by_number, _statics.Structure(array(), array()), module],
        collections.OrderedDict(unsorted()),
        collections.defaultdict(list, unsorted()),
    )

    try:
        leaves, treedef = jtu.tree_flatten(tree)
        plan = engine.Plan(steps_of(tree), _statics.partition(tree)[1])
        handle = Handle(plan)
        returned = jax.jit(lambda x: [x, handle]).trace(leaves[0]).out_info

        result = plan.build(leaves)
        built, built_treedef = jtu.tree_flatten(result)
        _, found = engine.read((tree,), False)
        return (
            [*map(id, found)] == [*map(id, built)] == [*map(id, leaves)]
            and built_treedef == treedef
            # Equinox flattens a Module from its dictionary; a program reads attributes.
            and result[0][-1].use_bias
            and returned[-1] is handle
            and _statics.has_only_identity(plan)
        )
    except Exception:
        return False


# --- the choice -----------------------------------------------------------------------

# The module of the engine. (This file is imported when `filter_jit` is first looked up,
# so that importing the package costs nothing and cannot fail.)
ENGINE = _choose()
# The base class of what is called.
Base = object if TYPE_CHECKING else ENGINE.Callable


class Callee(Protocol):
    """What the engine knows of what is called: a `Function`, or a `StagedCall`."""

    # From each specialization to itself; and a cell with the one that was found last.
    table: dict[Any, Any]
    last: types.CellType
    # So many arguments by position are the values of a call: there C need not bind.
    n_positional: int

    # As those of `Function`: for a call without a specialization; after one of which C
    # does not do all; and for what is raised in place of an exception.
    specialize: Callable[..., Any]
    complete_call: Callable[..., None]
    error_of_call: Callable[..., BaseException]


def connect(
    x: Any,
    callee: Callee,
    bind: Callable[..., tuple[Any, ...]],
    target: Any = None,
) -> None:
    """Have calls of `x`, an instance of `Base`, go to a callee.

    **Arguments:**

    - `bind`: from the arguments of a call to its values.
    - `target`: called in place of what the specialization calls.
    """
    ENGINE.Callable._connect(
        x, callee, bind, target, callee.table, callee.last, callee.n_positional
    )


def engine() -> str:
    """The engine in use: `"native"` (the C extension) or `"python"`.

    It is chosen when `filter_jit` is first imported. The environment variable
    `EQX_FASTJIT_ENGINE` can be `native`, `python` or `auto` (the default), which is
    native if the extension was built.
    """
    return "python" if ENGINE is _reference else "native"


def observe(observer: Observer | None) -> Observer | None:
    """Have all calls made by an observer, or by nobody. Returns the one before."""
    before, _blocking.observer = _blocking.observer, observer
    ENGINE.set_observer(observer)
    return before


def forget_readers() -> None:
    """Choose how values of each type are read anew."""
    _reference.forget_readers()
    ENGINE.forget_readers()
