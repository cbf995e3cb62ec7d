"""Regression tests: faults found in an adversarial review of the engine."""

import dataclasses
import inspect
import os
import subprocess
import sys
import typing

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

from eqx_fastjit import filter_jit
from eqx_fastjit._policy import Hashable
from eqx_fastjit._static_keys import policy_of
from tests.traces import count_traces


class _WithStatic(eqx.Module):
    w: typing.Any
    b: typing.Any
    static: typing.Any = eqx.field(static=True)


# --- statics -------------------------------------------------------------------------


@attrs.frozen
class _EmptyAttrs:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class _EmptySlots:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class _NothingCompared:
    n: int = dataclasses.field(default=1, compare=False)


@pytest.mark.parametrize("make", [_EmptyAttrs, _EmptySlots, _NothingCompared])
def test_statics_without_fields_or_a_dict(make):
    f, traces = count_traces(lambda x, static: x)
    g, traces_g = count_traces(lambda m: m.w)
    for _ in range(2):
        f(jnp.ones(2), make())
        g(_WithStatic(jnp.ones(2), None, make()))
    assert len(traces) == len(traces_g) == 1


class _NoHash(type):
    def __eq__(cls, other):
        return cls is other


class _Raises(type):
    def __eq__(cls, other):
        if cls is other:
            return True
        raise RuntimeError("asked")

    def __hash__(cls):
        return 5


class _Always(type):
    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return 5


@pytest.mark.parametrize("metaclass", [_NoHash, _Raises, _Always])
def test_statics_whose_class_is_compared_in_its_own_way(metaclass):
    def own(self, other):
        return type(self) is type(other)

    body = {"__eq__": own, "__hash__": lambda self: 1}
    a, b = metaclass("A", (), {"n": 1}), metaclass("B", (), {"n": 2})
    c, d = metaclass("C", (), {"n": 3, **body}), metaclass("D", (), {"n": 4, **body})
    f, traces = count_traces(lambda x, static: x * jtu.tree_leaves(static)[-1].n)
    for _ in range(2):
        for static in (a(), b(), c(), d()):
            assert f(jnp.ones(()), static) == static.n
            assert f(jnp.ones(()), (1, [static])) == static.n
    # Each instance of the first two is a different static.
    assert len(traces) == 12


# --- signatures that must not depend on earlier calls ---


@pytest.mark.parametrize(
    "static", [object(), (1, (2,)), jnp.float32, np.dtype("f4"), {"a": 1}]
)
def test_arrays_of_numpy_and_jax_share_a_trace(static):
    f, traces = count_traces(lambda m: m.w + m.b)
    ours, numpys = jnp.ones(2), np.ones(2, np.float32)
    for w, b in ((ours, ours), (ours, numpys), (numpys, ours), (numpys, numpys)):
        f(_WithStatic(w, b, static))
    assert len(traces) == 1


class _Pair:
    def __init__(self, *children):
        self.children = children


jtu.register_pytree_node(
    _Pair, lambda x: (list(x.children), (1, 2)), lambda _, children: _Pair(*children)
)


def test_arrays_of_numpy_and_jax_in_a_registered_node():
    f, traces = count_traces(lambda x: x.children[0] + x.children[1])
    ours, numpys = jnp.ones(2), np.ones(2, np.float32)
    for pair in ((ours, ours), (ours, numpys), (numpys, ours)):
        f(_Pair(*pair))
    assert len(traces) == 1


def test_a_static_field_of_a_type_that_is_met_for_the_first_time():
    class Fresh:
        pass

    f, traces = count_traces(lambda m: m.w)
    fresh = Fresh()
    for _ in range(3):
        f(_WithStatic(jnp.ones(2), None, fresh))
    assert len(traces) == 1
    # Types are forgotten when a type is registered as a node.
    for _ in range(3):
        type("Another", (eqx.Module,), {})
        f(_WithStatic(jnp.ones(2), None, fresh))
    assert len(traces) == 1


