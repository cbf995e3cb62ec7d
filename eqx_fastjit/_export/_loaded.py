"""`load(path)`: a file as a function, which runs none of the user's Python code."""

import dataclasses
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from eqx_fastjit import _private
from eqx_fastjit._engine import engine_module
from eqx_fastjit._function import Function
from eqx_fastjit._options import Options
from eqx_fastjit._parameters import Parameters
from eqx_fastjit._plan import partition
from eqx_fastjit._stages import array_type

from ._exported import lines_of_call
from ._format import ExportFileError, one_error, read
from ._names import Names
from ._native import load_native
from ._tree import Decoder, difference, Encoder, split


# Custom kernels, which are stable, but are native code.
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "tf.call_tf_function"}
_CUSTOM_CALL = re.compile(
    r'custom_call\s*@"?([^\s"(]+)|call_target_name\s*=\s*"([^"]*)"'
)


def load_function(
    path: Any, example: Sequence[Any] | None, allow: str | Iterable[str], trusted: bool
) -> "LoadedFunction":
    """The function in a file. `eqx_fastjit.load` says what the arguments are.

    Raises `ValueError`, with the path, for whatever is wrong with the file.
    """
    known = Encoder()
    for i, x in enumerate(example or ()):
        known.write(split(x)[1], f"example[{i}]")
    # Now, even within a function that is being traced: what the program keeps would be
    # a part of that trace.
    with one_error(path), jax.ensure_compile_time_eval():
        header, sections = read(path)
        function = LoadedFunction(header, sections, Names(known.objects, allow), trusted)
    if function.why_not_native is not None:
        warnings.warn(
            f"the native code in {str(path)!r} is not used: {function.why_not_native}. "
            "The portable form is compiled instead.",
            stacklevel=3,
        )
    return function


