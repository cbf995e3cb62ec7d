"""Calls that must behave as under `equinox.filter_jit`.

Each case is a generator. It is given a `filter_jit` and a function `traced` to call
from inside the jitted function, and it yields the result of one call after another.
What is compared: every result (structure, types, dtypes, weak types, values) and how
often `traced` was called so far.
"""

import abc
import collections
import dataclasses
import functools as ft
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from tests.support.modules import Holder


CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def X(*shape):
    return jnp.arange(1.0, 1.0 + int(np.prod(shape, dtype=int))).reshape(shape)


def mlp(width=4, seed=0):
    return eqx.nn.MLP(width, width, width, 2, key=jr.key(seed))


# --- ways to call ---


@case
def everything_at_once(jit, traced):
    @jit
    def f(a, /, b, c=3, *args, d, e=jnp.float32, **kwargs):
        traced()
        return a, b, c, args, d, e, kwargs

    yield f(X(1), 2, d=X(2))
    yield f(X(1), b=2, d=X(2))
    yield f(X(1), 2, 4, 5, 6, d=X(2), z=X(1), y="s")
    yield f(X(1), 2, 4, 5, 6, y="s", z=X(1), d=X(2))


@case
def defaults_of_their_own(jit, traced):
    sentinel = object()
    listed = [1]

    @jit
    def f(x, a=1, b=sentinel, c=listed, *args, d=listed, e=(1, "s"), g={1, 2}):  # noqa: B006
        traced()
        return x, a, b is sentinel, c is listed, args, d is listed, e, len(g)

    yield f(X(1))
    yield f(X(1), 2)
    yield f(X(1), 1, 3)
    yield f(X(1), 1, sentinel, [2], 4)
    yield f(X(1), c=[2], e=(2, "s"))
    yield f(X(1), 3, sentinel, listed)

    # What `filter_vmap` returns refuses keyword arguments that its signature has.
    g = jit(eqx.filter_vmap(lambda x, *, k=None: (traced(), x)[1]))
    yield g(X(2))
    yield g(X(2))


# --- what to call ---


@case
def wrap_again(jit, traced):
    def f(x):
        traced()
        return x + 1

    yield jit(f)(X(2))
    yield jit(f)(X(2))
    yield jit()(f)(X(2))
    yield jit(donate="none")(f)(X(2))
    yield jit(jit(f))(X(2))
    yield jit(jit(f))(X(2))


@case
def positional_only_after_a_default_that_is_left_out(jit, traced):
    @jit
    def f(a=[1], b=2, /):  # noqa: B006
        traced()
        return X(2) * b + len(a)

    @jit
    def g(x, a=np.ones(2), b=2, /, *, c=3, **kwargs):  # noqa: B008
        traced()
        return x * b * c, sorted(kwargs)

    yield f()
    yield f([1, 2])
    yield f([1], 3)
    yield g(X(2))
    yield g(X(2), np.ones(2), 3, c=4, d=5)


@case
def partials_that_are_pytrees(jit, traced):
    def f(n, x, k):
        traced()
        return x * n, k

    for partial in (jtu.Partial, eqx.Partial):
        for n, k in ((X(2), 1), (X(2) + 1, 1), (X(2) + 1, 2)):
            yield jit(partial(f, n, k=k))(X(2))


@case
def module_with_call(jit, traced):
    class M(eqx.Module):
        w: jax.Array
        n: int

        def __call__(self, x):
            traced()
            return self.w * x * jnp.float32(self.n)

    f = jit(M(X(2), 1))
    yield f(X(2))
    yield f(X(2))
    yield jit(M(X(2) + 1, 1))(X(2))
    yield jit(M(X(2) + 1, 2))(X(2))


@case
def equinox_layers(jit, traced):
    yield jit(mlp())(X(4))
    yield jit(mlp(seed=1))(X(4))
    yield jit(eqx.nn.Conv1d(1, 2, 3, key=jr.key(0)))(X(1, 5))
    yield jit(eqx.nn.LSTMCell(2, 3, key=jr.key(0)))(X(2), (X(3), X(3)))
    yield jit(eqx.nn.GRUCell(2, 3, key=jr.key(0)))(X(2), X(3))
    yield jit(eqx.nn.MultiheadAttention(2, 4, key=jr.key(0)))(X(3, 4), X(3, 4), X(3, 4))
    yield jit(eqx.nn.Dropout(0.5))(X(4), key=jr.key(0))
    yield jit(eqx.nn.Sequential([mlp(), eqx.nn.Lambda(jnp.tanh)]))(X(4))


