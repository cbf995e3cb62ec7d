"""`load(path)`: loads a file as a callable, without tracing anything."""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

import contextlib
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from eqx_fastjit._binding import Binding, make_binder, Spec
from eqx_fastjit._blocking import block_if, copied, must_block
from eqx_fastjit._function import Function
from eqx_fastjit._jit import _make_wrapped, JitWrapped
from eqx_fastjit._options import Options
from eqx_fastjit._partition import ANY_ARRAY, omitted
from eqx_fastjit._specialization import make_plan
from eqx_fastjit._stages import Expected
from eqx_fastjit._static_keys import static_key

from ._format import ExportFileError, Reader
from ._names import Names
from ._runners import Payloads
from ._tree import ExportError, TreeReader, with_refs, Writer, written


def load(
    path: Any,
    *,
    example: Sequence[Any] | None = None,
    allow: Iterable[str] = (),
    trusted: bool = False,
) -> JitWrapped[..., Any]:
    """Load a function from a file that `Exported.save` wrote, without tracing it.

    **Arguments:**

    - `path`: the path of the file.
    - `example`: the positional arguments of a call, as a tuple. Their classes may be
        used without `allow`.
    - `allow`: names of modules and packages whose classes and functions may be imported
        if the arguments or the result need them. JAX, Equinox and NumPy are always
        allowed.
    - `trusted`: whether to run the file's native code, if it has any that matches this
        machine. Native code can do anything, so only trust files that were written by
        you, or by somebody you trust. Otherwise, the portable form is compiled.

    **Returns:**

    A callable with the signature of the function, for calls like the one that was
    exported. Other shapes, dtypes, statics or structures raise a `TypeError` that names
    the leaf.

    Raises `ValueError` if the file was not written by `save`, is damaged, or needs
    something that is not available. Warns if native code was requested, but does not
    match this machine.

    !!! example

        ```python
        eqx_fastjit.filter_jit(model).export(x).save("model.fastjit")
        # In another process, without the source of the model:
        predict = eqx_fastjit.load("model.fastjit")
        predict(x)
        ```
    """
    reader = Reader(path)
    known = _objects_in(() if example is None else tuple(example))
    # Now, even if this is in a function that is being traced: what the program keeps
    # would be a part of that trace.
    with reader.one_error(), jax.ensure_compile_time_eval():
        wrapped, reason = _read(reader, Names(known, allow), trusted)
    if reason is not None:
        warnings.warn(
            f"the native code in {reader.path!r} is not used: {reason}. The portable "
            "form is compiled instead.",
            stacklevel=2,
        )
    return wrapped


def _objects_in(example: tuple[Any, ...]) -> dict[str, Any]:
    """The classes and functions that arguments refer to, by name."""
    writer = Writer()
    writer.write([(f"example[{i}]", x) for i, x in enumerate(with_refs(example))])
    return writer.objects


def _key(static: Any) -> Any:
    """What a static is made of, where it can be written down."""
    try:
        return written(static)
    except ExportError:
        return static_key(static)


class _Unknown:
    """Stands for a default that is not in the file: it could not be written down."""

    __hash__ = None  # type: ignore[assignment]  # no static: it cannot be passed

    def __repr__(self) -> str:
        return "..."


