"""How calls are timed and counted, by a fake clock."""

import contextlib
import gc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit._options import Options
from eqx_fastjit.insight import (
    _breakdown,
    _profile,
    _samples,
    _target,
    _timing,
    _warm_call,
    Part,
    WarmCall,
)
from eqx_fastjit.insight._samples import alive, Called, Samples, Signature
from eqx_fastjit.insight._target import Target, target
from eqx_fastjit.insight._timing import Blocking, Timed, Timer, warm_up
from tests.clock import Clock


pytestmark = pytest.mark.one_engine


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (_timing, _breakdown, _target, _warm_call):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Stages:
    """Progress that is written down."""

    def __init__(self):
        self.told = []

    def stage(self, *args):
        self.told.append(args)

    step = stage


# --- timers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls"),
    # Forty calls, or those begun within a second after the first; three at least.
    [(0.0, 40), (0.5, 4), (0.5001, 3), (9.0, 3), (1 / 64, 40), (1 / 32, 34)],
)
def test_warm_up_calls(clock, seconds, calls):
    made, told = [], []

    def call():
        clock.sleep(seconds)
        made.append(None)

    warm_up(call, progress=lambda *x: told.append(x))
    assert len(made) == calls
    assert told == [(i, 40) for i in range(1, calls)]
    made.clear()
    warm_up(call, 2)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("durations", "calls"),
    # A millisecond's worth. A short call is timed again, three times three calls.
    [
        ([2**-9, 0.0], 1),
        ([2**-10], 1),
        ([2**-13, 2**-11], 8),
        ([2**-11, *[2**-12] * 6, 2**-13], 8),
        ([2**-11, *[2**-12] * 9, 2**-13], 4),
        ([2**-11, 2**-12, 2**-12, 2**-13, *[2**-11] * 9], 4),
        ([2**-19], 524),
        ([2**-20], 1000),
        ([0.0], 1000),
    ],
)
def test_calls_of_a_round(clock, durations, calls):
    left = list(durations)
    clock.now = 0.0
    timer = Timer(lambda: clock.sleep(left.pop(0) if len(left) > 1 else left[0]))
    assert timer.calls_a_round() == calls


