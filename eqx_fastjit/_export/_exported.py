"""`f.export(...)`: a traced call that can be saved to a file."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.tree_util as jtu

from eqx_fastjit._blocking import has_host_callbacks
from eqx_fastjit._callables import OMITTED, to_call
from eqx_fastjit._options import donated
from eqx_fastjit._statics import partition, Walk
from eqx_fastjit._traced import quiet_donation

from . import _format
from ._native import compile_native, environment
from ._tree import Encoder, ExportError, split


# JAX takes any name, and says that it has no such platform when the file is called.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class _Call(NamedTuple):
    """A call of a function: `values` has one for each parameter of `signature`.

    The instance of a bound method is not among them.
    """

    name: str
    signature: inspect.Signature
    values: tuple[Any, ...]
    donate: str


class Exported:
    """A function that was traced for certain arguments, and can be saved to a file.

    `f.export(...)` returns it. `save` lowers and compiles.

    **Arguments:** the jitted function or bound method, and the arguments of the call.
    """

    def __init__(self, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        if importlib.util.find_spec("flatbuffers") is None:
            raise ExportError("exporting needs flatbuffers: pip install flatbuffers")
        call = self._call = _bind(jitted, args, kwargs)
        self._arrays, self._refs = split(call.values)
        # What cannot be saved is refused before the function is traced, which may take
        # minutes.
        described = _described(call, self._refs)
        jit_kwargs = jitted._function.options.jit_kwargs
        if "compiler_options" in jit_kwargs:
            raise ExportError(
                f"{call.name} has compiler_options, which cannot be saved."
            )

        # A result is built when the file is loaded; arguments are only compared.
        result = Encoder(to_build=True)
        self._function_of_arrays = _function_of_arrays(jitted, call, result)
        positional, _ = to_call(call.signature, call.values)
        donated_arrays = donated(call.donate, positional, len(self._arrays), True)
        self._options: dict[str, Any] = {"donate_argnums": donated_arrays}

        # Tracing fills the lines of the result.
        with quiet_donation():
            flat = jax.jit(self._function_of_arrays, **self._options)
            traced = flat.trace(*self._arrays)
            if has_host_callbacks(traced):
                raise ExportError(
                    f"{call.name} has host callbacks, which call Python and cannot be "
                    "exported. Remove them (`jax.debug.print`, `jax.pure_callback`); "
                    "for checks of `eqx.error_if`, start Python with EQX_ON_ERROR=nan."
                )

        # Of `jit_kwargs`, `_mesh` uses what is a sharding.
        self._shardings = [getattr(x, "sharding", None) for x in self._arrays]
        self._shardings += jtu.tree_leaves(jit_kwargs)
        self._header: dict[str, Any] = {
            "made_by": f"JAX {jax.__version__}",
            "name": call.name,
            "doc": inspect.getdoc(getattr(jitted, "func", jitted)),
            "parameters": described,
            "result": result.lines,
            "weak_types": [x.weak_type for x in traced.out_info],
            "donate": call.donate,
        }

    def __repr__(self) -> str:
        return f"<Exported of {self._header['name']}>"

    def save(
        self,
        path: Any,
        *,
        compiled: bool = False,
        platforms: Sequence[str] | None = None,
        vjp_order: int = 0,
    ) -> None:
        """Write a file for `eqx_fastjit.load`.

        It contains StableHLO, as `jax.export` writes it. Other machines and later
        versions of JAX can load that.

        **Arguments:**

        - `path`: the path of the file, which is replaced if it exists.
        - `compiled`: whether to save native code as well, for this version of jaxlib
            and this kind of device, so that loading does not compile. It is only used
            with `load(..., trusted=True)`.
        - `platforms`: the platforms of the StableHLO: `"cpu"`, `"cuda"`, `"rocm"`,
            `"tpu"`. By default, the platform in use.
        - `vjp_order`: how many times the loaded function can be differentiated in
            reverse mode.

        **Raises:**

        `ValueError`, with the reason, if the function cannot be saved in this way, and
        `OSError` if the file cannot be written.
        """
        if compiled and any(type(n) is not int for x in self._arrays for n in x.shape):
            raise ExportError("`compiled=True` needs sizes, and some are symbolic.")
        if platforms is not None and not set(platforms) <= {*_PLATFORMS}:
            raise ExportError(f"{platforms=}: expected some of {_PLATFORMS}.")

        if vjp_order < 0:
            raise ExportError(f"{vjp_order=}: expected 0 or more.")

        options = self._options
        header = {**self._header, "vjp_order": vjp_order, "mesh": None}
        sections: dict[str, bytes] = {}
        with _format.replacing(path) as file, quiet_donation():
            try:
                if compiled:
                    code, shardings = compile_native(
                        self._function_of_arrays, self._arrays, options
                    )
                    header["made_for"] = environment()
                    sections["compiled"] = code
                    # `load` places arrays by the shardings of the portable form, and
                    # gives the same arrays to the native code.
                    options = options | shardings

                flat = jax.jit(self._function_of_arrays, **options)
                exported = jax.export.export(flat, platforms=platforms)(*self._arrays)
                sections["portable"] = bytes(exported.serialize(vjp_order=vjp_order))
            except Exception as e:  # of JAX, or of the device's plugin
                raise ExportError(
                    f"{header['name']} cannot be exported ({compiled=}): {e}"
                ) from e

            # It may have been traced again.
            if _described(self._call, self._refs) != header["parameters"]:
                raise ExportError("a static argument was changed since `export`.")

            if exported.nr_devices > 1:
                # By the compiler's shardings, meshes in the function's body are known.
                header["mesh"] = _mesh(
                    exported.nr_devices, self._shardings, jtu.tree_leaves(options)
                )
            _format.write(file, header, sections)


def _bind(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Bind the arguments of a call of a jitted function or bound method."""
    function = jitted._function
    name = function.info.name
    donate: str = function.options.donate
    parameters = list(function.signature.parameters.values())
    _, values = function.fun_and_values(jitted._bind(*args, **kwargs))

    n_instances = len(getattr(jitted, "args", ()))  # 1 for a bound method
    if n_instances:
        if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
            raise ExportError(f"the instance of {name} is one of `*args`: name it.")
        donate = donate.removesuffix("-except-first")
    signature = inspect.Signature(parameters[n_instances:])
    return _Call(name, signature, values[n_instances:], donate)


