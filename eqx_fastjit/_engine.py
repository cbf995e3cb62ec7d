"""The engine in use: the C extension, or the plain Python reference."""

import functools
import importlib.util
import os
import warnings
from typing import Any

import jax.tree_util as jtu

from . import _facts
from ._blocking import COPIED_BYTES, transferred
from ._errors import hide_callback_log
from ._statics import flatten_one_level, reader_of, state_of


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
    if is_built and wanted != "python":
        # If it cannot be loaded, that is an error, as for any module.
        chosen = importlib.import_module("._native", __package__)
        functions = reader_of, state_of, flatten_one_level, jtu.tree_leaves
        chosen.setup(*functions, transferred, COPIED_BYTES)
    else:
        from . import _reference as chosen
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
