"""What a call waits for before it returns, so that buffers may be refilled then.

On a CPU, JAX may read the memory of a NumPy array for as long as the array that was
made of it lives; on other platforms until its transfer is done, which is when that
array is ready. A call waits

- for its results, if it has host callbacks, which may raise after the dispatch; on
  several virtual CPU devices; and if more of its arguments is in NumPy arrays than is
  copied, unless these are transferred first (`transferred`);
- with `asynchronous=False`, for its results on a CPU, and when it was traced or
  compiled, which reads constants; otherwise for those of its arguments that no such
  call has computed. Whatever these have computed reads no memory of the host.
"""

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.tree_util as jtu
import numpy as np
from jax import block_until_ready, effects_barrier
from jax.sharding import Sharding

from ._private import jax_primitives, Tracer, values_inside


# The most bytes of NumPy arrays that a call copies. Copying this many takes about 100
# us, and a call that does not block lets Python continue while the device works.
COPIED_BYTES = 1 << 20

# What is to be done after each call of a plan (`plan.blocks`): wait for its arguments,
# or its results; first decide which; and for that find out if it has host callbacks.
ARGUMENTS, RESULTS, UNDECIDED, ASK_FOR_CALLBACKS = 1, 2, 4, 8
WAITS = ARGUMENTS | RESULTS


# Why a call waits: `asynchronous=False` asks for it; it is needed, whatever that says;
# or arrays of NumPy are transferred first.
Why = Literal["asked", "needed", "transfer"]


class Observer(Protocol):
    """Makes the calls of all jitted functions, and is told what they wait for.

    `_engine.observe` sets it. It is asked in every thread, and must not raise.
    """

    def clock(self) -> Any:
        """A call begins. What this returns is passed on to `call`."""

    def call(
        self,
        jitted: Any,
        specialization: Any,
        values: tuple[Any, ...],
        arrays: tuple[Any, ...],
        numpy_bytes: int,
        began: Any,
    ) -> Any:
        """Return, or raise, what `jitted(*arrays)` does.

        **Arguments:**

        - `jitted`: what is compiled for the call.
        - `specialization`: that of the call.
        - `values`: the bound arguments, as the user passed them.
        - `arrays`: their arrays, of which those of NumPy are copied or transferred.
        - `numpy_bytes`: the bytes of those of NumPy.
        - `began`: what `clock` returned, or `None` if it raised.
        """

    def wait(self, wait: Callable[[Any], Any], arrays: Sequence[Any], why: Why) -> None:
        """A call waits until these arrays are ready: do `wait(arrays)`."""


# The one that observes, if any.
observer: Observer | None = None


def _wait_for(arrays: Sequence[Any], why: Why) -> None:
    """Wait until arrays are ready; without any, for the effects of a call."""
    wait: Any = block_until_ready if arrays else _wait_for_effects
    told = observer  # another thread may take it away
    if told is None:
        wait(arrays)
    else:
        told.wait(wait, arrays, why)


def _wait_for_effects(_: Sequence[Any]) -> None:
    effects_barrier()


def is_cpu(device: Any) -> bool:
    """Whether JAX may share memory of the host with a device. (Tests replace this.)"""
    return device.platform == "cpu"


def _has_value(x: Any) -> bool:
    is_array = isinstance(x, jax.Array) and not isinstance(x, Tracer)
    return is_array and not x.is_deleted()  # what was donated may be returned as it is


def _is_on_cpu(x: Any) -> bool:
    return _has_value(x) and is_cpu(next(iter(x.devices())))


def undecided(calls_back: bool | None) -> int:
    """What is to be done after the first call of a plan.

    `calls_back` says whether its program has host callbacks; `None` if it is not known.
    """
    if calls_back is None:
        return UNDECIDED | ASK_FOR_CALLBACKS
    return UNDECIDED | (RESULTS if calls_back else 0)


def decide(
    plan: Any, calls_back: Callable[[], bool], asynchronous: bool, places: Sequence[Any]
) -> None:
    """Decide what each call of a plan waits for.

    Virtual CPU devices share one pool of threads: where several runs with collectives
    are in flight, they may starve each other, and XLA ends the process after 40 s
    ("Termination timeout for all reduce"), also under `jax.jit`.

    `places` are the arguments and results, or their shardings: all results of a program
    are on all of its devices, where the arguments may have been on one.
    """
    shardings = [x.sharding if _has_value(x) else x for x in places]
    devices = [x.device_set for x in shardings if isinstance(x, Sharding)]

    waits = plan.blocks & WAITS
    if any(len(d) > 1 and is_cpu(next(iter(d))) for d in devices):
        waits |= RESULTS
    if plan.blocks & ASK_FOR_CALLBACKS and calls_back():
        waits |= RESULTS
    if not asynchronous:
        waits |= ARGUMENTS
    plan.blocks = waits