class LoadedFunction(Function):
    """A function that only has one program, which is from a file.

    It has a specialization for each signature. There may be many of them, because each
    `functools.partial` is another one. `values` and `result` are of its calls, with any
    arrays.
    """

    loaded = True

    def __init__(
        self,
        fun: Any,
        spec: Spec,
        values: tuple[Any, ...],
        result: Any,
        payloads: Payloads,
    ):
        header = payloads.header
        names = str(header["name"]), str(header["qualname"])
        options = Options(filter_warning=bool(header["quiet_donation"]))
        super().__init__(fun, spec, options, names, with_fun=False)
        self.expected = Expected(
            self,
            values,
            f"The exported {self.name} was called with different arguments than it was "
            "exported for:",
            _key,
        )
        self.values = values
        holder = types.SimpleNamespace(plans={})
        self.handle, _ = make_plan(holder, result)
        (self.plan,) = holder.plans.values()
        self.payloads = payloads
        payloads.prepare(self.handle)

    def specialize(self, values: tuple[Any, ...], cls: Callable[..., Any]) -> Any:
        """Specialize for the program. Raises `TypeError` if the call does not match."""
        self._arrays_of(values)
        return cls(self.payloads.run, _FLAT, {self.handle: self.plan})

    def _arrays_of(self, values: tuple[Any, ...]) -> list[Any]:
        """The arrays of a call; raises `TypeError` if it is not the one exported."""
        try:
            return self.expected.arrays_of(values)
        except TypeError:
            # A `functools.partial` compares by identity: one that was made in this
            # process is never the one from the file, but may be made of the same.
            with contextlib.suppress(ExportError):
                if written(values) == self._written:
                    return self.walk(values).arrays
            raise

    @functools.cached_property
    def _written(self) -> Any:
        """The values of the file; raises `ExportError` if one cannot be written."""
        return written(self.values)

    def specialization_for(self, values: tuple[Any, ...]) -> Any:
        """To trace a call, of which there is only the program."""
        raise TypeError(_refusal(self.name))

    def check_static_arrays(self, values: tuple[Any, ...], key: Any) -> None:
        """None can be exported."""

    def has_callbacks(self, specialization: Any, arrays: Sequence[Any]) -> bool:
        """As the file says."""
        return self.payloads.callbacks

    def call_without_jit(self, values: tuple[Any, ...]) -> Any:
        """There is only the program, so it is run as it is."""
        arrays = copied(self._arrays_of(values))
        out = self.payloads.run(*arrays)[:-1]
        block_if(must_block(self.payloads.callbacks, [*arrays, *out]), out, arrays)
        return self.plan.build(out)


# In place of a function that JAX traces.
_FLAT = types.SimpleNamespace(traced=True)


def _read(
    reader: Reader, names: Names, trusted: bool
) -> tuple[JitWrapped[..., Any], str | None]:
    """The function in a file, and why its native code is not used, if it is wanted."""
    header, parameters = reader.header, reader.header["parameters"]
    unknown = {x["name"]: _Unknown() for x in parameters}
    names.check(header["names"])
    trees = TreeReader(header["names"], names, lambda name: omitted(unknown[name]))
    n_in, n_out = len(header["arrays"]), len(header["outputs"])
    values = trees.read(header["arguments"], [ANY_ARRAY] * n_in)
    result = trees.read(header["result"], [ANY_ARRAY] * n_out)
    defaults = trees.read(header["defaults"], [])
    spec = Spec(
        tuple([_identifier(x["name"]) for x in parameters]),
        tuple([getattr(inspect.Parameter, x["kind"]) for x in parameters]),
        tuple([bool(x["default"]) for x in parameters]),
    )
    if not len(values) == len(defaults) == len(spec.names):
        raise ExportFileError("its header is invalid (parameters)")
    if not set(header["donated"]) <= set(range(n_in)):
        raise ExportFileError("its header is invalid (donated)")
    payloads = Payloads(reader, trusted)
    fun = _stand_in(spec, defaults, unknown, header)
    binding = Binding(fun)
    function = LoadedFunction(fun, binding.spec, values, result, payloads)
    shown = {
        name: getattr(fun, name)
        for name in ("__module__", "__name__", "__qualname__", "__doc__")
    }
    shown["__exported__"] = header
    return _make_wrapped(function, "none", binding, fun, shown), payloads.reason


def _refusal(name: str) -> str:
    return (
        f"{name} was loaded from a file, which has its program and not its Python "
        "function. So it can be called, also within other functions that are traced "
        "(`eqx.filter_eval_shape`, `jax.jit`), but not traced or exported by itself."
    )


def _identifier(name: Any) -> str:
    if type(name) is not str or not name.isidentifier():
        raise ExportFileError(f"{name!r} is not the name of a parameter")
    return name


def _stand_in(
    spec: Spec, defaults: Sequence[Any], unknown: dict[str, Any], header: dict[str, Any]
) -> Any:
    """A Python function with the signature of the one that was exported."""
    shown = [
        unknown[name] if default is omitted(unknown[name]) else default
        for name, default in zip(spec.names, defaults, strict=True)
    ]
    pseudo: Any = types.SimpleNamespace(spec=spec, defaults=shown)
    name = str(header["name"])
    made = make_binder(pseudo, (name, name), raises=_refusal(name))
    names = {"TypeError": TypeError}
    fun = types.FunctionType(
        made.__code__, names, name, made.__defaults__, made.__closure__
    )
    fun.__kwdefaults__ = made.__kwdefaults__
    fun.__qualname__ = str(header["qualname"])
    fun.__module__ = "eqx_fastjit.exported"
    fun.__doc__ = header["doc"] if isinstance(header["doc"], str) else None
    return fun
