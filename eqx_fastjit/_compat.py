"""Every private JAX, jaxlib and Equinox name that this library touches.

No other file may import from `jax._src`, `jaxlib` or `equinox._*` (the linter bans it).
Each name is looked up once, by a *probe*; where a probe fails the caller gets `None`
(or a stand-in) and takes the portable route instead, which uses public APIs only.
"""

import importlib
import logging
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

from ._place import Place


class MissingPrivateName(Exception):
    """A private name that the C++ route needs is not there in this JAX."""


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


# What the C++ route is made of: the field of `Cpp` and where the object lives.
CPP_NAMES = {
    "make_dispatcher": "jaxlib._jax:pjit",
    "make_cache": "jaxlib._jax:PjitFunctionCache",
    "make_registry": "jaxlib._jax:pytree.PyTreeRegistry",
    "shard_arg": "jax._src.interpreters.pxla:cc_shard_arg",
    "node_entries": "jax._src.tree_util:_registry",
    "dispatch_registry": "jax._src.tree_util:dispatch_registry",
    "default_registry": "jax._src.tree_util:default_registry",
}
# Methods that the objects above must have.
CPP_METHODS = (
    *(
        f"{CPP_NAMES['make_registry']}.{method}"
        for method in (
            "register_node",
            "register_dataclass_node",
            "flatten",
            "flatten_one_level",
        )
    ),
    f"{CPP_NAMES['dispatch_registry']}.flatten",
    f"{CPP_NAMES['dispatch_registry']}.flatten_one_level",
    f"{CPP_NAMES['default_registry']}.flatten_one_level",
)
DISPATCHER_METHODS = ("_cache_miss", "_clear_cache")


class Cpp(NamedTuple):
    """jaxlib's C++ dispatcher and its parts (JAX 0.10's names)."""

    make_dispatcher: Callable[..., Any]
    make_cache: Callable[..., Any]
    make_registry: Callable[..., Any]
    shard_arg: Callable[..., Any]
    node_entries: dict[type, Any]
    dispatch_registry: Any
    default_registry: Any


def probe_cpp() -> Cpp:
    """The parts of the C++ route; raises `MissingPrivateName` if one is absent."""
    cpp = Cpp(**{field: resolve(path) for field, path in CPP_NAMES.items()})
    for path in CPP_METHODS:
        resolve(path)
    jitted = jax.jit(_identity)
    for method in () if jit_is_replaced() else DISPATCHER_METHODS:
        if not hasattr(jitted, method):
            raise MissingPrivateName(f"jax.jit(...).{method}")
    return cpp


def jit_is_replaced() -> bool:
    """Whether `jax.jit` gives plain functions, whose calls have no fast path.

    Equinox replaces it so under `EQX_ON_ERROR=breakpoint`.
    """
    return isinstance(jax.jit(_identity), types.FunctionType)


# The versions that the C++ route was tested with: minor version, last patch. (Recorded
# in benchmarks/results/matrix.json.)
_TESTED_JAX = {(0, 7): 2, (0, 10): 2}


def is_tested_jax() -> bool:
    """Whether the tests have been run with this JAX, or with a later patch of it."""
    major, minor, patch = jax.__version_info__[:3]
    return patch <= _TESTED_JAX.get((major, minor), -1)


def _identity(x):
    return x


def call_with_fastpath(jitted: Any, args: Iterable[Any]) -> tuple[Any, Any]:
    """Call a `jax.jit`-ed function as its own dispatcher does on a cache miss.

    Returns the outputs and the record from which the dispatcher repeats the call
    without Python (`None` where JAX says that it must not be repeated so).
    """
    try:
        cache_miss = jitted._cache_miss
    except AttributeError:
        return jitted(*args), None
    out, fastpath, needs_rebuild = cache_miss(*args)
    return out, None if needs_rebuild else fastpath


def clear_dispatcher(dispatcher: Any) -> None:
    """Have a dispatcher forget every call (`DISPATCHER_METHODS` are probed)."""
    dispatcher._clear_cache()


def replace_out_treedef(fastpath: Any, treedef: Any) -> Any:
    """The same fast-path record, with another structure for the outputs.

    `None` if the record has no such field: the call is then never repeated in C++.
    """
    try:
        return fastpath._replace(out_pytree_def=treedef)
    except (AttributeError, TypeError, ValueError):
        return None


