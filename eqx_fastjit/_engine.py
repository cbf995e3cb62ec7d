"""The engine in use: the C extension, or the plain Python reference."""

import collections
import functools
import importlib.util
import os
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from . import _facts, _reference
from ._blocking import COPIED_BYTES, transferred
from ._errors import hide_callback_log
from ._fallback import warn_of_versions
from ._private import flatten_one_level
from ._result import Handle, steps_of
from ._statics import reader_of, state_of
from ._structure import partition


_ENGINES = ("auto", "native", "python")


@functools.cache
def engine_module() -> Any:
    """The module of the engine: `_native` or `_reference`.

    Chosen when `filter_jit` is first looked up, so that importing the package costs
    nothing and cannot fail.
    """
    wanted = os.environ.get("EQX_FASTJIT_ENGINE", "auto")
    if wanted not in _ENGINES:
        raise ValueError(
            f"EQX_FASTJIT_ENGINE={wanted!r} is not an engine; expected one of "
            f"{', '.join(map(repr, _ENGINES))}."
        )
    is_built = importlib.util.find_spec(f"{__package__}._native") is not None
    if not is_built and wanted == "native":
        raise RuntimeError(
            "EQX_FASTJIT_ENGINE=native, but the C extension was not built."
        )
    if not is_built and wanted == "auto":
        warnings.warn(
            "eqx_fastjit: the C extension was not built, so calls use the plain "
            "Python engine, which is not made for speed. "
            "EQX_FASTJIT_ENGINE=python chooses it without this warning.",
            stacklevel=2,
        )
    chosen: Any = _reference
    if is_built and wanted != "python":
        # If it cannot be loaded, that is an error, upon which Equinox's own stands in.
        chosen = importlib.import_module("._native", __package__)
        functions = reader_of, state_of, flatten_one_level, jtu.tree_leaves
        chosen.setup(*functions, transferred, COPIED_BYTES)
    if not _agrees_with_jax(chosen):
        if chosen is _reference or not _agrees_with_jax(_reference):
            raise ImportError("pytrees are not read as JAX reads them.")
        chosen = _reference
        warn_of_versions("calls use its plain Python engine, which is slower")
    hide_callback_log(chosen.is_calling)
    _facts.listen(chosen)
    return chosen


def engine() -> str:
    """The engine in use: `"native"` (the C extension) or `"python"`.

    It is chosen when `filter_jit` is first imported. The environment variable
    `EQX_FASTJIT_ENGINE` can be `native`, `python` or `auto` (the default), which is
    native if the extension was built.
    """
    return "python" if engine_module().__name__.endswith("_reference") else "native"


# --- the self-check -------------------------------------------------------------------


class _Probe(eqx.Module):
    b: Any
    static: Any = eqx.field(static=True)
    a: Any


_Named = collections.namedtuple("_Named", ("b", "a"))


def _agrees_with_jax(engine: Any) -> bool:
    """Whether an engine reads and builds a pytree as this version of JAX does.

    Runs nothing on a device: a program may still choose its devices.
    """
    x, y, *more = [np.zeros(2, np.float32) for _ in range(14)]
    pairs = [{"b": p, "a": q} for p, q in zip(more[::2], more[1::2], strict=True)]
    ordered, defaults, named, module, plain, _ = pairs
    tree = (
        [plain, None, {2: x, 1: y}, _Named(**named), _Probe(static="s", **module)],
        collections.OrderedDict(ordered),
        collections.defaultdict(list, defaults),
    )
    try:
        leaves, treedef = jtu.tree_flatten(tree)
        plan = engine.Plan(steps_of(tree), partition(tree)[1])
        handle = Handle(plan)
        returned = jax.jit(lambda x: [x, handle]).trace(x).out_info
        built, built_treedef = jtu.tree_flatten(plan.build(leaves))
        _, found = engine.read((tree,), False)
        return (
            [*map(id, found)] == [*map(id, built)] == [*map(id, leaves)]
            and built_treedef == treedef
            and returned[-1] is handle
        )
    except Exception:
        return False
