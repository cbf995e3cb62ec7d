"""Every private name of JAX, jaxlib and Equinox that this library uses.

No other file may import from `jax._src`, `jaxlib` or `equinox._*` (the linter bans it).
Each name is looked up by `resolve`, or its class is asked for it beforehand. Where one
is not there, the caller gets `None` (or a stand-in) and does without.
"""

import contextlib
import functools
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer


# The single doorway to private names, `"package.module:attribute.attribute"`, so that a
# test can take each of them away in turn. It raises `ImportError` or `AttributeError`.
resolve = pkgutil.resolve_name


def _try_resolve(path: str, default: Any = None) -> Any:
    """As `resolve`, or the default."""
    with contextlib.suppress(ImportError, AttributeError):
        return resolve(path)
    return default


# --- JAX ------------------------------------------------------------------------------


def hide_from_tracebacks(path: str) -> None:
    """Hide the frames of a file or folder in JAX's filtered tracebacks."""
    _try_resolve("jax._src.traceback_util:register_exclusion", lambda _: None)(path)


hide_from_tracebacks(os.path.dirname(__file__))


_PARTS = ("primal", "val", "tangent")


@functools.cache
def _parts_of(cls: type) -> tuple[str, ...]:
    """The names of what a tracer of a class may have inside.

    The class is asked: a tracer searches long for an attribute that it does not have.
    """
    has_dict = cls.__dictoffset__ != 0
    return tuple([name for name in _PARTS if has_dict or hasattr(cls, name)])


def values_inside(x: Any) -> list[Any]:
    """The arrays inside a tracer of an eager transformation, such as `jax.grad`.

    The value comes first, then the tangent. An array, or a tracer of a trace that only
    records, is returned as it is.
    """
    if not isinstance(x, Tracer):
        return [x]
    inside: list[Any] = []
    for name in _parts_of(type(x)):
        part = getattr(x, name, None)
        if isinstance(part, Tracer | np.ndarray | np.generic | jax.Array):
            inside += values_inside(part)
    return inside or [x]


# --- Equinox --------------------------------------------------------------------------


# The descriptor behind `module.__dict__`. Reading it directly skips
# `Module.__getattribute__`, which is a Python function.
INSTANCE_DICT: Any = inspect.getattr_static(eqx.Module, "__dict__")
instance_dict: Callable[[Any], dict[str, Any]] = INSTANCE_DICT.__get__


def last_error_info() -> tuple[str, list[bytes | str]]:
    """The message and trace-time stack of the last `eqx.error_if` that failed."""
    return _try_resolve("equinox._jit:last_error_info") or ("", [])


def runtime_error_text(message: str, stack: str) -> str:
    """Equinox's text around the message and the stack of a runtime error."""
    text = _try_resolve("equinox._jit:_on_error_msg", "{stack}\n{msg}")
    return text.format(msg=message, stack=stack)


def on_clear_caches(clear: Callable[[], None]) -> None:
    """Make `eqx.clear_caches()` call `clear` as well."""
    _try_resolve("equinox._caches:cache_clears", []).append(clear)


# --- insight --------------------------------------------------------------------------


def raw_frames(equation: Any) -> list[tuple[Any, int]]:
    """The code objects and instructions that an equation comes from, innermost first.

    Empty if this version of JAX does not tell.
    """
    try:
        codes, instructions = equation.source_info.traceback.raw_frames()
    except (AttributeError, TypeError, ValueError):
        return []
    return list(zip(codes, instructions, strict=True))


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
    array = _try_resolve("jax._src.array:ArrayImpl")
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
_JIT_FILE = _try_resolve("jax._src.pjit:__file__")


def function_in_jit() -> Any:
    """The Python function that `jax.jit` is compiling in this thread, or `None`.

    It is an argument of one of JAX's functions that are running.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_filename == _JIT_FILE and "fun" in code.co_varnames:
            return frame.f_locals.get("fun")
    return None


def keeps_callbacks() -> bool:
    """Whether JAX's persistent cache keeps programs that call back into Python."""
    write = _try_resolve("jax._src.compiler:_cache_write")
    try:  # what refused them asked for them
        return "host_callbacks" not in inspect.signature(write).parameters
    except (TypeError, ValueError):
        return True


# --- exporting ------------------------------------------------------------------------


def stable_custom_calls() -> frozenset[str]:
    """The custom calls of JAX itself that its guarantees cover. If unknown, none."""
    path = "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE"
    # Kernels are stable, but are native code of somebody else.
    kernels = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "tf.call_tf_function"}
    return frozenset(_try_resolve(path, ())) - kernels


def load_executable(code: bytes, exported: Any, mesh: Any, device: Any) -> Any:
    """Load native code, which must be trusted, as a `jax.stages.Compiled`.

    This does what JAX's public `serialize_executable` does, without its pickle, for a
    program without effects that keeps unused arguments.

    **Arguments:**

    - `code`: what `Compiled.runtime_executable().serialize()` returned.
    - `exported`: the same program, as a `jax.export.Exported`.
    - `mesh`: the mesh of its devices, or `None` if it is for a single one, `device`.

    Raises an exception of JAX or Python if this version of JAX cannot load it.
    """
    cls = resolve("jax._src.interpreters.pxla:UnloadedMeshExecutable")
    inputs, outputs = list(exported.in_avals), list(exported.out_avals)
    whole: Any = jax.sharding.SingleDeviceSharding(device)
    given: Any = [None] * len(inputs), [None] * len(outputs)
    if mesh is not None:
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        given = exported.in_shardings_jax(mesh), exported.out_shardings_jax(mesh)
    device_list = whole._internal_device_list
    values = {
        **dict.fromkeys(("mut", "all_args_info", "pgle_profiler")),
        "unordered_effects": [],
        "ordered_effects": [],
        "keepalive": [],
        "host_callbacks": [],
        "xla_executable": device.client.deserialize_executable(
            code, executable_devices=device_list
        ),
        "device_list": device_list,
        "backend": device.client,
        "input_avals": inputs,
        "input_shardings": [x or whole for x in given[0]],
        "output_avals": outputs,
        "output_shardings": [x or whole for x in given[1]],
        "committed": mesh is not None,
        "name": exported.fun_name,
        "kept_var_idx": set(range(len(inputs))),
        "xla_in_layouts": [None] * len(inputs),
        "dispatch_in_layouts": [None] * len(inputs),
        "xla_out_layouts": [None] * len(outputs),
    }
    # A version may have fewer of them. If it has more, this is a `TypeError`.
    fields = cls.__dataclass_fields__.keys() & values
    loaded = cls(**{field: values[field] for field in fields}).load()
    args_info = tuple([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]), {}
    return jax.stages.Compiled(loaded, [], args_info, exported.out_tree, no_kwargs=True)
