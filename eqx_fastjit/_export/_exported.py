"""`f.export(...)`: a traced call that can be saved to a file."""

import importlib.util
import inspect
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.export
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._blocking import has_host_callbacks
from eqx_fastjit._options import donated, Options
from eqx_fastjit._parameters import Omitted, Parameters
from eqx_fastjit._plan import partition
from eqx_fastjit._traced import quiet_donation

from . import _format
from ._native import compile_native
from ._tree import Encoder, ExportError, Line, split


class Exported:
    """A function that was traced for certain arguments, and can be saved to a file.

    `f.export(...)` returns it. `save` lowers and compiles.

    **Arguments:** the jitted function; the instance, if it is a method; and the other
    arguments of the call.
    """

    def __init__(
        self,
        jitted: Any,
        bound: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ):
        function = jitted._function
        name: str = function.info.name
        parameters: Parameters = jitted._description.parameters
        values, n = parameters.bind(name, (*bound, *args), kwargs), len(bound)
        if n and parameters.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
            raise ExportError(f"the instance of {name} is one of `*args`: name it.")
        free = parameters.without(n)
        self._arrays, refs = split(values[n:])
        # What cannot be saved is refused before the function is traced, which may take
        # minutes.
        described = [
            _describe(*x)
            for x in zip(free.names, free.kinds, free.defaults, refs, strict=True)
        ]
        # Arrays of a Module that is called, or of an instance, are kept in the file.
        self._kept, own = partition((jitted, values[:n]))
        rest, n_kept = partition(values[n:])[1], len(self._kept)
        result = Encoder(to_build=True)

        def call(*arrays: Any) -> list[Any]:
            jitted, bound = own.rebuild(arrays[:n_kept])
            free = rest.rebuild(arrays[n_kept:])
            args, kwargs = parameters.to_call((*bound, *free))
            out, refs = split(jitted(*args, **kwargs))
            result.lines.clear()
            result.write(refs, "<result>")
            return out

        call.__name__ = call.__qualname__ = name
        self._call = call
        options: Options = function.options
        donate = options.donate.removesuffix("-except-first") if n else options.donate
        indices = donated(Options(donate), free, values[n:])
        self._options = {"donate_argnums": tuple([n_kept + i for i in indices])}
        with quiet_donation():
            traced = jax.jit(call, **self._options).trace(*self._kept, *self._arrays)
            if has_host_callbacks(traced):
                raise ExportError(
                    f"{name} has host callbacks, which call Python and cannot be "
                    "exported. Remove them (`jax.debug.print`, `jax.pure_callback`); "
                    "for checks of `eqx.error_if`, set `EQX_ON_ERROR=nan`."
                )
        self._shardings = [
            *[getattr(x, "sharding", None) for x in (*self._kept, *self._arrays)],
            *jtu.tree_leaves([options.in_shardings, options.out_shardings]),
        ]
        self._header: dict[str, Any] = {
            "made_by": {x: version(x) for x in ("eqx_fastjit", "jax", "equinox")},
            "name": name,
            "doc": inspect.getdoc(jitted),
            "parameters": described,
            "result": result.lines,
            "weak_types": [x.weak_type for x in traced.out_info],
            "donate": donate,
            "n_kept": n_kept,
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

        It has StableHLO, by `jax.export`, which other machines and later versions of
        JAX can load. This needs the package flatbuffers.

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
        if importlib.util.find_spec("flatbuffers") is None:
            raise ExportError("`save` needs flatbuffers: pip install flatbuffers")
        if compiled and any(type(d) is not int for x in self._arrays for d in x.shape):
            raise ExportError(
                "`compiled=True`: a function with symbolic sizes cannot be compiled. "
                "Export it with the sizes of its calls."
            )
        header = {**self._header, "vjp_order": vjp_order}
        sections = {"kept": b"".join(map(_to_bytes, self._kept))}
        arrays, options = [*self._kept, *self._arrays], self._options
        with _format.replacing(path) as file, quiet_donation():
            if compiled:
                native = compile_native(self._call, arrays, options)
                header["compiled"], sections["compiled"], shardings = native
                options = options | shardings
            jitted = jax.jit(self._call, **options)
            try:
                exported = jax.export.export(jitted, platforms=platforms)(*arrays)
                sections["portable"] = bytes(exported.serialize(vjp_order=vjp_order))
            except (ValueError, NotImplementedError) as e:
                raise ExportError(
                    f"`jax.export` cannot export {header['name']}: {e}"
                ) from e
            header["mesh"] = _mesh(exported.nr_devices, self._shardings)
            _format.write(file, header, sections)


def _describe(name: str, kind: Any, default: tuple[Any, ...], value: Any) -> list[Any]:
    """A parameter and its argument, as data."""
    omitted = bool(default) and default[0] is value
    try:
        lines = lines_of(value, kind, name)
    except ExportError:
        if not omitted:
            raise
        lines = lines_of(Omitted(None), kind, name)
    return [name, kind.name, bool(default), omitted, lines]


def lines_of(value: Any, kind: Any, name: str) -> list[Line]:
    """The lines of an argument, which has `ArrayRef`s in place of arrays."""
    if type(value) is Omitted:
        return [[name, "default", None, 0]]
    if kind is inspect.Parameter.VAR_KEYWORD:  # in any order
        value = dict(sorted(value.items()))
    return Encoder().write(value, name)


def _to_bytes(x: Any) -> bytes:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x).tobytes()


def _mesh(n_devices: int, shardings: Sequence[Any]) -> dict[str, Any] | None:
    """The mesh of several devices that shardings have in common, as data."""
    if n_devices == 1:
        return None
    named = [x for x in shardings if isinstance(x, jax.sharding.NamedSharding)]
    meshes = {x.mesh for x in named if x.mesh.size > 1}
    if len(meshes) > 1:
        raise ExportError("arrays on different meshes cannot be exported together.")
    default = jax.make_mesh((n_devices,), ("devices",), (jax.sharding.AxisType.Auto,))
    mesh = meshes.pop() if meshes else default
    return {
        "axes": list(mesh.axis_names),
        "sizes": list(mesh.devices.shape),
        "types": [t.name for t in mesh.axis_types],
        "devices": [d.id for d in mesh.devices.flat],
    }
