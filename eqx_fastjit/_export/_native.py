"""The compiled form: native code, as jaxlib serializes it."""

import hashlib
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from eqx_fastjit import _private

from ._format import ExportFileError
from ._tree import ExportError


def compile_native(
    call: Callable[..., Any], arrays: Sequence[Any], options: dict[str, Any]
) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
    """Compile a function of arrays, for these, with options of `jax.jit`.

    **Returns:** what its native code needs, as data; that code; and further options,
    with the shardings that the compiler chose for several devices.

    Raises `ExportError` if it cannot be saved as native code.
    """
    lowered = jax.jit(call, **options, keep_unused=True).lower(*arrays)
    compiled = lowered.compile()
    try:
        code = bytes(compiled.runtime_executable().serialize())
    except (AttributeError, RuntimeError, ValueError) as e:
        raise ExportError(
            f"`compiled=True` is not supported here, with JAX {jax.__version__}: {e}."
        ) from e
    inputs, outputs = compiled.input_shardings[0], compiled.output_shardings
    is_several = any(len(x.device_set) > 1 for x in (*inputs, *outputs))
    shardings = {"in_shardings": inputs, "out_shardings": outputs}
    needs = {
        "environment": _environment(jax.devices()[0]),
        "lapack": "lapack_" in lowered.as_text(),
    }
    return needs, code, shardings if is_several else {}


def load_native(
    code: bytes, needs: dict[str, Any], exported: jax.export.Exported, mesh: Any
) -> Callable[[Any], Any]:
    """Load native code of a program, which must be trusted.

    **Arguments:**

    - `code`, `needs`: from `compile_native`.
    - `exported`: the same program.
    - `mesh`: the mesh of its devices, or `None` for a single one.

    **Returns:** a function from the structure of the results to a
    `jax.stages.Compiled`. Raises `ExportFileError` if the code cannot be used here.
    """
    device = jax.devices()[0]
    if needs["environment"] != _environment(device):
        raise ExportFileError(
            f"it is for {needs['environment']}, and this is {_environment(device)}"
        )
    if needs["lapack"]:
        # JAX loads LAPACK when it lowers a call of it, and nothing has been lowered.
        # The program would crash.
        jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), "float32"))
    if mesh is None:
        whole: Any = jax.sharding.SingleDeviceSharding(device)
        given: Any = [None] * len(exported.in_avals), [None] * len(exported.out_avals)
    else:
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        given = exported.in_shardings_jax(mesh), exported.out_shardings_jax(mesh)
    inputs, outputs = [[x or whole for x in group] for group in given]
    try:
        return _private.executable_loader(
            code,
            exported.fun_name,
            (list(exported.in_avals), inputs),
            (list(exported.out_avals), outputs),
            [device] if mesh is None else list(mesh.devices.flat),
        )
    except _private.MissingPrivateName as e:
        raise ExportFileError(f"JAX {jax.__version__} has no {e}") from None
    except (RuntimeError, ValueError, TypeError) as e:
        why = str(e).splitlines()[0]
        raise ExportFileError(f"jaxlib cannot load it ({why})") from None


def _environment(device: Any) -> str:
    """What native code depends on."""
    parts = [f"jax {jax.__version__}", f"jaxlib {version('jaxlib')}", device.platform]
    parts += [device.device_kind, device.client.platform_version]
    if device.platform == "cpu":  # it may use all instructions of the processor
        parts += [platform.machine(), _cpu_features()]
    return ", ".join(dict.fromkeys(parts))


def _cpu_features() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            flags = [x for x in file if x.startswith(("flags", "Features"))]
    except OSError:
        return platform.processor()
    text = " ".join(sorted("".join(flags[:1]).split()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
