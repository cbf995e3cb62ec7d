"""Every private name of JAX, jaxlib and Equinox that this library uses.

No other file may import from `jax._src`, `jaxlib` or `equinox._*` (the linter bans it).
Each name is looked up by `resolve`, or its class is asked for it beforehand. Where one
is not there, the caller gets `None` (or a stand-in) and does without.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from ._place import Place


class MissingPrivateName(Exception):
    """A private name does not exist in this version of JAX or Equinox."""


def resolve(path: str) -> Any:
    """The object at `"package.module:attribute.attribute"`.

    Raises `MissingPrivateName` if any part of it is absent. This is the single
    doorway to private names, so that a test can take each of them away in turn.
    """
    module_name, _, attributes = path.partition(":")
    try:
        out = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            out = getattr(out, attribute)
    except (ImportError, AttributeError) as e:
        raise MissingPrivateName(path) from e
    return out


def _try_resolve(path: str, default: Any = None) -> Any:
    """As `resolve`, or the default."""
    with contextlib.suppress(MissingPrivateName):
        return resolve(path)
    return default


@functools.cache
def node_registry() -> Mapping[type, Any] | None:
    """JAX's table of the types that are registered as nodes, or `None` if not found.

    Its entries have `to_iter` and `from_iter`, the flatten and unflatten functions.
    """
    try:
        registry = resolve("jax._src.tree_util:_registry")
        usable = all(hasattr(x, "to_iter") for x in registry.values())
    except (MissingPrivateName, AttributeError, TypeError):
        return None
    return registry if usable and type(registry) is dict else None


def is_dataclass_node(entry: Any) -> bool:
    """Whether an entry of the registry is one of `jax.tree_util.register_dataclass`.

    The C++ side of JAX flattens those by itself, five times as fast as the functions
    that stand in the registry for them. (Programs have functions of that name, too.)
    """
    flatten = entry.to_iter
    of_jax = str(getattr(flatten, "__module__", "")).startswith("jax.")
    return of_jax and "register_dataclass." in getattr(flatten, "__qualname__", "")


@functools.cache
def top_level_trace() -> tuple[Any, str, Any] | None:
    """Where this thread's current trace is: an object, and the name of its attribute.

    With the value outside of all traces. `None` if it is not known.
    """
    trace = _try_resolve("jax._src.core:eval_trace")
    owners = (
        (_try_resolve("jax._src.core:trace_state_strong_ref"), "value"),
        (_try_resolve("jax._src.core:trace_ctx"), "trace"),
    )
    known = [(x, name, trace) for x, name in owners if hasattr(x, name)]
    return known[0] if known and trace is not None else None


def is_outside_traces() -> bool:
    """Whether nothing is being traced or transformed; `False` if that is not known."""
    place = top_level_trace()
    return bool(place) and getattr(place[0], place[1]) is place[2]


def around_trace() -> contextlib.AbstractContextManager[Any]:
    """The context of the call that JAX is tracing, to flatten its arguments in.

    What flatten functions compute is then no part of the trace. If the context is not
    known, this holds only for operations without tracers.
    """
    place, enter = top_level_trace(), _try_resolve("jax._src.core:set_current_trace")
    outer = getattr(place and getattr(place[0], place[1]), "parent_trace", None)
    return jax.ensure_compile_time_eval() if None in (outer, enter) else enter(outer)


def concrete(x: Any) -> Any:
    """The value inside a tracer of an eager transformation, such as `jax.grad`.

    A tracer without a value is returned as it is.
    """
    for _ in range(100):
        if not isinstance(x, Tracer):
            return x
        inner = getattr(x, "primal", getattr(x, "val", None))
        if not isinstance(inner, Tracer | jax.Array | np.ndarray | np.generic):
            return x  # of a trace that only records
        x = inner
    return x


def instance_dict_descriptor() -> Any:
    """The descriptor behind `module.__dict__`.

    Reading it directly skips `Module.__getattribute__`, which is a Python function.
    """
    for cls in eqx.Module.__mro__:
        descriptor = vars(cls).get("__dict__")
        if type(descriptor).__name__ == "getset_descriptor":
            return descriptor
    raise MissingPrivateName("equinox.Module.__dict__")


INSTANCE_DICT = instance_dict_descriptor()
instance_dict: Callable[[Any], dict[str, Any]] = INSTANCE_DICT.__get__


def hide_from_tracebacks(filename: str) -> None:
    """Hide the frames of one of our files in JAX's filtered tracebacks."""
    with contextlib.suppress(MissingPrivateName):
        resolve("jax._src.traceback_util:register_exclusion")(filename)


hide_from_tracebacks(__file__)