@pytest.mark.parametrize(
    ("seconds", "loop", "own", "spread"),
    [
        ([4.0], 1.0, 3.0, 0.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.5, 2.5, 2 / 3),
        ([0.0, 0.0, 1.0], 0.0, 0.0, 0.0),
        ([2e-9, 2e-9], 1e-9, 0.0, 0.0),
        ([2e-9, 2e-9], 0.9e-9, 1.1e-9, 0.0),
        ([1.0, 1.0], 2.0, 0.0, 0.0),
    ],
)
def test_the_median_of_rounds(seconds, loop, own, spread):
    rounds = [Timed(x, 2 * x) for x in seconds]
    found = _timing._median(rounds, loop)
    assert found == (
        pytest.approx(own),
        2 * sorted(seconds)[len(seconds) // 2],
        pytest.approx(spread),
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_timing(enabled):
    seen = []
    with contextlib.ExitStack() as stack:
        stack.callback(gc.enable)
        (gc.enable if enabled else gc.disable)()
        _timing.measure({"x": Timer(lambda: seen.append(gc.isenabled()))}, 2)
        assert gc.isenabled() is enabled
    assert seen[-1] is False


def test_what_blocks_is_counted(clock):
    clock.tick = 1.0
    x, barrier = jnp.ones(2), jax.effects_barrier
    block = type(x).block_until_ready
    with Blocking() as blocking:
        assert x.block_until_ready() is x
        assert blocking.seconds == 1
        jax.effects_barrier()
    assert blocking.seconds == 2
    assert jax.effects_barrier is barrier and type(x).block_until_ready is block


# --- the parts of a call -------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "whole", "computes", "fitted", "note"),
    [
        ((2, 4, 2), 8, False, (2, 4, 2), None),
        # Up to a tenth too long is put down to rounding.
        ((2, 4.8, 2), 8, False, (2, 4, 2), None),
        ((2, 4.81, 2), 8, False, (2, 4, 2), "too noisy"),
        ((2, 4.81, 2), 8, True, (2, 4, 2), "returns after 4.81 s, because"),
        ((3.5, 9, 4), 8, True, (3.5, 0.5, 4), "returns after 9 s, because"),
        ((4, 8, 4), 8, True, (2, 4, 2), "too noisy"),
        ((8, 8, 8), 8, False, (8 / 3,) * 3, "too noisy"),
    ],
)
def test_parts_that_do_not_fit(parts, whole, computes, fitted, note):
    seconds = dict(zip(("flatten", "execute", "unflatten"), parts, strict=True))
    said = _warm_call._fit(seconds, whole, computes)
    assert tuple(seconds.values()) == pytest.approx(fitted)
    assert said is None if note is None else note in said


def split(dispatch, blocked, finished, **parts):
    times = {name.replace("_", " "): Timed(float(x)) for name, x in parts.items()}
    times |= {"dispatch": dispatch, "blocked": Timed(blocked)}
    return _warm_call.split_call(times | {"finished": Timed(finished)})


def test_how_a_call_is_split():
    parts = {"bind": 1, "flatten": 2, "execute": 4, "unflatten": 8}
    out = split(Timed(32.0), 64.0, 4.0, in_place=31, **parts)
    assert (out.dispatch, out.blocked, out.notes) == (32, 64, ())
    assert [(p.name, p.seconds, p.measured) for p in out.parts] == [
        *(("bind", 1, True), ("flatten", 2, True), ("transfer", 1, False)),
        *(("lookup", 16, False), ("execute", 4, True), ("unflatten", 8, True)),
        ("wait", 32, False),
    ]
    assert [p.what for p in out.parts] == [_warm_call.PARTS[p.name] for p in out.parts]
    # Arrays in place take no longer; a call takes no longer than its result.
    out = split(Timed(32.0, 4.0), 30.0, 4.0, in_place=33, **parts)
    seconds = {p.name: p.seconds for p in out.parts}
    assert (seconds["transfer"], seconds["wait"]) == (0, 4)
    assert (out.dispatch, out.blocked) == (36, 36)
    assert out.notes == ("The call itself blocks until its result is ready.",)
    # What is left over after rounding is no part.
    for left, lookup in ((0.5e-10, 0.0), (2e-10, 2e-10)):
        out = split(Timed(15 + left), 64.0, 4.0, **parts)
        seconds = {p.name: p.seconds for p in out.parts}
        assert seconds["lookup"] == pytest.approx(lookup, abs=1e-12)


@pytest.mark.parametrize(
    ("execute", "finished", "blocked", "said"),
    [
        # It computes before it returns: after four fifths of the time, and within that
        # of the call.
        (8.01, 10.0, 64.0, "execute: "),
        (8.0, 10.0, 64.0, "The machine is too noisy"),
        (8.01, 8.01, 8.1, "execute: "),
        (9.0, 9.0, 8.1, "The machine is too noisy"),
    ],
)
def test_whether_a_program_computes_before_it_returns(execute, finished, blocked, said):
    out = split(Timed(4.0), blocked, finished, execute=execute, unflatten=1)
    assert out.notes[0].startswith(said) and len(out.notes) == 1
    measured = {p.name: p.measured for p in out.parts}
    assert (measured["execute"], measured["unflatten"]) == (False, True)


@pytest.mark.parametrize(("spread", "said"), [(0.5, 0), (0.51, 1)])
def test_a_busy_machine(spread, said):
    out = split(Timed(4.0, 0.0, spread), 5.0, 1.0, execute=1, unflatten=1)
    assert [("spread over 51% of" in note) for note in out.notes] == [True] * said


def test_without_jaxlibs_own_call(clock, monkeypatch):
    """Of another version of jaxlib, say."""
    monkeypatch.setattr(_warm_call, "raw_execute", lambda *_: None)
    stages = Stages()
    program = _warm_call.compile_cold(
        target(lambda x: x + 1), (jnp.ones(2),), {}, stages
    )
    assert stages.told == [("tracing",), ("lowering",), ("compiling",)]
    assert [p.name for p in program.cold] == ["trace", "lower", "compile", "first run"]
    assert all(p.measured and p.what for p in program.cold)
    assert program.notes[0].startswith("execute: includes JAX's dispatch")
    assert program.execute.wait is jax.block_until_ready
    assert program.execute.run()[0].tolist() == [2, 2]


# --- breakdown -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "calls", "median"),
    # For 0.3 s, and three to a hundred times, after one that does not count.
    [
        ([0.0], 100, 0.0),
        ([9.0, 0.0625], 5, 0.0625),
        ([0.2], 3, 0.2),
        ([9.0, 4.0, 1.0, 2.0], 3, 2.0),
    ],
)
def test_calls_without_jit(clock, durations, calls, median):
    made, left = [], list(durations)

    def fun(x):
        made.append(x)
        clock.sleep(left.pop(0) if len(left) > 1 else left[0])

    stages = Stages()
    found = _breakdown._eager(Target("plain", "f", fun, None), (1,), {}, stages)
    assert made == [1] * (calls + 1)
    assert found == pytest.approx(median)
    assert stages.told == [("calls without jit",)]


@pytest.mark.parametrize("rounds", [-1, 0])
def test_rounds_that_are_none(rounds):
    with pytest.raises(ValueError, match=f"rounds={rounds}: expected at least 1"):
        _breakdown.breakdown(lambda x: x, 1, rounds=rounds)


