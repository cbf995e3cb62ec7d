"""What calls and caches keep alive, and when they let go.

A call keeps no reference to its arrays and leaves no cycle; compiled programs are freed
with their function, and caches are bounded.
"""

import collections
import dataclasses
import functools
import gc
import sys
import tracemalloc

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _function, engine, filter_jit
from tests.support.memory import collect, dead, Held, references
from tests.support.modules import Hashed, Holder, Unhashed
from tests.support.programs import run_program
from tests.support.traces import count_traces


X = jnp.ones(2)


@pytest.fixture
def without_collector():
    collect()
    gc.disable()
    yield
    gc.enable()


# --- caches ---


def test_clearing():
    """`clear_cache()`, `eqx.clear_caches()` and `jax.clear_caches()` forget traces."""
    f, traces = count_traces(lambda x: x + 1)
    for n, clear in enumerate((f.clear_cache, eqx.clear_caches, jax.clear_caches)):
        f(X), f(X)
        assert len(traces) == n + 1
        clear()
    f(X)
    assert len(traces) == 4


def test_clearing_spares_other_functions():
    """`clear_cache()` is of one function, for all of its wrappers."""

    def fun(x):
        return x + 1

    f, traces_f = count_traces(fun)
    g, traces_g = count_traces(lambda x: x + 2)
    f(X), g(X)
    filter_jit(f.__wrapped__).clear_cache()
    f(X), g(X)
    assert (len(traces_f), len(traces_g)) == (2, 1)


class OneHash(float):
    """A number that is not told from others by its hash."""

    def __eq__(self, other):
        return float(self) == float(other)

    def __hash__(self):
        return 1


@pytest.mark.parametrize("static", [int, OneHash])
def test_a_full_cache_is_emptied(monkeypatch, static):
    """Signatures beyond those that are kept are traced again, with right results."""
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 3)
    f, traces = count_traces(lambda x, n: x + float(n))
    numbers = [1, 2, 3, 1, 4, 4, 1, 2]
    assert [float(f(X, static(n))[0]) for n in numbers] == [n + 1 for n in numbers]
    assert len(traces) == 6


def test_calls_that_fail_take_no_room(monkeypatch):
    """Beside a call whose function raises, the others keep their traces."""
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 3)

    def fun(x, bad):
        return [x][bad]

    f, traces = count_traces(fun)
    for bad in range(1, 9):
        f(X, 0)
        with pytest.raises(IndexError):
            f(X, bad)
    assert len(traces) == 9


def test_a_static_that_cannot_be_read_any_more():
    """Once it was changed so that it cannot be sorted, equal ones are traced again."""

    def config():
        return collections.defaultdict(int, {1: 2})

    f, traces = count_traces(lambda model: model.x * model.static[1])
    first = Holder(X, config())
    f(first)
    first.static["x"] = 1  # JAX cannot sort these keys
    for _ in range(2):
        assert f(Holder(X, config()))[0] == 2
    assert len(traces) == 2


@pytest.mark.parametrize(
    "use", ["wrap", "call", "trace", "lower", "eval_shape", "compiled"]
)
def test_a_function_dies(use):
    """With what was compiled for it, its statics, and all that it refers to."""
    held, static = Held(), Held()

    def fun(x, static, held=held):
        return x + 1, held

    jitted = filter_jit(fun)
    if use == "call":
        jitted(X, static), jitted(X, static), filter_jit(fun)(X, static)
    elif use == "compiled":
        jitted.lower(X, static).compile()(X, static)
    elif use != "wrap":
        getattr(jitted, use)(X, static)
    refs = references(held, static, fun)
    del held, static, fun, jitted
    jax.clear_caches()  # of what JAX itself keeps of traces
    assert dead(*refs) == [True, True, True]


class Solver:
    """Keeps a jitted function whose compiled program has it as a static, and more."""

    def __init__(self, how):
        def step(x, solver, default=self if how == "default" else None):
            return x * 2, self if how == "result" else None

        self.step = functools.partial(step) if how == "partial" else step
        self.jitted = filter_jit(self.step)
        self.jitted(X, self)


@pytest.mark.parametrize("how", ["static", "result", "default", "partial"])
def test_a_function_dies_that_its_own_programs_refer_to(how):
    """By a static, by what it returns, a default or a partial. JAX keeps its caches."""
    solvers = [Solver(how) for _ in range(3)]
    refs = references(*solvers, *[x.step for x in solvers])
    del solvers
    assert dead(*refs) == [True] * 6


class Adds:
    def __call__(self, x):
        return x + 1


@pytest.mark.parametrize("make", [Adds, lambda: eqx.nn.PReLU(0.5)])
def test_a_callable_object_dies(make):
    """An instance, of a plain class or a Module, with what was compiled for it."""
    called = make()
    jitted = filter_jit(called)
    jitted(X)
    refs = references(called, *vars(called).values())
    del called, jitted
    assert all(dead(*refs))


def test_functions_with_names_that_are_made_up():
    """Of callables that are pytrees, only so many are remembered."""
    traces = []

    def make(i):
        def f(x):
            traces.append(i)
            return x + 1

        f.__name__ = f"made_up_{i}"
        return filter_jit(jax.tree_util.Partial(f))

    first = make(0).__wrapped__
    filter_jit(first)(X), filter_jit(first)(X)
    assert traces == [0]
    for i in range(1, 1100):
        make(i)
    filter_jit(first)(X)
    assert traces == [0, 0]


