"""The engine in use, and the current calls of each thread."""

import contextlib
import dataclasses
import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from . import _compat, _record
from ._blocking import block, COPIED_BYTES, reads_numpy
from ._logs import correct_cache_miss_log, silence_equinox_callback_log
from ._nodes import classify, MISSING, sort_keys, WRAPPER_NAMES
from ._partition import same_trail
from ._plan import Plan, ResultHandle
from ._static_keys import array_key, opaque_key, policy_of, static_key


# Comes back in place of a result under `jax.disable_jit()`.
EAGER = ResultHandle()

_ENGINES = ("auto", "native", "python")

# Compared by identity, as plain functions are. They are what activations are, often in
# the configuration of a layer.
_FUNCTION_TYPES = (type, type(jax.jit(len)), jax.custom_jvp, jax.custom_vjp)


@functools.cache
def _load_native() -> Any:
    """The compiled engine. Raises `ImportError` where it cannot be used."""
    registry = _compat.node_registry()
    if registry is None:
        raise ImportError(
            f"JAX {jax.__version__} does not show which types are registered as nodes"
        )
    from . import _native  # pyright: ignore[reportAttributeAccessIssue]

    _native.setup(
        registry=registry,
        classify=classify,
        policy_of=functools.partial(policy_of, changed=True),
        opaque_key=opaque_key,
        array_key=array_key,
        sort_keys=sort_keys,
        check_ends=jtu.tree_structure,
        call_class=Call,
        block=block,
        reads_numpy=reads_numpy,
        eager_handle=EAGER,
        function_types=_FUNCTION_TYPES,
        wrapper_names=WRAPPER_NAMES,
        numpy_type=np.ndarray,
        treedef_type=jtu.PyTreeDef,
        array_class=jax.Array,
        missing=MISSING,
        top_level=_compat.top_level_trace(),
        copied_bytes=COPIED_BYTES,
    )
    with contextlib.suppress(ValueError):  # another thread has been faster
        jtu.register_pytree_node(
            _native.Handle, _native.flatten_handle, _native.unflatten_handle
        )
    return _native


_state: dict[str, Any] = {}


def native() -> Any:
    """The compiled engine, or `None` where the Python engine is in use.

    Decided when the first function is wrapped, so that importing this library costs
    nothing and cannot fail.
    """
    try:
        return _state["native"]
    except KeyError:
        pass
    wanted = os.environ.get("EQX_FASTJIT_ENGINE", "auto")
    if wanted not in _ENGINES:
        raise ValueError(
            f"EQX_FASTJIT_ENGINE={wanted!r} is not an engine; expected one of "
            f"{', '.join(map(repr, _ENGINES))}."
        )
    chosen = None
    if wanted != "python":
        try:
            chosen = _load_native()
        except ImportError as e:
            if wanted == "native":
                raise RuntimeError(
                    f"EQX_FASTJIT_ENGINE=native, but the native engine is not "
                    f"available ({e})."
                ) from e
    _prepare()
    return _state.setdefault("native", chosen)


@functools.cache
def _prepare() -> None:
    silence_equinox_callback_log()
    correct_cache_miss_log(lambda: innermost_call() is not None)
    _record.listen(_open_innermost)


def engine() -> str:
    """The engine in use: `"native"` (the C extension) or `"python"`.

    It is chosen when the first function is wrapped. The environment variable
    `EQX_FASTJIT_ENGINE` can be `native`, `python` or `auto` (the default), which is
    native if available.
    """
    return "python" if native() is None else "native"


# --- calls ---


@contextlib.contextmanager
def quiet_donation() -> Iterator[None]:
    """Hide JAX's warning about donated buffers that it cannot use."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Some donated buffers were not usable*"
        )
        yield


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """A call of a jitted function that is in progress."""

    function: Any
    specialization: Any
    # One per parameter.
    values: tuple[Any, ...]
    # Statics that can be changed in place.
    mutable: tuple[Any, ...]
    # Whether a `jax.ShapeDtypeStruct` stands for an array.
    abstract: bool = False
    # By id: those of earlier calls that traces inside of this one refer to. Each after
    # what says whether it is the same as it was.
    others: dict[int, tuple[Callable[[Any], bool], Any]] = field(
        default_factory=dict[int, tuple[Callable[[Any], bool], Any]]
    )
    # Whether its arguments were still the same when it was traced, if it was.
    is_steady: bool | None = None
    # For the record, once something is traced or compiled.
    run: Any = None
    # Hides warnings while something is lowered.
    quiet: Any = None
    # Under `jax.disable_jit()`.
    eager_result: Any = None

    def open_run(self) -> None:
        """Begin a record of this call, if there is none yet."""
        if self.run is None:
            function = self.function
            arguments = functools.partial(function.named, self.values)
            self.run = _record.begin(function.history, arguments)
            if function.options.filter_warning:
                self.quiet = quiet_donation()
                self.quiet.__enter__()

    def refer_to(self, plan: Plan, mutable: tuple[Any, ...] = ()) -> None:
        """A call inside of this one had these statics, and used a trace of that plan.

        The trace may be one that was known, and refer to other objects.
        """
        found = dict(plan.others)
        for x, current in itertools.zip_longest(plan.mutable, mutable):
            if x is not current:
                found[id(x)] = functools.partial(same_trail, trail=static_key(x)), x
        if found:
            own = set(map(id, self.mutable))
            self.others |= {i: x for i, x in found.items() if i not in own}

    def close_run(self) -> None:
        """End the record, if one was begun."""
        if self.quiet is not None:
            self.quiet.__exit__(None, None, None)
        if self.run is not None:
            _record.end(self.run)


class _Calls(threading.local):
    """The calls that this thread is in the middle of, the innermost last."""

    def __init__(self) -> None:
        self.pending: list[Call] = []


_calls = _Calls()


def calling(call: Call) -> contextlib.AbstractContextManager[None]:
    """The context of whatever may trace a specialization for a call."""
    engine = native()
    # Not within a generator: an interrupt between the two would leave it entered.
    return _calling(call) if engine is None else engine.Calling(call)


@contextlib.contextmanager
def _calling(call: Call) -> Iterator[None]:
    pending = _calls.pending
    pending.append(call)
    try:
        yield
    finally:
        # By an interrupt, another may have been left on top of it.
        pending.remove(call)


def call_of(flat: Any) -> Call:
    """The innermost call of the specialization that JAX traces: of its `flat`."""
    engine = native()
    if engine is not None:
        call = engine.find_call(flat)
    else:
        calls = reversed(_calls.pending)
        found = [x for x in calls if x.specialization.flat is flat]
        call = found[0] if found else None
    if call is None:
        raise RuntimeError("a specialization was traced outside of a call")
    return call


def innermost_call() -> Call | None:
    """The innermost call that is in progress in this thread."""
    engine = native()
    if engine is not None:
        return engine.innermost_call()
    return _calls.pending[-1] if _calls.pending else None


def _open_innermost() -> None:
    """JAX lowers or compiles: begin the record of the call that this is for."""
    call = innermost_call()
    if call is not None:
        call.open_run()


def is_jit_disabled() -> bool:
    """Whether this thread is under `jax.disable_jit()`."""
    return jax.config.jax_disable_jit  # pyright: ignore
