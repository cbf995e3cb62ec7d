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

from eqx_fastjit._options import donated, Options
from eqx_fastjit._parameters import Omitted, Parameters
from eqx_fastjit._plan import partition
from eqx_fastjit._traced import quiet_donation

from . import _format
from ._native import compile_native
from ._program import HAS_CALLBACKS, Program
from ._tree import Encoder, ExportError, Line, split


_MADE_BY = ("eqx_fastjit", "jax", "jaxlib", "equinox")


def lines_of(value: Any, kind: Any, name: str) -> list[Line]:
    """The lines of an argument, which has `ArrayRef`s in place of arrays."""
    if type(value) is Omitted:
        return [[name, "default", None, 0]]
    if kind is inspect.Parameter.VAR_KEYWORD:  # in any order
        value = dict(sorted(value.items()))
    return Encoder().write(value, name)


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
        parameters: Parameters = jitted._description.parameters
        values, n = parameters.bind(self.name, (*bound, *args), kwargs), len(bound)
        if n and parameters.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
            raise ExportError(
                f"the instance of {self.name} is one of `*args`, so the rest of the "
                "arguments cannot be distinguished from it. Give the instance a "
                "parameter."
            )
        free = parameters.without(n)
        self._arrays, refs = split(values[n:])
        # What cannot be saved is refused before the function is traced, which may take
        # minutes.
        described = [
            _describe(*x)
            for x in zip(free.names, free.kinds, free.defaults, refs, strict=True)
        ]
        structure, result = partition(values[n:])[1], Encoder(to_build=True)

        def call(*arrays: Any) -> list[Any]:
            rest = structure.rebuild(arrays)
            args, kwargs = parameters.to_call((*values[:n], *rest))
            out, refs = split(jitted(*args, **kwargs))
            result.lines.clear()
            result.write(refs, "<result>")
            return out

        self._program = Program(call, self._arrays, self.name)
        options: Options = function.options
        donate = options.donate.removesuffix("-except-first") if n else options.donate
        n_kept = len(self._program.kept)
        indices = donated(Options(donate), free, values[n:])
        self._options = {"donate_argnums": tuple([n_kept + i for i in indices])}
        self._mesh = _mesh(
            *[getattr(x, "sharding", None) for x in self._arrays],
            *[x.sharding for x in self._program.kept],
            *jtu.tree_leaves([options.in_shardings, options.out_shardings]),
        )
        self._header: dict[str, Any] = {
            "made_by": {name: version(name) for name in _MADE_BY},
            "name": self.name,
            "qualname": function.info.qualname,
            "doc": inspect.getdoc(jitted),
            "parameters": described,
            "result": result.lines,
            "weak_types": [x.weak_type for x in self._program.outputs],
            "messages": self._program.messages if self._program.has_checks else None,
            "donate": donate,
            "n_kept": n_kept,
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
        sections = {"kept": b"".join(map(_to_bytes, self._program.kept))}
        arrays, options = [*self._program.kept, *self._arrays], self._options
        with _format.replacing(path) as file, quiet_donation():
            if compiled:
                native = compile_native(self._program, arrays, options)
                header["compiled"], sections["compiled"], shardings = native
                options = options | shardings
            jitted = jax.jit(self._program, **options)
            try:
                exported = jax.export.export(jitted, platforms=platforms)(*arrays)
                sections["portable"] = bytes(exported.serialize(vjp_order=vjp_order))
            except (ValueError, NotImplementedError) as e:
                why = HAS_CALLBACKS if "callback" in str(e) else f"is refused: {e}"
                raise ExportError(f"`jax.export`: {self.name} {why}") from e
            header["mesh"] = self._mesh if exported.nr_devices > 1 else None
            _format.write(file, header, sections)


def _describe(name: str, kind: Any, default: tuple[Any, ...], value: Any) -> list[Any]:
    """A parameter and its argument, as data."""
    if not default or default[0] is not value:
        return [name, kind.name, bool(default), False, lines_of(value, kind, name)]
    try:
        lines = lines_of(value, kind, name)
    except ExportError:  # nobody else can pass it, but it can be omitted
        lines = lines_of(Omitted(None), kind, name)
    return [name, kind.name, True, True, lines]


def _to_bytes(x: Any) -> bytes:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x).tobytes()


def _mesh(*shardings: Any) -> dict[str, Any] | None:
    """The mesh of several devices that shardings have in common, as data."""
    named = [x for x in shardings if isinstance(x, jax.sharding.NamedSharding)]
    meshes = {x.mesh for x in named if x.mesh.size > 1}
    if len(meshes) > 1:
        raise ExportError("arrays on different meshes cannot be exported together.")
    for mesh in meshes:
        return {
            "axes": list(mesh.axis_names),
            "sizes": list(mesh.devices.shape),
            "types": [t.name for t in mesh.axis_types],
            "devices": [d.id for d in mesh.devices.flat],
        }
    return None
