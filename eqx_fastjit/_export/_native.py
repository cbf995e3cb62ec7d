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
from eqx_fastjit._blocking import has_host_callbacks

from ._format import ExportFileError
from ._program import HAS_CALLBACKS, Program
from ._tree import ExportError


# The names of LAPACK's routines in a program for CPUs begin with this.
_LAPACK = "lapack_"


def compile_native(
    program: Program, arrays: Sequence[Any], options: dict[str, Any]
) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
    """Compile a program for these arrays, and options of `jax.jit`.

    **Returns:** what its native code needs, as data; that code; and the options of
    `jax.jit` that have the shardings which the compiler chose.

    Raises `ExportError` if it cannot be saved as native code.
    """
    traced = jax.jit(program, **options, keep_unused=True).trace(*arrays)
    if has_host_callbacks(traced):
        raise ExportError(f"`compiled=True`: {program.__name__} {HAS_CALLBACKS}")
    lowered = traced.lower()
    compiled = lowered.compile()
    try:
        code = bytes(compiled.runtime_executable().serialize())
    except (AttributeError, RuntimeError, ValueError) as e:
        raise ExportError(
            f"`compiled=True`: {program.__name__} cannot be saved as native code with "
            f"JAX {jax.__version__}: {e}."
        ) from e
    shardings = {
        "in_shardings": compiled.input_shardings[0],
        "out_shardings": compiled.output_shardings,
    }
    n_devices = max(len(x.device_set) for group in shardings.values() for x in group)
    needs = {
        "environment": _environment(jax.devices()[0]),
        "lapack": _LAPACK in lowered.as_text(),
    }
    return needs, code, shardings if n_devices > 1 else {}


def load_native(
    code: bytes,
    needs: dict[str, Any],
    exported: jax.export.Exported,
    mesh: jax.sharding.Mesh | None,
) -> Callable[[Any], Any]:
    """Load native code of a program, which must be trusted.

    **Arguments:**

    - `code`, `needs`: of `compile_native`.
    - `exported`: the same program.
    - `mesh`: the mesh of its devices, if these are several.

    **Returns:** A function, from the structure of the results to a
    `jax.stages.Compiled`. Raises `ExportFileError` if the code cannot be used here.
    """
    device = jax.devices()[0]
    here = _environment(device)
    if needs["environment"] != here:
        raise ExportFileError(f"it is for {needs['environment']}, and this is {here}")
    if needs["lapack"]:
        # JAX loads LAPACK when it lowers a call of it, and nothing has been lowered. The
        # program would crash.
        jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), "float32"))
    if mesh is None:
        whole: Any = jax.sharding.SingleDeviceSharding(device)
        given: Any = [None] * len(exported.in_avals), [None] * len(exported.out_avals)
    else:
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        given = exported.in_shardings_jax(mesh), exported.out_shardings_jax(mesh)
    shardings = [[whole if x is None else x for x in group] for group in given]
    try:
        return _private.executable_loader(
            code,
            exported.fun_name,
            (list(exported.in_avals), shardings[0]),
            (list(exported.out_avals), shardings[1]),
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
    if device.platform == "cpu":
        parts.append(f"{platform.machine()} {_cpu_features()}")
    return ", ".join(dict.fromkeys(parts))


def _cpu_features() -> str:
    """Which instructions there are: native code may use all of them."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [x for x in file if x.startswith(("flags", "Features"))]
    except OSError:
        return platform.processor()
    flags = " ".join(sorted(lines[0].split())) if lines else ""
    return hashlib.sha256(flags.encode()).hexdigest()[:16]