class LoadedFunction(Function):
    """A function whose program is from a file.

    It has a specialization for each signature, as any function. Several may mean the
    same to the file, because each `functools.partial` is another signature.
    """

    def __init__(
        self,
        header: dict[str, Any],
        sections: Mapping[str, memoryview],
        names: Names,
        trusted: bool,
    ):
        self.header = header
        names.check(header["needs"])
        self._decoder = Decoder(names)
        parameters = _parameters_of(header, self._decoder)
        self.stand_in = _stand_in(header, parameters)
        titles = str(header["name"]), str(header["qualname"])
        options = Options(header["donate"])
        super().__init__(self.stand_in, parameters, options, titles, with_fun=False)
        self._exported = _read_portable(sections["portable"], header, trusted)
        self.paths = [path for path, kind, *_ in header["arguments"] if kind == "array"]
        n_arrays = len(self._exported.in_avals) - header["n_kept"]
        if n_arrays != len(self.paths):
            raise ExportFileError("its header is invalid (arguments)")
        # Arrays like those of the result, for its plan.
        self.template = self.result_of([np.zeros(())] * len(header["weak_types"]))
        self.mesh = None if header["mesh"] is None else _mesh_of(header["mesh"])
        if self._exported.nr_devices > 1 and self.mesh is None:
            devices = np.array(jax.devices()[: self._exported.nr_devices])
            self.mesh = jax.sharding.Mesh(devices, ("devices",))
        self.kept = self._read_kept(sections["kept"])
        # What loads native code, and why it is not used if it was asked for.
        self._native: Callable[[Any], Any] | None = None
        self.why_not_native: str | None = None
        if trusted and "compiled" in sections:
            code, needs = bytes(sections["compiled"]), header["compiled"]
            try:
                self._native = load_native(code, needs, self._exported, self.mesh)
            except ExportFileError as e:
                self.why_not_native = str(e)

    def _read_kept(self, data: memoryview) -> list[Any]:
        """The arrays that the program keeps."""
        out: list[Any] = []
        shardings = self._shardings()
        for aval, sharding in zip(self._exported.in_avals, shardings, strict=True):
            if len(out) == self.header["n_kept"]:
                break
            is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
            raw = jax.eval_shape(jax.random.key_data, aval) if is_key else aval
            size = math.prod(raw.shape) * raw.dtype.itemsize
            host = np.frombuffer(data[:size], raw.dtype).reshape(raw.shape)
            data = data[size:]
            array: Any = jnp.asarray(host)
            if is_key:
                array = jax.random.wrap_key_data(array, impl=aval.dtype)
            out.append(array if sharding is None else jax.device_put(array, sharding))
        return out

    def _shardings(self) -> Sequence[Any]:
        """That of each argument of the program; `None` on a single device."""
        if self.mesh is None:
            return [None] * len(self._exported.in_avals)
        whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return [x or whole for x in self._exported.in_shardings_jax(self.mesh)]

    # --- in place of what a function of Python does ---

    def specialize(self, values: tuple[Any, ...]) -> Any:
        """A specialization for a call. Raises `TypeError` if it is another call."""
        arrays, refs = split(values)
        names, kinds = self.parameters.names, self.parameters.kinds
        found = lines_of_call(names, kinds, refs)
        if (why := difference(self.header["arguments"], found)) is not None:
            raise self._other_call(why)
        self._check_arrays(arrays)
        specialization = super().specialize(values)
        if self._native is None:
            return specialization
        run = _Native(self, specialization.jitted, self._native)
        return engine_module().Specialization(run, run.__wrapped__.plans)

    def call_python(self, values: tuple[Any, ...]) -> Any:
        """Call the portable program."""
        __tracebackhide__ = True
        arrays, _ = partition(values)
        self._check_arrays(arrays)
        placed = [
            x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)
            for x, sharding in zip(
                [*self.kept, *arrays], self._shardings(), strict=True
            )
        ]
        try:
            return self.result_of(self._exported.call(*placed))
        except ValueError as e:
            raise self._other_call(self._with_paths(str(e))) from None

    def result_of(self, out: Sequence[Any]) -> Any:
        """The result for what the program returned, with the signal of its checks."""
        result = self._decoder.read(self.header["result"], out)
        return (result, out[-1]) if self.header["has_checks"] else result

    def _check_arrays(self, arrays: Sequence[Any]) -> None:
        """Raise `TypeError`, naming the leaf, if an array does not match."""
        avals = self._exported.in_avals[len(self.kept) :]
        for path, then, array in zip(self.paths, avals, arrays, strict=True):
            dtype = array_type(array)[1]
            now = jax.ShapeDtypeStruct(array.shape, dtype)
            same = then.dtype == now.dtype and len(then.shape) == len(now.shape)
            # JAX compares symbolic sizes.
            pairs = zip(then.shape, now.shape, strict=same)
            if not same or any(type(a) is int and a != b for a, b in pairs):
                raise self._other_call(
                    f"`{path}` was {_show(then)} and is now {_show(now)}"
                )

    def _other_call(self, why: str) -> TypeError:
        return TypeError(
            f"The exported {self.info.name} was called with different arguments than "
            f"it was exported for: {why}."
        )

    def _with_paths(self, message: str) -> str:
        """A message of JAX, with paths of arrays in place of their numbers."""
        paths = ["?"] * len(self.kept) + self.paths

        def path(match: re.Match[str]) -> str:
            i = int(match[1])
            return paths[i] if i < len(paths) else match[0]

        return re.sub(r"args\[(\d+)\]", path, message)


class _Native:
    """Calls native code, or the portable program where that takes no such call.

    As in a transformation, or with arrays that were put on another device.
    """

    def __init__(
        self, function: LoadedFunction, portable: Any, native: Callable[[Any], Any]
    ):
        self._portable = portable
        self.__wrapped__ = portable.__wrapped__
        self.__wrapped__.traced = True
        *arrays, self._handle = self.__wrapped__.output(function.template)
        plan = self.__wrapped__.plans[self._handle]
        mesh = function.mesh
        plan.blocks = mesh is not None and mesh.devices.flat[0].platform == "cpu"
        leaves = [0] * len(arrays)
        run = native(jtu.tree_structure([*leaves, self._handle]))
        self._run = functools.partial(run, *function.kept)
        self.trace = portable.trace

    def __call__(self, *arrays: Any) -> Any:
        try:
            return self._run(*arrays)
        except (TypeError, ValueError):
            return self._portable(*arrays)


