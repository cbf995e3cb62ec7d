"""What a trace contains: where its equations, loops, constants and bytes come from."""

import collections
import dataclasses
import linecache
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.extend.core

from eqx_fastjit._compat import name_stack
from eqx_fastjit._place import Place
from eqx_fastjit._progress import Progress
from eqx_fastjit._units import show_bytes, show_seconds

from ._loops import (
    Executions,
    find_runs,
    is_uniform,
    measure_run,
    MIN_ITERATIONS,
    NotScannable,
    Run,
    Seconds,
)
from ._places import (
    defined_at,
    is_call,
    is_jax,
    is_library,
    opened,
    Path,
    path_of,
    subjaxprs,
    user_frame,
)
from ._table import nbytes, Report, show_type, Table
from ._target import Target, target, Traced


_UNKNOWN = Place("<unknown>", 0, "<unknown>")
# Rows of a table in the text of a report.
_ROWS = 12
# What is kept for the backward pass is worth a word from here on, and from this share
# of XLA's temporary memory.
_MIN_RESIDUAL_BYTES = 1 << 20
_MIN_RESIDUAL_SHARE = 0.25

Literal = jax.extend.core.Literal


@dataclasses.dataclass(frozen=True)
class LineCount:
    """Equations that come from one line of the user's program."""

    file: str
    line: int
    function: str
    equations: int
    # The most frequent ones, with their number.
    primitives: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class UnrolledLoop:
    """An unrolled Python loop: its iterations follow one another in the trace."""

    # Where the loop is.
    file: str
    line: int
    function: str
    # The largest trip count of its occurrences.
    iterations: int
    # How often the loop occurs in the trace: more than once inside an outer loop, or
    # if it has a forward and a backward pass.
    occurrences: int
    # In all iterations of all occurrences.
    equations: int
    # An estimate of the equations that a `scan` would have: those of one iteration, and
    # the `scan` itself.
    scan_equations: int
    # Whether all iterations have the same shapes, which a `scan` requires.
    uniform: bool
    # Lowering and compiling one occurrence, both ways. Only with `measure=True`.
    seconds: Seconds | None = None
    # Why it was not measured, if it should have been.
    not_measured: str = ""


@dataclasses.dataclass(frozen=True)
class Inlined:
    """An inlined function: the trace contains its equations once for each call."""

    name: str
    file: str
    line: int
    # "jit", "custom_jvp_call", ...; "python" for a plain function.
    kind: str
    # For a plain function a lower bound, derived from the stacks.
    calls: int
    # Different places that call it.
    call_sites: int
    # In all calls together.
    equations: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that the function captured: a constant rather than an argument."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    # Where it is first used.
    file: str
    line: int
    function: str


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument, a result, or an intermediate value."""

    # Path, or primitive.
    name: str
    type: str
    bytes: int
    # For an intermediate value, the line that creates it.
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Memory:
    """XLA's estimate for one run, in bytes, and the largest buffers in the trace."""

    # `None` where XLA gives no estimate.
    arguments: int | None
    results: int | None
    temporaries: int | None
    # Results that reuse the memory of donated arguments.
    aliased: int | None
    code: int | None
    largest_arguments: tuple[Buffer, ...]
    largest_results: tuple[Buffer, ...]
    # As traced. XLA may fuse some of them away.
    largest_intermediates: tuple[Buffer, ...]


@dataclasses.dataclass(frozen=True)
class Donation:
    """An argument whose memory a result could reuse."""

    argument: str
    result: str
    type: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Residuals:
    """What the forward pass stores for the backward pass."""

    number: int
    bytes: int
    largest: tuple[Buffer, ...]
    # The share of XLA's temporary memory, if that is known.
    share: float | None
    # Equations of the forward pass: the most that `jax.checkpoint` would run twice.
    forward_equations: int
    # Whether `jax.checkpoint` is worth trying: at least 1 MiB, and a quarter of the
    # temporary memory.
    checkpoint: bool