def test_the_times_of_nodes(monkeypatch):
    """The shortest of three. No time is negative, and the most expensive is first."""
    taken = []

    class OfLeaves:
        def __init__(self, run):
            self.run = run

        def time(self, n):
            taken.append(n)
            seconds = (0.25, 6.0, 5.0, 9.0)[len(self.run())]
            return Timed(seconds + len(taken) % 3)

    monkeypatch.setattr(_breakdown, "Timer", OfLeaves)
    stages, x = Stages(), jnp.ones(1)
    it = target(jax.jit(lambda tree: tree))
    found = _breakdown._node_times(it, ([[x, x], {"a": x}],), {}, stages)
    assert taken == [5] * 3 * 5
    assert [(n.type, n.number, n.seconds) for n in found] == [
        ("dict", 2, 6.25),
        ("list", 2, 5.0),
        ("tuple", 1, 0.0),
    ]
    counts = [(1, 2), (2, 3), (3, 5), (4, 6), (5, 7)]
    assert stages.told == [("nodes", *n) for n in counts]


# --- profile -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "at_once"), [(1, [1]), (30, [30]), (31, [30, 1]), (65, [30, 30, 5])]
)
def test_calls_at_once(n, at_once, monkeypatch):
    calls, blocked = [], []
    monkeypatch.setattr(jax, "block_until_ready", lambda x: blocked.append(x))

    def f(x, *, y):
        calls.append((x, y))
        return len(calls)

    _profile._run(f, (1,), {"y": 2}, n)
    assert calls == [(1, 2)] * n
    assert blocked == np.cumsum(at_once).tolist()


def test_a_sampled_contender(monkeypatch):
    import pyinstrument

    made = []

    class Profiler:
        def __init__(self, **options):
            made.append(options)

        def __enter__(self):
            made.append("start")
            return self

        def __exit__(self, *_):
            made.append("stop")
            self.last_session = types.SimpleNamespace(
                duration=8.0, root_frame=lambda **_: None
            )

    monkeypatch.setattr(pyinstrument, "Profiler", Profiler)
    warm = WarmCall(1.0, 3.0, ())
    call = types.SimpleNamespace(f=lambda: made.append("call"), args=(), kwargs={})
    stages = Stages()
    found = _profile._sampled("ours", call, warm, 4, stages)
    assert (found.name, found.calls, found.seconds, found.warm) == ("ours", 4, 2, warm)
    assert (found.tree.seconds, found.tree.own, found.tree.children) == (2, 0, ())
    assert stages.told == [("ours: 4 calls", 12.0)]
    options, *events = made
    assert events == ["start", *["call"] * 4, "stop"]
    assert options == {"interval": 1e-3, "async_mode": "disabled"}
    assert _profile._sampled("ours", call, warm, None, stages).calls == 20


def test_the_parts_until_a_call_returns():
    bind, wait = Part("bind", 2.0, True), Part("wait", 9.0, False)
    for dispatch, waits in ((3.5, 1.5), (1.0, 0.0)):
        parts = _profile._until_it_returns(WarmCall(dispatch, 11.0, (bind, wait)))
        assert [(p.name, p.seconds) for p in parts] == [("bind", 2), ("wait", waits)]
        assert not parts[1].measured


# --- the calls of a program ----------------------------------------------------------


def test_a_call_is_counted_and_made():
    made, begun = object.__new__(_samples._Watched), []
    made.samples = types.SimpleNamespace(begin=lambda *call: begun.append(call))
    made.owner = lambda: "owner"
    made.inner = lambda x, *, y: x - y
    assert made(5, y=3) == 2
    assert begun == [("owner", (5,), {"y": 3})]


def test_how_many_are_counted(monkeypatch):
    monkeypatch.setattr(_samples, "_MAX_FUNCTIONS", 2)
    monkeypatch.setattr(_samples, "_MAX_SIGNATURES", 2)
    samples = Samples()
    samples.start()
    try:
        functions = [
            filter_jit(lambda x: x),
            filter_jit(lambda x: x + 1),
            filter_jit(lambda x: x + 2),
        ]
        for f in functions:
            f(jnp.ones(1))
        for size in (1, 1, 2, 3):
            functions[1](jnp.ones(size))
    finally:
        samples.stop()
        samples.stop()  # does nothing
    first, second = samples.ranked()
    assert (first.calls, second.calls) == (5, 1)
    assert [s.calls for s in first.ranked()] == [3, 1]
    assert (first.transformed, len(first.signatures)) == (0, 2)
    functions[1](jnp.ones(1))
    assert first.calls == 5


def test_the_last_call_of_a_power_of_two_is_kept():
    called = Called("f", None, Options())
    kept = []
    for i in range(1, 10):
        _samples._count(called, "key", types.SimpleNamespace(_fun=i), i, {})
        (signature,) = called.signatures.values()
        kept.append(signature.args)
    assert kept == [1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert signature.calls == 9 and signature.fun == 8


def test_what_is_copied():
    x, array = np.zeros(2), jnp.zeros(2)
    copy = _samples._kept(x, False)
    assert copy is not x and copy.tolist() == [0, 0]
    assert _samples._kept(array, False) is array
    assert _samples._kept(array, True) is not array
    array.delete()
    assert _samples._kept(array, True) is array
    assert _samples._kept("text", True) == "text"
    fun, args, kwargs = alive(Signature(fun=1, args=(array,), kwargs={"y": x}))
    assert (fun, args[0].tolist(), kwargs["y"]) == (1, [0, 0], x)