def raising(call: Callable[..., Any], messages: Sequence[str]) -> Callable[..., Any]:
    """A function that raises the errors of `eqx.error_if`, which `call` returns."""

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        result, signal = call(*args, **kwargs)
        if isinstance(signal, Tracer):  # a part of another function
            return eqx.branched_error_if(result, signal >= 0, signal, messages)
        if (number := int(signal)) >= 0:
            text = _private.runtime_error_text(messages[number], "")
            raise eqx.EquinoxRuntimeError(text)
        return result

    return checked


# --- parts of a file ------------------------------------------------------------------


def _read_portable(
    data: memoryview, header: dict[str, Any], trusted: bool
) -> jax.export.Exported:
    try:
        exported = jax.export.deserialize(bytearray(data))
    except ImportError as e:
        raise ExportFileError("it needs flatbuffers: pip install flatbuffers") from e
    except Exception as e:  # of flatbuffers and of JAX, of many kinds
        raise ExportFileError(
            f"JAX {jax.__version__} cannot read its portable form ({e})"
        ) from e
    if not trusted:
        _check_custom_calls(exported, header["vjp_order"])
    # Which JAX does not save.
    weak_types = [*header["weak_types"], *[False] * header["has_checks"]]
    avals = [
        aval.update(weak_type=weak)
        for aval, weak in zip(exported.out_avals, weak_types, strict=True)
    ]
    return dataclasses.replace(exported, out_avals=tuple(avals))


def _check_custom_calls(exported: jax.export.Exported, vjp_order: int) -> None:
    """Reject a program that calls anything that is not part of JAX."""
    allowed = _private.stable_custom_calls() - _KERNELS
    for order in range(vjp_order + 1):
        exported = exported.vjp() if order else exported
        found = _CUSTOM_CALL.findall(exported.mlir_module())
        if unknown := sorted({a or b for a, b in found} - allowed):
            raise ExportFileError(
                f"it calls {', '.join(unknown)}: native code outside of JAX's "
                "compatibility guarantees. If you trust whoever wrote the file, pass "
                "`trusted=True`"
            )


def _mesh_of(data: Mapping[str, Any]) -> jax.sharding.Mesh:
    here = {d.id: d for d in jax.devices()}
    try:
        devices = [here[i] for i in data["devices"]]
    except KeyError as e:
        raise ExportFileError(
            f"it was exported for device {e}, and there are {len(here)} devices"
        ) from None
    return jax.sharding.Mesh(
        np.array(devices, dtype=object).reshape(data["sizes"]),
        tuple(data["axes"]),
        axis_types=tuple([jax.sharding.AxisType[name] for name in data["types"]]),
    )


def _parameters_of(header: dict[str, Any], decoder: Decoder) -> Parameters:
    out = object.__new__(Parameters)
    described = header["parameters"]
    if not all(type(name) is str and name.isidentifier() for name, _, _ in described):
        raise ExportFileError("its header is invalid (parameters)")
    defaults = iter(header["defaults"])
    out.names = tuple([name for name, _, _ in described])
    out.kinds = tuple([getattr(inspect.Parameter, kind) for _, kind, _ in described])
    out.defaults = tuple(
        [(decoder.read_one(defaults, ()),) if has else () for _, _, has in described]
    )
    return out


def _stand_in(header: dict[str, Any], parameters: Parameters) -> Callable[..., Any]:
    """A Python function with the name and signature of the one that was exported."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the program is called instead")

    stand_in.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, kind, default=default[0] if default else inspect.Parameter.empty
            )
            for name, kind, default in zip(
                parameters.names, parameters.kinds, parameters.defaults, strict=True
            )
        ]
    )
    stand_in.__name__ = stand_in.__qualname__ = str(header["name"])
    stand_in.__module__ = "eqx_fastjit.exported"
    stand_in.__doc__ = header["doc"]
    return stand_in


def _show(x: Any) -> str:
    """`float32[8,4]`."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"