@dataclasses.dataclass(frozen=True)
class JaxprReport(Report):
    """What `inspect_jaxpr` found."""

    name: str
    equations: int
    trace_seconds: float
    # `None` if it was not compiled.
    lower_seconds: float | None
    compile_seconds: float | None
    lines: tuple[LineCount, ...]
    loops: tuple[UnrolledLoop, ...]
    inlined: tuple[Inlined, ...]
    constants: tuple[Constant, ...]
    memory: Memory
    donations: tuple[Donation, ...]
    residuals: Residuals | None

    def title(self) -> str:
        """The most important numbers, in a line."""
        parts = [f"traced in {show_seconds(self.trace_seconds)}"]
        if self.lower_seconds is not None and self.compile_seconds is not None:
            parts.append(f"lowered in {show_seconds(self.lower_seconds)}")
            parts.append(f"compiled in {show_seconds(self.compile_seconds)}")
        return f"{self.name}: {self.equations} equations, {', '.join(parts)}"

    def tables(self) -> list[Table]:
        """The parts of the report."""
        return [
            self._lines_table(),
            self._loops_table(),
            self._inlined_table(),
            self._constants_table(),
            self._memory_table(),
            self._buffers_table(),
            self._advice_table(),
        ]

    def _lines_table(self) -> Table:
        rows = [
            (
                x.equations,
                f"{x.file}:{x.line}",
                x.function,
                ", ".join(f"{name} {n}" for name, n in x.primitives),
            )
            for x in self.lines[:_ROWS]
        ]
        notes = _more(self.lines)
        header = ("equations", "line", "in", "most frequent")
        return Table("Equations by source line", header, rows, notes)

    def _loops_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        notes: list[str] = []
        for x in self.loops:
            seconds = ("", "")
            if x.seconds is not None:
                seconds = tuple(map(show_seconds, x.seconds))
            rows.append(
                (
                    x.iterations,
                    x.occurrences,
                    x.equations,
                    f"{x.file}:{x.line}",
                    x.function,
                    f"~{x.scan_equations}" if x.uniform else "shapes differ",
                    *seconds,
                )
            )
            if x.not_measured:
                notes.append(f"line {x.line} was not measured: {x.not_measured}")
        header = ("iterations", "occurrences", "equations", "loop", "in", "with scan")
        header += ("compile unrolled", "compile scan")
        if any(x.seconds for x in self.loops):
            notes.append(
                "The compile times were measured for one occurrence of the loop by "
                "itself. With a scan, compiling the whole function should take less "
                "time by about the difference."
            )
        return Table("Unrolled Python loops", header, rows, tuple(notes))

    def _inlined_table(self) -> Table:
        rows = [
            (
                f">={x.calls}" if x.kind == "python" else x.calls,
                x.call_sites,
                x.equations,
                x.name,
                x.kind,
                f"{x.file}:{x.line}",
            )
            for x in self.inlined[:_ROWS]
        ]
        header = ("calls", "call sites", "equations", "function", "kind", "defined at")
        title = "Inlined functions"
        return Table(title, header, rows, _more(self.inlined))

    def _constants_table(self) -> Table:
        rows = [
            (
                show_bytes(x.bytes),
                f"{x.dtype}[{','.join(map(str, x.shape))}]",
                f"{x.file}:{x.line}",
                x.function,
            )
            for x in self.constants[:_ROWS]
        ]
        header = ("size", "type", "used at", "in")
        return Table("Captured constants", header, rows, _more(self.constants))

    def _memory_table(self) -> Table:
        m = self.memory
        figures = {
            "arguments": m.arguments,
            "results": m.results,
            "temporaries": m.temporaries,
            "donated arguments reused": m.aliased,
            "program": m.code,
        }
        rows = [(k, show_bytes(v)) for k, v in figures.items() if v is not None]
        none = "No estimate: the function was not compiled, or XLA provides none."
        notes = () if rows else (none,)
        return Table("Memory, estimated by XLA", ("what", "size"), rows, notes)

    def _buffers_table(self) -> Table:
        m = self.memory
        groups = (
            ("argument", m.largest_arguments),
            ("result", m.largest_results),
            ("intermediate", m.largest_intermediates),
        )
        rows = [
            (show_bytes(b.bytes), kind, b.name, b.type, b.where)
            for kind, buffers in groups
            for b in buffers
        ]
        notes = ("Intermediate values are as traced; XLA may fuse them away.",)
        header = ("size", "kind", "name", "type", "created at")
        return Table("Largest buffers", header, rows, notes)

    def _advice_table(self) -> Table:
        rows: list[Sequence[Any]] = []
        if self.donations:
            total = sum(d.bytes for d in self.donations)
            names = ", ".join(d.argument for d in self.donations[:6])
            names += ", ..." if len(self.donations) > 6 else ""
            rows.append(
                (
                    "donate",
                    f"{show_bytes(total)} of results could reuse the memory of "
                    f"{names}, if these are not used after the call: "
                    "filter_jit(donate=...)",
                )
            )
        r = self.residuals
        if r is not None:
            share = "" if r.share is None else f" ({r.share:.0%} of the temporaries)"
            verdict = "is worth trying" if r.checkpoint else "would save little"
            rows.append(
                (
                    "checkpoint",
                    f"Before fusion, {r.number} arrays of {show_bytes(r.bytes)}{share} "
                    f"are kept for the backward pass. jax.checkpoint {verdict}: it "
                    f"would run at most {r.forward_equations} equations twice",
                )
            )
            rows += [
                ("", f"kept: {show_bytes(b.bytes)} {b.type} by {b.name}, {b.where}")
                for b in r.largest
            ]
        return Table("What would save memory", ("", ""), rows)


