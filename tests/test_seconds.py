"""Seconds are those of their own stage, and each is counted once.

A fake clock determines how long each stage takes: twice as long as the stage before,
so that no two sets of stages have the same sum.
"""

import jax
import pytest

from eqx_fastjit import _record, filter_jit
from eqx_fastjit.doctor import _find, _plain, _time
from eqx_fastjit.doctor._rows import make_compilations, rows
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._waits import Waits
from eqx_fastjit.doctor._watch import Seen, Watch
from eqx_fastjit.insight import (
    _target,
    _timing,
    _warm_call,
    cache_info,
    explain,
    guard,
    ledger,
    RetraceError,
)
from eqx_fastjit.insight._target import target
from eqx_fastjit.insight._timing import Blocking, measure, nothing, Timer
from tests.clock import Clock, COMPILED, LOWERED, record_call, TRACED


pytestmark = pytest.mark.one_engine


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_record, "time", clock)
    return clock


@pytest.fixture
def functions(clock):
    """`outer` takes 15 s by itself, and calls `inner`, which takes 240 s."""

    @filter_jit
    def inner(n):
        return n

    @filter_jit
    def outer(n):
        return inner(n)

    return outer, inner


def call(clock, functions, **options):
    outer, inner = functions

    def inside():
        record_call(clock, inner._function.history, (16.0, 32.0, 64.0, 128.0))

    history = outer._function.history
    stages = (1.0, 2.0, 4.0, 8.0)
    return record_call(clock, history, stages, inside=inside, **options)


def stages(x):
    return x.trace, x.lower, x.compile, x.first_run


OUTER = (1 + 240, 2, 4, 8)


# --- insight -------------------------------------------------------------------------


def test_a_trace(clock, functions):
    trace = call(clock, functions)
    assert stages(trace) == OUTER
    assert (trace.seconds, trace.nested) == (255, 240)
    assert trace.started == 1000


def test_cache_info(clock, functions):
    call(clock, functions)
    outer, inner = map(cache_info, functions)
    assert (outer.seconds, inner.seconds) == (255, 0)
    (signature,) = outer.signatures
    assert stages(signature) == OUTER
    assert (signature.traces, signature.compiles, signature.inlined) == (1, 1, 0)
    (signature,) = inner.signatures
    assert stages(signature) == (0, 0, 0, 0)
    assert (signature.traces, signature.compiles, signature.inlined) == (1, 1, 1)
    (table,) = outer.tables()
    assert table.rows[0][1:8] == (1, 0, 1, "4 min 1 s", "2 s", "4 s", "8 s")
    assert outer.title().endswith(": 1 trace, 1 compile, 0 specializations, 4 min 15 s")


def test_explain(clock, functions):
    outer, _ = functions
    call(clock, functions, arguments=[("n", 1)])
    call(clock, functions, arguments=[("n", 2)])
    (explanation,) = explain(outer)
    assert stages(explanation) == OUTER and explanation.seconds == 255
    assert (
        "cost: 4 min 15 s (trace 4 min 1 s, lower 2 s, compile 4 s, first run 8 s)"
        in str(explanation)
    )


def test_ledger(clock, functions):
    call(clock, functions, arguments=[("n", 1)])
    call(clock, functions, arguments=[("n", 2)])
    outer, inner = ledger().rows
    assert "outer" in outer.function and "inner" in inner.function
    assert (outer.seconds, inner.seconds) == (510, 0)
    for row in (outer, inner):
        # Each call is counted once.
        assert (row.functions, row.traces, row.compiles) == (1, 2, 2)
        ((_, calls),) = row.sites
        assert calls == 2
    assert dict(outer.causes) == {"first-call": 1, "static-churn": 1}
    assert dict(inner.causes) == {"inlined": 2}
    assert ledger().title() == "2 jitted functions, 8 min 30 s"


def test_a_guard(clock, functions):
    with guard(max_seconds=255):
        call(clock, functions)
    with (
        guard(max_seconds=254.9),
        pytest.raises(RetraceError, match=r"has taken 4 min 15 s, including .*outer"),
    ):
        call(clock, functions)
    # The limit for one function excludes the seconds of functions called inside it.
    outer, inner = functions
    with guard(outer, max_seconds=15):
        call(clock, functions)
    with guard(inner, max_seconds=240):
        call(clock, functions)


def test_a_stage_ahead_of_time_is_counted_once(clock, functions):
    _, inner = functions
    history = inner._function.history
    with _record.ahead_of_time(history, list) as run:
        run.the_trace().trace += 1.0
    for event, seconds in ((LOWERED, 2.0), (COMPILED, 4.0)):
        with _record.ahead_of_time(history, None, run.the_trace()):
            _record._on_duration(event, seconds)
    info = cache_info(inner)
    assert (info.seconds, info.compiles) == (7, 1)
    (signature,) = info.signatures
    assert stages(signature) == (1, 2, 4, 0)


