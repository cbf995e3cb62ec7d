"""`inspect`: what a traced function consists of, by source line."""

import collections
import dataclasses
import math
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import jax.extend.core

from eqx_fastjit._place import Place

from ._equations import read_jaxpr, Scope, UNKNOWN
from ._loops import find_loops, UnrolledLoop
from ._table import show_bytes, show_time, table
from ._target import target, trace, Traced
from ._words import plural, show_place


_Literal = jax.extend.core.Literal

# Buffers of a kind that are reported.
_LARGEST = 5
# Loops that are explained, and bytes of a constant that is.
_EXPLAINED = 3
_LARGE_CONSTANT = 1 << 20


@dataclasses.dataclass(frozen=True)
class LineCount:
    """Equations that come from one line of the user's program."""

    place: Place
    equations: int
    # The most frequent ones, with their number.
    primitives: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that the function captured: a constant rather than an argument."""

    type: str
    bytes: int
    # Where it is first used.
    place: Place


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument, a result, or an intermediate value."""

    kind: str
    # Path, or primitive.
    name: str
    type: str
    bytes: int
    # Of an intermediate value: the line that creates it.
    place: Place | None = None


@dataclasses.dataclass(frozen=True)
class Memory:
    """XLA's estimate for one run, in bytes."""

    arguments: int
    results: int
    temporaries: int
    # Results that reuse the memory of donated arguments.
    aliased: int
    code: int


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of `inspect`. Seconds are of this trace and this compilation."""

    name: str
    equations: int
    trace_seconds: float
    # `None` if it was not compiled.
    lower_seconds: float | None
    compile_seconds: float | None
    lines: tuple[LineCount, ...]
    loops: tuple[UnrolledLoop, ...]
    constants: tuple[Constant, ...]
    # Lines with a host callback, because of which a call blocks.
    callbacks: tuple[Place, ...]
    # `None` if it was not compiled, or where XLA has no estimate.
    memory: Memory | None
    # The largest arguments, results and intermediate values, as traced: XLA may fuse
    # some of the last away.
    buffers: tuple[Buffer, ...]

    def __str__(self) -> str:
        tables = [
            self._lines_table(),
            self._loops_table(),
            self._constants_table(),
            self._memory_text(),
            self._buffers_table(),
        ]
        return "\n\n".join([self._title(), *filter(None, tables)])

    __repr__ = __str__

    def _title(self) -> str:
        parts = [f"traced in {show_time(self.trace_seconds)}"]
        if self.lower_seconds is not None and self.compile_seconds is not None:
            parts.append(f"lowered in {show_time(self.lower_seconds)}")
            parts.append(f"compiled in {show_time(self.compile_seconds)}")
        return f"{self.name}: {plural(self.equations, 'equation')}; {', '.join(parts)}"

    def _lines_table(self) -> str:
        rows: list[Any] = []
        for x in self.lines:
            most = ", ".join(f"{name} {n}" for name, n in x.primitives)
            rows.append((x.equations, show_place(x.place), x.place.function, most))
        header = ("equations", "line", "in", "most frequent")
        return table("Equations by source line", header, rows)

    def _loops_table(self) -> str:
        rows: list[Any] = []
        for x in self.loops:
            scan = f"~{x.scan_equations}" if x.uniform else "shapes differ"
            counts = x.iterations, x.occurrences, x.equations
            rows.append((*counts, show_place(x.place), x.function, scan))
        header = ("iterations", "occurrences", "equations", "loop", "in", "with scan")
        text = table("Unrolled Python loops", header, rows)
        hints = [x.hint(self.equations) for x in self.loops[:_EXPLAINED]]
        return "\n".join([text, *[f"  {hint}" for hint in hints]]) if rows else ""

    def _constants_table(self) -> str:
        rows = [
            (show_bytes(x.bytes), x.type, show_place(x.place), x.place.function)
            for x in self.constants
        ]
        text = table("Captured constants", ("size", "type", "used at", "in"), rows)
        if self.constants and self.constants[0].bytes >= _LARGE_CONSTANT:
            text += (
                "\n  Constants are compiled into the program, and slow down the "
                "compilation. Pass large arrays as arguments."
            )
        return text

    def _memory_text(self) -> str:
        if self.memory is None:
            return ""
        names = {"aliased": "donated arguments reused", "code": "program"}
        figures = dataclasses.asdict(self.memory).items()
        rows = [(names.get(name, name), show_bytes(n)) for name, n in figures if n]
        return table("Memory of a call, as XLA estimates it", ("what", "size"), rows)

    def _buffers_table(self) -> str:
        rows = [
            (show_bytes(b.bytes), b.kind, b.name, b.type, _where(b.place))
            for b in sorted(self.buffers, key=lambda b: -b.bytes)
        ]
        header = ("size", "kind", "name", "type", "created at")
        return table("Largest buffers, as traced, before XLA fuses them", header, rows)


def _where(place: Place | None) -> str:
    return "" if place is None else show_place(place)


def inspect(f: Any, *args: Any, compile: bool = True, **kwargs: Any) -> Inspection:
    """Report what a traced function consists of, by source line.

    The function is traced, and compiled, for this report alone. Its own traces are not
    affected.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one.
    - `*args`, `**kwargs`: the arguments of the call. A `jax.ShapeDtypeStruct` may be
        passed in place of an array.
    - `compile`: whether to compile the function, for XLA's memory estimate.

    **Returns:**

    An `Inspection`: equations by source line, unrolled loops, captured constants,
    memory. Sizes are in bytes, times in seconds. `str(inspection)` shows it.

    **Raises:**

    `TypeError` if `f` is not callable, and what tracing and compiling raise.
    """
    it = target(f)
    traced = trace(it, args, kwargs)
    lower_seconds = compile_seconds = memory = None
    if compile:
        clock = time.perf_counter
        start = clock()
        with warnings.catch_warnings():
            # The user has been told when the function itself was lowered.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            lowered = traced.stage.lower()
        lower_seconds = clock() - start
        start = clock()
        compiled = lowered.compile()
        compile_seconds = clock() - start
        memory = _memory(compiled)
    scope = read_jaxpr(traced.stage.jaxpr)
    return Inspection(
        name=it.name,
        equations=scope.size,
        trace_seconds=traced.seconds,
        lower_seconds=lower_seconds,
        compile_seconds=compile_seconds,
        lines=_lines(scope),
        loops=find_loops(scope),
        constants=_constants(scope),
        callbacks=find_callbacks(scope),
        memory=memory,
        buffers=tuple(_buffers(traced, scope)),
    )


def _lines(scope: Scope) -> tuple[LineCount, ...]:
    """The lines with the most equations first."""
    lines: dict[Place, Counter[str]] = collections.defaultdict(Counter)
    for equation in scope.walk():
        if not equation.is_call:
            lines[equation.place][equation.name] += 1
    counts = [
        LineCount(place, c.total(), tuple(c.most_common(3)))
        for place, c in lines.items()
    ]
    return tuple(sorted(counts, key=lambda x: (-x.equations, x.place)))


def find_callbacks(scope: Scope) -> tuple[Place, ...]:
    """The lines that call from the device back into Python."""
    found: dict[Place, None] = {}
    for inner in scope.distinct():
        for equation in inner.equations:
            if equation.name.endswith("callback") or equation.name == "debug_print":
                found.setdefault(equation.place)
    return tuple(found)


def _constants(scope: Scope) -> tuple[Constant, ...]:
    """The arrays that a trace has captured, the largest first."""
    found: dict[int, Constant] = {}
    for value, place in _captured(scope):
        if hasattr(value, "shape") and id(value) not in found:
            found[id(value)] = Constant(_show_type(value), _nbytes(value), place)
    return tuple(sorted(found.values(), key=lambda c: -c.bytes))


def _captured(scope: Scope) -> Iterator[tuple[Any, Place]]:
    """Captured values, and where they are first used."""
    for inner in scope.distinct():
        for variable, value in zip(inner.jax.constvars, inner.consts, strict=False):
            yield value, _first_use(inner, variable) or UNKNOWN
        for equation in inner.equations:
            for v in equation.jax.invars:
                if isinstance(v, _Literal) and getattr(v.val, "shape", ()):
                    yield v.val, equation.place


def _first_use(scope: Scope, variable: Any) -> Place | None:
    """The line that first uses a variable, in functions that get it passed as well."""
    for equation in scope.equations:
        invars = equation.jax.invars
        for i, v in enumerate(invars):
            if v is not variable:
                continue
            for inner in equation.inner:
                # The branches of a `cond` lack its first argument.
                j = i - (len(invars) - len(inner.jax.invars))
                if 0 <= j < len(inner.jax.invars) and not inner.is_jax:
                    place = _first_use(inner, inner.jax.invars[j])
                    if place is not None:
                        return place
            return equation.place
    return None


def _memory(compiled: Any) -> Memory | None:
    try:
        stats = compiled.memory_analysis()
        names = ("argument", "output", "temp", "alias", "generated_code")
        return Memory(*[getattr(stats, f"{name}_size_in_bytes") for name in names])
    except Exception:  # not every backend has one
        return None


def _buffers(traced: Traced, scope: Scope) -> Iterator[Buffer]:
    def named(kind: str, names: Iterable[str], variables: Iterable[Any]) -> Any:
        for name, v in zip(names, variables, strict=False):
            yield Buffer(kind, name, _show_type(v.aval), _nbytes(v.aval))

    yield from _largest(named("argument", traced.names, scope.jax.invars))
    yield from _largest(named("result", traced.out_names, scope.jax.outvars))
    # Of a line that is executed often, one.
    intermediates = dict.fromkeys(
        Buffer("intermediate", e.name, _show_type(v.aval), _nbytes(v.aval), e.place)
        for inner in scope.distinct()
        for e in inner.equations
        if not e.is_call
        for v in e.jax.outvars
    )
    yield from _largest(intermediates)


def _largest(buffers: Iterable[Buffer]) -> list[Buffer]:
    return sorted(buffers, key=lambda b: -b.bytes)[:_LARGEST]


def _show_type(x: Any) -> str:
    """Dtype and shape of an array or of an abstract value."""
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"{getattr(x, 'dtype', type(x).__name__)}[{shape}]"


def _nbytes(x: Any) -> int:
    """The bytes that an array of this shape and dtype takes."""
    shape = getattr(x, "shape", ())
    if not all(isinstance(n, int) for n in shape):  # a symbolic dimension
        return 0
    return math.prod(shape) * getattr(getattr(x, "dtype", None), "itemsize", 0)
