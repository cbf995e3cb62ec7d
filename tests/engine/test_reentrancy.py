"""Hostile input: the same kind of error as in JAX or Equinox, and no wrong value.

The tests look for wrong values, hangs and crashes.

Where a call runs Python of the user's, that may raise, call again, lie or not end:
`__eq__`, `__hash__`, `__reduce_ex__`, flatten and unflatten functions.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Inner
from tests.support.programs import run_program
from tests.support.traces import count_traces


X = jnp.array(2.0)


class Oops(Exception):
    """Is raised by the user's code that a call runs."""


# --- what raises ---


def _raises(*_):
    raise Oops


class RaisingEq:
    __eq__ = _raises

    def __hash__(self):
        return 1


class RaisingHash:
    """Has no hash after all, and so is compared by its state."""

    n = 1

    def __init__(self, n=1):
        self.n = n

    __hash__ = _raises

    def __eq__(self, other):
        return self.n == other.n


class TooDeepHash(RaisingHash):
    def __hash__(self):
        if self.n:
            raise RecursionError
        return 1


class RaisingReduce:
    """Has neither a hash nor a state, and so is compared by identity."""

    __reduce_ex__ = _raises

    def __eq__(self, other):
        return True


class ReducedToAName(RaisingReduce):
    def __reduce_ex__(self, protocol):
        return "a_global"


class EqIsAnArray:
    def __eq__(self, other):
        return np.ones(2) == 1

    def __hash__(self):
        return 1


class HashIsAnArray:
    def __hash__(self):
        return X


class EqIsNotImplemented:
    def __eq__(self, other):
        return NotImplemented

    def __hash__(self):
        return 1


