"""`f.export(...)`: a traced call that can be saved to a file."""

import contextlib
import importlib.util
import inspect
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.export
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._options import donated, Options
from eqx_fastjit._parameters import Omitted, Parameters
from eqx_fastjit._plan import partition
from eqx_fastjit._traced import quiet_donation

from . import _format
from ._native import compile_native
from ._program import HAS_CALLBACKS, Program
from ._tree import DefaultRef, Encoder, ExportError, Line, split


def lines_of_call(
    names: Sequence[str], kinds: Sequence[Any], values: Sequence[Any]
) -> list[Line]:
    """The values of a call, arrays aside, as lines."""
    encoder = Encoder()
    for name, kind, value in zip(names, kinds, values, strict=True):
        if kind is inspect.Parameter.VAR_KEYWORD:  # in any order
            value = dict(sorted(value.items()))
        encoder.write(DefaultRef(name) if type(value) is Omitted else value, name)
    return encoder.lines


def _saved_default(name: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """A default (or none) as in the file: itself if it is plain data."""
    if not default or type(default[0]) is Omitted:
        return (DefaultRef(name),) if default else ()
    encoder = Encoder(to_build=True)
    with contextlib.suppress(ExportError):
        encoder.write(default[0], name, static=True)
        if not encoder.objects:  # nobody has to allow a class for being a default
            return default
    return (DefaultRef(name),)


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
        self.name: str = function.info.name
        parameters: Parameters = function.parameters
        values, n = parameters.bind(self.name, (*bound, *args), kwargs), len(bound)
        if n and parameters.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
            raise ExportError(
                f"the instance of {self.name} is one of `*args`, so the rest of the "
                "arguments cannot be distinguished from it. Give the instance a "
                "parameter."
            )
        names, kinds = parameters.names[n:], parameters.kinds[n:]
        own = parameters.defaults[n:]
        defaults = [_saved_default(*x) for x in zip(names, own, strict=True)]
        shown = tuple(
            saved[0] if default and default[0] is x else x
            for default, saved, x in zip(own, defaults, values[n:], strict=True)
        )
        self._arrays, refs = split(shown)
        # What cannot be saved is refused before the function is traced, which may take
        # minutes.
        arguments = lines_of_call(names, kinds, refs)
        result = Encoder(to_build=True)
        structure = partition(values[n:])[1]

        def call(*arrays: Any) -> list[Any]:
            args, kwargs = parameters.to_call(
                (*values[:n], *structure.rebuild(arrays))
            )
            out, refs = split(jitted(*args, **kwargs))
            result.lines.clear()
            result.write(refs, "<result>")
            return out

        self._program = Program(call, self._arrays, self.name)
        default_lines = Encoder(to_build=True)
        for name, default in zip(names, defaults, strict=True):
            for x in default:
                default_lines.write(x, name, static=True)
        options = function.options
        given = [getattr(x, "sharding", None) for x in (*self._arrays, *self._program.kept)]
        given += jtu.tree_leaves([options.in_shardings, options.out_shardings])
        self._mesh = _mesh_of(given)
        donate = options.donate
        donate = donate.removesuffix("-except-first") if n else donate
        free = object.__new__(Parameters)
        free.names, free.kinds = names, kinds
        self._donated = donated(Options(donate), free, shown)
        self._header: dict[str, Any] = {
            "made_by": {
                name: version(name)
                for name in ("eqx_fastjit", "jax", "jaxlib", "equinox")
            },
            "name": self.name,
            "qualname": function.info.qualname,
            "doc": inspect.getdoc(jitted),
            "parameters": [
                [name, kind.name, bool(default)]
                for name, kind, default in zip(names, kinds, defaults, strict=True)
            ],
            "defaults": default_lines.lines,
            "arguments": arguments,
            "result": result.lines,
            "needs": list(result.objects),
            "weak_types": [x.weak_type for x in self._program.outputs],
            "has_checks": self._program.has_checks,
            "messages": self._program.messages,
            "donate": donate,
        }

    def __repr__(self) -> str:
        return f"<Exported of {self._header['qualname']}>"

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

        Raises `ValueError`, with the reason, if the function cannot be saved in this
        way, and `OSError` if the file cannot be written.
        """
        if importlib.util.find_spec("flatbuffers") is None:
            raise ExportError("`save` needs flatbuffers: pip install flatbuffers")
        if compiled and any(type(d) is not int for x in self._arrays for d in x.shape):
            raise ExportError(
                "`compiled=True`: a function with symbolic sizes cannot be compiled. "
                "Export it with the sizes of its calls."
            )
        _format.check_writable(path)
        kept = self._program.kept
        header = {**self._header, "n_kept": len(kept), "vjp_order": vjp_order}
        sections = {"kept": b"".join(map(_to_bytes, kept))}
        arrays = [*kept, *self._arrays]
        options = {"donate_argnums": tuple([len(kept) + i for i in self._donated])}
        with quiet_donation():
            if compiled:
                native = compile_native(self._program, arrays, options)
                header["compiled"], sections["compiled"], shardings = native
                options |= shardings
            jitted = jax.jit(self._program, **options)
            exported, sections["portable"] = self._lower(
                jitted, arrays, platforms, vjp_order
            )
        header["mesh"] = self._mesh if exported.nr_devices > 1 else None
        _format.write(path, header, sections)

    def _lower(
        self,
        jitted: Any,
        arrays: Sequence[Any],
        platforms: Sequence[str] | None,
        vjp_order: int,
    ) -> tuple[jax.export.Exported, bytes]:
        try:
            exported = jax.export.export(jitted, platforms=platforms)(*arrays)
            return exported, bytes(exported.serialize(vjp_order=vjp_order))
        except (ValueError, NotImplementedError) as e:
            why = HAS_CALLBACKS if "callback" in str(e) else f"is refused: {e}"
            raise ExportError(f"`jax.export`: {self.name} {why}") from e


def _to_bytes(x: Any) -> bytes:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x).tobytes()


def _mesh_of(shardings: Sequence[Any]) -> dict[str, Any] | None:
    """The mesh of several devices that shardings have in common, as data."""
    meshes = {x.mesh for x in shardings if isinstance(x, jax.sharding.NamedSharding)}
    meshes = {mesh for mesh in meshes if mesh.size > 1}
    if len(meshes) > 1:
        raise ExportError("arrays on two different meshes cannot be exported together.")
    for mesh in meshes:
        return {
            "axes": list(mesh.axis_names),
            "sizes": list(mesh.devices.shape),
            "types": [t.name for t in mesh.axis_types],
            "devices": [d.id for d in mesh.devices.flat],
        }
    return None
