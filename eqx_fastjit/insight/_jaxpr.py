"""`inspect_jaxpr`: the equations, loops, constants and memory of a trace, by line."""

from typing import Any, NamedTuple

from eqx_fastjit._place import Place
from eqx_fastjit._progress import Progress

from ._equations import read_jaxpr, Scope
from ._functions import Counts
from ._jaxpr_report import Constant, Inlined, JaxprReport, UnrolledLoop
from ._loops import Executions, find_runs, is_uniform, MIN_ITERATIONS, Run
from ._memory import constants, donations, memory, residuals
from ._scan import measure_run, NotScannable
from ._target import compile_traced, target


class Inspection(NamedTuple):
    """What can be said of a jaxpr alone. No array is kept."""

    equations: int
    loops: tuple[UnrolledLoop, ...]
    inlined: tuple[Inlined, ...]
    constants: tuple[Constant, ...]
    # Lines that call from the device back into Python.
    callbacks: tuple[Place, ...]


def inspect_scope(scope: Scope) -> Inspection:
    """Look through the jaxpr of a call of a function of ours."""
    counts = Counts(scope)
    return Inspection(
        scope.size,
        _loops(scope),
        counts.inlined(),
        constants(scope),
        tuple(counts.callbacks),
    )


def inspect_jaxpr(
    f: Any, *args: Any, measure: bool = False, compile: bool = True, **kwargs: Any
) -> JaxprReport:
    """Report what a traced function consists of, by source line.

    The function is traced again. Its own caches are not affected.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one.
    - `*args`, `**kwargs`: the arguments of the call. A `jax.ShapeDtypeStruct` may be
        passed in place of an array.
    - `measure`: whether to measure how long XLA takes to compile each unrolled loop,
        and the same loop as a `jax.lax.scan`. This compiles each loop twice.
    - `compile`: whether to compile the function, for XLA's memory estimate.

    **Returns:**

    A `JaxprReport`. Sizes are in bytes, times in seconds. Raises what tracing raises.
    """
    it = target(f)
    with Progress(f"inspect_jaxpr of {it.name}") as progress:
        progress.stage("tracing")
        traced = it.trace(args, kwargs)
        lower_seconds = compile_seconds = stats = None
        if compile:
            compiled, lower_seconds, compile_seconds = compile_traced(traced, progress)
            try:
                stats = compiled.memory_analysis()
            except Exception:  # not every backend has one
                pass
        progress.stage("walking through the equations")
        scope = read_jaxpr(traced.stage.jaxpr)
        counts = Counts(scope)
        temporaries = getattr(stats, "temp_size_in_bytes", None)
        return JaxprReport(
            name=it.name,
            equations=scope.size,
            trace_seconds=traced.seconds,
            lower_seconds=lower_seconds,
            compile_seconds=compile_seconds,
            lines=counts.lines(),
            loops=_loops(scope, progress if measure else None),
            inlined=counts.inlined(),
            constants=constants(scope),
            memory=memory(traced, scope, stats),
            donations=donations(traced),
            residuals=residuals(scope, temporaries),
        )


def _loops(scope: Scope, progress: Progress | None = None) -> tuple[UnrolledLoop, ...]:
    """The loops of a trace. They are measured if there is a `progress` to show it."""
    executions = Executions()
    found: list[Run] = []
    for inner in scope.distinct():
        if inner.prefix:  # a function of JAX's
            continue
        found += find_runs(inner)
        for equation in inner.equations:
            executions.note(equation)
    by_place: dict[Place, list[Run]] = {}
    for run in found:
        if executions.most_iterations(run) >= MIN_ITERATIONS:
            by_place.setdefault(run.place, []).append(run)
    loops: list[UnrolledLoop] = []
    for place, runs in by_place.items():
        if progress is not None:
            progress.stage(f"compiling loop {len(loops) + 1} of {len(by_place)}")
        loops.append(_loop(place, runs, progress is not None))
    return tuple(sorted(loops, key=lambda x: -x.equations))


def _loop(place: Place, runs: list[Run], measure: bool) -> UnrolledLoop:
    sizes = [sum(e.size for e in run.equations) for run in runs]
    largest = max(runs, key=lambda run: len(run.equations))
    seconds, reason = None, ""
    if measure:
        try:
            seconds = measure_run(largest)
        except NotScannable as e:
            reason = str(e)
    return UnrolledLoop(
        *place,
        iterations=max(run.iterations for run in runs),
        occurrences=len(runs),
        equations=sum(sizes),
        scan_equations=sum(
            1 + size // run.iterations for run, size in zip(runs, sizes, strict=True)
        ),
        uniform=all(map(is_uniform, runs)),
        seconds=seconds,
        not_measured=reason,
    )