def _function_of_arrays(
    jitted: Any, call: _Call, result: Encoder
) -> Callable[..., list[Any]]:
    """The jitted function, from the arrays of its arguments to those of its result.

    When it is traced, it also writes the structure of the result to `result`. The
    arrays of a Module that is called, or of an instance, are constants.
    """
    # The arrays are those of `split`, in the same order; statics stay as they are.
    _, structure = partition(call.values)

    def function_of_arrays(*arrays: Any) -> list[Any]:
        args, kwargs = to_call(call.signature, structure.rebuild(arrays))
        out, refs = split(jitted(*args, **kwargs))
        result.lines.clear()  # `save` may trace it again
        result.write(refs, "<result>")
        return out

    function_of_arrays.__name__ = function_of_arrays.__qualname__ = call.name
    return function_of_arrays


def _described(call: _Call, refs: Any) -> list[Any]:
    """The parameters of a call and its arguments, as they are now, as data."""
    return [*map(_describe, call.signature.parameters.values(), call.values, refs)]


def _describe(parameter: inspect.Parameter, value: Any, refs: Any) -> list[Any]:
    """A parameter and its argument, as data.

    `refs`: the argument, with an `ArrayRef` in place of each array.
    """
    name, default = parameter.name, parameter.default
    has_default = default is not inspect.Parameter.empty
    # Omitted, or given as it would be.
    omitted = has_default and Walk(default).trail == Walk(value).trail

    try:
        lines = Encoder().write(refs, name)
    except ExportError:
        # An omitted default that cannot be saved need not be: it is part of the trace.
        if not omitted:
            raise
        lines = Encoder().write(OMITTED, name)
    return [name, parameter.kind.name, has_default, omitted, lines]


def _mesh(
    n_devices: int, shardings: Sequence[Any], compiled: Sequence[Any]
) -> dict[str, Any]:
    """The mesh of several devices that shardings have in common, as data.

    If there is none, that of the compiled ones. All but shardings is passed over.
    """
    meshes: set[Any] = set()
    for known in (shardings, compiled):
        named = [x.mesh for x in known if isinstance(x, jax.sharding.NamedSharding)]
        meshes = meshes or {x for x in named if x.size > 1}
    if len(meshes) > 1:
        raise ExportError("arrays on different meshes cannot be exported together.")

    # Without one, the program was traced for JAX's devices in their order, by `pmap`
    # or `shard_map` say: any mesh with as many of them will do.
    default = jax.sharding.Mesh(jax.devices()[:n_devices], ("devices",))
    mesh: Any = next(iter(meshes), default)
    return {
        "axes": list(mesh.axis_names),
        "sizes": list(mesh.devices.shape),
        "types": [axis_type.name for axis_type in mesh.axis_types],
        "devices": [device.id for device in mesh.devices.flat],
    }
