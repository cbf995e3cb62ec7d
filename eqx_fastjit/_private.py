"""Every private name of JAX, jaxlib and Equinox that this library uses."""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np


class MissingPrivateName(Exception):
    """A private name does not exist in this version of JAX or Equinox."""


def resolve(path: str) -> Any:
    """The object at `"package.module:attribute.attribute"`."""
    module_name, _, attributes = path.partition(":")
    try:
        out = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            out = getattr(out, attribute)
    except (ImportError, AttributeError) as e:
        raise MissingPrivateName(path) from e
    return out


# --- insight --------------------------------------------------------------------------


def raw_frames(equation: Any) -> tuple[list[Any], list[int]] | None:
    """The code objects and instructions that an equation comes from, innermost first.

    `None` if this version of JAX does not tell.
    """
    try:
        codes, instructions = equation.source_info.traceback.raw_frames()
    except (AttributeError, TypeError, ValueError):
        return None
    return list(codes), list(instructions)


def name_stack(equation: Any) -> str:
    """The names and transformations that an equation is under, which may be empty."""
    return str(getattr(getattr(equation, "source_info", None), "name_stack", ""))


def filter_jit_options(wrapper: Any) -> tuple[Any, str] | None:
    """The function and `donate` of a function under `equinox.filter_jit`.

    `None` if it is something else.
    """
    if not isinstance(wrapper, eqx.Module):  # quick, and nearly always enough
        return None
    try:
        wrapper_type: Any = resolve("equinox._jit:_JitWrapper")
        if type(wrapper) is not wrapper_type:
            return None
        flags = tuple(getattr(wrapper, f"donate_{x}") for x in ("first", "rest"))
        fun = getattr(wrapper, "__wrapped__")  # noqa: B009
    except (MissingPrivateName, AttributeError):
        return None
    donate = {(True, True): "all", (False, True): "all-except-first"}
    return fun, donate.get(flags, "none")


def raw_execute(compiled: Any, arrays: list[Any]) -> Callable[[], Any] | None:
    """Run a compiled program without JAX's dispatch. The result has no use.

    `None` where it cannot be done: the interface below is jaxlib's own, which knows
    only the arrays inside of typed PRNG keys.
    """
    is_key = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in arrays]
    pairs = zip(arrays, is_key, strict=True)
    arrays = [jax.random.key_data(x) if key else x for x, key in pairs]

    def run() -> Any:
        results = executable.execute_sharded(arrays)
        return results.disassemble_into_single_device_arrays()

    try:
        executable = compiled.runtime_executable()
        jax.block_until_ready(run())
    except Exception:
        return None
    return run


# Given a function, and whether it reads a "value", "blocks" or is of "numpy", the
# function to use in its place.
Wrap = Callable[[Callable[..., Any], str], Callable[..., Any]]


def hook_waits(wrap: Wrap, until: contextlib.ExitStack) -> list[str]:
    """Wrap each function in which Python waits for the device, `until` closes.

    Whatever reads a value (`float(x)`, `print(x)`, `x.item()`, `jax.device_get`) comes
    to one property of JAX's arrays. NumPy reads the memory of an array on the host
    without it.

    **Returns:**

    The names of what is not there in this version of JAX.
    """
    missing: list[str] = []

    def hook(owner: Any, name: str, kind: str) -> None:
        try:
            old = vars(owner)[name]
            if isinstance(old, property):
                new: Any = property(wrap(old.__get__, kind))
            else:
                new = wrap(old, kind)
            setattr(owner, name, new)
        except (KeyError, AttributeError, TypeError):
            missing.append(name)
        else:
            until.callback(setattr, owner, name, old)

    array = type(jax.numpy.zeros(()))
    hook(array, "_value", "value")
    hook(array, "block_until_ready", "blocks")
    try:
        client = resolve("jax._src.lib:xla_client")
    except MissingPrivateName:
        client = None
    hook(client, "batched_block_until_ready", "blocks")
    for name in ("asarray", "array"):
        hook(np, name, "numpy")
    return missing