def _more(rows: tuple[Any, ...]) -> tuple[str, ...]:
    rest = len(rows) - _ROWS
    return (f"and {rest} more",) if rest > 0 else ()


class Callback(NamedTuple):
    """A call from the device back into Python."""

    file: str
    line: int
    function: str
    # The line's text, if it can be read.
    source: str


class Inspection(NamedTuple):
    """What can be said of a jaxpr alone. No array is kept."""

    equations: int
    loops: tuple[UnrolledLoop, ...]
    inlined: tuple[Inlined, ...]
    constants: tuple[Constant, ...]
    callbacks: tuple[Callback, ...]


def inspect_closed(closed: Any) -> Inspection:
    """Look through the closed jaxpr of a call of a function of ours."""
    walk = _Walk(closed)
    return Inspection(
        sum(walk.lines.values()),
        _loops(walk, False),
        _inlined(walk),
        _constants(closed),
        tuple(
            Callback(*frame, linecache.getline(frame.file, frame.line).strip())
            for frame in walk.callbacks
        ),
    )


def inspect_jaxpr(
    f: Any, *args: Any, measure: bool = False, compile: bool = True, **kwargs: Any
) -> JaxprReport:
    """Report what a traced function consists of, by source line.

    The function is traced again. Its own caches are not affected.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one.
    - `*args`, `**kwargs`: the arguments of the call; a `jax.ShapeDtypeStruct` may take
        the place of an array.
    - `measure`: whether to measure how long XLA takes to compile each unrolled loop,
        and the same loop as a `jax.lax.scan`. This compiles each loop twice.
    - `compile`: whether to compile the function, for XLA's memory estimate.

    **Returns:**

    A `JaxprReport`. Sizes are in bytes, times in seconds. Raises what tracing raises.
    """
    it = target(f)
    with Progress(f"inspect_jaxpr of {it.name}") as progress:
        return _inspect(it, args, kwargs, measure, compile, progress)


def _inspect(
    it: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    measure: bool,
    compile: bool,
    progress: Progress,
) -> JaxprReport:
    progress.stage("tracing")
    traced = it.trace(args, kwargs)
    lower_seconds = compile_seconds = stats = None
    if compile:
        progress.stage("lowering")
        with warnings.catch_warnings():
            # The user has been told when the function itself was lowered.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            start = time.perf_counter()
            lowered = traced.stage.lower()
            lower_seconds = time.perf_counter() - start
        progress.stage("compiling")
        start = time.perf_counter()
        compiled = lowered.compile()
        compile_seconds = time.perf_counter() - start
        try:
            stats = compiled.memory_analysis()
        except Exception:  # not every backend has one
            stats = None
    progress.stage("walking through the equations")
    closed = traced.stage.jaxpr
    walk = _Walk(closed)
    temporaries = getattr(stats, "temp_size_in_bytes", None)
    return JaxprReport(
        name=it.name,
        equations=sum(walk.lines.values()),
        trace_seconds=traced.seconds,
        lower_seconds=lower_seconds,
        compile_seconds=compile_seconds,
        lines=_line_counts(walk),
        loops=_loops(walk, measure, progress),
        inlined=_inlined(walk),
        constants=_constants(closed),
        memory=_memory(traced, walk, stats),
        donations=_donations(traced),
        residuals=_residuals(closed.jaxpr, temporaries),
    )


