"""`f.export(...)`: a traced call that can be saved to a file."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

import contextlib
import inspect
import time
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.export

from eqx_fastjit import _compat
from eqx_fastjit._engine import quiet_donation
from eqx_fastjit._files import check_writable
from eqx_fastjit._options import broadcast_prefix
from eqx_fastjit._partition import ANY_ARRAY
from eqx_fastjit._specialization import split_result
from eqx_fastjit._stages import trace

from . import _format
from ._arrays import describe_array, describe_sharding, placement, sharding_to_save
from ._environment import environment, versions
from ._names import Names
from ._parts import Parts, raw_bytes, SOME_DEFAULT, with_any_arrays
from ._program import check_callbacks, LAPACK, Program
from ._tree import ArrayRef, ExportError, same_tree, TreeReader, Writer


class Exported:
    """A function that was traced for certain arguments, and can be saved to a file.

    `f.export(...)` returns it. `save` lowers and compiles.
    """

    # Of a `JitWrapped`, the instance of a method, and the arguments of the call.
    def __init__(
        self, wrapped: Any, bound: tuple[Any, ...], args: Any, kwargs: dict[str, Any]
    ):
        self._function = wrapped._function
        values = wrapped._bind(*bound, *args, **kwargs)
        self._parts = Parts(wrapped, values, len(bound))
        # Reject what cannot be saved before the function is traced, which may take
        # minutes.
        Writer().write(self._parts.written())
        call: Any = trace(self._function, lambda: values, (), {})._call
        self._trace_seconds: float = call.record.trace
        self._outputs, handle = split_result(call.traced.out_info)
        self._source: Any = call.specialization.flat.source()
        self._result = call.specialization.plans[handle].structure.rebuild(
            [ArrayRef(i) for i in range(len(self._outputs))]
        )
        self._program = Program(call.traced, self._parts.order, self.name)
        self._kept = [*self._program.lifted, *self._parts.bound]
        self._header = self._describe()
        self._jitted = jax.jit(self._program, **self._jit_kwargs())
        self._arguments = [*self._kept, *self._parts.arrays]
        with quiet_donation():
            self._traced = self._jitted.trace(*self._arguments)
        check_callbacks(self._traced, self.name)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self._function.name

    def __repr__(self) -> str:
        return f"<Exported of {self._function.qualname}>"

    def save(
        self,
        path: Any,
        *,
        portable: bool = True,
        compiled: bool = False,
        platforms: Sequence[str] | None = None,
        vjp_order: int = 0,
    ) -> None:
        """Write a file for `eqx_fastjit.load`.

        **Arguments:**

        - `path`: the path of the file, which is replaced if it exists.
        - `portable`: whether to save StableHLO (by `jax.export`), which other machines
            and later versions of JAX can load. This needs the package flatbuffers.
        - `compiled`: whether to save native code for this version of jaxlib and this
            kind of device, so that loading does not compile. It is only used with
            `load(..., trusted=True)`.
        - `platforms`: the platforms of the portable form: `"cpu"`, `"cuda"`, `"rocm"`,
            `"tpu"`. By default, the platform in use.
        - `vjp_order`: how many times the portable form can be differentiated in reverse
            mode.

        Raises `ValueError`, with the reason, if the function cannot be saved in this
        way, and `OSError` if the file cannot be written.
        """
        if not portable and not compiled:
            raise ValueError("`save`: `portable` and `compiled` are both false.")
        if not portable and (platforms is not None or vjp_order):
            raise ValueError("`save`: `platforms` and `vjp_order` need `portable`.")
        check_writable(path)
        header = dict(self._header)
        header["checks"] = sorted(self._program.messages.items())
        header["checked"] = self._program.checked
        header["seconds"] = {"trace": self._trace_seconds}
        sections: dict[str, bytes] = {}
        if portable:
            with _timed(header, "lower"):
                sections["portable"] = self._lower(header, platforms, vjp_order)
        if compiled:
            with _timed(header, "compile"):
                sections["compiled"] = self._compile(header)
        sections["arrays"] = b"".join([raw_bytes(x) for x in self._kept])
        _format.write(path, header, sections)

    # --- the header ---

    def _describe(self) -> dict[str, Any]:
        function, parts = self._function, self._parts
        writer = Writer()
        arguments = writer.write(parts.written())
        statics = list(writer.statics)
        result = writer.write([("<result>", self._result)], root="")
        defaults = writer.write(parts.defaults)
        self._read_back(writer, arguments, result)
        source = self._source
        return {
            "made_by": versions(),
            "name": function.name,
            "qualname": function.qualname,
            "doc": None if source is None else inspect.getdoc(source),
            "parameters": parts.parameters(),
            "names": writer.names,
            "arguments": arguments,
            "result": result,
            "defaults": defaults,
            "arrays": [
                {"path": path, **describe_array(x)}
                for path, x in zip(parts.paths, parts.arrays, strict=True)
            ],
            "statics": statics,
            "outputs": [describe_array(x) for x in self._outputs],
            "kept": [
                {**describe_array(x), "sharding": describe_sharding(placement(x))}
                for x in self._kept
            ],
            "donated": parts.donated,
            "quiet_donation": function.options.filter_warning,
            "in_shardings": parts.in_shardings(),
        }

    def _read_back(self, writer: Writer, arguments: Any, result: Any) -> None:
        """Read it again, and compare, because a class may have hidden state."""
        names = Names(writer.objects, ())
        reader = TreeReader(writer.names, names, lambda _: SOME_DEFAULT)
        n = len(self._parts.arrays), len(self._outputs)
        for what, steps, number, then in (
            ("arguments", arguments, n[0], self._parts.example()),
            ("result", result, n[1], with_any_arrays(self._result)),
        ):
            try:
                same = same_tree(reader.read(steps, [ANY_ARRAY] * number), then)
            except Exception as e:
                raise ExportError(f"the {what} of {self.name}: {e}") from e
            if not same:
                raise ExportError(
                    f"the {what} of {self.name} cannot be exported: a class in it "
                    "cannot be built from its attributes, or from its static data."
                )

    def _jit_kwargs(self) -> dict[str, Any]:
        parts, options = self._parts, self._function.options
        n = len(self._kept)
        names = ("keep_unused", "compiler_options")
        kwargs = {k: v for k, v in options.jit_kwargs if k in names}
        kwargs["donate_argnums"] = tuple([n + i for i in parts.donated])
        if any(x is not None for x in parts.shardings):
            kwargs["in_shardings"] = (*[None] * n, *parts.shardings)
        if options.out_shardings is not None:
            result = with_any_arrays(self._result)
            out = broadcast_prefix(options.out_shardings, result)
            kwargs["out_shardings"] = [*out, *[None] * self._program.checked]
        return kwargs

    # --- the payloads ---

    def _lower(
        self, header: dict[str, Any], platforms: Sequence[str] | None, vjp_order: int
    ) -> bytes:
        try:
            with quiet_donation():
                exported = jax.export.export(self._jitted, platforms=platforms)(
                    *self._arguments
                )
            out = bytes(exported.serialize(vjp_order=vjp_order))
        except ImportError as e:
            raise ExportError(
                "the portable form needs flatbuffers: pip install flatbuffers"
            ) from e
        except (ValueError, NotImplementedError) as e:
            raise ExportError(f"`jax.export` cannot export {self.name}: {e}") from e
        header["platforms"] = list(exported.platforms)
        header["n_devices"] = exported.nr_devices
        header["vjp_order"] = vjp_order
        return out

    def _compile(self, header: dict[str, Any]) -> bytes:
        if any(type(d) is str for x in header["arrays"] for d in x["shape"]):
            raise ExportError(
                "`compiled=True`: a function with symbolic sizes cannot be compiled. "
                "Export it with the sizes of its calls."
            )
        with quiet_donation():
            lowered = self._traced.lower()
            compiled = lowered.compile()
        try:
            code, record = _compat.serialize_executable(compiled)
        except (
            *(_compat.MissingPrivateName, AttributeError),
            *(ValueError, RuntimeError, NotImplementedError),
        ) as e:
            raise ExportError(
                f"`compiled=True`: {self.name} cannot be saved as native code with JAX "
                f"{jax.__version__}: {e}."
            ) from e
        for key in ("input_avals", "output_avals"):
            record[key] = [describe_array(x) for x in record[key]]
        for key in ("input_shardings", "output_shardings"):
            what = "`compiled=True`: there is"
            record[key] = [sharding_to_save(x, what) for x in record[key]]
        devices = {d.id: d for d in jax.devices()}
        here = [devices[i] for i in record["devices"]]
        header["compiled"] = {
            "record": record,
            "fits": environment(here),
            "lapack": LAPACK in lowered.as_text(),
        }
        header["cost"] = _cost(compiled)
        return code


@contextlib.contextmanager
def _timed(header: dict[str, Any], name: str) -> Generator[None, None, None]:
    """Note how long a payload took to create, which loading it saves."""
    start = time.perf_counter()
    yield
    header["seconds"][name] = time.perf_counter() - start


def _cost(compiled: jax.stages.Compiled) -> dict[str, float]:
    """The compiler's estimate; empty where a backend has none."""
    try:
        found: Any = compiled.cost_analysis() or {}
    except Exception:  # whatever the backend says
        return {}
    found = found[0] if isinstance(found, list) else found
    names = ("flops", "bytes accessed")
    return {name: float(found[name]) for name in names if found.get(name, -1) >= 0}