PLACES = {
    "argument": lambda s: (X, s),
    "field": lambda s: (Holder(X, s), 1),
    "list": lambda s: (Holder(X, [s]), 1),
    "Module": lambda s: (Holder(X, Inner(s)), 1),
    "key": lambda s: ({s: X}, 1),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cls", [RaisingEq, EqIsAnArray])
def test_an_eq_that_raises(cls, place):
    """Its error is that of the call, if another static has its hash."""
    f = filter_jit(lambda x, s: X * 2)
    first = cls()
    args = PLACES[place](first)
    for _ in range(2):
        assert f(*args) == 4
    for _ in range(2):
        with pytest.raises((Oops, ValueError)):
            f(*PLACES[place](cls()))
    assert f(*args) == 4


def test_the_error_names_the_argument_that_cannot_be_compared():
    f = filter_jit(lambda x, options: x)
    f(X, {"first": 1, "kind": (EqIsAnArray(),)})
    with pytest.raises(ValueError, match="ambiguous") as info:
        f(X, {"first": 1, "kind": (EqIsAnArray(),)})
    (note,) = info.value.__notes__
    assert "EqIsAnArray.__eq__" in note and "`options`" in note


@pytest.mark.parametrize("place", ["argument", "field", "list", "Module"])
def test_a_hash_that_raises(place):
    """Such a static is compared by its state."""
    f, traces = count_traces(lambda x, s: X * 2)
    for n in (1, 1, 2, 1):
        f(*PLACES[place](RaisingHash(n)))
    assert len(traces) == 2


def test_a_hash_that_is_too_deep():
    """Not the static is at fault, so this is the error of the call."""
    f = filter_jit(lambda x, s: X * 2)
    assert f(X, TooDeepHash(0)) == 4
    with pytest.raises(RecursionError):
        f(X, TooDeepHash(1))


@pytest.mark.parametrize("place", ["argument", "field", "list"])
@pytest.mark.parametrize(
    "cls", [RaisingReduce, ReducedToAName, HashIsAnArray, EqIsNotImplemented]
)
def test_what_can_only_be_compared_by_identity(cls, place):
    """It has no state, a hash that is no number, or an `__eq__` that says nothing."""
    f, traces = count_traces(lambda x, s: X * 2)
    statics = [cls(), cls()]
    for static in (*statics, *statics):
        assert f(*PLACES[place](static)) == 4
    assert len(traces) == 2


class WritingHash(EqIsNotImplemented):
    """Has a function called when it is read."""

    def __init__(self, call=lambda: None):
        self.call = call

    def __hash__(self):
        self.call()
        return 1

    def __eq__(self, other):
        return type(other) is type(self)


@jtu.register_pytree_node_class
class WritingFlatten(WritingHash):
    def tree_flatten(self):
        self.call()
        return (), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("cls", [WritingHash, WritingFlatten])
def test_an_argument_that_is_written_to_while_the_call_is_read(cls, is_first):
    """What was traced is only used for what was there when it was traced.

    This stands for another thread that writes, at any point, and later writes back what
    was there before: so it is not enough that two readings are the same.
    """

    def call(static, options):
        return f(*((static, options) if is_first else (options, static)))

    def read(a, b):
        return X * (b if is_first else a)["n"]

    def write():
        options["n"] = 2 if start <= next(n_read) < stop else 1

    for start, stop in itertools.combinations(range(8), 2):
        f = filter_jit(lambda a, b: read(a, b))
        options, n_read = {"n": 1}, itertools.count()
        call(cls(write), options)
        for n in (1, 2):
            assert call(cls(), {"n": n}) == 2 * n, (start, stop)


class Flattened:
    """Calls a function when it is flattened."""

    def __init__(self, x, call=lambda: None):
        self.x = x
        self.call = call


def _flatten(node):
    node.call()
    return (node.x,), None


jtu.register_pytree_node(Flattened, _flatten, lambda _, xs: Flattened(*xs))


@pytest.mark.parametrize("error", [Oops, KeyboardInterrupt])
@pytest.mark.parametrize("around", [lambda x: x, Inner, lambda x: [1, {"k": x}]])
def test_a_flatten_function_that_raises(around, error):
    """Its error, or an interrupt, is that of the call, and later calls are right."""

    def fail():
        raise error

    f = filter_jit(lambda t: jtu.tree_leaves(t)[-1] * 2)
    for _ in range(2):
        with pytest.raises(error):
            f(around(Flattened(X, fail)))
        assert f(around(Flattened(X))) == 4


class Nonsense:
    """Has no children, or such that its unflatten function does not take."""

    def __init__(self, children):
        self.children = children


def _unflatten_one(_, xs):
    (x,) = xs
    return Nonsense([x])


jtu.register_pytree_node(Nonsense, lambda x: (x.children, None), _unflatten_one)
NO_KEYS = {1: X, "a": X}  # which cannot be sorted


@pytest.mark.parametrize(
    "tree", [*map(Nonsense, (3, None, (1, 2, 3))), NO_KEYS, {jnp.sin: X, jnp.cos: X}]
)
def test_what_jax_refuses(tree):
    """It is refused with JAX's type of error."""
    with pytest.raises(Exception) as expected:
        eqx.filter_jit(lambda t: X)(tree)
    with pytest.raises(type(expected.value)):
        filter_jit(lambda t: X)(tree)


@pytest.mark.parametrize(
    ("make", "n"),
    [
        (lambda: float("nan"), 1),
        (lambda: np.arange(3), 1),
        (lambda: RaisingHash(1), 1),
        (EqIsAnArray, 3),
    ],
)
def test_aux_data_that_is_made_anew(make, n):
    """It is compared by the contract. If that fails, each call compiles."""

    class Node:
        pass

    jtu.register_pytree_node(Node, lambda _: ((X,), make()), lambda *_: Node())
    f, traces = count_traces(lambda node: X)
    for _ in range(3):
        f(Node())
    assert len(traces) == n


def test_an_unflatten_function_that_makes_another_object():
    """Calls and stages are of what was flattened; the function sees the other."""

    class Made:
        def __init__(self, x, n):
            self.x, self.n = x, (n,)

    def unflatten(n, children):
        unflattened.append(None)
        return Made(*children, n)

    jtu.register_pytree_node(Made, lambda m: ((m.x,), m.n), unflatten)
    f, traces = count_traces(lambda m, n: m.x * n, in_shardings=X.sharding)
    unflattened = []
    for n in (2, 3, 2, 3):
        assert f(Made(X, 1), n) == 2 * n
    assert f.lower(Made(X, 1), 2).compile()(Made(X, 1), 2) == 4
    assert len(traces) == len(unflattened) == 2


def test_an_unflatten_function_that_raises():
    """It is the error of the call, in the trace and for each result."""

    class Fails:
        pass

    jtu.register_pytree_node(Fails, lambda _: ((X,), None), _raises)
    with pytest.raises(Oops):
        filter_jit(lambda t: X)(Fails())
    f = filter_jit(lambda: Fails())
    for _ in range(2):
        with pytest.raises(Oops):
            f()


def test_a_flatten_function_that_makes_its_children_anew():
    """Arrays that only the call holds are alive for as long as it takes."""

    class Fresh:
        pass

    jtu.register_pytree_node(
        Fresh, lambda _: ((jnp.full(3, 2.0), [float("2.5")]), None), lambda _, xs: xs[0]
    )
    f = filter_jit(lambda t: t * 2)
    for _ in range(3):
        assert f(Fresh()).tolist() == [4, 4, 4]


# --- what re-enters ---


class Reentering:
    """Its `__eq__` and `__hash__` call a function once more."""

    def __init__(self, call):
        self.call = call

    def __eq__(self, other):
        self.call()
        return type(other) is Reentering

    def __hash__(self):
        self.call()
        return 1


@pytest.mark.parametrize("what", ["call", "wrap", "clear", "lower", "clear all"])
@pytest.mark.parametrize("where", ["static", "field", "flatten"])
def test_user_code_that_uses_the_library(what, where):
    """Calls, wrapping and clearing in the middle of a call: each has its own result."""

    def fun(t, n):
        return jtu.tree_leaves(t)[0] * n

    f = filter_jit(fun)
    depth = []

    def call():
        if len(depth) > 3:
            return
        depth.append(None)
        try:
            {
                "call": lambda: f(X, 3) == 6 or _raises(),
                "wrap": lambda: filter_jit(lambda x: x + 1)(X),
                "clear": f.clear_cache,
                "lower": lambda: f.lower(X, 5),
                "clear all": eqx.clear_caches,
            }[what]()
        finally:
            depth.pop()

    def make():
        if where == "flatten":
            return Flattened(X, call)
        static = Reentering(call)
        return [X, static] if where == "static" else Holder(X, static)

    for _ in range(3):
        assert f(make(), 2) == 4
    assert f(X, 3) == 6


@pytest.mark.parametrize("compiled", [False, True])
def test_an_error_in_calls_within_calls(compiled):
    """An error of the innermost of many calls comes out once, and soon."""
    calls = []

    def call(n):
        calls.append(None)
        assert len(calls) < 1000, "it does not end"
        if n == 0:
            raise Oops
        f(Flattened(X, functools.partial(call, n - 1)))

    f = filter_jit(lambda node: node.x)
    f = f.lower(Flattened(X)).compile() if compiled else f
    f(Flattened(X))
    with pytest.raises(Oops):
        f(Flattened(X, functools.partial(call, 20)))
    assert f(Flattened(X)) == 2


# --- what does not end, or is not there ---


def test_trees_that_are_too_deep_or_endless():
    """A pytree that contains itself or is too deep is a `RecursionError`, as in JAX."""
    lines = run_program("deep_trees.py", timeout=250).stdout.splitlines()
    assert len(lines) == 46  # in a process of its own, which may crash
    for line in lines:
        expected, found = line.split(" ", 2)[1:]
        assert found.startswith(expected), line


def test_deleted_arrays():
    """An array that was deleted is JAX's error, wherever it is."""
    deleted = jnp.ones(3)
    f = filter_jit(lambda t: jtu.tree_leaves(t)[0] + 1)
    trees = [deleted, [deleted], Inner(deleted), Inner(deleted)]
    for tree in trees:
        f(tree)
    deleted.delete()
    for tree in trees:
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            f(tree)
    assert f(jnp.ones(3)).tolist() == [2, 2, 2]


class Liar:
    """Claims to be an array."""

    def __init__(self, cls):
        self.cls = cls

    @property
    def __class__(self):
        return self.cls


@pytest.mark.parametrize("cls", [jax.Array, np.ndarray, int, list, eqx.Module])
def test_objects_that_claim_another_class(cls):
    """What an object says of itself makes no array of it, and no crash."""
    f = filter_jit(lambda x, y: x * 2)
    try:
        assert f(X, Liar(cls)) == 4
    except (TypeError, ValueError, AttributeError):
        pass
    assert f(X, 1) == 4


@pytest.mark.parametrize("is_first", [True, False])
def test_an_interrupt_while_a_call_waits(is_first, monkeypatch):
    """Nothing was being traced or compiled, so no trace is dropped."""

    def interrupt(x):
        raise KeyboardInterrupt

    f, traces = count_traces(lambda x: x * 2, asynchronous=False)
    if not is_first:
        f(X)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(X), "block_until_ready", interrupt)
        f(X)
    assert f(X) == 4 and len(traces) == 1