# --- traces that fail ----------------------------------------------------------------


def fail(clock, function, arguments=()):
    with pytest.raises(ValueError, match="planted"):
        record_call(
            clock,
            function._function.history,
            (1.0, 0.0, 0.0, 0.0),
            arguments=arguments,
            error=ValueError("planted"),
        )


def test_a_failed_trace_is_no_signature(clock, functions):
    _, inner = functions
    fail(clock, inner)
    info = cache_info(inner)
    assert (info.traces, info.compiles, info.signatures) == (0, 0, ())
    assert info.seconds == 1
    (row,) = ledger().rows
    assert (row.traces, row.seconds, row.causes) == (0, 1, (("failed", 1),))


def test_a_failed_trace_is_no_reason_for_another(clock, functions):
    _, inner = functions
    fail(clock, inner, [("n", 1)])
    record_call(clock, inner._function.history, (1, 2, 4, 8), arguments=[("n", 2)])
    assert explain(inner) == ()
    assert [dict(row.causes) for row in ledger().rows] == [
        {"failed": 1, "first-call": 1}
    ]


# --- doctor --------------------------------------------------------------------------


@pytest.fixture
def watch(clock, functions):
    """The record of a run of 1,000 s that called `outer` twice."""
    watch = Watch()
    watch.started, watch.seconds = 900.0, 1000.0
    for n in (1, 2):
        call(clock, functions, arguments=[("n", n)])
    for trace in _record.traces:
        watch.seen[trace.number] = Seen(trace, Line("a.py", trace.number))
    return watch


def found(watch):
    return sorted(watch.seen.values(), key=lambda s: s.trace.number)


def test_rows_of_functions(watch):
    outer, inner = rows(found(watch), [])
    assert outer.function.endswith("outer") and inner.function.endswith("inner")
    assert stages(outer) == (482, 4, 8, 16) and outer.seconds == 510
    assert stages(inner) == (0, 0, 0, 0) and inner.seconds == 0
    for row in (outer, inner):
        assert (row.objects, row.traces, row.compiles) == (1, 2, 2)
        assert [n for _, n in row.calls] == [1, 1]
    assert inner.causes == {"inlined": 2}


def test_rows_of_each_compilation(watch):
    outer, inner, *_ = make_compilations(found(watch), [], 900.0)
    assert (outer.number, inner.number) == (1, 2)
    assert stages(outer) == OUTER and outer.seconds == 255
    assert stages(inner) == (16, 32, 64, 128)
    assert (outer.start, inner.start) == (100, 101)
    assert (outer.inside, inner.inside) == (False, True)


def test_parts_of_a_run(watch):
    spent = {part.name: part.seconds for part in _time.time_spent(watch).parts}
    assert spent == {"trace": 482, "compile": 8, "lower": 4, "python": 1000 - 494}


def test_a_slow_first_call(watch):
    def slow(seconds):
        report = _find.make_report(watch, "a.py", 0, slow=seconds)
        return [f for f in report.findings if f.kind == "slow-first-call"]

    (finding,) = slow(247)
    assert finding.function.endswith("outer")
    assert finding.seconds == 247  # without the first run
    assert (
        "spent 241.00 s tracing, 2.00 s lowering and 4.00 s in XLA's compiler"
        in finding.message
    )
    assert "Most of it was Python" in finding.fix
    # `inner` takes 112 s, but is part of a call of `outer`, not a slow first call.
    assert len(slow(112)) == 1 and slow(247.1) == []


def test_what_churn_costs(clock, functions):
    """Functions inside are retraced as often, and get no finding of their own."""
    watch = Watch()
    watch.started, watch.seconds = 900.0, 10_000.0
    for n in range(4):
        call(clock, functions, arguments=[("n", n)])
    for trace in _record.traces:
        watch.seen[trace.number] = Seen(trace, Line("a.py", 3))
    (finding,) = _find.make_report(watch, "a.py", 0, slow=1000).findings
    assert (finding.kind, finding.leaf, finding.line) == ("static-churn", "n", 3)
    assert (finding.count, finding.seconds) == (3, 3 * 255)
    assert finding.function.endswith("outer")


def plain_compile(plain, name, seconds):
    for event, spent in zip((TRACED, LOWERED, COMPILED), seconds, strict=True):
        plain._on_duration(event, spent, fun_name=name)


def test_functions_under_plain_jit(monkeypatch):
    monkeypatch.setattr(_plain, "time", Clock())
    plain = _plain.PlainJits()
    plain_compile(plain, "jit(f)", (1.0, 2.0, 4.0))
    plain_compile(plain, "jit(g)", (8.0, 16.0, 32.0))
    first, second = plain.compiles
    assert (first.name, first.trace, first.lower, first.compile) == ("f", 1, 2, 4)
    assert (first.seconds, first.started) == (7, 1000 - 7)
    assert (second.trace, second.lower, second.compile) == (8, 16, 32)
    # Used to exclude compilation from the Python time between two waits.
    assert plain.seconds == 2 + 4 + 16 + 32
    by_name = {row.function: row for row in rows([], plain.compiles)}
    assert [(r.lower, r.seconds) for r in by_name.values()] == [(16, 56), (2, 7)]


