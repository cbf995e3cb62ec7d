"""`load(path)`: a file as a function, which runs none of the user's Python code.

And a file in words, for `eqx-fastjit show`. Nothing that it names is imported.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from eqx_fastjit._callables import Description, OMITTED
from eqx_fastjit._function import Function
from eqx_fastjit._options import Options
from eqx_fastjit._statics import partition
from eqx_fastjit._traced import FlatFunction

from . import _private
from ._format import ExportFileError, one_error, read
from ._names import Names
from ._native import has_lapack, load_native
from ._tree import build, difference, Encoder, ExportError, Line, show_line, split


_CUSTOM_CALL = re.compile(
    r'custom_call\s*@"?([^\s"(]+)|call_target_name\s*=\s*"([^"]*)"'
)


def load_function(
    path: Any, example: Sequence[Any] | None, allow: str | Iterable[str], trusted: bool
) -> "LoadedFunction":
    """The function in a file. `eqx_fastjit.load` says what the arguments are.

    Raises `ValueError`, with the path, for whatever is wrong with the file.
    """
    if not isinstance(example, tuple | list | None):
        raise TypeError(
            "`load(..., example=...)`: expected a tuple, got "
            f"{type(example).__qualname__}."
        )

    encoder = Encoder()
    _, refs = split(tuple(example or ()))
    encoder.write(refs, "example")

    # The arrays that the program keeps must not become part of a trace, if this is
    # called within a function that is being traced.
    with one_error(path), jax.ensure_compile_time_eval():
        header, sections = read(path)
        names = Names(encoder.objects, allow)
        return LoadedFunction(header, sections, names, trusted)


class LoadedFunction(Function):
    """A function whose program is from a file.

    It has a specialization for each signature, as any function. Several may mean the
    same to the file, because each `functools.partial` is another signature.
    """

    def __init__(
        self, header: dict[str, Any], sections: Any, names: Names, trusted: bool
    ):
        self._header = header
        self._names = names
        name, described = str(header["name"]), header["parameters"]

        signature = inspect.Signature([_parameter(*fields) for fields in described])
        description = Description(True, (name, name), None, signature, ())
        # It stands for the user's function, too: `call_python` runs the program.
        super().__init__(self, description, Options(header["donate"], True, {}))
        self.attributes = {
            "__name__": name,
            "__doc__": header["doc"],
            "__signature__": signature,
            # A name, as a global returns it: then a copy is the jitted function itself,
            # which never changes. Pickling raises an error, as there is no such global.
            "__reduce_ex__": lambda protocol: name,
        }

        self._exported = _read_portable(sections["portable"], header, trusted)
        lines = [line for *_, lines in described for line in lines]
        self._paths = [path for path, kind, *_ in lines if kind == "array"]
        if len(self._exported.in_avals) != len(self._paths):
            raise ExportFileError("its header is invalid (arguments)")
        # Built now, so that a class which is not allowed is an error of the file.
        self._template = self._result_of([np.zeros(())] * len(self._exported.out_avals))

        self._mesh = None
        if header["mesh"] is not None:
            self._mesh = _mesh(header["mesh"])
            whole = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
            try:
                shardings = self._exported.in_shardings_jax(self._mesh)
            except ValueError:
                # If a mesh is in the function's body alone, JAX exports scalars as on
                # an empty mesh. They, too, may then be on all devices.
                shardings = [None] * len(self._paths)
            self._shardings = [sharding or whole for sharding in shardings]

        self._native: Any = None
        if trusted and "compiled" in sections:
            code, made_for = bytes(sections["compiled"]), header["made_for"]
            self._native = load_native(code, made_for, self._exported, self._mesh)

    def specialize(
        self, values: tuple[Any, ...], abstract: bool = False
    ) -> tuple[Any, Sequence[Any]]:
        """As of any function. Raises `TypeError` if it is another call."""
        _, refs = split(values)
        for described, value in zip(self._header["parameters"], refs, strict=True):
            name, _, _, was_omitted, then = described
            if was_omitted and value is OMITTED:
                continue
            try:
                why = difference(then, Encoder().write(value, name))
            except ExportError as e:
                why = str(e).removesuffix(".")
            if why is not None:
                raise self._other_call(why)
        return super().specialize(values, abstract)

    def jit(self, flat: FlatFunction, kwargs: dict[str, Any]) -> Any:
        """The native code, or the portable program where that takes no such call.

        As in a transformation, or with arrays that were put on another device.
        """
        portable = super().jit(flat, kwargs)
        if self._native is None:
            return portable

        native = self._native
        # As if it was traced: else `error_of_call` would forget it after any error.
        flat.traced = True
        # Native code returns arrays alone, so make a handle for them from the template.
        *_, handle = flat.output(self._template, calls_back=False)

        def call(*arrays: Any) -> Any:
            try:
                return [*native(*arrays), handle]
            except (TypeError, ValueError):
                return portable(*arrays)

        vars(call)["trace"] = portable.trace
        return call

    def call_python(self, values: tuple[Any, ...]) -> Any:
        """Call the portable program, in place of the user's function."""
        __tracebackhide__ = True
        arrays, _ = partition(values)
        if self._mesh is not None:
            arrays = [*map(jax.lax.with_sharding_constraint, arrays, self._shardings)]

        try:
            return self._result_of(self._exported.call(*arrays))
        except ValueError as e:
            why = str(e)
        for i, path in enumerate(self._paths):
            why = why.replace(f"args[{i}]", f"`{path}`")
        raise self._other_call(why)

    def _result_of(self, out: Sequence[Any]) -> Any:
        """The result for what the program returned."""
        return build(iter(self._header["result"]), out, self._names)

    def _other_call(self, why: str) -> TypeError:
        return TypeError(
            f"The exported {self.info.name} was called with different arguments than "
            f"it was exported for: {why}."
        )


