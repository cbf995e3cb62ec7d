"""What JAX traces: for each specialization, a function of the arrays alone."""

import contextlib
import inspect
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.tree_util as jtu

from . import _facts
from ._blocking import call_back, has_host_callbacks, undecided
from ._engine import ENGINE
from ._options import Options
from ._private import equations_so_far, is_jit_disabled
from ._result import Handle, Step, steps_of
from ._statics import is_array, partition, Structure


class _Path(str):
    """The path of an array, as the name of a parameter, for JAX's error messages."""

    def isidentifier(self) -> bool:
        return True


class FlatFunction:
    """The function that JAX traces: arrays in, arrays and a handle out.

    It reads the statics that it stores, whichever call it is traced for: a cache hit
    means that they are the same. So it may be traced again, for other shapes, at any
    time.

    An object rather than a function, so that JAX's logs can name the user's function
    without this holding on to it: `__wrapped__` goes through weak references.
    """

    def __init__(
        self,
        function: Any,
        structure: Structure,
        paths: Iterable[str],
        source: types.FunctionType | None,
    ):
        self.function = weakref.ref(function)
        self.info: _facts.FunctionInfo = function.info
        self.options: Options = function.options
        self.structure = structure

        # Of traces, by handle. Weak, since a program may have JAX forget its traces
        # again and again (`jax.clear_caches()`).
        self.plans: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.source = None if source is None else weakref.ref(source)
        self.traced = False
        # Whether it is in the table of its function: if it is certain for which calls.
        self.kept = False

        # Hides JAX's warning about buffers that it cannot reuse, if that was asked.
        quiet = self.options.donate.startswith("all")
        self.while_compiling: Any = quiet_donation if quiet else contextlib.nullcontext

        self.__qualname__ = function.info.qualname
        positional = inspect.Parameter.POSITIONAL_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(_Path(path), positional) for path in paths]
        )

    @property
    def __name__(self) -> str:
        return self.info.name  # of the class: where `repr` of a weak reference looks

    def __repr__(self) -> str:
        return f"<function {self.__qualname__}>"  # some of JAX's errors show it

    @property
    def __wrapped__(self) -> Any:
        source = self.source and self.source()
        if source is None:
            raise AttributeError("__wrapped__")
        return source

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        # `eqx.error_if` looks for this name in the stack while tracing, to tell what is
        # inside JIT from what is outside.
        __equinox_jit_id__ = b"eqx_fastjit"  # noqa: F841
        if ENGINE.active() is None:  # for `kept_trace`
            raise LookupError("JAX no longer has the trace")

        function = self.function()
        assert function is not None
        values = self.structure.rebuild(arrays)
        if is_jit_disabled():
            return self.output(function.call_python(values))

        with _facts.tracing(arrays):
            out = function.call_python(values)
        self.traced = True
        equations = equations_so_far(arrays)
        return self.output(out, None if equations is None else call_back(equations))

    def output(self, out: Any, calls_back: bool | None = None) -> Any:
        """The arrays of a result, and a handle for its plan."""
        arrays, structure = partition(out, abstract=False)
        try:
            steps = steps_of(out)
        except RecursionError:  # JAX's own functions go deeper
            each = (Step("array"),) * len(arrays)
            steps = Step("call", structure.rebuild, each)

        plan = ENGINE.Plan(steps, structure)
        handle = Handle(plan)
        self.plans[handle] = plan
        plan.blocks = undecided(calls_back)

        if self.options.jit_kwargs.get("out_shardings") is None:
            return [*arrays, handle]
        # The user's own structure, for which the shardings are a prefix. (Not made
        # without need: its classes may check their parts.)
        tree = jtu.tree_map(lambda x: x if is_array(x) else None, out)
        return tree, handle


# How JAX's warning about donated buffers begins.
_UNUSABLE = "Some donated buffers were not usable"


class _UnusableHere:
    """The pattern of a filter: that warning, in one thread."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def match(self, text: str) -> bool:
        return text.startswith(_UNUSABLE) and self.thread == threading.get_ident()


@contextlib.contextmanager
def quiet_donation() -> Iterator[None]:
    """Hide JAX's warning about donated buffers that it cannot use.

    Other threads may be in here, too, in any order: `warnings.catch_warnings` would
    restore the filters of the one that came first, with those of the others in them.
    (Unless each thread has its own, as Python 3.14 may be asked for.)
    """
    if getattr(sys.flags, "context_aware_warnings", False):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_UNUSABLE)
            yield
        return

    pattern = _UnusableHere()
    filters: Any = warnings.filters
    quiet = ("ignore", pattern, UserWarning, None, 0)
    filters.insert(0, quiet)
    try:
        yield
    finally:
        pattern.thread = None  # in copies that others have made
        current: Any = warnings.filters
        for kept in (filters, current):
            with contextlib.suppress(ValueError):
                kept.remove(quiet)


def kept_trace(jitted: Any, arrays: Sequence[Any]) -> Any:
    """JAX's cached trace of a call that was made with such arrays.

    Raises `LookupError` if it was dropped, say by `jax.clear_caches()` in the function
    itself: nothing is traced for it.
    """
    outer = ENGINE.set_active(None)  # so that `FlatFunction` refuses
    try:
        return jitted.trace(*arrays)
    finally:
        ENGINE.set_active(outer)


def calls_back(specialization: Any, arrays: Sequence[Any]) -> bool:
    """Whether the program that a call has just run has host callbacks."""
    if is_jit_disabled():
        return True  # there is no program
    try:
        # By the arrays, for which it has been lowered: JAX still has that.
        return has_host_callbacks(kept_trace(specialization.jitted, arrays))
    except Exception:
        # It is not known, so block. The trace has been dropped (`jax.clear_caches()` in
        # the function itself); or it cannot be lowered by itself (`psum` in an eager
        # `shard_map`, an unchecked `check`).
        return True
