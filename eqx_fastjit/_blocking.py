"""When a call must block, and how.

A call blocks if its function was wrapped with `asynchronous=False`; if it has host
callbacks, which may raise after the dispatch; if more of its arguments is in NumPy
arrays than is copied; and on several virtual CPU devices.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.extend.core.primitives
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.extend.mlir import ir

from ._private import values_inside


# The most bytes of NumPy arrays that a call copies. Copying this many takes about 100
# us, and a call that does not block lets Python continue while the device works.
COPIED_BYTES = 1 << 20


def must_block(callbacks: bool, arrays: Sequence[Any]) -> bool:
    """Whether each call of a program must block.

    Virtual CPU devices share one pool of threads: where several runs with collectives
    are in flight, they may starve each other, and XLA ends the process after 40 s
    ("Termination timeout for all reduce"), also under `jax.jit`.

    `arrays` are the arguments and results: all results of a program are on all of its
    devices, where the arguments may have been on one.
    """
    shardings = {x.sharding for x in arrays if _is_computed(x)}
    several = [x.device_set for x in shardings if len(x.device_set) > 1]
    return callbacks or any(next(iter(d)).platform == "cpu" for d in several)


def block(results: Sequence[Any], arguments: Sequence[Any], blocks: bool) -> None:
    """Block until a computation is done, if it `blocks`.

    `arguments` are given where some are tracers. Under an eager transformation, such as
    `jax.grad`, these have arrays inside, maybe of NumPy, of which there is no copy. As
    a part of a trace a call never blocks.
    """
    tracers = [x for x in arguments if isinstance(x, Tracer)]
    inside = [array for x in tracers for array in values_inside(x)]
    if not (blocks or any(map(_is_numpy, inside))):
        return
    given = {id(values_inside(x)[0]) for x in arguments}
    found = [values_inside(x)[0] for x in results]
    # What an eager transformation returns as it was given is ready already; the results
    # of one program are ready at the same time.
    computed = [x for x in found if _is_computed(x) and id(x) not in given]
    if computed:
        computed[0].block_until_ready()
    elif not results:
        jax.effects_barrier()


def _is_computed(x: Any) -> bool:
    is_array = isinstance(x, jax.Array) and not isinstance(x, Tracer)
    return is_array and not x.is_deleted()  # what was donated may be returned as it is


def _is_numpy(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype != jax.dtypes.float0


# --- host callbacks -------------------------------------------------------------------

# Primitives that JAX itself lowers, and that only call what is in their jaxprs.
_JAX_PRIMITIVES = {
    x
    for x in vars(jax.extend.core.primitives).values()
    if isinstance(x, jax.extend.core.Primitive)
}


def opened(jaxpr: Any) -> Any:
    """The open jaxpr in a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxprs_in(equation: Any) -> list[Any]:
    """The jaxprs in an equation's parameters, open or closed."""
    leaves = jtu.tree_leaves(equation.params)
    return [x for x in leaves if hasattr(opened(x), "eqns")]


def _equations(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """The equations of a jaxpr, and of those in their parameters, at any depth."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in map(opened, jaxprs_in(equation)):
            if id(inner) not in seen:
                seen.add(id(inner))  # alive, as `jaxpr` is
                yield from _equations(inner, seen)


def has_host_callbacks(traced: jax.stages.Traced) -> bool:
    """Whether the traced program calls back into Python, which may raise.

    The lowering of a primitive that is not JAX's (`lineax.linear_solve`,
    `equinox.internal.noinline`) may have callbacks of which the jaxpr shows nothing, so
    there the program's custom calls are looked at.
    """
    foreign = False
    for equation in _equations(traced.jaxpr, set()):
        name = equation.primitive.name
        if name.endswith("callback") or name == "debug_print":
            return True
        foreign = foreign or equation.primitive not in _JAX_PRIMITIVES
    return foreign and _calls_back(traced.lower().compiler_ir("stablehlo"))


def _calls_back(module: Any) -> bool:
    """Whether an MLIR module has a custom call of a callback."""
    targets: list[str] = []

    def note(operation: Any) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call":
            targets.append(str(operation.attributes["call_target_name"]))
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return any("callback" in target for target in targets)
