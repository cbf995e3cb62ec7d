"""The functions that JAX traces, which take only arrays: one for each signature."""

import dataclasses
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import field
from typing import Any

import jax.tree_util as jtu

from . import _record
from ._compat import hide_from_tracebacks
from ._engine import call_of, EAGER, is_jit_disabled, native
from ._nodes import ARRAY_TYPES
from ._partition import DYNAMIC, same_trail, Structure, Walk
from ._plan import Plan, ResultHandle
from ._signals import listed


hide_from_tracebacks(__file__)


class _ArrayParameter(inspect.Parameter):
    """A parameter whose name is the path of an array, for JAX's error messages."""

    def __init__(self, path: str):
        super().__init__("array", inspect.Parameter.POSITIONAL_ONLY)
        self._name = path


def _distinct(paths: Iterable[str]) -> Iterable[str]:
    """One name for each array, which a `Signature` wants to differ.

    Two arrays may have one path: of `f(x, /, **kwargs)`, called as `f(x, x=y)`.
    """
    seen: set[str] = set()
    for path in paths:
        while path in seen:
            path += "'"
        seen.add(path)
        yield path


class Flat:
    """The function that JAX traces: arrays in, arrays out.

    The rest comes from the call that it is traced for, each time. A specialization is
    traced again for other shapes, and the statics of an earlier call may have been
    changed since, or may only be equal to those of this one.

    An object rather than a function, so that JAX's logs can name the user's function
    without this holding on to it: `__wrapped__` goes through weak references.
    """

    def __init__(self, function: Any, paths: Iterable[str], source: Callable[[], Any]):
        self.function = weakref.ref(function)
        # That of this call's callable: one `Function` may serve several, such as all
        # that `eqx.filter_grad` makes of functions of one name.
        self.source = source
        self.traced = False
        self.__name__ = function.name
        self.__qualname__ = function.qualname
        self.__signature__ = inspect.Signature(
            [_ArrayParameter(path) for path in _distinct(paths)]
        )

    def __repr__(self) -> str:
        return f"<function {self.__qualname__}>"  # some of JAX's errors show it

    @property
    def __wrapped__(self) -> Any:
        source = self.source()
        if source is None:
            raise AttributeError("__wrapped__")
        return source

    def __call__(self, *arrays: Any) -> Any:
        __tracebackhide__ = True
        # `eqx.error_if` looks for this name in the stack while tracing, to tell what is
        # inside of JIT from what is outside.
        __equinox_jit_id__ = b"eqx_fastjit"  # noqa: F841
        if getattr(_reading, "now", False):
            raise LookupError("JAX no longer has the trace")
        function = self.function()
        assert function is not None
        call = call_of(self)
        if is_jit_disabled() and not call.abstract:  # JAX traces for `f.trace` even so
            call.eager_result = function.call_without_jit(call.values)
            return [EAGER]
        call.open_run()
        with _record.tracing(function.history, self.source()):
            structure = function.structure_of(call, len(arrays))
            out = function.call_python(*structure.rebuild(arrays))
        handle, out_arrays = make_plan(call.specialization, out)
        self.traced = True
        if call.mutable or call.others:
            # Now, since JAX may keep the trace even if the call then raises.
            plan = call.specialization.plans[handle]
            plan.mutable, plan.others = call.mutable, call.others
            _renew_witnesses(call.specialization)
        if function.options.out_shardings is None:
            return [*out_arrays, handle]
        # The user's own structure, for which the shardings are a prefix. (Not made
        # without need: its classes may check their parts.)
        tree = jtu.tree_map(lambda x: x if isinstance(x, ARRAY_TYPES) else None, out)
        return tree, handle


def make_plan(specialization: Any, out: Any) -> tuple[Any, list[Any]]:
    """The output of a trace: a handle, and the arrays of the result."""
    leaves, treedef = jtu.tree_flatten(out)
    are_arrays = [isinstance(x, ARRAY_TYPES) for x in leaves]
    pairs = list(zip(leaves, are_arrays, strict=True))
    structure = Structure(treedef, tuple([DYNAMIC if a else x for x, a in pairs]))
    arrays = [x for x, a in pairs if a]
    plan = Plan(structure)
    engine = native()
    handle: Any
    if engine is None:
        handle = ResultHandle()
    else:
        handle = engine.Handle()
        handle.set_plan(plan)
    specialization.plans[handle] = plan
    return handle, arrays


def _renew_witnesses(specialization: Any) -> None:
    """Have it know the statics of its traces: not of those that JAX has forgotten."""
    known = None
    while True:
        plans = listed(specialization.plans.values())
        found = {(i, id(x)): (i, x) for p in plans for i, x in enumerate(p.mutable)}
        found |= {(-1, i): pair for p in plans for i, pair in p.others.items()}
        if found.keys() == known:
            return
        # Another thread, or a finalizer, may do the same meanwhile, so look again.
        known = found.keys()
        specialization.set_witnesses(tuple(itertools.chain(*found.values())))


_reading = threading.local()


def kept_trace(jitted: Any, arrays: Sequence[Any]) -> Any:
    """JAX's cached trace of a call that has just been made.

    Raises `LookupError` if it was dropped, say by `jax.clear_caches()` in the function
    itself: nothing is traced for it.
    """
    _reading.now = True
    try:
        return jitted.trace(*arrays)
    finally:
        _reading.now = False


def split_result(out: Any) -> tuple[list[Any], Any]:
    """The arrays, and the handle, of what a compiled function returned."""
    if type(out) is list:
        return out[:-1], out[-1]
    tree, handle = out
    return jtu.tree_leaves(tree), handle


def result_of(jitted: Any, arrays: Sequence[Any], *, eager: bool = False) -> Any:
    """The result of a specialization once more, for one of `_record.called`.

    `eager` runs the user's function without jit.
    """
    call = call_of(jitted.__wrapped__)
    out = (jitted.__wrapped__ if eager else jitted)(*arrays)
    out_arrays, handle = split_result(out)
    return call.specialization.plans[handle].build(out_arrays)


@dataclasses.dataclass(slots=True, eq=False)
class Specialization:
    """The specialization for one signature of a function, on the Python engine."""

    # Takes the arrays of a call, by position.
    jitted: Any
    flat: Flat
    # By the handle that a trace gave.
    plans: MutableMapping[ResultHandle, Plan]
    trail: list[Any] = field(default_factory=list[Any])
    # Mutable statics that it was traced with, each after its number among those of the
    # call, or after what says whether it is the same as it was. What was traced may
    # refer to these very objects.
    witnesses: tuple[Any, ...] = ()

    def set_witnesses(self, statics: tuple[Any, ...]) -> None:
        """What it was traced with that can be changed."""
        self.witnesses = statics

    def is_stale(self, found: Walk) -> bool:
        """Whether a static that it was traced with has been changed."""
        for i, x in zip(self.witnesses[::2], self.witnesses[1::2], strict=True):
            if type(i) is not int:
                if not i(x):
                    return True
                continue
            current, start, stop = found.mutable[i]
            if x is not current and not same_trail(x, self.trail[start:stop]):
                return True
        return False