@case
def bound_method_of_a_module(jit, traced):
    class M(eqx.Module):
        w: jax.Array

        def go(self, x):
            traced()
            return self.w * x

    m = M(X(2))
    yield jit(m.go)(X(2))
    yield jit(M(X(2) + 1).go)(X(2))


@case
def a_module_that_keeps_its_own_jitted_method(jit, traced):
    class Model(eqx.Module):
        w: jax.Array
        step: typing.Callable

        def __init__(self, w):
            self.w = w
            self.step = jit(self.add)

        def add(self, x):
            traced()
            return x + self.w

    model = Model(X(2))
    for _ in range(3):
        yield model.step(X(2))
    yield len([x for x in jtu.tree_leaves(model) if eqx.is_array(x)])


@case
def bound_method_of_a_class(jit, traced):
    class C:
        def go(self, x):
            traced()
            return x + 1

    c = C()
    yield jit(c.go)(X(2))
    yield jit(c.go)(X(2))
    yield jit(C().go)(X(2))


@case
def jax_functions(jit, traced):
    yield jit(jnp.sin)(X(2))
    yield jit(jnp.matmul)(X(2, 2), X(2, 2))
    yield jit(jax.nn.relu)(X(2))
    yield jit(jax.jit(lambda x: x + 1))(X(2))
    yield jit(jnp.where)(X(2) > 1, X(2), X(2))


# --- methods ---


@case
def jitted_call(jit, traced):
    class M(eqx.Module):
        w: jax.Array

        @jit
        def __call__(self, x):
            traced()
            return self.w * x

    class N(M):
        v: int = 1

    yield M(X(2))(X(2))
    yield M(X(2) + 1)(X(2))
    yield N(X(2))(X(2))
    yield N(X(2))(X(2))


@case
def inherited_and_abstract(jit, traced):
    class Base(eqx.Module):
        @abc.abstractmethod
        def f(self, x): ...

        @jit
        def g(self, x):
            traced()
            return self.f(x) + 1

    class A(Base):
        w: jax.Array

        @jit
        def f(self, x):
            return x * self.w

    class B(Base):
        def f(self, x):
            return x * 3

        @jit
        def g(self, x):
            return Base.g(self, x) * 2

    yield A(X(2)).g(X(2))
    yield A(X(2)).g(X(2))
    yield B().g(X(2))


@case
def static_and_class_methods(jit, traced):
    class M(eqx.Module):
        @staticmethod
        @jit
        def s(x):
            traced()
            return x + 1

        @classmethod
        @jit
        def c(cls, x):
            traced()
            return x + 1, cls.__name__

    yield M.s(X(2)), M().s(X(2))
    yield M.c(X(2)), M().c(X(2))


@case
def methods_of_plain_classes(jit, traced):
    class C:
        n = 2

        @jit
        def f(self, x):
            traced()
            return x * jnp.float32(self.n)

    c = C()
    yield c.f(X(2))
    yield c.f(X(2))
    yield C().f(X(2))

    # One with an `__eq__` and a hash.
    @dataclasses.dataclass(frozen=True)
    class D:
        n: int

        @jit
        def f(self, x):
            traced()
            return x, self.n

    yield D(1).f(X(2))
    yield D(1).f(X(2))
    yield D(2).f(X(2))


@case
def bound_method_is_a_pytree(jit, traced):
    class M(eqx.Module):
        w: jax.Array

        @jit
        def f(self, x):
            traced()
            return self.w * x

    # Its leaves are those of the instance, and can be replaced.
    m = M(X(2))
    yield [x for x in jtu.tree_leaves(m.f) if eqx.is_array(x)]
    yield jtu.tree_map(lambda a: a + 1 if eqx.is_array(a) else a, m.f)(X(2))
    yield eqx.tree_at(lambda f: f.args[0].w, m.f, X(2) * 3)(X(2))

    @jit
    def call(f, x):
        traced()
        return f(x)

    yield call(m.f, X(2))
    yield call(M(X(2) + 1).f, X(2))

    arrays, rest = eqx.partition(m.f, eqx.is_array)
    yield eqx.combine(arrays, rest)(X(2))
    yield jax.grad(lambda f: jnp.sum(f(X(2))))(eqx.filter(m.f, eqx.is_array)).args[0].w