# --- Equinox -------------------------------------------------------------------------


def last_error_info() -> tuple[str, list[bytes | str]]:
    """The message and trace-time stack of the last `eqx.error_if` that failed."""
    match _try_resolve("equinox._jit:last_error_info"):
        case (str() as message, list() as stack):
            return message, stack
    return "", []


_ERROR_TEXT = (
    "Above is the stack outside of JIT. Below is the stack inside of JIT:\n"
    "{stack}\nequinox.EquinoxRuntimeError: {msg}\n"
)


def runtime_error_text(message: str, stack: str) -> str:
    """Equinox's text around the message and the stack of a runtime error."""
    try:
        return resolve("equinox._jit:_on_error_msg").format(msg=message, stack=stack)
    except (MissingPrivateName, AttributeError, LookupError):
        return _ERROR_TEXT.format(msg=message, stack=stack)


def on_clear_caches(clear: Callable[[], None]) -> None:
    """Make `eqx.clear_caches()` call `clear` as well."""
    with contextlib.suppress(MissingPrivateName):
        resolve("equinox._caches:cache_clears").append(clear)


# --- insight -------------------------------------------------------------------------


def equation_frames(equation: Any) -> list[Place]:
    """Where an equation of a jaxpr comes from, innermost frame first.

    Falls back to the one frame that JAX's public summary names.
    """
    source_info: Any = getattr(equation, "source_info", None)
    try:
        frames = source_info.traceback.frames
        return [Place(f.file_name, f.line_num, f.function_name) for f in frames]
    except AttributeError:
        pass
    try:
        from jax.extend.source_info_util import summarize

        place, _, function = summarize(source_info).partition(" (")
        file, line, *_ = place.rsplit(":", 2)
        return [Place(file, int(line), function.rstrip(")"))]
    except Exception:
        return []


def name_stack(equation: Any) -> str:
    """The names and transformations that an equation is under, which may be empty."""
    return str(getattr(getattr(equation, "source_info", None), "name_stack", ""))


def jit_options(jitted: Any) -> dict[str, Any] | None:
    """The options of a function under `jax.jit`, or `None` if they are not known.

    The keys are those of `jax.jit` that say which arguments are static or donated.
    """
    info = getattr(jitted, "_jit_info", None)
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    try:
        return {name: getattr(info, name) for name in names}
    except AttributeError:
        return None


def filter_jit_options(wrapper: Any) -> tuple[Any, str] | None:
    """The function and `donate` of a function under `equinox.filter_jit`.

    `None` if it is something else.
    """
    if not isinstance(wrapper, eqx.Module):  # quick, and nearly always enough
        return None
    try:
        wrapper_type: Any = resolve("equinox._jit:_JitWrapper")
        if type(wrapper) is not wrapper_type:
            return None
        flags = tuple(getattr(wrapper, f"donate_{x}") for x in ("first", "rest"))
        fun = getattr(wrapper, "__wrapped__")  # noqa: B009
    except (MissingPrivateName, AttributeError):
        return None
    donate = {(True, True): "all", (False, True): "all-except-first"}
    return fun, donate.get(flags, "none")


def equinox_partition() -> Callable[[Any], Any] | None:
    """How Equinox processes the arguments of a call; `None` if it is not known."""
    partition = _try_resolve("equinox._compile_utils:hashable_partition")
    return None if partition is None else lambda tree: partition(tree, eqx.is_array)