_FIRST_CALL = """
import equinox as eqx, jax.numpy as jnp
from eqx_fastjit import filter_jit
traces = []

class M(eqx.Module):
    w: object
    shape: tuple = eqx.field(static=True)

@filter_jit
def f(model):
    traces.append(None)
    return model.w

model = M(jnp.ones(2), (1, 2))
for _ in range(3):
    f(model)
print(len(traces))
"""


def test_the_first_call_of_a_process_is_traced_once(engine):
    out = subprocess.run(
        [sys.executable, "-c", _FIRST_CALL],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "1"


# --- whether calls block -------------------------------------------------------------


def test_caches_cleared_by_the_function_itself():
    def clears(x):
        jax.clear_caches()
        return x * 2

    f, traces = count_traces(clears)
    for n in (1, 2):
        np.testing.assert_array_equal(f(jnp.ones(2)), 2 * jnp.ones(2))
        assert len(traces) == n


def test_configuration_changed_by_the_function_itself():
    was = jax.config.jax_default_matmul_precision

    def changes(x):
        jax.config.update("jax_default_matmul_precision", "highest")
        return x * 2

    f, _ = count_traces(changes)
    try:
        np.testing.assert_array_equal(f(jnp.ones(2)), 2 * jnp.ones(2))
    finally:
        jax.config.update("jax_default_matmul_precision", was)


def test_checkify_of_a_call_with_a_static():
    def checks(x, n):
        checkify.check(x.sum() > 0, "negative")
        return x * n, "static"

    f, traces = count_traces(checks)
    checked = checkify.checkify(lambda x: f(x, 2)[0])
    assert checked(jnp.ones(2))[0].get() is None
    assert "negative" in checked(-jnp.ones(2))[0].get()
    assert "negative" in filter_jit(checked)(-jnp.ones(2))[0].get()
    assert len(traces) == 1


def test_collectives_in_an_eager_shard_map():
    mesh = jax.make_mesh(
        (2,),
        ("i",),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[:2],
    )
    f, traces = count_traces(lambda x, n: jax.lax.psum(x * n, "i"))
    mapped = jax.shard_map(lambda x: f(x, 3), mesh=mesh, in_specs=P("i"), out_specs=P())
    for _ in range(2):
        np.testing.assert_array_equal(mapped(jnp.arange(4.0)), [6.0, 12.0])
    assert len(traces) == 1


def test_a_trace_that_cannot_be_lowered_by_itself():
    f = filter_jit(lambda x: (checkify.check(x > 0, "negative"), x * 2)[1])
    traced = f.trace(jnp.ones(()))
    assert traced.out_info.shape == f.eval_shape(jnp.ones(())).shape == ()
    with pytest.raises(ValueError, match="checkify"):
        traced.lower().compile()


# --- binding -------------------------------------------------------------------------


def _many(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p=1, q=2, r=3):  # noqa: E741
    return a


def test_parameters_changed_after_wrapping():
    def g(x, n=1):
        return x * n

    f = filter_jit(g)
    assert f(jnp.ones(())) == 1
    g.__defaults__ = (5,)
    g.__signature__ = inspect.signature(_many)
    # The signature and defaults are those at the time of wrapping.
    assert f(jnp.ones(()), 3) == 3
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        f(*[jnp.ones(())] * 15)
    # The same if the function's code is replaced as well.
    g.__code__, g.__defaults__ = _many.__code__, _many.__defaults__
    del g.__signature__
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        f(*[jnp.ones(())] * 15)
    with pytest.raises(TypeError, match="missing 14 required positional arguments"):
        f(jnp.zeros(7))


def test_errors_name_the_function_as_python_does():
    def f(x, *, key):
        return x

    class A(eqx.Module):
        def m(self, x):
            return x

        jitted = filter_jit(m)

    for plain, jitted, args in (
        (f, filter_jit(f), ()),
        (f, filter_jit(f), (1, 2)),
        (A().m, A().jitted, ()),
        (A().m, A().jitted, (1, 2)),
    ):
        with pytest.raises(TypeError) as expected:
            plain(*args)
        with pytest.raises(TypeError) as got:
            jitted(*args)
        assert str(got.value) == str(expected.value)


class _Recursive:
    def __init__(self, x):
        self.x = x

    # Of the engine that is tested.
    jitted = None


def _flatten_recursive(node):
    _Recursive.jitted(_Recursive(node.x))
    return (node.x,), None


jtu.register_pytree_node(_Recursive, _flatten_recursive, lambda _, xs: _Recursive(*xs))


def test_endless_recursion_by_way_of_a_flatten_function(monkeypatch):
    """The error comes at once, without two attempts at each of a thousand levels."""
    f = filter_jit(lambda x: x)
    monkeypatch.setattr(_Recursive, "jitted", staticmethod(f))
    with pytest.raises(RecursionError, match=r"recursion depth|nested too deeply"):
        f(_Recursive(jnp.ones(2)))
    assert eqx.tree_equal(f(jnp.ones(2)), jnp.ones(2))


# --- the second round ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _HashOfSome:
    n: int
    sizes: list = dataclasses.field(hash=False)


class _HashOfNone(tuple):
    def __hash__(self):
        return 1


@pytest.mark.parametrize(
    "make", [lambda n: _HashOfSome(0, [n]), lambda n: _HashOfNone(([n],))]
)
def test_hashable_leaves_with_parts_that_are_not(make):
    """A walk that refused them would fall back to Python, and `lower` would raise."""

    def read(static):
        return static.sizes[0] if isinstance(static, _HashOfSome) else static[0][0]

    f, traces = count_traces(lambda x, static: x * read(static))
    for n in (2, 3, 2):
        assert f(jnp.ones(()), make(n)) == n
        compiled = f.lower(jax.ShapeDtypeStruct((), jnp.float32), make(n)).compile()
        assert compiled(jnp.ones(()), make(n)) == n
        with pytest.raises(TypeError, match="lowered for"):
            compiled(jnp.ones(()), make(n + 1))
    assert len(traces) == 2


def test_frozen_dataclasses_need_no_python_to_be_hashed():
    policy = policy_of(_HashOfSome)
    assert policy.hashable is Hashable.ASK
    assert policy_of(_NothingCompared).hashable is Hashable.AS_PARTS


class _Child(eqx.Module):
    w: typing.Any
    parent: typing.Any = eqx.field(static=True)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_modules_that_contain_themselves():
    """A layer has its parent in a static field, and the parent its layers."""
    children = []
    parent = _WithStatic(jnp.ones(()), None, children)
    children += [_Child(jnp.full((), i), parent) for i in range(3)]
    f, traces = count_traces(lambda m: m.w * 2)
    for _ in range(2):
        for module in (parent, *children):
            assert f(module) == 2 * module.w
    # The children differ only in arrays, which are traced.
    assert len(traces) == 2
    children.pop()
    f(parent)
    assert len(traces) == 3


class _ComparesArrays:
    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return jnp.array_equal(self.array, other.array)

    __hash__ = None

    def __call__(self, x):
        return x * self.array


class _Jitted(eqx.Module):
    w: typing.Any

    @filter_jit
    def step(self, x):
        return x * self.w


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize(
    "make",
    [
        _ComparesArrays,
        lambda a: _Jitted(a).step,
        lambda a: filter_jit(eqx.Partial(jnp.multiply, a)),
    ],
)
def test_statics_that_compare_arrays_in_the_midst_of_a_trace(make):
    ones = jnp.ones(2)
    static = make(jnp.array(2.0))
    f, traces = count_traces(lambda m: m.static(m.w))

    def g(x, static=static):
        return f(_WithStatic(x, None, static))

    for transformed in (g, jax.jit(lambda x: g(x) + g(x) - g(x)), jax.vmap(g)):
        np.testing.assert_array_equal(transformed(ones), 2 * ones)
    other = make(jnp.array(3.0))
    gradient = jax.jit(jax.grad(lambda x: g(x, other).sum()))
    np.testing.assert_array_equal(gradient(ones), 3 * ones)
    assert len(traces) == 3  # under `vmap` the arrays are scalars
