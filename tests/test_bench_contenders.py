"""What cases and contenders call, and how often."""

import os
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _record
from eqx_fastjit.bench import (
    _calls,
    _case,
    _contenders,
    _models,
    _studies,
    case_info,
)
from tests import faulty_cases
from tests.bench_entries import arguments_of


pytestmark = pytest.mark.one_engine


# --- cases ---------------------------------------------------------------------------


def test_what_a_case_needs(monkeypatch):
    case = faulty_cases.make_case(faulty_cases.agreeing, requires=("jax", "no_such"))
    assert case.missing == ("no_such",)
    monkeypatch.setitem(_case._CASES, "agreeing", case)
    assert _case.contenders_of("agreeing") == ()
    monkeypatch.setattr(_case, "_is_installed", lambda name: name != "flax")
    assert _case.contenders_of("mlp_8") == ("jit", "flat", "aot", "eqx", "ours")
    assert _case.contenders_of("agreeing") == ("jit", "ours")
    monkeypatch.setattr(_case, "_is_installed", lambda name: True)
    assert _case.contenders_of("mlp_8")[-2:] == ("nnx_jit", "nnx_cached_partial")


def test_which_cases_time_themselves():
    make = faulty_cases.make_case
    assert not make(faulty_cases.agreeing).times_itself
    assert not make(faulty_cases.agreeing, modes=("dispatch",)).times_itself
    assert make(faulty_cases.agreeing, modes=("blocked",)).times_itself


@pytest.mark.parametrize(
    ("strategy", "made", "called"),
    [
        ("whole", ["calls"], 1),
        ("part", ["affine"], 101),
        ("both", ["affine", "calls"], 102),
        ("none", [], 0),
    ],
)
def test_what_a_strategy_jits(strategy, made, called):
    jitted, calls = [], []

    def jit(function):
        jitted.append(function.__name__)
        return lambda x: (calls.append(1), function(x))[1]

    out = _studies._strategy_of(jit, strategy)()
    assert (jitted, len(calls)) == (made, called)
    assert out.shape == (1000, 1000)


def test_the_strategy_without_jit_is_eager():
    assert list(_studies._strategy("none")) == ["eager"]
    assert list(_studies._strategy("part")) == ["jit", "eqx", "ours"]
    (call,) = [make() for make in _studies._strategy("none").values()]
    _record.traces.clear()
    assert call()[0, 0] == 1 and not _record.traces


@pytest.mark.parametrize("n", [1, 3])
def test_statics_are_traced_before_they_are_timed(n):
    make = _calls._statics(n)["ours"]
    _record.traces.clear()
    call = make()
    assert len(_record.traces) == n
    for _ in range(2 * n):
        call()
    assert len(_record.traces) == n
    passed = []
    jit = lambda f: lambda x, i: passed.append(i)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_contenders.FILTER_JITS, "ours", jit)
        call = _calls._statics(n)["ours"]()
    for _ in range(n + 1):
        call()
    assert passed == [*range(n), *range(n), 0]


@pytest.mark.parametrize(("fresh", "functions"), [(True, 20), (False, 1)])
def test_a_loop_that_jits(fresh, functions):
    jitted = []
    call = _calls._loop_of(lambda f: (jitted.append(f), f)[1], fresh)
    assert call().tolist() == [2.0**20] * 3
    assert len(jitted) == 20 and len(set(jitted)) == functions


def test_sharded_inputs_need_devices(monkeypatch):
    make = case_info("sharded").makers
    model, x = arguments_of(make)
    assert len(x.sharding.device_set) == 8 and not x.sharding.is_fully_replicated
    weight = model.layers[0].weight
    assert len(weight.sharding.device_set) == 8 and weight.sharding.is_fully_replicated
    devices = jax.devices("cpu")
    monkeypatch.setattr(jax, "devices", lambda platform: devices[:7])
    with pytest.raises(RuntimeError, match="needs 8 CPU devices and there are 7: set"):
        make()