def test_waits(monkeypatch):
    from eqx_fastjit.doctor import _waits

    clock = Clock()
    monkeypatch.setattr(_waits, "time", clock)
    compiled = [0.0]
    waits = Waits(lambda: compiled[0])
    wait = waits._timed(clock.sleep, ".item()")
    # A wait inside another wait is counted as part of it.
    outer = waits._timed(wait, "float()")

    def step(work, seconds, compiling=0.0):
        clock.sleep(work)
        compiled[0] += compiling
        outer(seconds)

    for work, seconds, compiling in ((9, 1, 0), (2, 1, 0), (1, 4, 0), (8, 4, 7)):
        step(work, seconds, compiling)
    (waiting,) = waits.by_call.values()
    assert (waiting.what, waiting.count, waiting.waited) == ("float()", 4, 10)
    # Nothing is lost before the first wait; after that, the shorter of wait and work.
    assert waiting.lost == 1 + 1 + 1
    assert (waiting.first, waiting.last) == (1009, 1030)
    outer(_waits._SHORTEST / 2)
    assert waiting.count == 4


# --- timing of parts -----------------------------------------------------------------


@pytest.fixture
def timing(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_timing, "time", clock)
    return clock


def test_a_call_is_timed_until_it_returns(timing):
    run, wait = Timer(lambda: timing.sleep(1.0)), lambda _: timing.sleep(8.0)
    assert run.time(3).own == 1
    assert run._replace(wait=wait).time(3).own == 1


def test_what_a_call_blocks_by_itself_is_told_apart(timing, monkeypatch):
    blocking = Blocking()
    block = blocking._timed(timing.sleep)

    def run():
        timing.sleep(1.0)
        block(2.0)

    timer = Timer(run, lambda _: timing.sleep(8.0), blocking)
    timed = timer.time(1)
    assert (timed.own, timed.blocking, timed.whole) == (1, 2, 3)
    # The mean over several calls is the same.
    monkeypatch.setattr(_timing, "_LONGEST_ROUND", 100.0)
    assert timer.time(4) == timed
    # The number of calls is limited by the length of a round; the last may exceed it.
    monkeypatch.setattr(_timing, "_LONGEST_ROUND", 22.5)
    start = timing.now
    assert timer.time(4) == timed and timing.now - start == 3 * 11


def test_medians_less_what_an_empty_call_takes(monkeypatch):
    # The overhead is that of an empty round: three calls, or one if it blocks.
    clock = Clock(tick=1e-3)
    monkeypatch.setattr(_timing, "time", clock)
    timers = {
        "call": Timer(lambda: clock.sleep(0.5)),
        "waited": Timer(lambda: clock.sleep(0.25), lambda _: clock.sleep(3.0)),
    }
    steps = []
    found = measure(timers, 4, lambda *step: steps.append(step))
    assert {name: timed.own for name, timed in found.items()} == {
        "call": pytest.approx(0.5 + 1e-3 - 1e-3 / 3),
        "waited": pytest.approx(0.25),
    }
    assert steps == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_dispatch_and_blocked_of_a_breakdown(timing, monkeypatch):
    monkeypatch.setattr(jax, "block_until_ready", lambda _: timing.sleep(8.0))

    def function(seconds):
        timing.sleep(seconds)

    program = _warm_call.Program((), Timer(nothing))
    it = target(jax.jit(function))
    call = _warm_call.Call(it, function, (1.0,), {}, program)
    timers = _warm_call._timers(call, Blocking())
    seconds = {name: timers[name].time(1).own for name in ("dispatch", "blocked")}
    assert seconds == {"dispatch": 1, "blocked": 9}


class _Stages:
    """Stages that take 1 s to trace, 2 s to lower and so on."""

    seconds = 1.0
    arrays = ()

    def __init__(self, clock):
        self.clock = clock
        self.stage = self

    def trace(self, args, kwargs, donate):
        self.clock.sleep(32.0)  # timed elsewhere
        return self

    def lower(self):
        self.clock.sleep(2.0)
        return self

    def compile(self):
        self.clock.sleep(4.0)
        return self

    def __call__(self):
        self.clock.sleep(8.0)


def test_a_cold_call(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_target, "time", clock)
    monkeypatch.setattr(_warm_call, "time", clock)
    monkeypatch.setattr(jax, "block_until_ready", lambda _: clock.sleep(16.0))

    class Progress:
        stage = nothing

    program = _warm_call.compile_cold(_Stages(clock), (), {}, Progress)
    assert [(part.name, part.seconds) for part in program.cold] == [
        ("trace", 1),
        ("lower", 2),
        ("compile", 4),
        ("first run", 24),
    ]