# --- walking -------------------------------------------------------------------------


class _Walk:
    """Everything in a jaxpr and in those inside, each call as often as it is made."""

    def __init__(self, closed: Any):
        # Frame and primitive: number of equations.
        self.lines: collections.Counter[tuple[Place, str]] = collections.Counter()
        self.paths: collections.Counter[tuple[Path, str]] = collections.Counter()
        self.runs: list[Run] = []
        # Kind, name and place: calls, places that call, equations.
        self.calls: dict[Any, tuple[list[int], set[Any]]] = {}
        self.intermediates: list[Buffer] = []
        # Lines that call back into Python.
        self.callbacks: dict[Place, None] = {}
        self.executions = Executions()
        # Of the calls that lead to the equations that are being visited.
        self._frames: list[Place] = []
        self._seen: set[int] = set()
        self._visit(closed.jaxpr, ())

    def _visit(self, jaxpr: Any, prefix: Path) -> int:
        """Returns the number of equations.

        `prefix` is the path of the call, for functions of JAX's, whose own frames are
        those of whoever traced them first.
        """
        paths = [prefix or path_of(e) for e in jaxpr.eqns]
        first_time = id(jaxpr) not in self._seen  # alive: it is in the trace
        self._seen.add(id(jaxpr))
        if first_time and not prefix:
            self.runs += find_runs(jaxpr, paths)
            for e in jaxpr.eqns:
                self.executions.note(e)
        total = 0
        for equation, path in zip(jaxpr.eqns, paths, strict=True):
            total += self._visit_equation(equation, path, first_time)
        return total

    def _visit_equation(self, equation: Any, path: Path, first_time: bool) -> int:
        name = equation.primitive.name
        frame = user_frame(path) or _UNKNOWN
        call = is_call(equation)
        total = 0
        self._frames.append(frame)
        if name.endswith("callback") or name == "debug_print":
            users = [f for f in reversed(self._frames) if not is_library(f.file)]
            self.callbacks.setdefault(users[0] if users else frame)
        if not call:
            total = 1
            self.lines[frame, name] += 1
            self.paths[path, name] += 1
            if first_time:
                self._note_buffers(equation, frame)
        for sub in subjaxprs(equation):
            place = defined_at(sub)
            of_jax = place is not None and is_jax(place.file)
            inner = self._visit(opened(sub), path if of_jax else ())
            total += inner
            if call:
                kind = equation.params.get("name") or getattr(place, "function", name)
                key = (name, str(kind), place or frame)
                numbers, sites = self.calls.setdefault(key, ([0, 0], set()))
                numbers[0] += 1
                numbers[1] += inner
                sites.add(frame)
        self._frames.pop()
        return total

    def _note_buffers(self, equation: Any, frame: Place) -> None:
        for v in equation.outvars:
            size = nbytes(v.aval)
            if size:
                self.intermediates.append(
                    Buffer(equation.primitive.name, show_type(v.aval), size, str(frame))
                )


def _line_counts(walk: _Walk) -> tuple[LineCount, ...]:
    by_frame: dict[Place, collections.Counter[str]] = {}
    for (frame, primitive), n in walk.lines.items():
        by_frame.setdefault(frame, collections.Counter())[primitive] += n
    counts = [
        LineCount(*frame, c.total(), tuple(c.most_common(3)))
        for frame, c in by_frame.items()
    ]
    return tuple(sorted(counts, key=lambda x: (-x.equations, x.file, x.line)))


# --- loops ---------------------------------------------------------------------------


def _loops(
    walk: _Walk, measure: bool, progress: Progress | None = None
) -> tuple[UnrolledLoop, ...]:
    by_place: dict[Place, list[Run]] = {}
    for run in walk.runs:
        if walk.executions.most_iterations(run) < MIN_ITERATIONS:
            continue
        by_place.setdefault(run.place, []).append(run)
    loops: list[UnrolledLoop] = []
    for place, runs in by_place.items():
        if progress is not None and measure:
            progress.stage(f"compiling loop {len(loops) + 1} of {len(by_place)}")
        loops.append(_loop(place, runs, measure))
    return tuple(sorted(loops, key=lambda x: -x.equations))


