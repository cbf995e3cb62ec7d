"""What a `Watch` keeps of a program, and what it leaves alone."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _record
from eqx_fastjit.doctor import _program, _waits, _watch
from eqx_fastjit.doctor._plain import Compile
from eqx_fastjit.doctor._waits import CALL, Waiting, Waits
from eqx_fastjit.doctor._watch import Deviation, Watch
from tests.clock import Clock
from tests.doctor_records import inspected, seen_of, trace_of, watch_of


pytestmark = pytest.mark.one_engine


@pytest.fixture
def watching():
    """Start a watch, which stops with the test."""
    watches = []

    def watching(**options):
        watch = Watch(**options)
        watches.append(watch)
        watch.jax_imported()
        watch.equinox_imported()
        return watch

    yield watching
    for watch in watches:
        watch.stop()


# --- time ----------------------------------------------------------------------------


def test_how_long_a_program_has_run(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_watch, "time", clock)
    watch = Watch()
    assert (watch.started, watch.so_far()) == (1000, 0)
    clock.sleep(5)
    watch.begin()
    clock.sleep(3)
    assert (watch.started, watch.so_far(), watch.seconds) == (1005, 3, 0)
    watch.stop()
    clock.sleep(4)
    assert watch.so_far() == watch.seconds == 3
    assert not watch.watches_jax and not watch.watches_ours


def test_when_the_main_thread_compiled(monkeypatch):
    monkeypatch.setattr(_watch, "time", Clock())
    main = threading.main_thread().ident
    plain = [Compile("f", None, None, 970.0, "", 1.0, 2.0, 4.0, thread=main)]
    plain.append(Compile("g", None, None, 980.0, "", 1.0, 2.0, 4.0, thread=1))
    watch = watch_of(
        seen_of(started=950.0, thread=main), seen_of(thread=1), plain=plain
    )
    watch.begun = {
        1: trace_of(started=990.0, thread=main),
        2: trace_of(started=991.0, thread=1),
    }
    assert watch.compiling() == [(990, 1000), (950, 957), (970, 977)]


def test_the_processor_is_asked_until_the_end(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(watch._processor, "share", lambda compiling: 0.5)
    assert watch.share == 0.5
    watch.stop()
    monkeypatch.setattr(watch._processor, "share", lambda compiling: 0.25)
    assert watch.share == 0.5


# --- begin and end -------------------------------------------------------------------


def test_what_cannot_be_watched_is_a_note(monkeypatch):
    def fail(self):
        raise KeyError("planted")

    monkeypatch.setattr(_watch.PlainJits, "start", fail)
    watch = Watch()
    watch.jax_imported()
    try:
        assert watch.notes == ["PlainJits could not be watched: 'planted'"]
        assert watch.watches_jax and watch.waits._undo
    finally:
        watch.stop()


def test_hooks_come_and_go(watching):
    hooks = (_record.before, _record.after, _record.called)
    before = [list(hook) for hook in hooks]
    watch = watching()
    assert [hook[-1] for hook in hooks] == [watch._before, watch._after, watch._called]
    watch.stop()
    assert [list(hook) for hook in hooks] == before
    assert watch._paused and watch.plain.paused and watch.waits.paused
    watch.watches_jax = watch.watches_ours = False


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (None, 1.0)),
        ({"jax_compilation_cache_dir": "/tmp/a"}, ("/tmp/a", 1.0)),
        ({"jax_compilation_cache_dir": ""}, (None, 1.0)),
        (
            {
                "jax_compilation_cache_dir": "/tmp/a",
                "jax_enable_compilation_cache": False,
            },
            (None, 1.0),
        ),
        ({"jax_persistent_cache_min_compile_time_secs": 3}, (None, 3.0)),
        ({"jax_persistent_cache_min_compile_time_secs": 0}, (None, 0.0)),
        ({"jax_persistent_cache_min_compile_time_secs": None}, (None, 1.0)),
    ],
)
def test_settings_of_the_cache(settings, expected, monkeypatch):
    settings = {"jax_compilation_cache_dir": None, **settings}

    class Config:
        jax_enable_compilation_cache = True
        jax_persistent_cache_min_compile_time_secs = 1.0

    config = Config()
    vars(config).update(settings)
    monkeypatch.setattr(jax, "config", config)
    watch = Watch()
    watch._look_at_cache()
    assert (watch.cache_directory, watch.cache_seconds) == expected


# --- traces --------------------------------------------------------------------------


def test_traces_that_begin_and_end():
    watch = Watch()
    first, second = trace_of(), trace_of(failed=True)
    watch._before(first, None)
    watch._before(second, lambda: None)
    assert list(watch.begun.values()) == [first, second]
    assert list(watch._begun) == list(watch._around) == [second.number]
    watch._after(second)
    watch._after(first)
    watch._after(first)
    assert watch.begun == watch._begun == watch._around == watch.snapshots == {}
    seen = list(watch.seen.values())
    assert [s.trace for s in seen] == [second, first]
    found = seen[0]
    assert found.site == found.stack[0] and found.site.file == __file__
    assert found.inspection is None and not found.calls_host
    assert not seen_of(inspection=inspected()).calls_host
    assert seen_of(inspection=inspected(callbacks=("c",))).calls_host
    # One inside of another one is not compared with the program's variables.
    watch._before(trace_of(inside=1), lambda: None)
    assert watch._around == {} and len(watch._begun) == 1
    # While paused, only the end counts.
    watch._paused = True
    third = trace_of()
    watch._before(third, None)
    assert third.number not in watch.begun
    watch.begun[third.number] = third
    watch._after(third)
    assert third.number not in watch.seen and third.number not in watch.begun


def test_calls_that_are_not_inspected():
    watch = Watch(programs=True, numerics=True)
    looked = []
    watch._guarded = lambda trace, look: looked.append((trace, look.func.__name__))
    inside, compiled, first, second, third, last = traces = [
        trace_of(inside=1),
        trace_of(retraced=False),
        *(trace_of(number=n) for n in range(4)),
    ]
    watch.snapshots = {2: ["one"], 3: ["one", "two"]}
    watch.seen = {t.number: seen_of() for t in traces}
    for trace in (*traces, trace_of()):
        watch._around[trace.number] = _gone, {}
        watch._called(trace, None, [])
    assert watch._around == {}
    assert looked == [
        (first, "_keep_program"),
        (first, "_inspect"),
        (first, "_compare"),
        (second, "_keep_program"),
        (second, "_inspect"),
        (third, "_keep_program"),
        (third, "_keep_read"),
        (last, "_keep_program"),
    ]
    assert {t for t, _ in looked}.isdisjoint({inside, compiled})


def test_a_function_that_is_gone():
    watch = Watch()
    watch._look_after(trace_of(), lambda: None, None)
    assert watch.snapshots == {} and watch.written == set()


def test_an_inspection_that_fails(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_watch, "time", clock)
    watch = Watch()
    watch.own_seconds = 1.0

    def look():
        assert watch._paused and watch.plain.paused and watch.waits.paused
        clock.sleep(2)
        raise KeyError(300 * "x")

    watch._guarded(trace_of(), look)
    assert watch.own_seconds == 3
    assert watch.notes == [f"Could not inspect f: KeyError: '{199 * 'x'}"]
    assert not (watch._paused or watch.plain.paused or watch.waits.paused)
    watch._pause(True)
    watch._guarded(trace_of(), lambda: None)
    assert watch._paused and len(watch.notes) == 1


def test_the_first_two_traces_are_inspected(watching):
    watch = watching()

    @eqx_fastjit.filter_jit
    def f(x, n):
        return x * n, n, x[:1]

    for n in range(4):
        f(jnp.ones(2), n)
    seen = [s for s in watch.seen.values() if s.trace.function.name == "f"]
    assert [s.inspection is not None for s in seen] == [True, True, False, False]
    assert set(seen[0].results) == {("float32", "(2,)"), ("float32", "(1,)")}
    assert seen[2].results == ()
    assert watch.notes == [] and watch.own_seconds > 0
    assert all(s.program is s.deviations is None for s in seen)


def test_snapshots_that_are_kept(watching, monkeypatch):
    monkeypatch.setattr(_watch, "_SNAPSHOTS", 3)
    watch = watching()

    @eqx_fastjit.filter_jit
    def f(x, n):
        return x * n

    for n in range(4):
        f(jnp.ones(2), n)
    (kept,) = watch.snapshots.values()
    last = [s.trace for s in watch.seen.values()][-2:]
    # Of the first two, both of the source and of what was run.
    assert [k.trace for k in kept][-2:] == last and len(kept) == 3


def _gone():
    return None


def test_how_much_is_kept(monkeypatch):
    watch = Watch()
    first, *_ = traces = [trace_of() for _ in range(10)]
    for trace in (*traces, trace_of(number=2)):
        watch._keep_snapshot(trace, "taken", _gone)
    kept, other = watch.snapshots.values()
    assert [k.trace for k in kept] == traces[2:] and len(other) == 1
    assert first not in [k.trace for k in kept] and kept[0].snapshot == "taken"
    for n, expected in ((49, "program"), (50, None)):
        watch.seen = {i: seen_of() for i in range(n)}
        for seen in watch.seen.values():
            seen.program = "known"
        with monkeypatch.context() as patch:
            patch.setattr(_program, "program_of", lambda traced: traced)
            name = "eqx_fastjit._specialization.kept_trace"
            patch.setattr(name, lambda jitted, arrays: "program")
            watch._keep_program(new := seen_of(), None, [])
        assert new.program == expected


def test_names_that_a_trace_writes_to(watching):
    watch = watching()
    count = 0

    @eqx_fastjit.filter_jit
    def f(x):
        nonlocal count
        count += 1
        return x

    f(jnp.ones(2))
    assert watch.written == {"count"}


def test_programs_that_are_kept(watching, monkeypatch):
    monkeypatch.setattr(_watch, "_PROGRAMS", 1)
    watch = watching(programs=True)

    @eqx_fastjit.filter_jit
    def f(x, n):
        return x * n

    for n in range(3):
        f(jnp.ones(2), n)
    found = [s.program is not None for s in watch.seen.values()]
    assert found == [True, False, False]
    assert watch.notes == ["Only the programs of the first 1 compilations are kept."]


def test_results_are_compared_once(watching):
    watch = watching(numerics=True)

    @eqx_fastjit.filter_jit
    def f(x, n):
        return x * n

    for n in range(2):
        f(jnp.ones(2), n)
    first, second = [s.deviations for s in watch.seen.values()]
    assert [d.path for d in first] == ["result"] and second is None
    assert first[0].absolute == 0

    @eqx_fastjit.filter_jit(donate="all")
    def g(x):
        return x * 2

    g(jnp.ones(2))
    (note,) = watch.notes
    assert note.endswith("g donates its arguments, so it was not compared.")


def test_deviations():
    eager = {
        "a": jnp.array([1.0, -4.0]),
        "b": jnp.array([0.5, jnp.nan, jnp.inf], jnp.float16),
        "n": jnp.array([1]),
        "s": "text",
    }
    jitted = {**eager, "a": jnp.array([1.0, -4.5]), "n": jnp.array([2])}
    jitted["b"] = jnp.array([0.5, 1.0, 1.0], jnp.float16)
    a, b = _watch.deviations(jitted, eager)
    assert a == Deviation("result['a']", 0.5, 4.0, 4.0, 2.0**-23, a.ulps, 0)
    assert a.ulps > 1
    assert b[:5] == ("result['b']", 0.0, 0.5, 4.0, 2.0**-10) and b.not_finite == 2
    (small,) = _watch.deviations(jnp.array([0.25]), jnp.array([0.25]))
    assert small == Deviation("result", 0.0, 0.25, 1.0, 2.0**-23, 0, 0)


# --- programs ------------------------------------------------------------------------


class _Traced:
    """Of a `jax.stages.Traced`, what is looked at."""

    def __init__(self, equations=3, cost=None, **memory):
        self.equations, self.cost, self.memory = equations, cost, memory

    def lower(self):
        return self

    def compile(self):
        return self

    def cost_analysis(self):
        if isinstance(self.cost, Exception):
            raise self.cost
        return self.cost

    def memory_analysis(self):
        return type("Memory", (), self.memory)

    def as_text(self):
        return "HloModule\n\nFileNames\n1 a\n2 b\n\nStackFrames\n1 c\n\nend"

    @property
    def jaxpr(self):
        class Jaxpr:
            eqns = range(self.equations)
            __str__ = lambda _: "JAXPR"  # noqa: E731

        closed = Jaxpr()
        closed.jaxpr = closed
        return closed


def test_what_is_kept_of_a_program():
    cost = {"flops": 12, "bytes accessed": 34.5}
    found = _program.program_of(
        _Traced(
            cost=cost,
            argument_size_in_bytes=1,
            output_size_in_bytes=2,
            temp_size_in_bytes=0,
            generated_code_size_in_bytes=-1,
        )
    )
    assert (found.jaxpr, found.hlo) == ("JAXPR", "HloModule\n\nend")
    assert found.stablehlo.startswith("HloModule\n\nFileNames\n")
    assert (found.flops, found.bytes_accessed) == (12, 34.5)
    assert (found.argument_bytes, found.result_bytes) == (1, 2)
    assert (found.temporary_bytes, found.code_bytes) == (0, None)
    for other in ([cost, {}], [{"flops": 12, "bytes accessed": 34.5}]):
        assert _program.program_of(_Traced(cost=other)).flops == 12
    for other in ([], {}, None, {"flops": -1, "bytes accessed": "?"}, KeyError()):
        found = _program.program_of(_Traced(cost=other))
        assert found.flops is found.bytes_accessed is found.argument_bytes is None
    assert _program.program_of(_Traced(cost={"flops": 0})).flops == 0
    assert _program.program_of(_Traced(50_000)).jaxpr == "JAXPR"
    assert _program.program_of(_Traced(50_001)).jaxpr == "50001 equations"


# --- waits ---------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_waits, "time", clock)
    waits = Waits(lambda: 0.0)
    waits.clock = clock
    return waits


def test_where_a_program_waits(waits):
    wait = waits._timed(waits.clock.sleep, ".item()")
    waits.clock.sleep(5)
    for _ in range(2):
        _ = wait(2), wait(1)
    wait(4)
    first, second, third = waits.by_call.values()
    line = first.line
    assert first == Waiting(line, ".item()", "wait(2)", 2, 4.0, 0.0, 1005.0, 1010.0)
    assert second == Waiting(line, ".item()", "wait(1)", 2, 2.0, 0.0, 1007.0, 1011.0)
    assert third.line == line._replace(line=line.line + 1)
    assert (line.file, line.function) == (__file__, "test_where_a_program_waits")
    assert waits._here.last_end == 1015


def test_a_call_that_blocks(waits):
    """JAX blocks in it, without the program's line saying so."""
    step = waits._timed(waits.clock.sleep, ".block_until_ready()")
    x = type("X", (), {"block_until_ready": staticmethod(step)})
    step(1)
    x.block_until_ready(1)
    eval("step(1)", {"step": step})
    assert [w.what for w in waits.by_call.values()] == [
        *(CALL, ".block_until_ready()", ".block_until_ready()")
    ]
    assert [w.expression for w in waits.by_call.values()][2] == ""