def test_a_fresh_python_has_bytecode(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import os, sys; print(2 * sys.dont_write_bytecode + {}('{}' in os.environ))"
    assert _studies._python(code.format("int", "PYTHONPYCACHEPREFIX")) == 1.0
    with pytest.raises(subprocess.CalledProcessError):
        _studies._python("raise SystemExit(1)")
    assert os.path.isdir(_studies._bytecode().name)


def test_commands_of_processes(monkeypatch):
    monkeypatch.setattr(_studies, "_python", lambda code: code)
    times = {
        name: make()().times["import"]
        for name, make in case_info("import_time").makers().items()
    }
    assert [t.count("eqx_fastjit") for t in times.values()] == [0, 0, 2, 0]
    assert "\nimport jax; jax.jit\nprint((time" in times["jit"]
    times = {
        name: make()().times["peak"]
        for name, make in case_info("peak_memory").makers().items()
    }
    assert tuple(times) == case_info("peak_memory").contenders
    assert """make_case("mlp_32", ('eqx',))['eqx']""" in times["eqx"]


def test_nobody_listens_to_jax_outside_of_a_first_call(bench_clock):
    listener = _studies._listener()
    assert _studies._listener() is listener
    out = _studies.split_in_stages(lambda: bench_clock.sleep(1.0))
    assert listener.spans is None
    assert out.times["total"] == out.times["run"] == 1000
    listener.hear(next(iter(_studies._EVENTS)), 1.0)
    with pytest.raises(ZeroDivisionError):
        _studies.split_in_stages(lambda: 1 / 0)
    assert listener.spans is None


def test_a_step_and_the_batches_of_a_pipeline(monkeypatch):
    net = _studies._Net(jnp.eye(2))
    net, value = _studies._step(net, jnp.array([1.0, 3.0]))
    x = np.eye(2) + 2
    for _ in range(4):
        x = np.tanh(x @ np.eye(2))
    assert value == pytest.approx(x[0, 0], rel=1e-4)
    np.testing.assert_allclose(net.weight, 0.5 * (np.eye(2) + x), rtol=1e-4)
    assert net.name == "net"
    batches = []
    step = lambda state, batch: (batches.append(batch), (state + 1, state))[1]  # noqa: E731
    assert _studies._loop(step, 0).output == 9
    # The least of 100,000 random numbers, in order; other ones each time.
    assert [batch.shape for batch in batches] == [(64,)] * 10
    for batch in batches:
        assert (np.diff(batch) >= 0).all() and 3e-4 < batch[-1] < 1.2e-3
    assert len({float(batch[0]) for batch in batches}) == 10


# --- contenders ----------------------------------------------------------------------


def _increment(x, state):
    return {**state, "n": state["n"] + x}, state["n"] * 2


@pytest.mark.parametrize("donate", [True, False])
def test_steps_go_on_from_their_own_state(donate):
    state = {"n": jnp.zeros(2), "static": "s"}
    makers = _contenders.of_step(_increment, jnp.ones(2), state, donate)
    given = {}
    for name in ("jit", "flat", "aot", "eqx", "ours"):
        call = makers[name]()
        first = jax.tree.leaves(call())
        assert [x.tolist() for x in first if eqx.is_array(x)] == [[1, 1], [0, 0]]
        out = jax.tree.leaves(call())
        assert [x.tolist() for x in out if eqx.is_array(x)] == [[2, 2], [2, 2]]
        given[name] = first[0].is_deleted()
    assert given == dict.fromkeys(given, donate)
    assert not state["n"].is_deleted()


def test_loops_carry_what_they_return():
    def step(a, b, c, static):
        return a + c, {"n": b["n"] * 2}, a - b["n"]

    carried = jnp.zeros(1), {"n": jnp.ones(1)}
    makers = _contenders.of_loop(step, carried, (jnp.full(1, 3.0), "static"))
    for name in ("jit", "flat", "eqx", "ours"):
        call = makers[name]()
        found = [[float(x[0]) for x in jax.tree.leaves(call())] for _ in range(3)]
        assert found == [[3, 2, -1], [6, 4, 1], [9, 8, 2]], name


def test_a_function_under_each_contender():
    def f(x, n, y):
        return {"a": x * n, "b": "static"}, y

    args = (jnp.ones(2), 3, np.ones(2))
    makers = _contenders.of_function(f, *args)
    outputs = {name: make()() for name, make in makers.items()}
    assert list(outputs) == ["eager", "jit", "flat", "aot", "eqx", "ours"]
    for name, out in outputs.items():
        arrays = [x for x in jax.tree.leaves(out) if not isinstance(x, str)]
        assert [x.tolist() for x in arrays] == [[3, 3], [1, 1]], name
    assert outputs["eqx"][0]["b"] == outputs["ours"][0]["b"] == "static"
    assert isinstance(outputs["flat"], list)


@pytest.mark.parametrize(
    ("x", "traced"),
    [(jnp.ones(1), True), (np.ones(1), True), (np.float32(1), True), (1.0, False)],
)
def test_what_is_traced(x, traced):
    assert _contenders.is_traced(x) == traced


def test_a_filled_model():
    def make():
        return jnp.zeros((100, 16)), jnp.zeros(()), jnp.zeros(4, jnp.int32), "static"

    matrix, scalar, integers, static = _contenders.filled(make)
    assert 0.24 < abs(matrix).max() <= 0.25 and abs(matrix.mean()) < 0.02
    assert matrix.min() < -0.24 and abs(scalar) <= 1
    assert integers.dtype == jnp.int32 and static == "static"
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(
        matrix, rng.uniform(-0.25, 0.25, (100, 16)).astype(np.float32)
    )
    np.testing.assert_array_equal(scalar, rng.uniform(-1, 1, ()).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("first_call", [*[(8, 8), (8,)] * 4, (4, 8)]),
        ("loop_10", [(8,), (8,)]),
        ("scan_1000", [(8,), (8,)]),
    ],
)
def test_arguments_of_first_calls(name, shapes, monkeypatch):
    given = []

    def of_function(function, *args):
        given.extend(x.shape for x in jax.tree.leaves(args) if eqx.is_array(x))
        return dict.fromkeys(case_info(name).contenders, lambda: lambda: None)

    monkeypatch.setattr(_studies, "of_function", of_function)
    makers = case_info(name).makers()
    assert tuple(makers) == case_info(name).contenders and given == []
    makers["ours"]()()
    assert given == shapes


@pytest.mark.parametrize(
    ("name", "donated"),
    [("adam_19_leaves", False), ("adam_103_leaves_donated", True), ("pipeline", False)],
)
def test_which_cases_donate(name, donated, monkeypatch):
    given = []

    def of_step(step, x, state, donate):
        given.append((x.shape, donate))
        return {"jit": lambda: None}

    monkeypatch.setattr(_models, "of_step", of_step)
    case_info(name).makers()
    shape = (64, 256) if name == "pipeline" else (4, 8)
    assert given == [(shape, donated)]