def _loop(place: Place, runs: list[Run], measure: bool) -> UnrolledLoop:
    sizes = [sum(map(_size, run.equations)) for run in runs]
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


def _size(equation: Any) -> int:
    """Equations in an equation, as they are counted by line."""
    inner = sum(_size(e) for sub in subjaxprs(equation) for e in opened(sub).eqns)
    return inner if is_call(equation) else 1 + inner


# --- functions -----------------------------------------------------------------------


def _inlined(walk: _Walk) -> tuple[Inlined, ...]:
    found = [
        Inlined(name, place.file, place.line, kind, calls, len(sites), equations)
        for (kind, name, place), ((calls, equations), sites) in walk.calls.items()
        if calls > 1 and not is_jax(place.file)
    ]
    found += _plain_functions(walk)
    return tuple(sorted(found, key=lambda x: -x.equations))


def _plain_functions(walk: _Walk) -> Iterator[Inlined]:
    """Python functions of the user's that more than one call led to."""
    sites: dict[Any, set[Path]] = {}
    inner: dict[Any, collections.Counter[Any]] = {}
    lines: dict[Any, int] = {}
    for (path, primitive), n in walk.paths.items():
        # The outermost frame is the function itself, which is there once.
        for i in range(1, len(path)):
            frame = path[i]
            if is_library(frame.file) or frame.function.endswith("comp>"):
                continue
            if frame.function.endswith(("<genexpr>", "tree_map")):
                continue
            key = (frame.file, frame.function)
            sites.setdefault(key, set()).add(path[:i])
            # Below the call, by what it does: as often as it is there it was called.
            inner.setdefault(key, collections.Counter())[path[i:], primitive] += n
            lines[key] = min(lines.get(key, frame.line), frame.line)
    for key, paths in sites.items():
        calls = max(len(paths), min(inner[key].values()))
        if calls > 1:
            file, name = key
            total = inner[key].total()
            yield Inlined(name, file, lines[key], "python", calls, len(paths), total)


# --- constants -----------------------------------------------------------------------


def _constants(closed: Any) -> tuple[Constant, ...]:
    found: dict[int, Constant] = {}

    def note(value: Any, frame: Place) -> None:
        shape = getattr(value, "shape", None)
        if shape is None:
            return
        found.setdefault(
            id(value),
            Constant(tuple(shape), str(value.dtype), nbytes(value), *frame),
        )

    def visit(jaxpr: Any) -> None:
        if hasattr(jaxpr, "consts"):
            inner = opened(jaxpr)
            for variable, value in zip(inner.constvars, jaxpr.consts, strict=True):
                note(value, _first_use(inner, variable) or _UNKNOWN)
        for equation in opened(jaxpr).eqns:
            for v in equation.invars:
                if isinstance(v, Literal) and getattr(v.val, "shape", ()):
                    note(v.val, user_frame(path_of(equation)) or _UNKNOWN)
            for sub in subjaxprs(equation):
                visit(sub)

    visit(closed)
    return tuple(sorted(found.values(), key=lambda c: -c.bytes))


def _first_use(jaxpr: Any, variable: Any) -> Place | None:
    """The line that first uses a variable, in functions that get it passed as well."""
    for equation in jaxpr.eqns:
        for i, v in enumerate(equation.invars):
            if v is not variable:
                continue
            for sub in subjaxprs(equation):
                inner = opened(sub)
                # The branches of a `cond` lack its first argument.
                j = i - (len(equation.invars) - len(inner.invars))
                place = defined_at(sub)
                of_jax = place is not None and is_jax(place.file)
                if 0 <= j < len(inner.invars) and not of_jax:
                    frame = _first_use(inner, inner.invars[j])
                    if frame is not None:
                        return frame
            return user_frame(path_of(equation))
    return None


# --- memory --------------------------------------------------------------------------


