"""Caches: what they keep alive, and when they release it."""

import copy
import doctest
import gc
import inspect
import os
import pickle
import subprocess
import sys
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _callables, _compat, _function, filter_jit


def _counted():
    traces = []

    @filter_jit
    def f(x):
        traces.append(x.shape)
        return x + 1

    return f, traces


def test_clear_cache():
    f, traces = _counted()
    for clear in (f.clear_cache, eqx.clear_caches, jax.clear_caches):
        f(jnp.ones(2))
        f(jnp.ones(2))
        clear()
    f(jnp.ones(2))
    assert len(traces) == 4


def test_equinox_is_told_of_our_caches_once():
    for _ in range(3):
        filter_jit(lambda x: x)
    told = _compat.resolve("equinox._caches:cache_clears")
    assert told.count(_function.clear_all) == 1


def test_caches_that_another_thread_clears_while_they_are_full(monkeypatch):
    class Cleared(weakref.WeakKeyDictionary):
        def __iter__(self):
            self.clear()
            return super().__iter__()

    functions = [lambda: None, lambda: None]
    known = Cleared({key: {} for key in functions})
    monkeypatch.setattr(_callables, "_MAX_FUNCTIONS", 2)
    monkeypatch.setattr(_callables, "_functions", known)
    f = filter_jit(lambda x: x + 1)
    assert f(jnp.ones(2)).sum() == 4


def test_clearing_spares_other_functions():
    f, traces_f = _counted()
    g, traces_g = _counted()
    f(jnp.ones(2)), g(jnp.ones(2))
    f.clear_cache()
    f(jnp.ones(2)), g(jnp.ones(2))
    assert (len(traces_f), len(traces_g)) == (2, 1)


def test_entries_die_with_their_function():
    class Big:
        pass

    big = Big()

    def f(x, big=big):
        return x + 1

    alive = weakref.ref(big)
    jitted = filter_jit(f)
    for _ in range(30):
        jitted(jnp.ones(2))
    filter_jit(f)(jnp.ones(2))
    jitted.lower(jnp.ones(2)).compile()(jnp.ones(2))
    del f, jitted, big
    gc.collect()
    assert alive() is None


def test_arguments_are_not_kept():
    f = filter_jit(lambda m, x: (m, x + 1))
    model = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    x = jnp.ones(2)
    for _ in range(40):
        out = f(model, x)
    refs = [weakref.ref(leaf) for leaf in (x, model, model.layers[0].weight, out[1])]
    del x, model, out
    gc.collect()
    assert [r() for r in refs] == [None] * 4


def test_no_garbage_on_the_hot_path():
    f = filter_jit(lambda m, x: (m, x + 1, 3))
    model = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    x = jnp.ones(2)
    for _ in range(40):
        f(model, x)
    gc.collect()
    for _ in range(10):
        f(model, x)
    assert gc.collect() == 0


_MEMORY = """
import gc, resource, sys, tracemalloc
import jax, jax.numpy as jnp, equinox as eqx
from eqx_fastjit import filter_jit
model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
f = filter_jit(lambda m, x, n: (m(x), n))
x = jnp.ones(2)
for _ in range(1000):
    f(model, x, 2)
gc.collect()
tracemalloc.start()
before, _ = tracemalloc.get_traced_memory()
for _ in range(int(sys.argv[1])):
    f(model, x, 2)
gc.collect()
after, peak = tracemalloc.get_traced_memory()
print(after - before, peak - before)
"""


def test_calls_do_not_grow_memory(engine):
    out = subprocess.run(
        [sys.executable, "-c", _MEMORY, "5000"],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        check=True,
    )
    growth, peak = map(int, out.stdout.split())
    assert growth < 20_000
    assert peak < 2_000_000


def test_many_wrapped_lambdas_are_forgotten():
    refs = []
    for i in range(50):
        g = lambda x, i=i: x + i  # noqa: E731
        refs.append(weakref.ref(g))
        filter_jit(g)(jnp.ones(2))
    del g
    gc.collect()
    assert not any(r() for r in refs)


def test_attributes():
    def f(x: int, *, y: str = "a") -> float:
        """Docs."""

    g = filter_jit(f)
    assert (g.__name__, g.__qualname__, g.__module__) == (
        f.__name__,
        f.__qualname__,
        f.__module__,
    )
    assert g.__doc__ == "Docs."
    assert g.__annotations__ == f.__annotations__
    assert g.__wrapped__ is f
    assert inspect.signature(g) == inspect.signature(f)
    assert inspect.unwrap(g) is f
    assert "f" in repr(g)
    assert callable(g)
    with pytest.raises(AttributeError, match="cannot assign to field 'anything'"):
        g.anything = 1
    # `__wrapped__` is a copy of the pytree at the time of wrapping, as in Equinox.
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    wrapped = filter_jit(model).__wrapped__
    assert wrapped is not model and eqx.tree_equal(wrapped, model)