def test_what_does_not_count_as_a_wait(waits, monkeypatch):
    only = waits._timed(lambda x=0, y=0: waits.clock.sleep(y), "np.array()", int)
    only(y=1)
    only("x", 1)
    assert waits.by_call == {}
    only(1, 1)
    (found,) = waits.by_call.values()
    assert (found.what, found.count) == ("np.array()", 1)
    waits.paused = True
    only(1, 1)
    waits.paused = False
    only(1, 0)
    assert found.count == 1 and waits._here.last_end == 1003
    only(1, _waits._SHORTEST * 1.001)
    assert sum(w.count for w in waits.by_call.values()) == 2
    # No line of the program has led there.
    monkeypatch.setattr(_waits, "user_frame", lambda: None)
    only(1, 1)
    assert sum(w.count for w in waits.by_call.values()) == 2
    assert waits._here.last_end > 1004


def test_what_is_compiled_between_two_waits(waits):
    compiled = 0.0
    waits._compiled = lambda: compiled
    wait = waits._timed(waits.clock.sleep, ".item()")
    lost = []
    for work, seconds, compiling in ((1, 4, 0), (3, 4, 2), (3, 4, 5), (8, 4, 2)):
        waits.clock.sleep(work)
        compiled += compiling
        before = sum(w.lost for w in waits.by_call.values())
        wait(seconds)
        lost.append(sum(w.lost for w in waits.by_call.values()) - before)
    assert lost == [0, 1, 0, 4]