def _parameter(
    name: str, kind: str, has_default: bool, *others: Any
) -> inspect.Parameter:
    """A parameter as a file describes it, which does not have its default."""
    default = OMITTED if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, getattr(inspect.Parameter, kind), default=default)


def _read_portable(data: memoryview, header: dict[str, Any], trusted: bool) -> Any:
    """The program, as a `jax.export.Exported`."""
    exported = jax.export.deserialize(bytearray(data))
    if not trusted:
        _check_custom_calls(exported)

    # JAX does not save which results are weakly typed.
    pairs = zip(exported.out_avals, map(bool, header["weak_types"]), strict=True)
    avals = [aval.update(weak_type=weak) for aval, weak in pairs]
    changes: dict[str, Any] = {"out_avals": tuple(avals)}

    # JAX imports `scipy.linalg` before it lowers a program whose platforms have "cpu",
    # which takes longer than loading a small one. So call it by another name, and
    # disable the check of names.
    platforms = {*exported.platforms, jax.default_backend()}
    if platforms == {"cpu"} and not has_lapack(exported):
        unchecked = jax.export.DisabledSafetyCheck.platform()
        checks = (*exported.disabled_safety_checks, unchecked)
        changes |= {"platforms": ("host",), "disabled_safety_checks": checks}
    return dataclasses.replace(exported, **changes)


def _check_custom_calls(exported: jax.export.Exported) -> None:
    """Reject a program that calls anything that is not part of JAX."""
    names = {a or b for a, b in _CUSTOM_CALL.findall(exported.mlir_module())}
    unknown = sorted(names - _private.stable_custom_calls())
    if unknown:
        raise ExportFileError(
            f"it calls {', '.join(unknown)}: native code outside of JAX's "
            "compatibility guarantees. If you trust whoever wrote the file, pass "
            "`trusted=True`"
        )
    if exported.has_vjp():  # as many as there are, whatever the header says
        _check_custom_calls(exported.vjp())


def _mesh(data: Mapping[str, Any]) -> jax.sharding.Mesh:
    """The devices of a program for several."""
    devices = {device.id: device for device in jax.devices()}
    if not devices.keys() >= set(data["devices"]):
        raise ExportFileError(f"it needs devices {data['devices']} of {list(devices)}")

    chosen = np.array([devices[i] for i in data["devices"]])
    axis_types = [jax.sharding.AxisType[name] for name in data["types"]]
    return jax.sharding.Mesh(
        chosen.reshape(data["sizes"]),
        tuple(data["axes"]),
        axis_types=tuple(axis_types),
    )


def show(path: Any) -> str:
    """The contents of a file that `Exported.save` wrote, as text.

    Raises `ValueError` if it is not such a file, or is damaged; or `OSError`.
    """
    with one_error(path):
        header, sections = read(path)
        exported = jax.export.deserialize(bytearray(sections["portable"]))
        out = [
            f"{path}: {header['name']}, made by {header['made_by']}",
            f"StableHLO for {', '.join(exported.platforms)}, "
            f"{exported.nr_devices} device(s)",
            f"differentiable {header['vjp_order']} times, donate={header['donate']!r}",
            f"native code for: {header.get('made_for')}",
            *[f"{name}: {len(data):,} bytes" for name, data in sections.items()],
        ]

        arguments = [line for *_, lines in header["parameters"] for line in lines]
        out += ["arguments:", *_show_lines(arguments, exported.in_avals)]
        out += ["result:", *_show_lines(header["result"], exported.out_avals)]
        # A file may have anything for a name, such as a terminal's control characters.
        text = "\n".join(out)
        return "".join(x if x.isprintable() or x == "\n" else "?" for x in text)


def _show_lines(lines: Sequence[Line], avals: Sequence[Any]) -> list[str]:
    """Lines as text."""
    out = []
    for line in lines:
        path, kind, about, _ = line
        text = avals[about].str_short() if kind == "array" else show_line(line)
        out.append(f"    {path}  {text}")
    return out