def test_doctests_are_found():
    module = types.ModuleType("some_module")
    exec(
        "from eqx_fastjit import filter_jit\n"
        "@filter_jit\n"
        "def f(x):\n"
        "    '''\n    >>> 1 + 1\n    2\n    '''\n",
        vars(module),
    )
    found = doctest.DocTestFinder().find(module)
    assert [t.name for t in found if t.examples] == ["some_module.f"]


def _for_pickle(x):
    return x * 2


pickled = filter_jit(_for_pickle, donate="all-except-first")


@filter_jit
def decorated(x):
    return x * 2


class WithMethod(eqx.Module):
    w: jax.Array

    @filter_jit
    def method(self, x):
        return self.w * x


def test_pickle_by_name():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    assert pickle.loads(pickle.dumps(WithMethod.method)) is WithMethod.method
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(filter_jit(lambda x: x))


def test_pickle_and_copy():
    g = pickle.loads(pickle.dumps(pickled))
    assert g == pickled
    assert g(jnp.ones(2)).tolist() == [2, 2]
    assert copy.copy(pickled) == pickled
    assert copy.deepcopy(pickled)(jnp.ones(2)).tolist() == [2, 2]
    model = filter_jit(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    assert eqx.tree_equal(copy.deepcopy(model), model)


def test_equality_and_hash():
    def f(x):
        return x

    assert filter_jit(f) == filter_jit(f)
    assert hash(filter_jit(f)) == hash(filter_jit(f))
    assert filter_jit(f) != filter_jit(f, donate="all")
    assert filter_jit(f) != filter_jit(lambda x: x)
    assert filter_jit(f) != 3


def test_equality_of_methods():
    class M(eqx.Module):
        x: jax.Array

        @filter_jit
        def double(self):
            return self.x * 2

    one, same, other = M(jnp.ones(2)), M(jnp.ones(2)), M(jnp.zeros(2))
    assert one.double == one.double == same.double
    assert one.double != other.double
    assert one.double != 3


def test_callables_without_weak_references():
    class Doubles:
        __slots__ = ("factor",)

        def __init__(self):
            self.factor = 2

        def __call__(self, x):
            return x * self.factor

    for _ in range(2):
        assert filter_jit(Doubles())(jnp.array(3)) == 6


def test_public_names():
    for name in eqx_fastjit.__all__:
        getattr(eqx_fastjit, name)
    own = {"Any", "TYPE_CHECKING"}  # imported by the module for itself
    public = {n: v for n, v in vars(eqx_fastjit).items() if not n.startswith("_")}
    names = {n for n in public if not inspect.ismodule(public[n])} - own
    assert sorted(names) == sorted(eqx_fastjit.__all__)
    assert sorted(names) == [
        "BoundJit",
        "Compiled",
        "Exported",
        "JitWrapped",
        "Lowered",
        "Traced",
        "engine",
        "fast_filter_jit",
        "filter_jit",
        "install",
        "installed",
        "load",
        "uninstall",
    ]
    assert eqx_fastjit.fast_filter_jit is eqx_fastjit.filter_jit
    assert names < set(dir(eqx_fastjit))
    with pytest.raises(AttributeError, match="no attribute 'filter_jot'"):
        _ = eqx_fastjit.filter_jot


@pytest.mark.one_engine
def test_import_loads_nothing_until_a_name_is_used():
    code = (
        "import sys, eqx_fastjit, eqx_fastjit.cli; assert 'jax' not in sys.modules\n"
        "eqx_fastjit.filter_jit; assert 'jax' in sys.modules\n"
        "for name in ('rich', 'pyinstrument', 'matplotlib', 'optax'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("stage", ["lower", "trace", "eval_shape", "call"])
def test_what_is_traced_ahead_of_time_is_dropped(stage):
    """No reference of the call that is being traced is left behind."""

    class Static:
        pass

    static = Static()
    f = filter_jit(lambda x, static: x + 1)
    (f if stage == "call" else getattr(f, stage))(jnp.ones(2), static)
    dead = weakref.ref(static)
    del f, static
    gc.collect()
    assert dead() is None
