"""Which jitted functions a program calls, how often, and with which arguments.

This is for `eqx-fastjit gain` and `profile`, which call them again afterwards. While it
runs, each call takes some 20 us more.
"""

# Of JAX's functions not all have types. The calls that are watched are `_jit`'s.
# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import functools as ft
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from eqx_fastjit import _compat, _engine
from eqx_fastjit._base import Base
from eqx_fastjit._jit import JitWrapped
from eqx_fastjit._options import Options
from eqx_fastjit._place import Place


_compat.hide_from_tracebacks(__file__)

# Functions counted separately, and signatures of each whose arguments are kept: a
# program may make new ones in each step.
_MAX_FUNCTIONS = 256
_MAX_SIGNATURES = 16
# Where what watches a jitted function is kept, in its own `__dict__`.
_KEY = "__eqx_fastjit_watched__"


@dataclasses.dataclass
class Signature:
    """Calls that share a compiled program, and the arguments of one of them."""

    calls: int = 0
    # The user's function, with the arguments of the last call whose number is a power
    # of two. Arrays that may change or be deleted since are copies.
    fun: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass
class Called:
    """The calls of the functions that one line of the program makes."""

    name: str
    place: Place | None
    options: Options
    calls: int = 0
    # Of those, under `jax.vmap`, `jax.grad` or the like: they cannot be made again.
    transformed: int = 0
    signatures: dict[Any, Signature] = dataclasses.field(default_factory=dict[Any, Any])

    def ranked(self) -> list[Signature]:
        """The signatures that were called most first."""
        return sorted(self.signatures.values(), key=lambda x: -x.calls)


class Samples:
    """Watches all functions that are jitted from `start()` on, until `stop()`.

    Calls within the trace of another function are not counted: they are not made.
    """

    def __init__(self) -> None:
        # By what tells apart a function and its line.
        self.called: dict[Any, Called] = {}
        self._on = False

    def start(self) -> None:
        """Call this after `filter_jit` is imported, and before anything is jitted."""

        def prepare(owner: Any, call: Any, **how: Any) -> None:
            watched = vars(owner).get(_KEY)
            if watched is None:
                watched = vars(owner)[_KEY] = _Watched(self, owner)
                Base._prepare(owner, watched)
            watched.inner._prepare(call, **how)

        # Whatever makes a jitted function goes through this, unflattening included.
        wrapped: Any = JitWrapped
        wrapped._prepare = prepare
        self._on = True

    def stop(self) -> None:
        """Stop watching functions that are jitted, and stop counting calls."""
        if self._on:
            del JitWrapped._prepare
        self._on = False

    def ranked(self) -> list[Called]:
        """The functions that were called most first."""
        return sorted(self.called.values(), key=lambda x: -x.calls)

    def begin(self, owner: Any, args: Any, kwargs: Any) -> None:
        """A call is about to be made. What is wrong with it, it says itself."""
        try:
            if self._on and not _is_inside():
                self._begin(owner, args, kwargs)
        except Exception:
            pass

    def _begin(self, owner: Any, args: Any, kwargs: Any) -> None:
        function = owner._function
        values = owner._bind(*args, **kwargs)
        engine = _engine.native()
        arrays = (
            function.walk(values).arrays if engine is None else engine.arrays_of(values)
        )
        tracers = [x for x in arrays if isinstance(x, Tracer)]
        if any(isinstance(_compat.concrete(x), Tracer) for x in tracers):
            return  # a part of something else that is being traced
        info = function.history.info
        called = self.called.get(info.key())
        if called is None:
            if len(self.called) >= _MAX_FUNCTIONS:
                return
            called = Called(info.qualname, info.place, function.options)
            self.called[info.key()] = called
        called.calls += 1
        if tracers:
            called.transformed += 1
            return
        types = tuple([(x.shape, x.dtype, isinstance(x, jax.Array)) for x in arrays])
        specialization = (
            function.specialization_for(values)
            if function.table is None
            else function.table.get(function, values)
        )
        _count(called, (specialization, types), owner, args, kwargs)


def _count(called: Called, key: Any, owner: Any, args: Any, kwargs: Any) -> None:
    signature = called.signatures.get(key)
    if signature is None:
        if len(called.signatures) >= _MAX_SIGNATURES:
            return
        signature = called.signatures[key] = Signature()
    signature.calls += 1
    if signature.calls & (signature.calls - 1) == 0:
        donates = called.options.donate_first or called.options.donate_rest
        keep = ft.partial(_kept, donates=donates)
        call = (owner._fun, args, kwargs)
        signature.fun, signature.args, signature.kwargs = jtu.tree_map(keep, call)


def _kept(x: Any, donates: bool) -> Any:
    if isinstance(x, np.ndarray):
        return np.array(x)
    if donates and isinstance(x, jax.Array) and not x.is_deleted():
        return jnp.copy(x)
    return x


def _is_inside() -> bool:
    """Whether this thread is in the middle of another call of ours."""
    if (engine := _engine.native()) is not None:
        return engine.innermost_call() is not None
    return bool(_engine._calls.pending)


# --- the hook ------------------------------------------------------------------------


class _Inner(Base):
    """Calls the function itself."""

    __slots__ = ("owner",)
    owner: Any

    def _renew_binding(self) -> None:
        # The native engine asks this of whatever it calls.
        self.owner()._renew_binding()


class _Watched:
    """What a watched function does when it is called."""

    def __init__(self, samples: Samples, owner: Any):
        self.samples = samples
        self.owner = weakref.ref(owner)
        self.inner: Any = _Inner.__new__(_Inner)
        object.__setattr__(self.inner, "owner", self.owner)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self.samples.begin(self.owner(), args, kwargs)
        return self.inner(*args, **kwargs)


def alive(signature: Signature) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Function and arguments, with zeros for arrays that were deleted since."""

    def again(x: Any) -> Any:
        if isinstance(x, jax.Array) and x.is_deleted():
            return jnp.zeros(x.shape, x.dtype)
        return x

    return jtu.tree_map(again, (signature.fun, signature.args, signature.kwargs))