def transferred(arrays: Sequence[Any]) -> tuple[Any, ...] | None:
    """The arguments of a call, with those of NumPy on the device of the others.

    Waits until they have arrived. They are uncommitted, as NumPy arrays are to
    `jax.jit`. `None` if the device is a CPU, or if there are several.
    """
    try:
        with jax.ensure_compile_time_eval():  # a trace would record it
            placed = [x for x in arrays if isinstance(x, jax.Array)]
            first = placed[0] if placed else jax.device_put(0)
            (device,) = here = first.devices()
            elsewhere = any(x.devices() != here for x in placed)
            mesh = jax.sharding.get_abstract_mesh()
            if is_cpu(device) or elsewhere or not mesh.empty:
                return None

            with jax.default_device(device):
                put = jax.device_put([x for x in arrays if isinstance(x, np.ndarray)])
            _wait_for(put, "transfer")
            _remember(put)
    except Exception:  # a tracer, or what JAX does not take: then the call says so
        return None

    left = iter(put)
    return tuple(next(left) if isinstance(x, np.ndarray) else x for x in arrays)


# From the `id` of each array that a call with `asynchronous=False` has computed to a
# weak reference to it: by now, another array may have that `id`.
_computed: dict[int, weakref.ref[Any]] = {}
_most_computed = 1024


def _remember(results: Sequence[Any]) -> None:
    global _computed, _most_computed
    with contextlib.suppress(TypeError):  # NumPy's scalars, under `jax.disable_jit()`
        _computed.update(zip(map(id, results), map(weakref.ref, results), strict=True))
    if len(_computed) > _most_computed:
        _computed = {i: x for i, x in _computed.copy().items() if x() is not None}
        _most_computed = 1024 + 2 * len(_computed)


def _not_computed(arguments: Sequence[Any]) -> list[Any]:
    def is_computed(x: Any) -> bool:
        return _computed.get(id(x), lambda: None)() is x

    arrays = [x for x in arguments if isinstance(x, jax.Array)]  # others are copies
    return [x for x in arrays if not is_computed(x)]


def block(results: Sequence[Any], arguments: Sequence[Any], waits: int) -> None:
    """Wait for what a call must wait for. As a part of a trace it never waits."""
    why = "needed" if waits & RESULTS else "asked"
    if [x for x in (*arguments, *results) if isinstance(x, Tracer)]:
        results, arguments, waits = _inside_tracers(results, arguments, waits)

    # On a CPU it waits for the results, whatever is asked for.
    if waits & ARGUMENTS and any(map(_is_on_cpu, results[:1])):
        waits = RESULTS
    unknown: list[Any] = []
    if waits & ARGUMENTS:
        unknown = _not_computed(arguments)
        if any(map(_is_on_cpu, unknown)):
            waits = RESULTS
        elif any(x.is_deleted() for x in unknown):  # it was donated
            waits |= RESULTS

    if waits & RESULTS:
        _wait_for(results, why)
    elif unknown:
        _wait_for(unknown, why)
    if waits & ARGUMENTS:
        _remember(results)


def _inside_tracers(
    results: Sequence[Any], arguments: Sequence[Any], waits: int
) -> tuple[Sequence[Any], Sequence[Any], int]:
    """The same of the arrays inside tracers, as an eager transformation has them.

    Of those of NumPy inside there is no copy. A trace that only records has none.
    """
    tracers = [x for x in arguments if isinstance(x, Tracer)]
    inside = [array for x in tracers for array in values_inside(x)]
    buffers = [x for x in inside if isinstance(x, np.ndarray)]
    if any(x.dtype != jax.dtypes.float0 for x in buffers):
        waits |= RESULTS

    arguments = [x for x in (*arguments, *inside) if not isinstance(x, Tracer)]
    found = [array for x in results for array in values_inside(x)]
    found = [x for x in found if _has_value(x)]
    if results and not found:
        waits = 0
    return found, arguments, waits


# --- host callbacks -------------------------------------------------------------------


def opened(jaxpr: Any) -> Any:
    """The open jaxpr in a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxprs_in(equation: Any) -> list[Any]:
    """The jaxprs in an equation's parameters, open or closed."""
    leaves = jtu.tree_leaves(equation.params)
    return [x for x in leaves if hasattr(opened(x), "eqns")]


def _with_inner(equations: Sequence[Any], seen: set[int]) -> Iterator[Any]:
    """Equations, and those of jaxprs in their parameters, at any depth."""
    for equation in equations:
        yield equation
        for inner in map(opened, jaxprs_in(equation)):
            if id(inner) not in seen:
                seen.add(id(inner))  # alive, as the equation is
                yield from _with_inner(inner.eqns, seen)


def is_callback(name: str) -> bool:
    """Whether a primitive of JAX's calls back into Python."""
    return name.endswith("callback") or name == "debug_print"


def call_back(equations: Sequence[Any]) -> bool | None:
    """Whether equations call back into Python; `None` if only their lowering tells.

    The lowering of a primitive that is not JAX's (`lineax.linear_solve`,
    `equinox.internal.noinline`) may have callbacks of which the jaxpr shows nothing.
    """
    found = {x.primitive for x in _with_inner(equations, set())}
    if any(is_callback(x.name) for x in found):
        return True
    foreign = {x.name for x in found - jax_primitives()}
    return None if foreign - {"call_exported"} else False  # which cannot call back


def has_host_callbacks(traced: Any) -> bool:
    """Whether the traced program calls back into Python, which may raise."""
    found = call_back(traced.jaxpr.eqns)
    if found is not None:
        return found
    module = traced.lower().compiler_ir("stablehlo").operation
    text = module.get_asm(large_elements_limit=16)
    return (
        re.search(r"custom_call @\w*callback|is_host_transfer = true", text) is not None
    )