def set_python_function(dispatcher: Any, fun: Callable[..., Any]) -> None:
    """Set where `jax.debug_nans` looks for a function to run again, op by op."""
    try:
        dispatcher._fun = fun
    except AttributeError:
        pass


def unflatten_function(node_entries: Mapping[type, Any], cls: type) -> Any:
    """How JAX rebuilds a node: a function of its static data and its children.

    `None` if that is not known.
    """
    return getattr(node_entries.get(cls), "from_iter", None)


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
    """Leave the frames of a file of ours out of JAX's filtered tracebacks."""
    try:
        register_exclusion = resolve("jax._src.traceback_util:register_exclusion")
    except MissingPrivateName:
        return
    register_exclusion(filename)


hide_from_tracebacks(__file__)


# --- Equinox -------------------------------------------------------------------------

EquinoxRuntimeError: type[RuntimeError] = eqx.EquinoxRuntimeError


def last_error_info() -> tuple[str, list[bytes | str]]:
    """Message and trace-time stack of the last `eqx.error_if` that fired."""
    try:
        info = resolve("equinox._jit:last_error_info")
    except MissingPrivateName:
        return "", []
    match info:
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
    """Have `eqx.clear_caches()` call `clear` too."""
    try:
        resolve("equinox._caches:cache_clears").append(clear)
    except MissingPrivateName:
        pass


class _QuietEquinoxErrors(logging.Filter):
    """Drops JAX's "pure_callback failed" record when Equinox itself raised.

    The user gets an `EquinoxRuntimeError` for it; the record would be a second and less
    readable report. Records of other failing callbacks pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        exc_info = record.exc_info
        if not exc_info or exc_info[0] is None:
            return True
        return exc_info[0].__name__ != "_EquinoxRuntimeError"


def silence_equinox_callback_log() -> None:
    """Add the filter, once per process: not on every call, as Equinox does it."""
    logger = logging.getLogger("jax._src.callback")
    if not any(type(f) is _QuietEquinoxErrors for f in logger.filters):
        logger.addFilter(_QuietEquinoxErrors())


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


# What Equinox and JAX spend a call on: the file's name, the function's, the stage. A
# function that has gone only moves time to "other Python" in a profile.
CALL_FRAMES = (
    ("_jit.py", "_bind", "bind"),
    ("_jit.py", "_preprocess", "partition"),
    ("_jit.py", "_postprocess", "unflatten"),
    ("_compile_utils.py", "hashable_partition", "partition"),
    ("_compile_utils.py", "hashable_combine", "unflatten"),
    ("_filters.py", "combine", "unflatten"),
    ("_misc.py", "currently_jitting", "state check"),
    ("tree_util.py", "tree_flatten", "flatten"),
    ("tree_util.py", "tree_leaves", "flatten"),
    ("tree_util.py", "tree_unflatten", "unflatten"),
    ("pjit.py", "cache_miss", "execute"),
    ("pxla.py", "__call__", "execute"),
    ("array.py", "block_until_ready", "wait"),
)


def name_stack(equation: Any) -> str:
    """The names and transformations that an equation is under; may be empty."""
    return str(getattr(getattr(equation, "source_info", None), "name_stack", ""))


def jit_options(jitted: Any) -> dict[str, Any] | None:
    """What `jax.jit` was told of a function's arguments; `None` if that is not known.

    The keys are those of `jax.jit` that say which arguments are static or donated.
    """
    info = getattr(jitted, "_jit_info", None)
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    try:
        return {name: getattr(info, name) for name in names}
    except AttributeError:
        return None


def filter_jit_options(wrapper: Any) -> tuple[Any, str] | None:
    """The function and the `donate` of something that `equinox.filter_jit` made.

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
    """What Equinox does to the arguments of each call; `None` if that is not known."""
    try:
        partition = resolve("equinox._compile_utils:hashable_partition")
    except MissingPrivateName:
        return None
    return lambda tree: partition(tree, eqx.is_array)


def raw_execute(
    compiled: Any, arrays: list[Any]
) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Run a compiled program with nothing of JAX's around it, and wait for it.

    Two functions: one to run it, one to wait for what that returned. `None` where it
    cannot be done: the interface below is jaxlib's own.
    """

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
