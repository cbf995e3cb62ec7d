"""The compiled form: native code, as jaxlib serializes it."""

import contextlib
import hashlib
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from ._private import load_executable


def compile_native(
    call: Callable[..., Any], arrays: Sequence[Any], options: dict[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    """The native code of a function of arrays, with options of `jax.jit`.

    Also returns further options: the shardings that the compiler chose for several
    devices. Raises an exception of JAX or Python if the code cannot be saved.
    """
    lowered = jax.jit(call, **options, keep_unused=True).lower(*arrays)
    with _without_persistent_cache():
        compiled: Any = lowered.compile()

    inputs, _ = compiled.input_shardings
    outputs = compiled.output_shardings
    shardings = {"in_shardings": inputs, "out_shardings": outputs}
    if all(len(x.device_set) == 1 for x in (*inputs, *outputs)):
        shardings = {}
    return bytes(compiled.runtime_executable().serialize()), shardings


@contextlib.contextmanager
def _without_persistent_cache() -> Iterator[None]:
    """Compile again: XLA cannot save all of a program that came out of that cache."""
    option = "jax_enable_compilation_cache"
    was_enabled = getattr(jax.config, option)
    jax.config.update(option, False)
    compilation_cache.reset_cache()  # else JAX does not ask for the option again

    try:
        yield
    finally:
        jax.config.update(option, was_enabled)
        compilation_cache.reset_cache()


def load_native(
    code: bytes, made_for: str, exported: jax.export.Exported, mesh: Any
) -> Any:
    """Load native code, which must be trusted and was `made_for` an `environment()`.

    `mesh` has its devices, if there are several. Returns a `jax.stages.Compiled`; or
    `None`, with a warning that says why, if the code cannot be used here.
    """
    here = environment()
    why = f"it is for {made_for}, and this is {here}"

    if made_for == here:
        if has_lapack(exported):
            # JAX loads LAPACK when it lowers a call of it. Without that, the program
            # would crash.
            matrix = jax.ShapeDtypeStruct((1, 1), "float32")
            jax.jit(jnp.linalg.cholesky).lower(matrix)
        try:
            return load_executable(code, exported, mesh, jax.devices()[0])
        except Exception as e:  # whatever another JAX raises
            why = f"JAX {jax.__version__} cannot load it ({e!r})"

    warnings.warn(
        f"the native code of {exported.fun_name} is not used: {why}. The portable form "
        "is compiled instead.",
        stacklevel=5,
    )
    return None


def has_lapack(exported: jax.export.Exported) -> bool:
    """Whether a program calls LAPACK."""
    return b"lapack_" in exported.mlir_module_serialized


def environment() -> str:
    """What native code depends on; on CPUs, also the instructions that there are."""
    device = jax.devices()[0]
    parts = [
        f"jax {jax.__version__}",
        f"jaxlib {version('jaxlib')}",
        device.device_kind,
        device.client.platform_version,
        platform.machine(),
    ]

    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        flags = next((x for x in lines if x.startswith(("flags", "Features"))), "")
        parts.append(hashlib.sha256(flags.encode()).hexdigest())
    return ", ".join(parts)