def raw_execute(
    compiled: Any, arrays: list[Any]
) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Run a compiled program without JAX's dispatch, and wait for it.

    Two functions: one to run it, one to wait for what that returned. `None` where it
    cannot be done: the interface below is jaxlib's own.
    """
    # jaxlib only knows the arrays inside of typed PRNG keys.
    is_key = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in arrays]
    pairs = zip(arrays, is_key, strict=True)
    arrays = [jax.random.key_data(x) if key else x for x, key in pairs]

    def run() -> Any:
        return executable.execute_sharded(arrays)

    def wait(results: Any) -> None:
        jax.block_until_ready(results.disassemble_into_single_device_arrays())

    try:
        executable = compiled.runtime_executable()
        wait(run())
    except Exception:
        return None
    return run, wait


# --- exporting -----------------------------------------------------------------------


def equinox_callback(flat_callback: Any) -> tuple[str, list[str]] | None:
    """Identify a host callback of Equinox, with its messages; `None` for any other.

    `"raises"` raises; `"tpu_msg"` follows it where a callback cannot raise.
    """
    function: Any = getattr(flat_callback, "callback_func", None)
    code = getattr(function, "__code__", None)
    if getattr(function, "__module__", None) != "equinox._errors" or code is None:
        return None
    name = function.__qualname__.rpartition(".")[2]
    cells: Any = function.__closure__ or ()
    variables = dict(zip(code.co_freevars, cells, strict=True))
    if name not in ("raises", "tpu_msg") or "msgs" not in variables:
        return None
    return name, [str(x) for x in variables["msgs"].cell_contents]


# Of the error that `checkify` carries; read below.
_ERROR_FIELDS = {"_pred", "_code", "_metadata", "_payload"}


class Checkify:
    """The parts of `jax.experimental.checkify`. Raises `MissingPrivateName`."""

    def __init__(self) -> None:
        # By primitive: how to transform an equation and the error.
        self.rules: dict[Any, Any] = resolve("jax._src.checkify:error_checks")
        self.callback = resolve("jax._src.callback:pure_callback_p")
        self.sink = resolve("jax._src.lax.lax:dce_sink_p")
        self._inline = resolve("jax._src.checkify:checkify_jaxpr")
        self._update = resolve("jax._src.checkify:update_error")
        self._failure = resolve("jax._src.checkify:FailedCheckError")
        fields = getattr(resolve("jax._src.checkify:Error"), "__dataclass_fields__", ())
        if missing := _ERROR_FIELDS.difference(fields):
            raise MissingPrivateName(f"jax._src.checkify:Error.{min(missing)}")
        # Has the type of the numbers: an int32 from JAX 0.12 on, an `int` before.
        self._no_number = _try_resolve("jax._src.checkify:_INACTIVE_CODE", -1)
        # From JAX 0.12 on, a context comes before everything else.
        parameters = inspect.signature(self._inline).parameters
        self._n_context = int("ctx" in parameters)

    def adapted(self, rule: Callable[["Errors", list[Any], Any], Any]) -> Any:
        """Adapt one of our rules, which returns only the results, to `checkify`."""

        def adapter(*args: Any, **params: Any) -> Any:
            n = self._n_context
            errors = Errors(self, args[:n], args[n], args[n + 1])
            out = rule(errors, list(args[n + 2 :]), params)
            return errors.error, out

        return adapter


@dataclasses.dataclass
class Errors:
    """The error that `checkify` carries through a program, at one of its equations."""

    _checkify: Checkify
    _context: Any
    error: Any
    _enabled: Any

    @property
    def empty(self) -> bool:
        """Whether there has been no check yet."""
        return not self.error._pred

    @property
    def failed(self) -> Any:
        """Whether a check has failed, as an array."""
        failed = [jax.numpy.any(x) for x in self.error._pred.values()]
        return functools.reduce(jax.numpy.logical_or, failed)

    def add(self, failed: Any, number: int | None, index: Any) -> None:
        """Add a check: its number, and which of its messages. `None`: of no check."""
        failure = self._checkify._failure(None, "", index)
        payload, metadata = jax.tree_util.tree_flatten(failure)
        code, known = self._checkify._no_number, {}
        if number is not None:
            code, known = type(code)(number), {number: metadata}
        effect = failure.get_effect_type()
        update = self._checkify._update
        self.error = update(self.error, failed, code, known, payload, effect)

    def inline(self, jaxpr: Any, values: list[Any]) -> list[Any]:
        """Run a part of the program, with its checks."""
        self.error, out = self._checkify._inline(
            *self._context, jaxpr, self._enabled, self.error, *values
        )
        return out

    def follow(self, rule: Callable[..., Any], values: list[Any], params: Any) -> Any:
        """Apply one of JAX's own rules."""
        self.error, out = rule(
            *self._context, self.error, self._enabled, *values, **params
        )
        return out


def check_numbers(error: Any) -> list[int]:
    """The numbers of the checks in a program, for `Errors.add`."""
    return list(error._metadata)


def error_signal(error: Any) -> Any:
    """The numbers of the check that failed and of its message, or -1 if none did."""
    jnp = jax.numpy
    out = jnp.array([-1, 0], jnp.int32)
    for effect, failed in error._pred.items():
        failed = jnp.ravel(jnp.asarray(failed))
        code = jnp.ravel(jnp.asarray(error._code[effect], jnp.int32))
        (payload,) = error._payload[effect]
        index = jnp.ravel(jnp.asarray(payload, jnp.int32))
        # Under `shard_map`, there is one for each shard. This is the first that failed.
        first = jnp.argmax(failed)
        found = jnp.stack([code[first], index[first]])
        out = jnp.where(failed.any() & (out[0] < 0), found, out)
    return out


# What only `jax.export.export` gives to `Traced.lower`.
EXPORT_OPTION = "_private_parameters"


