"""The private names of JAX that only files of functions use.

Each is looked up as those in `eqx_fastjit/_private.py` are. Where one is not there, a
file is loaded without native code, and fewer custom calls are allowed.
"""

from typing import Any

import jax

from eqx_fastjit import _private


# Kernels are stable, but are native code of somebody else.
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "tf.call_tf_function"}


def stable_custom_calls() -> frozenset[str]:
    """The custom calls of JAX itself that its guarantees cover. If unknown, none."""
    path = "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE"
    return frozenset(_private.try_resolve(path, ())) - _KERNELS


def load_executable(code: bytes, exported: Any, mesh: Any, device: Any) -> Any:
    """Load native code, which must be trusted, as a `jax.stages.Compiled`.

    This does what JAX's public `serialize_executable` does, without its pickle, for a
    program without effects that keeps unused arguments.

    `code` is what `Compiled.runtime_executable().serialize()` returned, `exported` the
    same program, and `mesh` that of its devices, or `None` for a single `device`.
    Raises an exception of JAX or Python if this version of JAX cannot load it.
    """
    cls = _private.resolve("jax._src.interpreters.pxla:UnloadedMeshExecutable")
    inputs, outputs = exported.in_avals, exported.out_avals

    # Where arguments and results are: as the program says, else on all devices.
    default: Any = jax.sharding.SingleDeviceSharding(device)
    input_shardings = [None] * len(inputs)
    output_shardings = [None] * len(outputs)
    if mesh is not None:
        default = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        input_shardings = exported.in_shardings_jax(mesh)
        output_shardings = exported.out_shardings_jax(mesh)

    device_list = default._internal_device_list
    executable = device.client.deserialize_executable(
        code, executable_devices=device_list
    )
    values = {
        "xla_executable": executable,
        "device_list": device_list,
        "backend": device.client,
        "input_avals": inputs,
        "input_shardings": [x or default for x in input_shardings],
        "output_avals": outputs,
        "output_shardings": [x or default for x in output_shardings],
        "committed": mesh is not None,
        "name": exported.fun_name,
        "unordered_effects": [],
        "ordered_effects": [],
        "keepalive": [],
        "host_callbacks": [],
        "kept_var_idx": set(range(len(inputs))),
        "mut": None,
        "all_args_info": None,
        "pgle_profiler": None,
        "xla_in_layouts": [None] * len(inputs),
        "dispatch_in_layouts": [None] * len(inputs),
        "xla_out_layouts": [None] * len(outputs),
    }
    # A version may have fewer of them. If it has more, this is a `TypeError`.
    fields = cls.__dataclass_fields__.keys() & values
    loaded = cls(**{field: values[field] for field in fields}).load()

    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    args_info = tuple(structs), {}
    return jax.stages.Compiled(loaded, [], args_info, exported.out_tree, no_kwargs=True)