def _memory(traced: Traced, walk: _Walk, stats: Any) -> Memory:
    jaxpr = traced.stage.jaxpr.jaxpr
    arguments = _buffers(traced.names, jaxpr.invars)
    results = _buffers(traced.out_names, jaxpr.outvars)
    intermediates = sorted(set(walk.intermediates), key=lambda b: -b.bytes)

    def figure(name: str) -> int | None:
        return getattr(stats, f"{name}_size_in_bytes", None)

    return Memory(
        figure("argument"),
        figure("output"),
        figure("temp"),
        figure("alias"),
        figure("generated_code"),
        arguments[:5],
        results[:5],
        tuple(intermediates[:5]),
    )


def _buffers(names: list[str], variables: Any) -> tuple[Buffer, ...]:
    buffers = [
        Buffer(name, show_type(v.aval), nbytes(v.aval))
        for name, v in zip(names, variables, strict=True)
    ]
    return tuple(sorted(buffers, key=lambda b: -b.bytes))


def _donations(traced: Traced) -> tuple[Donation, ...]:
    """Arguments as large as a result, with neither being spoken for."""
    jaxpr = traced.stage.jaxpr.jaxpr
    free: dict[str, list[str]] = {}
    for name, v in zip(traced.out_names, jaxpr.outvars, strict=True):
        if any(v is x for x in jaxpr.invars):
            continue  # an argument handed back
        free.setdefault(show_type(v.aval), []).append(name)
    arguments = list(zip(traced.names, jaxpr.invars, traced.donated, strict=True))
    out: list[Donation] = []
    for wanted in (True, False):  # donated ones take their results first
        for name, v, donated in arguments:
            results = free.get(show_type(v.aval))
            if donated is not wanted or not results:
                continue
            # `state.w` rather becomes `result.w` than something else of that shape.
            result = max(results, key=lambda r: _common_end(name, r))
            results.remove(result)
            if not donated and nbytes(v.aval):
                type_ = show_type(v.aval)
                out.append(Donation(name, result, type_, nbytes(v.aval)))
    return tuple(sorted(out, key=lambda d: -d.bytes))


def _common_end(a: str, b: str) -> int:
    n = 0
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        n += 1
    return n


def _residuals(jaxpr: Any, temporaries: int | None) -> Residuals | None:
    """What equations of a forward pass make and those of a backward pass use.

    JAX marks the equations of a backward pass by `transpose` in their name stack.
    """
    arguments = {id(v) for v in (*jaxpr.invars, *jaxpr.constvars)}
    made: dict[int, tuple[Any, Any]] = {}
    kept: dict[int, Buffer] = {}
    forward = 0
    backward = False

    def visit(jaxpr: Any, renamed: dict[int, int]) -> None:
        """`renamed`: from a variable inside of a call to what it is outside."""
        nonlocal forward, backward
        for equation in jaxpr.eqns:
            if is_call(equation) and "transpose(" not in name_stack(equation):
                for sub in subjaxprs(equation):
                    inner = opened(sub)
                    if len(inner.invars) == len(equation.invars):
                        names = {
                            id(w): renamed.get(id(v), id(v))
                            for w, v in zip(inner.invars, equation.invars, strict=True)
                        }
                        visit(inner, names)
            if "transpose(" not in name_stack(equation):
                forward += 0 if is_call(equation) else _size(equation)
                for v in equation.outvars:
                    made[id(v)] = (equation, v)
                continue
            backward = True
            for v in equation.invars:
                key = renamed.get(id(v), id(v))
                if isinstance(v, Literal) or key not in made or key in arguments:
                    continue
                maker, variable = made[key]
                size = nbytes(variable.aval)
                if size:
                    frame = user_frame(path_of(maker)) or _UNKNOWN
                    kept[key] = Buffer(
                        maker.primitive.name,
                        show_type(variable.aval),
                        size,
                        str(frame),
                    )

    visit(jaxpr, {})
    if not backward:
        return None
    total = sum(b.bytes for b in kept.values())
    share = total / temporaries if temporaries else None
    largest = sorted(kept.values(), key=lambda b: -b.bytes)[:5]
    return Residuals(
        number=len(kept),
        bytes=total,
        largest=tuple(largest),
        share=share,
        forward_equations=forward,
        checkpoint=total >= _MIN_RESIDUAL_BYTES
        and (share is None or share >= _MIN_RESIDUAL_SHARE),
    )