def stable_custom_calls() -> frozenset[str]:
    """The custom calls that JAX's guarantees cover, which may be exported."""
    return frozenset(
        _try_resolve(
            "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", ()
        )
    )


def serialize_executable(compiled: Any) -> tuple[bytes, dict[str, Any]]:
    """A compiled function as native code, with JAX's metadata.

    The metadata have the names of JAX's own record: avals, shardings and numbers of
    the arguments that are used. Raises `MissingPrivateName`, or `ValueError` if this
    executable cannot be serialized.
    """
    executable = getattr(compiled, "_executable", None)
    record = getattr(executable, "_unloaded_executable", None)
    fields = getattr(record, "__dataclass_fields__", None)
    if fields is None or not set(fields) <= _EXECUTABLE_FIELDS:
        raise MissingPrivateName("jax.stages.Compiled._executable")
    found = {name: getattr(record, name) for name in fields}
    if any(found.get(name) for name in (*_EFFECTS, "mut", "auto_spmd_lowering")):
        raise ValueError("it has effects, host callbacks or references")
    if any(x is not None for x in found.get("dispatch_in_layouts") or ()):
        raise ValueError("its arguments have layouts of their own")
    if getattr(getattr(compiled, "_params", None), "const_args", None):
        raise ValueError("it has constants as arguments")
    runtime = compiled.runtime_executable()
    if hasattr(runtime, "serialize"):
        code = bytes(runtime.serialize())
    else:  # JAX 0.7
        code = bytes(runtime.client.serialize_executable(runtime))
    return code, {
        "input_avals": list(found["input_avals"]),
        "input_shardings": list(found["input_shardings"]),
        "output_avals": list(found["output_avals"]),
        "output_shardings": list(found["output_shardings"]),
        "committed": bool(found["committed"]),
        "name": str(found["name"]),
        "kept_var_idx": sorted(found["kept_var_idx"]),
        "devices": [d.id for d in found["device_list"]],
    }


_EFFECTS = ("unordered_effects", "ordered_effects", "keepalive", "host_callbacks")
_EXECUTABLE_FIELDS = {
    *_EFFECTS,
    *("xla_executable", "device_list", "backend", "input_avals", "input_shardings"),
    *("output_avals", "output_shardings", "committed", "name", "kept_var_idx", "mut"),
    *("auto_spmd_lowering", "xla_in_layouts", "dispatch_in_layouts"),
    *("xla_out_layouts", "all_args_info", "pgle_profiler"),
}


def load_executable(
    code: bytes,
    record: dict[str, Any],
    devices: list[Any],
    args_info: Any,
    out_tree: Any,
    *,
    blocks: bool,
) -> Callable[..., Any]:
    """Native code, which must be trusted, as a `jax.stages.Compiled`.

    `code` and `record` are from `serialize_executable`, avals and shardings restored.
    `args_info` is as `jax.stages.Compiled` has it. If `blocks`, each call blocks in any
    case. Raises `MissingPrivateName`, or whatever jaxlib says of code that it cannot
    load.
    """
    cls = resolve("jax._src.interpreters.pxla:UnloadedMeshExecutable")
    device_list = resolve("jaxlib._jax:DeviceList")(tuple(devices))
    if not set(cls.__dataclass_fields__) <= _EXECUTABLE_FIELDS:
        raise MissingPrivateName("jax._src.interpreters.pxla:UnloadedMeshExecutable")
    backend = devices[0].client
    deserialize = functools.partial(
        backend.deserialize_executable, code, executable_devices=device_list
    )
    executable = None
    if blocks:
        # An executable that CPUs run in the calling thread, as they do if there are
        # host callbacks, or very little work. A call that blocks otherwise takes 15 us
        # longer, to change threads and back. (JAX 0.7 has none.)
        with contextlib.suppress(TypeError):
            executable = deserialize(host_callbacks=[lambda *_: None])  # never called
    executable = executable or deserialize()
    n_in = len(record["input_avals"])
    values = {
        **dict.fromkeys(_EXECUTABLE_FIELDS),
        **record,
        **{name: [] for name in _EFFECTS},
        "xla_executable": executable,
        "device_list": device_list,
        "backend": backend,
        "kept_var_idx": set(record["kept_var_idx"]),
        "auto_spmd_lowering": False,
        "xla_in_layouts": [None] * n_in,
        "dispatch_in_layouts": [None] * n_in,
        "xla_out_layouts": [None] * len(record["output_avals"]),
    }
    loaded = cls(**{name: values[name] for name in cls.__dataclass_fields__}).load()
    return jax.stages.Compiled(loaded, [], args_info, out_tree, no_kwargs=True)
