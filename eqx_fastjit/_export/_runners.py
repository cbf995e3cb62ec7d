"""What a loaded function runs: native code if it matches, or the portable program."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray

from eqx_fastjit import _compat
from eqx_fastjit._engine import innermost_call

from ._arrays import (
    is_key,
    KEY_IMPLS,
    matches,
    shape_and_dtype,
    sharding_of,
    show_array,
)
from ._environment import difference, environment
from ._format import ExportFileError, Reader
from ._program import LAPACK


# Custom kernels, which are stable, but are native code.
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "tf.call_tf_function"}
_CUSTOM_CALL = re.compile(
    r'custom_call\s*@"?([^\s"(]+)|call_target_name\s*=\s*"([^"]*)"'
)


class Payloads:
    """The payloads of a file. Native code is only run if it is `trusted`."""

    def __init__(self, reader: Reader, trusted: bool):
        self.reader = reader
        self.header = header = reader.header
        self.trusted = trusted
        self.devices = {d.id: d for d in jax.devices()}
        self.kept = self._read_kept()
        # Whether the program returns a signal, after its results; by the number that is
        # in there, what it means.
        self.checked = bool(header["checked"])
        self.messages = {
            int(number): [str(x) for x in texts] for number, texts in header["checks"]
        }
        # Why native code is not used, if there is any.
        self.reason: str | None = None
        self.handle: Any = None
        # Takes the arrays of a call; returns those of the result, and the handle.
        self.run: Callable[..., Any]
        # Whether there are host callbacks. Native code reports failed checks itself.
        self.callbacks = False
        self.has_portable = "portable" in reader.sections
        if not self.has_portable and "compiled" not in reader.sections:
            raise ExportFileError("it has neither a portable nor a compiled form")
        if not self.has_portable and not trusted:
            raise ExportFileError(
                "it has only native code, which can do anything to your machine. If "
                "you trust whoever wrote it, pass `trusted=True`"
            )

    def _read_kept(self) -> list[Any]:
        """The arrays that the program keeps."""
        data = memoryview(self.reader.section("arrays"))
        out: list[Any] = []
        offset = 0
        for x in self.header["kept"]:
            raw = jax.ShapeDtypeStruct(*shape_and_dtype(x))
            if is_key(x["dtype"]):
                raw = jax.eval_shape(jax.random.key_data, raw)
            size = math.prod(raw.shape) * np.dtype(raw.dtype).itemsize
            if offset + size > len(data):
                raise ExportFileError("its header is invalid (kept arrays)")
            host = np.frombuffer(data[offset : offset + size], raw.dtype)
            offset += size
            sharding = x["sharding"]
            target = None if sharding is None else sharding_of(sharding, self.devices)
            array: Any = jax.device_put(host.reshape(raw.shape))
            if is_key(x["dtype"]):
                array = jax.random.wrap_key_data(array, impl=KEY_IMPLS[x["dtype"]])
            out.append(array if target is None else jax.device_put(array, target))
        return out

    def prepare(self, handle: Any) -> None:
        """Choose what to run. `handle` is added to each result."""
        self.handle = handle
        use_native = self.trusted and "compiled" in self.reader.sections
        if use_native and (run := self._try_native()) is not None:
            self.run = run
        else:
            self.run = self._with_kept(self.portable)
            self.callbacks = self.checked

    def _with_kept(self, run: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(run, *self.kept) if self.kept else run

    # --- the portable program ---

    def _exported(self) -> jax.export.Exported:
        blob = bytearray(self.reader.section("portable"))
        try:
            exported = jax.export.deserialize(blob)
        except ImportError as e:
            raise ExportFileError(
                "the portable form needs flatbuffers: pip install flatbuffers"
            ) from e
        except Exception as e:  # of flatbuffers and of JAX, of many kinds
            raise ExportFileError(
                f"JAX {jax.__version__} cannot read its portable form ({e})"
            ) from e
        if not self.trusted:
            _check_custom_calls(exported, int(self.header["vjp_order"]))
        outputs = self.header["outputs"]
        avals = list(exported.out_avals)
        if len(avals) != len(outputs) + self.checked:
            raise ExportFileError("its header is invalid (results)")
        # Which JAX does not write down.
        for i, x in enumerate(outputs):
            if x["weak_type"]:
                avals[i] = avals[i].update(weak_type=True)
        return dataclasses.replace(exported, out_avals=tuple(avals))

    @functools.cached_property
    def portable(self) -> Callable[..., Any]:
        """The portable program under `jax.jit`. It takes the kept arrays as well."""
        exported = _with_lapack_if_called(self._exported())
        n = len(self.kept)
        donated = tuple([n + int(i) for i in self.header["donated"]])
        kwargs: dict[str, Any] = {"donate_argnums": donated}
        if self.header["in_shardings"] is not None:
            given = [
                None if x is None else sharding_of(x, self.devices)
                for x in self.header["in_shardings"]
            ]
            kwargs["in_shardings"] = (*[None] * n, *given)

        def run(*arrays: Any) -> list[Any]:
            call = innermost_call()
            if call is not None and call.function.loaded:
                call.open_run()  # hides the warning of `donate="all"`, as in any trace
            self.check_arrays(arrays[n:])
            try:
                out = list(exported.call(*arrays))
            except ValueError as e:
                raise TypeError(
                    f"The exported {name} cannot be called with these arguments: "
                    f"{self._with_paths(str(e))}"
                ) from None
            if self.checked:
                out = _raise_if(out[:-1], out[-1], self.messages)
            return [*out, self.handle]

        run.__name__ = run.__qualname__ = name = str(self.header["name"])
        return jax.jit(run, **kwargs)

    def _with_paths(self, message: str) -> str:
        """A message of JAX, with paths of arrays in place of their numbers."""
        n, paths = len(self.kept), [x["path"] for x in self.header["arrays"]]

        def path(match: re.Match[str]) -> str:
            i = int(match[1]) - n
            return paths[i] if 0 <= i < len(paths) else match[0]

        return re.sub(r"args\[(\d+)\]", path, message)

    def check_arrays(self, arrays: Sequence[Any]) -> None:
        """Raise `TypeError`, naming the leaf, if an array does not match."""
        for then, now in zip(self.header["arrays"], arrays, strict=True):
            if not matches(then, now):
                shown = {"shape": list(now.shape), "dtype": str(now.dtype)}
                raise TypeError(
                    f"The exported {self.header['name']} was called with different "
                    f"arguments than it was exported for: `{then['path']}` was "
                    f"{show_array(then)} and is now {show_array(shown)}."
                )

    # --- native code ---

    def _try_native(self) -> Callable[..., Any] | None:
        """Load the native code; `None`, with `reason` set, if it does not match."""
        # Outside of `try`: damage is an error, whatever else is in the file.
        code = self.reader.section("compiled")
        try:
            return self._native(code)
        except _compat.MissingPrivateName as e:
            self.reason = f"JAX {jax.__version__} has no {e}"
        except ExportFileError as e:
            self.reason = str(e)
        except (RuntimeError, ValueError, TypeError) as e:
            self.reason = f"jaxlib cannot load it ({str(e).splitlines()[0]})"
        if not self.has_portable:
            raise ExportFileError(
                f"its native code cannot be used: {self.reason}; and it has no "
                "portable form"
            )
        return None

    def _native(self, code: bytes) -> Callable[..., Any]:
        compiled = self.header["compiled"]
        record = dict(compiled["record"])
        try:
            devices = [self.devices[i] for i in record["devices"]]
        except KeyError as e:
            raise ExportFileError(
                f"it was compiled for device {e}, which is not available"
            ) from None
        if why := difference(compiled["fits"], environment(devices)):
            raise ExportFileError(why)
        for key in ("input_avals", "output_avals"):
            record[key] = [
                ShapedArray(*shape_and_dtype(x), weak_type=bool(x["weak_type"]))
                for x in record[key]
            ]
        for key in ("input_shardings", "output_shardings"):
            record[key] = [sharding_of(x, self.devices) for x in record[key]]
        structs = [
            jax.ShapeDtypeStruct(*shape_and_dtype(x))
            for x in (*self.header["kept"], *self.header["arrays"])
        ]
        if compiled["lapack"]:
            _initialize_lapack()
        n_out = len(self.header["outputs"]) + self.checked
        out_tree = jtu.tree_structure([*[0] * n_out, self.handle])
        args_info = (tuple(structs), {})
        inline = self.checked and [d.platform for d in devices] == ["cpu"]
        run = _compat.load_executable(
            code, record, devices, args_info, out_tree, blocks=inline
        )
        return self._guarded(self._with_kept(run))

    def _guarded(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Calls native code, or the portable program where that takes no such call.

        As in a transformation, or with arrays that were put on another device.
        """
        checked = self.checked

        def call(*arrays: Any) -> Any:
            try:
                out = run(*arrays)
            except (TypeError, ValueError):
                self.check_arrays(arrays)
                if not self.has_portable:
                    raise
                return self._with_kept(self.portable)(*arrays)  # checks for itself
            if checked:
                number, index = np.asarray(out.pop(-2)).tolist()
                if number >= 0:
                    message = self.messages[number][index]
                    text = _compat.runtime_error_text(message, "")
                    raise eqx.EquinoxRuntimeError(text)
            return out

        return call