@pytest.mark.parametrize("kind", ["same", "hashed", "fields", "state"])
def test_a_class_of_statics_dies(kind):
    """Of whatever comparison, once nothing is compiled for its instances any more."""
    make = {
        "same": lambda: type("Own", (), {}),
        "hashed": lambda: type("Own", (Hashed,), {}),
        "fields": lambda: dataclasses.make_dataclass("Own", [("value", int)]),
        "state": lambda: type("Own", (Unhashed,), {}),
    }[kind]
    f = filter_jit(lambda x, static: x)
    classes = [make() for _ in range(3)]
    for cls in classes:
        static = object.__new__(cls)
        static.value = 1
        f(X, static), f(X, [static])
    refs = references(*classes)
    del cls, classes, static
    f.clear_cache()
    jax.clear_caches()
    assert all(dead(*refs))


# --- arguments and results ---


@pytest.mark.parametrize("donate", ["none", "all"])
def test_arguments_and_results_die_without_the_collector(donate, without_collector):
    """No call keeps its arrays, or leaves a cycle that holds them."""
    f = filter_jit(lambda m, x, n: (Holder(m.x + x, m.static), x * n), donate=donate)
    static = Held()

    def call():
        m, x = Holder(jnp.ones(100), static), jnp.ones(100)
        out = f(m, x, 2.0)
        return references(m, m.x, x, out[0], out[0].x, out[1])

    for _ in range(5):
        assert [ref() for ref in call()] == [None] * 6


def test_a_method_call_keeps_no_instance(without_collector):
    """A bound method, and its call, die with the instance."""

    class Model(eqx.Module):
        w: jax.Array

        @filter_jit
        def step(self, x):
            return self.w * x

    def call():
        model = Model(jnp.ones(2))
        bound = model.step
        bound(X)
        return references(model, model.w, bound)

    for _ in range(4):
        assert [ref() for ref in call()] == [None] * 3


def test_no_garbage_is_left(without_collector):
    """A call leaves nothing for the collector."""
    f = filter_jit(lambda m, x: (m, {"x": x + 1}, 3))
    model = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    for _ in range(5):
        f(model, X)
    collect()
    for _ in range(20):
        f(model, X)
    assert gc.collect() == 0


def test_a_failed_call_lets_go_of_its_arguments():
    """Neither an error of the device nor one of the trace keeps arguments."""
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))

    @filter_jit
    def g(x, held):
        raise KeyError

    f(jnp.ones(()))

    def call():
        x, held = -jnp.ones(()), Held()
        with pytest.raises(eqx.EquinoxRuntimeError):
            f(x)
        with pytest.raises(KeyError):
            g(x, held)
        return references(x, held)

    refs = [ref for _ in range(3) for ref in call()]
    jax.clear_caches()
    assert all(dead(*refs))


def test_what_a_hit_was_given_is_not_kept():
    """Only the statics of the trace are kept, and not those of later calls."""
    f = filter_jit(lambda m: m.x)

    class Listed(list):
        pass

    first = Listed([1])
    f(Holder(X, first))
    others = [Listed([1]) for _ in range(3)]
    refs = references(*others)
    for other in others:
        f(Holder(X, other))
    del other, others
    assert dead(*refs) == [True] * 3


# --- memory ---


@pytest.mark.one_engine
@pytest.mark.skipif(engine() != "native", reason="the extension was not built")
def test_an_enormous_call_keeps_no_memory():
    """A call that reads very many leaves, once, leaves no buffers of that size."""
    f = filter_jit(lambda x, leaves: x)
    deep = ()
    for _ in range(200_000):
        deep = (deep,)
    tracemalloc.start()
    f(X, [1])
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(RecursionError):
        f(X, [[1] * 1_000_000, deep])
    collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4e6


# Bytes of Python for each, and of the process in all. JAX keeps thousands of entries
# for functions, and classes for ever.
BOUNDS = {
    "calls": (1, 4e6),
    "outputs": (200, 40e6),
    "methods": (10, 4e6),
    "wrapped": (10, 8e6),
    "lambdas": (20_000, 40e6),
    "classes": (120_000, 60e6),
    "retraces": (20_000, 60e6),
}
# CPython's cache of attributes holds the names that the reference asks for: some ten
# thousand bytes, of however many calls.
BOUNDS_OF_REFERENCE = {**BOUNDS, "calls": (2.5, 4e6)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded():
    """Calls, methods, results and wrapping do not let a process grow.

    Compiling does, by what JAX keeps.
    """
    lines = run_program("memory.py").stdout.splitlines()
    found = {kind: (float(a), float(b)) for kind, a, b in map(str.split, lines)}
    bounds = BOUNDS if engine() == "native" else BOUNDS_OF_REFERENCE
    assert found.keys() == bounds.keys()
    for kind, (each, in_all) in bounds.items():
        assert found[kind][0] < each, (kind, found)
        assert found[kind][1] < in_all, (kind, found)
