"""Every private JAX, jaxlib and Equinox name that this library touches.

No other file may import from `jax._src`, `jaxlib` or `equinox._*` (the linter bans it).
Each name is looked up by `resolve`; where it is not there the caller gets `None` (or a
stand-in) and does without.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer

from ._place import Place


class MissingPrivateName(Exception):
    """A private name is not there in this JAX or Equinox."""


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


@functools.cache
def node_registry() -> Mapping[type, Any] | None:
    """JAX's table of the types that are registered as nodes; `None` if not found.

    Its entries have `to_iter` and `from_iter`, the flatten and unflatten functions.
    """
    try:
        registry = resolve("jax._src.tree_util:_registry")
        usable = all(hasattr(x, "to_iter") for x in registry.values())
    except (MissingPrivateName, AttributeError, TypeError):
        return None
    return registry if usable and type(registry) is dict else None


def concrete(x: Any) -> Any:
    """What is inside of the tracers of eager transformations (`jax.grad`, `jax.vmap`).

    Tracers that hold no value are returned as they are.
    """
    for _ in range(100):
        if not isinstance(x, Tracer):
            return x
        inner = getattr(x, "primal", getattr(x, "val", None))
        if not isinstance(inner, Tracer | jax.Array):
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


# What `jax_explain_cache_misses` guesses about a function that it has not seen.
_GUESS = (
    "  but seen another function defined on the same line; maybe the function is\n"
    "  being re-defined repeatedly, preventing caching?"
)
_INSTEAD = (
    "  A static argument, or the structure of an argument, is not as in earlier calls.\n"
    "  `eqx_fastjit.insight.explain` tells which."
)


class _KnowsSpecializations(logging.Filter):
    """Corrects JAX's guess: each signature of a jitted function is a function to it."""

    def __init__(self, is_ours: Callable[[], bool]):
        super().__init__()
        self.is_ours = is_ours

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and _GUESS in record.msg and self.is_ours():
            record.msg = record.msg.replace(_GUESS, _INSTEAD)
        return True


def correct_cache_miss_log(is_ours: Callable[[], bool]) -> None:
    """Add the filter. `is_ours` tells whether a function of ours is being called."""
    for name in ("jax._src.interpreters.partial_eval", "jax._src.pjit"):
        logging.getLogger(name).addFilter(_KnowsSpecializations(is_ours))


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