def _initialize_lapack() -> None:
    """Make JAX load LAPACK, as it does when it lowers a call of it.

    A program that calls it would crash otherwise: nothing has been lowered for it.
    """
    matrix = jax.ShapeDtypeStruct((1, 1), jnp.dtype("float32"))
    jax.jit(jax.lax.linalg.cholesky).lower(matrix)


def _with_lapack_if_called(exported: jax.export.Exported) -> jax.export.Exported:
    """The same program, with LAPACK loaded for it if, and only if, it calls that.

    JAX would import `scipy.linalg` whenever it lowers a program for CPUs, which takes
    longer than all the rest of loading a small one. It does so by the name of the
    platform, which is the only one there is here.
    """
    here = {d.platform for d in jax.devices()}
    if LAPACK.encode() in exported.mlir_module_serialized:
        if here == {"cpu"}:
            _initialize_lapack()  # JAX 0.7 does not do it
        return exported
    if tuple(exported.platforms) != ("cpu",) or here != {"cpu"}:
        return exported
    no_check = jax.export.DisabledSafetyCheck.platform()
    disabled = (*exported.disabled_safety_checks, no_check)
    return dataclasses.replace(
        exported, platforms=("host",), disabled_safety_checks=disabled
    )


def _raise_if(out: list[Any], signal: Any, messages: dict[int, list[str]]) -> list[Any]:
    """Raise the error of the check that failed, as `eqx.error_if` does."""
    if not out or not messages:
        return out
    numbers = jnp.array(list(messages))
    starts = itertools.accumulate([len(x) for x in messages.values()], initial=0)
    first = jnp.array(list(starts))[jnp.argmax(numbers == signal[0])]
    texts = [text for x in messages.values() for text in x]
    # Equinox takes no typed keys.
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in out]
    plain = [
        jax.random.key_data(x) if key else x for x, key in zip(out, keys, strict=True)
    ]
    plain = eqx.branched_error_if(plain, signal[0] >= 0, first + signal[1], texts)
    return [
        jax.random.wrap_key_data(y, impl=jax.random.key_impl(x)) if key else y
        for x, y, key in zip(out, plain, keys, strict=True)
    ]


def _check_custom_calls(exported: jax.export.Exported, vjp_order: int) -> None:
    """Reject a program that calls anything that is not part of JAX."""
    allowed = _compat.stable_custom_calls() - _KERNELS
    for order in range(vjp_order + 1):
        if order:
            exported = exported.vjp()
        found = _CUSTOM_CALL.findall(exported.mlir_module())
        unknown = sorted({a or b for a, b in found} - allowed)
        if unknown:
            raise ExportFileError(
                f"it calls {', '.join(unknown)}: native code outside of JAX's "
                "compatibility guarantees. If you trust whoever wrote the file, pass "
                "`trusted=True`"
            )