# --- arrays ---


@case
def array_types(jit, traced):
    @jit
    def f(x):
        traced()
        return x, jtu.tree_map(lambda y: y, (x,))

    yield f(jnp.array(1.0))
    yield f(jnp.asarray(1.0))  # may be weakly typed
    yield f(jnp.float32(1.0))
    yield f(jnp.zeros((0, 3)))
    yield f(jnp.ones(3, jnp.bfloat16))
    yield f(jnp.ones(3, bool))
    yield f(jnp.ones(3, jnp.uint8))
    yield f(jnp.ones(3, jnp.complex64))
    yield f(jnp.arange(3) * 2)


@case
def typed_keys(jit, traced):
    @jit
    def f(key, x):
        traced()
        a, b = jr.split(key)
        return jr.normal(a, (2,)) + x, b, {"k": [b]}

    _, key, rest = f(jr.key(0), X(2))
    yield f(jr.key(0), X(2))

    for _ in range(20):
        out, key, rest = f(key, X(2))
    yield out, key, rest

    yield f(jr.key(0, impl="rbg"), X(2))[0].shape
    yield f(jr.key(0), X(2))


# --- pytrees ---


@case
def containers(jit, traced):
    NT = collections.namedtuple("NT", "a b")

    @jit
    def f(tree):
        traced()
        return jtu.tree_map(lambda a: a + 1 if eqx.is_array(a) else a, tree)

    trees = [
        (X(1), [X(2), 3]),
        {"b": X(1), "a": (X(2), None)},
        {},
        (),
        [],
        None,
        NT(X(1), 2),
        NT(X(1), NT(1, X(2))),
        collections.OrderedDict(b=X(1), a=2),
        collections.defaultdict(int, b=X(1), a=2),
        {1: X(1), 2: X(2)},
        {(1, 2): X(1)},
        {"a": {"b": {"c": [X(1)]}}},
        [[[[X(1)], 2], 3], 4],
    ]
    for tree in trees:
        yield f(tree)
        yield f(tree)


@case
def structure_changes(jit, traced):
    @jit
    def f(m):
        traced()
        return jtu.tree_map(lambda a: a + 1 if eqx.is_array(a) else a, m)

    # What is returned is passed again.
    m = mlp()
    for _ in range(20):
        m = f(m)
    yield m

    # Other structures, shapes and kinds of leaves.
    yield f(eqx.tree_at(lambda m: m.layers[0].bias, m, None))
    yield f(eqx.tree_at(lambda m: m.activation, m, jnp.tanh))
    yield f(eqx.tree_at(lambda m: m.layers, m, list(m.layers)))
    yield f(eqx.tree_at(lambda m: m.layers[1].weight, m, X(4, 4)))
    yield f(eqx.tree_at(lambda m: m.layers[1].weight, m, 1))
    yield f(eqx.tree_at(lambda m: m.layers[1].weight, m, np.ones((4, 4))))
    yield f(eqx.filter(m, eqx.is_array))
    yield f(m)


@case
def nodes_that_unflatten_makes_otherwise(jit, traced):
    """What `__init__` converts, or creates again, is not what was flattened."""

    @jtu.register_dataclass
    @dataclasses.dataclass
    class Sgd:
        rate: typing.Any
        width: int = dataclasses.field(default=1, metadata={"static": True})

        def __post_init__(self):
            self.rate = jnp.asarray(self.rate, jnp.float32)
            self.width *= 4

    @jtu.register_pytree_node_class
    class Layer:
        def __init__(self, x, act):
            self.x, self.act = x, ft.partial(act)

        def tree_flatten(self):
            return (self.x,), self.act

        @classmethod
        def tree_unflatten(cls, act, children):
            return cls(*children, act)

    @jit(donate="all-except-first")
    def f(nodes, x):
        traced()
        sgd, layer = nodes
        return x - sgd.rate * sgd.width, layer.act(layer.x)

    # What was traced for other values is called again with each of these.
    sgd, layer = Sgd(0.5), Layer(X(2), jnp.sin)
    for rate in (0.25, 0.5, jnp.asarray(0.75, jnp.float32)):
        for width in (2, 8):
            sgd.rate, sgd.width = rate, width
            for _ in range(2):
                x = X(5)
                yield f((sgd, layer), x)
                yield x.is_deleted()
    yield f((Sgd(0.25), layer), X(5))


