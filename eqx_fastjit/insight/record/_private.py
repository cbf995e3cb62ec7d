"""The private names of JAX that only the tools use.

Each is looked up as those in `eqx_fastjit/_private.py` are. Where one is not there, a
tool shows less, and says so.
"""

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from eqx_fastjit._private import try_resolve


def raw_frames(equation: Any) -> list[tuple[Any, int]]:
    """The code and instructions that made an equation, innermost first, if known."""
    try:
        return list(zip(*equation.source_info.traceback.raw_frames(), strict=True))
    except (AttributeError, TypeError, ValueError):
        return []


def n_constants(params: dict[str, Any]) -> int:
    """How many operands of a `scan` are the same in each step, which come first."""
    if "num_consts" in params:
        return params["num_consts"]
    try:  # since JAX 0.12
        constants, *_ = params["ft_in"].unpack()
        return len(constants)
    except (AttributeError, KeyError, TypeError):
        return 0


def hook_waits(
    wrap: Callable[[Callable[..., Any], str], Any], until: contextlib.ExitStack
) -> list[str]:
    """Wrap each function in which Python waits for the device, until `until` closes.

    `wrap` is given a function, and whether it reads a "value", "blocks" or is of
    "numpy", and returns the function to use in its place. Whatever reads a value
    (`float(x)`, `print(x)`, `x.item()`, `jax.device_get`) comes to one property of
    JAX's arrays. NumPy reads the memory of an array on the host without it.

    Returns the names of what is not there in this version of JAX.
    """
    missing: list[str] = []
    array = try_resolve("jax._src.array:ArrayImpl")
    for owner, name, kind in (
        (array, "_value", "value"),
        (array, "block_until_ready", "blocks"),
        (jax, "block_until_ready", "blocks"),
        (np, "asarray", "numpy"),
        (np, "array", "numpy"),
    ):
        old = getattr(owner, "__dict__", {}).get(name)
        if old is None:
            missing.append(name)
            continue
        is_property = isinstance(old, property)
        new = property(wrap(old.__get__, kind)) if is_property else wrap(old, kind)
        setattr(owner, name, new)
        until.callback(setattr, owner, name, old)
    return missing


# Where `jax.jit` calls the compiler.
_JIT_FILE = try_resolve("jax._src.pjit:__file__")


def function_in_jit() -> Any:
    """The Python function that `jax.jit` is compiling in this thread, or `None`."""
    return _locals_in_jit("fun")[0]


def arguments_in_jit() -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that this function was called with; none if they are not known."""
    _, args, kwargs = _locals_in_jit("fun", "args", "kwargs")
    return args or (), kwargs or {}


def jaxpr_in_jit() -> Any:
    """Its jaxpr, which may be closed, or `None`."""
    return _locals_in_jit("jaxpr")[0]


def _locals_in_jit(*names: str) -> list[Any]:
    """Variables of the innermost of JAX's running functions that has them all."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_filename == _JIT_FILE and {*names} <= {*code.co_varnames}:
            return [frame.f_locals.get(name) for name in names]
    return [None] * len(names)


def keeps_callbacks() -> bool:
    """Whether JAX's persistent cache keeps programs that call back into Python."""
    write: Any = try_resolve("jax._src.compiler:_cache_write")
    try:  # what refused them asked for them
        return "host_callbacks" not in inspect.signature(write).parameters
    except (TypeError, ValueError):
        return True