def test_an_error_while_waiting(waits):
    def fail():
        waits.clock.sleep(1)
        raise KeyError("planted")

    wait = waits._timed(fail, ".item()")
    for _ in range(2):
        with pytest.raises(KeyError):
            wait()
    assert [w.count for w in waits.by_call.values()] == [2]
    assert wait.__name__ == "fail" and wait.__module__ == __name__


def test_waits_are_watched_and_restored(waits):
    x = jnp.array([1.0])
    cls = type(x)
    names = [*_waits._METHODS]
    before = [vars(cls).get(name) for name in names]
    own = jax.block_until_ready, jax.device_get, np.asarray, np.array
    waits.start()
    try:
        now = [vars(cls).get(name) for name in names]
        assert all(a is not b for a, b in zip(before, now, strict=True) if a)
        new = jax.block_until_ready, jax.device_get, np.asarray, np.array
        assert not set(own) & set(new) and waits.missing == []
        waits.clock.tick = 1.0
        for wait in (
            lambda: float(x[0]),
            lambda: jax.device_get(x),
            lambda: np.asarray(x),
            lambda: jax.block_until_ready(x),
            lambda: x.item(),
        ):
            wait()
        np.asarray([1])
    finally:
        waits.stop()
    assert [vars(cls).get(name) for name in names] == before
    assert own == (jax.block_until_ready, jax.device_get, np.asarray, np.array)
    assert [w.what for w in waits.by_call.values()] == [
        *("float()", "jax.device_get()", "np.asarray()", "jax.block_until_ready()"),
        ".item()",
    ]
    assert waits._undo == []


def test_no_array_to_watch(waits, monkeypatch):
    monkeypatch.setattr(jax.Array, "__subclasses__", list, raising=False)
    monkeypatch.setattr(_waits, "_METHODS", {})
    waits.start()
    waits.stop()
    assert waits.missing == ["waits for values (float(x), x.item(), print(x))"]


def test_threads_wait_by_themselves(waits):
    wait = waits._timed(waits.clock.sleep, ".item()")
    wait(2)
    waits.clock.sleep(1)
    thread = threading.Thread(target=wait, args=(2,))
    thread.start()
    thread.join()
    waits.clock.sleep(1)
    wait(2)
    lost = {w.line.line: w.lost for w in waits.by_call.values()}
    assert sorted(lost.values()) == [0, 2]