@case
def enumerations(jit, traced):
    class E(eqx.Enumeration):
        a = "first"
        b = "second"

    @jit
    def f(e, x):
        traced()
        return jnp.where(e == E.a, x, -x), E.b

    yield f(E.a, X(1))[0]
    yield f(E.b, X(1))[0]
    yield f(E.b, X(1))[1] == E.b


@case
def shared_nodes(jit, traced):
    class Tied(eqx.Module):
        shared: eqx.nn.Shared

        def __init__(self):
            a = eqx.nn.Embedding(4, 4, key=jr.key(0))
            b = eqx.nn.Linear(4, 4, key=jr.key(1))
            self.shared = eqx.nn.Shared(
                (a, b), where=lambda p: p[1].weight, get=lambda p: p[0].weight
            )

        def __call__(self, i):
            a, b = self.shared()
            return b(a(i))

    yield jit(Tied())(jnp.array(1))


@case
def irregular_modules(jit, traced):
    class M(eqx.Module):
        w: jax.Array
        n: int = eqx.field(static=True, default=2)

    class G(eqx.Module, typing.Generic[typing.TypeVar("T")]):
        w: jax.Array

    class W(eqx.Module):
        fn: typing.Callable

        def __call__(self, x):
            return self.fn(x)

        @property
        def __wrapped__(self):
            return self.fn

    # Its class has a default of `n`, which is then read of the class.
    missing = object.__new__(M)
    object.__setattr__(missing, "w", X(1))

    @jit
    def f(m):
        traced()
        return m

    for m in (M(X(1)), G[int](X(1)), missing, M(X(1), 3)):
        for _ in range(20):
            out = f(m)
        yield out.w, hasattr(out, "n"), getattr(out, "n", None)

    wrapper = eqx.module_update_wrapper(W(mlp()))
    yield jit(lambda m, x: (traced(), m(x))[1])(wrapper, X(4))
    yield f(eqx.filter_vmap(jnp.sin))(X(2))


@case
def equinox_wrappers_as_arguments(jit, traced):
    @jit
    def f(fn, x):
        traced()
        return fn(x)

    for fn in (
        eqx.filter_grad(jnp.sum),
        eqx.filter_vmap(jnp.sin),
        eqx.Partial(jnp.add, X(2)),
        jtu.Partial(jnp.add, X(2)),
        jit(mlp(2)),
        mlp(2),
        jnp.sin,
    ):
        yield f(fn, X(2))
        yield f(fn, X(2))


# --- donation ---


def _deleted(*arrays):
    return [x.is_deleted() for x in arrays]


@case
def donated_methods(jit, traced):
    class M(eqx.Module):
        w: jax.Array

        @jit(donate="all")
        def all(self, x):
            traced()
            return M(self.w + x), x + 1

        @jit(donate="all-except-first")
        def rest(self, x):
            traced()
            return M(self.w + x), x + 1

    for name in ("all", "rest", "all", "rest"):
        m, x = M(X(2)), X(2)
        yield getattr(m, name)(x)[1]
        yield _deleted(m.w, x)


@case
def donation_with_var_args(jit, traced):
    @jit(donate="all-except-first")
    def f(*args, **kwargs):
        traced()
        return [a + 1 for a in args], {k: v + 1 for k, v in kwargs.items()}

    x, y, z = X(1), X(2), X(3)
    yield f(x, y, z=z)
    yield _deleted(x, y, z)
    x, y, z = X(1), X(2), X(3)
    yield f(x=x, z=z)
    yield _deleted(x, z)


# --- transforms ---


@case
def custom_derivatives_of_equinox(jit, traced):
    @eqx.filter_custom_vjp
    def g(x):
        traced()
        return x**2

    g.def_fwd(lambda perturbed, x: (g(x), x))
    g.def_bwd(lambda res, grad, perturbed, x: grad * 7)
    yield eqx.filter_grad(lambda x: jnp.sum(jit(g)(x)))(X(2))


# --- a trace is that of its own call ---


@case
def other_shapes_after_a_static_was_changed(jit, traced):
    @jit
    def f(m):
        traced()
        return m.x * m.static[0]

    m = Holder(X(2), [1])
    yield f(m)
    m.static[0] = 5
    yield f(Holder(X(3), [1]))
