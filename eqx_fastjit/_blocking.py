"""When a call must block, and which arrays are copied to avoid it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.backend
import jax.extend.core.primitives
import numpy as np
from jax.core import Tracer

from ._compat import concrete


# The most bytes of NumPy arrays that a call copies. Copying this many takes about 100
# us, and a call that does not block lets Python continue while the device works.
COPIED_BYTES = 1 << 20


def copied(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays, with NumPy arrays replaced by copies if they are small.

    JAX does not always copy such an argument, so the caller must not get a chance to
    reuse the buffer before the device is done. Nobody else can write to a copy.
    """
    if not any(type(x) is np.ndarray for x in arrays) or reads_numpy(arrays):
        return arrays
    return [x.copy() if type(x) is np.ndarray else x for x in arrays]


def reads_numpy(arrays: Sequence[Any]) -> bool:
    """Whether a computation may read memory that NumPy can write to.

    Of small arrays it has `copied`. Under an eager transformation the array is inside
    of a tracer, and of that there is no copy.
    """
    n_bytes = 0
    plain = None  # a type of arrays that is neither: 35 us for 200 of JAX's become 3
    for x in arrays:
        cls = type(x)
        if cls is plain:
            continue
        if cls is np.ndarray:
            n_bytes += x.nbytes
        elif isinstance(x, np.ndarray):
            return True
        elif not isinstance(x, Tracer):
            plain = cls
        elif _holds_numpy(x):
            return True
    return n_bytes > COPIED_BYTES


def _holds_numpy(tracer: Any) -> bool:
    """Whether a tracer of an eager transformation is of an array of NumPy.

    Its value, or its tangent: `jax.jvp` leaves both as they are.
    """
    pending = [tracer]
    while pending:
        x = pending.pop()
        if isinstance(x, Tracer):
            pending += [getattr(x, name, None) for name in ("primal", "tangent", "val")]
        elif isinstance(x, np.ndarray) and x.dtype != jax.dtypes.float0:
            return True
    return False


def must_block(callbacks: bool, arrays: Sequence[Any]) -> bool:
    """Whether a jitted, compiled or exported call must block.

    A host callback may raise after the dispatch. And virtual CPU devices share one pool
    of threads: where several runs with collectives are in flight, they may starve each
    other, and XLA ends the process after 40 s ("Termination timeout for all reduce"),
    also under `jax.jit`. Equinox's calls block; programs rely on it.

    `arrays` are the arguments and results: all results of a program are on all of its
    devices, where the arguments may have been on one.
    """
    # Tracers do not say.
    known = [
        x for x in arrays if isinstance(x, jax.Array) and not isinstance(x, Tracer)
    ]
    placed = [x.device_set for x in {x.sharding for x in known}]
    several = [devices for devices in placed if len(devices) > 1]
    return callbacks or any(next(iter(d)).platform == "cpu" for d in several)


def block(results: Sequence[Any], arguments: Sequence[Any] = ()) -> None:
    """Wait for a computation, of whose results each is ready at the same time.

    Also under an eager transformation, whose tracers hold results; not as a part of a
    trace. Then `arguments` are those of the call, otherwise none: eager transformations
    may return an argument as it is, which is ready before the others are. (`block_if`
    has more.)
    """
    inner = [concrete(x) for x in (results if arguments else results[:1])]
    found = [x for x in inner if _is_computed(x)]
    if not found and not arguments:
        # (`float0` is NumPy's.)
        inner = [concrete(x) for x in results]
        found = [x for x in inner if _is_computed(x)]
    if not found and any(isinstance(x, Tracer) for x in inner):
        return
    own = {id(concrete(x)) for x in arguments}
    if own and all(id(x) in own for x in found):
        # What it computes is only in what the transformation keeps for later, such as
        # the residuals of a `jax.custom_vjp`, or in a `jax.Ref`. Nothing public refers
        # to these.
        platforms = jax.extend.backend.backends()
        found = [x for platform in platforms for x in jax.live_arrays(platform)]
        jax.effects_barrier()
    if found:
        jax.block_until_ready(found)
    else:
        jax.effects_barrier()


def _is_computed(x: Any) -> bool:
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return False
    return not x.is_deleted()  # what was donated may be returned as it is


def block_if(
    blocks: bool | None, results: Sequence[Any], arguments: Sequence[Any]
) -> None:
    """Wait for a call if it `blocks`, or may read memory that NumPy can write to."""
    reads = reads_numpy(arguments)
    if not (blocks or reads):
        return
    # The results alone do not tell if there are tracers; or if there are none, and what
    # it computes is written to a `jax.Ref`.
    traced = any(issubclass(cls, Tracer) for cls in set(map(type, arguments)))
    block(results, arguments if traced or not results else ())


# Primitives that JAX itself lowers, and that only call what is in their jaxprs.
_JAX_PRIMITIVES = {
    id(x)
    for x in vars(jax.extend.core.primitives).values()
    if isinstance(x, jax.extend.core.Primitive)
}


def equations_in(values: Iterable[Any]) -> Iterator[Any]:
    """The equations of jaxprs, or of what has them for parameters, at any depth."""
    seen: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, tuple | list):
            pending.extend(value)
            continue
        value = getattr(value, "jaxpr", value)  # closed or open
        if not hasattr(value, "eqns") or id(value) in seen:
            continue
        seen.add(id(value))  # alive, as `values` are
        for equation in value.eqns:
            yield equation
            pending.extend(equation.params.values())


def has_host_callbacks(traced: jax.stages.Traced) -> bool:
    """Whether the traced program calls back into Python, which may raise.

    The lowering of a primitive that is not JAX's (`lineax.linear_solve`,
    `equinox.internal.noinline`) may have callbacks of which the jaxpr shows nothing, so
    there the text of the program is searched.
    """
    foreign = False
    for equation in equations_in([traced.jaxpr]):
        name = equation.primitive.name
        if name.endswith("callback") or name == "debug_print":
            return True
        foreign = foreign or id(equation.primitive) not in _JAX_PRIMITIVES
    return foreign and "callback" in traced.lower().as_text()
