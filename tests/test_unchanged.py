"""Trees that are not read again are those in which nothing has changed.

The native engine learns a tree that it is given several times in a row, and then only
asks whether it is as it was. All of these change one that it has learnt.
"""

import collections
import dataclasses
import decimal
import enum
import pathlib
import random
import sys
import threading
import types
import typing
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _partition, filter_jit


# The Python engine reads everything, as `test_corpus` and the others have it.
pytestmark = pytest.mark.one_engine

X = jnp.arange(3.0)
FAR = X + 100
# After which a tree is learnt.
CALLS = 20
HAS_VERSIONS = sys.version_info < (3, 13)


class Pair(typing.NamedTuple):
    a: typing.Any
    b: typing.Any


class Color(enum.Enum):
    RED = 1


class Leaf(eqx.Module):
    w: typing.Any
    n: typing.Any = eqx.field(static=True, default=1)


class Net(eqx.Module):
    first: typing.Any
    layers: typing.Any
    name: str = eqx.field(static=True)
    act: typing.Any = jax.nn.relu


@dataclasses.dataclass(frozen=True)
class Init:
    gain: typing.Any = 1.0


@dataclasses.dataclass
class Config:
    size: typing.Any
    init: Init = dataclasses.field(default_factory=Init)
    tags: typing.Any = dataclasses.field(default_factory=lambda: ["a", ("b", None)])
    more: typing.Any = dataclasses.field(default_factory=lambda: {"c": 1, 2: [[]]})


@dataclasses.dataclass
class Other(Config):
    pass


@jtu.register_dataclass
@dataclasses.dataclass
class State:
    model: typing.Any
    step: typing.Any


def _net(layers, name="net"):
    return Net(Leaf(X, (1, ("a", 2.0))), layers, name)


TREES = {
    "linear": lambda: eqx.nn.Linear(2, 3, key=jax.random.key(0)),
    "mlp": lambda: eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0)),
    "conv": lambda: eqx.nn.Conv2d(1, 2, 3, key=jax.random.key(0)),
    "attention": lambda: eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(0)),
    "tuple": lambda: _net((Leaf(X + 1), Leaf(X + 2, "b"), None, True, 3.5)),
    "list": lambda: _net([Leaf(X + 1), jnp.tanh, X, None, "relu", []]),
    "dict": lambda: _net({"b": Leaf(X), "a": [X + 1, {"c": X + 2}]}),
    "namedtuple": lambda: _net(Pair(Leaf(X), [Pair(X, X + 1)])),
    "dataclass": lambda: State(_net([Leaf(X, Color.RED)]), X),
    "parameters": lambda: {"w": X, "layers": [{"b": X + 1}, Leaf(X)]},
    "configured": lambda: _net([Leaf(X, Config(3)), Leaf(X, Config(3.0))]),
    "shared": lambda: (lambda leaf: _net([leaf, leaf, (leaf,)]))(Leaf(X)),
}


def _statistics():
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    norm, state = make(2, axis_name="batch", mode="ema")
    return {"norm": norm, "state": state}


TREES["statistics"] = _statistics


def _change_statistics(tree, change):
    ((name, values),) = vars(tree["state"]).items()
    change(values, next(iter(values)))
    if not values:
        vars(tree["state"])[name] = {"other": X}


def look(tree):
    """All that there is in a tree, as the function sees it."""
    leaves, treedef = jtu.tree_flatten(tree)
    return leaves, str(treedef)


def fresh():
    return filter_jit(lambda tree: look(tree))


def check(f, tree):
    expected, got = look(tree), f(tree)
    assert got[1] == expected[1]
    for x, y in zip(got[0], expected[0], strict=True):
        if isinstance(x, jax.Array):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        else:
            assert type(x) is type(y) and x == y


def n_known(f, *values):
    """How many trees are not read again, of `None` on the Python engine."""
    table = f._function.table
    return None if table is None else table.get(f._function, values).n_known


def learn(f, tree):
    check(f, tree)
    for _ in range(CALLS):
        f(tree)
    check(f, tree)
    assert n_known(f, tree) in (None, int(HAS_VERSIONS))


@pytest.mark.parametrize("kind", TREES)
def test_a_tree_is_learnt(engine, kind):
    f = fresh()
    tree = TREES[kind]()
    learn(f, tree)
    other = TREES[kind]()
    for x in (other, tree, other, tree):
        check(f, x)
    for x in (*[other] * CALLS, *[tree] * CALLS):
        f(x)
    check(f, other)
    check(f, tree)


@pytest.mark.parametrize(
    "part",
    [
        np.ones(2),
        jax.random.key(0),
        eqx.Partial(jnp.add, X),
        collections.OrderedDict(a=X),
        collections.defaultdict(list, a=X),
        {1: X},
        [1],
        [(2.0,)],
        filter_jit(lambda: 0),
    ],
    ids=repr,
)
def test_what_is_always_read(engine, part):
    f = filter_jit(lambda tree: jtu.tree_leaves(tree)[0])
    for tree in (_net(part), _net([part])):
        for _ in range(4 * CALLS):
            f(tree)
        assert n_known(f, tree) in (None, 0)


class Speaker:
    def speak(self):
        return self


# Of each, one that a call must not take for it.
STATICS = {
    "complex": (complex(1, 0), complex(1, -0.0)),
    "slice": (slice(1, 2), slice(1, 2.0)),
    "list in slice": (slice(["a"], None), slice(["b"], None)),
    "named tuple": (Pair(1, (2.0, "a")), Pair(1, (2, "a"))),
    "list in named tuple": (Pair(1, ["a"]), Pair(1, ["b"])),
    "frozenset": (frozenset({1, ("a", None)}), frozenset({1, ("b", None)})),
    "range": (range(0, 4, 3), range(0, 5, 3)),
    "dtype": (np.dtype("float32"), np.dtype("int32")),
    "decimal": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "path": (pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")),
    "treedef": (jtu.tree_structure([1]), jtu.tree_structure((1,))),
    "key of a dictionary": (jtu.DictKey(1), jtu.DictKey(1.0)),
    "struct": (jax.ShapeDtypeStruct((2,), "int"), jax.ShapeDtypeStruct((3,), "int")),
    "method": (Speaker().speak, Speaker().speak),
    "function in C": ("a".join, "b".join),
    "all": (
        {"a": Pair(slice(1), jnp.float32), "b": (np.dtype("int32"), 1j)},
        {"a": Pair(slice(1), jnp.float32), "b": (np.dtype("int32"), 2j)},
    ),
}


@pytest.mark.parametrize("kind", STATICS)
def test_a_static_of_any_kind_is_learnt(engine, kind):
    one, other = STATICS[kind]
    f = filter_jit(lambda tree: tree.n)
    tree = Leaf(X, one)
    for _ in range(CALLS):
        f(tree)
    assert n_known(f, tree) in (None, int(HAS_VERSIONS))
    for x in (other, one, other):
        object.__setattr__(tree, "n", x)
        for _ in range(2 * CALLS):
            assert (found := f(tree)) is x or repr(found) == repr(x)


# The others have no hash, so they are no leaves.
LEAVES = STATICS.keys() - {"slice", "list in slice", "list in named tuple", "all"}


@pytest.mark.parametrize("kind", sorted(LEAVES))
def test_a_static_leaf_of_any_kind_is_replaced_in_a_list(engine, kind):
    one, other = STATICS[kind]
    f = filter_jit(lambda tree: [tree["a"][1], tree["b"].w])
    tree = {"a": [X, one], "b": Leaf(X)}
    for x in (one, other, one):
        tree["a"][1] = x
        for _ in range(2 * CALLS):
            assert (found := f(tree)[0]) is x or repr(found) == repr(x)


def test_a_static_that_is_not_read_has_lists_that_change(engine):
    for static, change in (
        (slice([1], None), lambda x: x.start.append(2)),
        (Pair(1, ["a"]), lambda x: x.b.append(2)),
        (jtu.DictKey([1]), lambda x: x.key.append(2)),
    ):
        f = filter_jit(lambda tree: repr(tree.n))
        tree = Leaf(X, static)
        for _ in range(2):
            for _ in range(2 * CALLS):
                assert f(tree) == repr(static)
            change(static)
        assert f(tree) == repr(static)


@pytest.mark.parametrize("make", [jtu.DictKey, lambda x: frozenset({x}), None])
def test_the_class_of_what_a_static_holds_gets_another_equality(engine, make):
    class Mode:
        pass

    class Modes(Pair):
        pass

    one, two = Modes(1, 2), Modes(1, 3)
    if make is not None:
        one, two = make(Mode()), make(Mode())
    n_traces = []
    f = filter_jit(lambda tree: n_traces.append(0) or tree.w)
    tree = Leaf(X, one)
    for _ in range(2 * CALLS):
        f(tree)
    assert len(n_traces) == 1
    for cls in (Mode, Modes):
        cls.__eq__ = lambda self, other: type(other) is type(self)
        cls.__hash__ = lambda self: 1
    f(tree)
    n = len(n_traces)
    f(Leaf(X, two))  # equal now
    assert len(n_traces) == n


@pytest.mark.parametrize("static", [[1], {1}, Leaf(1), ([2.0],), {"a": {1}}])
def test_statics_that_are_always_read(engine, static):
    f = filter_jit(lambda tree: tree.w)
    tree = Leaf(X, static)
    for _ in range(4 * CALLS):
        f(tree)
    assert n_known(f, tree) in (None, 0)


CHANGES = [
    ("linear", lambda t: object.__setattr__(t, "weight", t.weight + 1)),
    ("linear", lambda t: object.__setattr__(t, "weight", np.ones((3, 2), np.float32))),
    ("linear", lambda t: object.__setattr__(t, "bias", None)),
    ("linear", lambda t: object.__setattr__(t, "bias", 2.0)),
    ("linear", lambda t: object.__setattr__(t, "use_bias", 1)),
    ("linear", lambda t: object.__setattr__(t, "in_features", "scalar")),
    ("linear", lambda t: t.__dict__.update(out_features=3.0)),
    ("linear", lambda t: t.__dict__.__ior__({"bias": t.bias * 2})),
    ("linear", lambda t: t.__dict__.__setitem__("weight", t.weight * 2)),
    ("linear", lambda t: object.__setattr__(t, "__dict__", dict(vars(t), bias=X))),
    ("linear", lambda t: vars(t).update({"bias": vars(t).pop("bias") + 1})),
    ("mlp", lambda t: object.__setattr__(t.layers[1], "weight", jnp.ones((4, 4)))),
    ("mlp", lambda t: object.__setattr__(t, "layers", t.layers[::-1])),
    ("mlp", lambda t: object.__setattr__(t, "activation", jnp.tanh)),
    ("mlp", lambda t: object.__setattr__(t.layers[2], "in_features", 4.0)),
    ("conv", lambda t: object.__setattr__(t, "padding", ((1, 1), (0, 0)))),
    ("conv", lambda t: object.__setattr__(t, "stride", (1, True))),
    ("attention", lambda t: object.__setattr__(t.query_proj, "weight", jnp.ones(2))),
    ("attention", lambda t: object.__setattr__(t.dropout, "p", 0.5)),
    ("tuple", lambda t: object.__setattr__(t.layers[0], "w", X * 3)),
    ("tuple", lambda t: object.__setattr__(t.layers[1], "n", "c")),
    ("tuple", lambda t: object.__setattr__(t.first, "n", (1, ("a", 2)))),
    ("tuple", lambda t: object.__setattr__(t, "layers", (*t.layers[:4], 4.5))),
    ("list", lambda t: t.layers.append(X)),
    ("list", lambda t: t.layers.pop()),
    ("list", lambda t: t.layers.reverse()),
    ("list", lambda t: t.layers.__setitem__(0, Leaf(X + 9))),
    ("list", lambda t: t.layers.__setitem__(1, jnp.sin)),
    ("list", lambda t: t.layers.__setitem__(2, X * 5)),
    ("list", lambda t: t.layers.__setitem__(2, 5)),
    ("list", lambda t: t.layers.__setitem__(3, False)),
    ("list", lambda t: t.layers.__setitem__(4, "gelu")),
    ("list", lambda t: t.layers[5].append(X)),
    ("list", lambda t: object.__setattr__(t.layers[0], "w", X.astype(int))),
    ("list", lambda t: object.__setattr__(t, "layers", tuple(t.layers))),
    ("dict", lambda t: t.layers.update(b=Leaf(X * 2))),
    ("dict", lambda t: t.layers.update(c=X)),
    ("dict", lambda t: t.layers.pop("b")),
    ("dict", lambda t: t.layers["a"][1].update(c=X * 7)),
    ("dict", lambda t: t.layers["a"].__setitem__(0, X * 7)),
    ("dict", lambda t: t.layers.update({"a": t.layers.pop("b")})),
    ("namedtuple", lambda t: object.__setattr__(t.layers.a, "w", X * 2)),
    ("namedtuple", lambda t: t.layers.b.__setitem__(0, Pair(X * 2, X))),
    ("namedtuple", lambda t: t.layers.b.__setitem__(0, (X, X + 1))),
    ("dataclass", lambda t: setattr(t, "step", X + 1)),
    ("dataclass", lambda t: setattr(t, "step", 1)),
    ("dataclass", lambda t: t.model.layers.append(X)),
    ("dataclass", lambda t: object.__setattr__(t.model.layers[0], "n", 1)),
    ("parameters", lambda t: t.update(w=X * 2)),
    ("parameters", lambda t: t["layers"][0].update(b=X * 2)),
    ("parameters", lambda t: t["layers"].append(X)),
    ("parameters", lambda t: t["layers"].__setitem__(1, Leaf(X, 1.0))),
    ("configured", lambda t: setattr(t.layers[0].n, "size", 4)),
    ("configured", lambda t: setattr(t.layers[1].n, "size", 3)),
    ("configured", lambda t: setattr(t.layers[0].n, "init", Init(2.0))),
    ("configured", lambda t: object.__setattr__(t.layers[0].n.init, "gain", 1)),
    ("configured", lambda t: t.layers[0].n.tags.append("d")),
    ("configured", lambda t: t.layers[0].n.tags.__setitem__(0, "d")),
    ("configured", lambda t: t.layers[0].n.tags.__setitem__(1, ("b", 1))),
    ("configured", lambda t: t.layers[1].n.more.update(c=1.0)),
    ("configured", lambda t: t.layers[1].n.more.update(d=1)),
    ("configured", lambda t: t.layers[1].n.more[2][0].append("e")),
    ("configured", lambda t: setattr(t.layers[0].n, "__class__", Other)),
    *[
        ("statistics", lambda t, change=change: _change_statistics(t, change))
        for change in (
            lambda values, key: values.update({key: X}),
            lambda values, key: values.update({"more": X}),
            lambda values, key: values.update({key: values.pop(key)}),
            lambda values, key: values.pop(key),
            lambda values, key: values.clear(),
        )
    ],
    ("shared", lambda t: object.__setattr__(t.layers[0], "w", X * 2)),
]


@pytest.mark.one_engine
@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=lambda x: x if x else "")
def test_a_change_in_place(kind, change):
    f = fresh()
    tree = TREES[kind]()
    learn(f, tree)
    change(tree)
    check(f, tree)
    for _ in range(2 * CALLS):
        f(tree)
    check(f, tree)
    other = TREES[kind]()
    check(f, other)
    check(f, tree)


def test_the_class_changes(engine):
    class Wide(Leaf):
        pass

    f = filter_jit(lambda t: (t.w, type(t.layers[0] if isinstance(t, Net) else t)))
    for tree in (Leaf(X), Net(X, [Leaf(X)], "n")):
        if isinstance(tree, Net):
            f = filter_jit(lambda t: (t.first, type(t.layers[0])))
        for _ in range(CALLS):
            f(tree)
        inner = tree.layers[0] if isinstance(tree, Net) else tree
        for cls in (Wide, Leaf):
            object.__setattr__(inner, "__class__", cls)
            for _ in range(CALLS):
                assert f(tree)[1] is cls


def test_a_static_changes_its_class(engine):
    class One:
        pass

    class Two:
        def __eq__(self, other):
            return type(other) is Two

        def __hash__(self):
            return 1

    tree = Leaf(X, One())
    f = filter_jit(lambda t: type(t.n).__name__)
    for _ in range(CALLS):
        assert f(tree) == "One"
    tree.n.__class__ = Two
    assert f(tree) == "Two"


def test_a_class_that_becomes_a_node(engine):
    class Box:
        def __init__(self, x):
            self.x = x

    tree = Net(X, (Box(X),), "n")
    f = filter_jit(lambda t: t.layers[0].x + 1)
    for _ in range(CALLS):
        assert f(tree).tolist() == [1, 2, 3]
    jtu.register_pytree_node(Box, lambda b: ((b.x,), None), lambda _, c: Box(*c))
    tree.layers[0].x = X + 1  # now traced
    for _ in range(CALLS):
        assert f(tree).tolist() == [2, 3, 4]
    tree.layers[0].x = X + 2
    assert f(tree).tolist() == [3, 4, 5]


def test_a_class_that_gets_another_equality(engine):
    class Mode:
        pass

    a, b = Mode(), Mode()
    tree = Leaf(X, a)
    seen = []
    f = filter_jit(lambda t: seen.append(t.n) or t.w)
    for _ in range(CALLS):
        f(tree)
    Mode.__eq__ = lambda self, other: type(other) is Mode
    Mode.__hash__ = lambda self: 1
    f(tree)
    n = len(seen)
    f(Leaf(X, b))  # equal now
    assert len(seen) == n


def test_items_that_come_to_the_address_of_others(engine):
    f = fresh()
    tree = _net([Leaf(X), (X, "a"), {"a": X}])
    learn(f, tree)
    for i in range(300):
        # What comes next is often put where the last one was.
        match i % 3:
            case 0:
                tree.layers.pop(0)
                tree.layers.insert(0, Leaf(X + i % 7, i % 2))
            case 1:
                tree.layers.pop(1)
                tree.layers.insert(1, (X + i % 5, "ab"[i % 2]))
            case _:
                tree.layers.pop()
                tree.layers.append({"a": X * (i % 4)})
        for _ in range(CALLS * (i % 10 == 0)):
            f(tree)
        check(f, tree)


def test_a_static_that_was_changed_in_place(engine):
    # What was traced with it refers to it, whether it is read again or not.
    f = filter_jit(lambda t: (t.w, t.n))
    a, b = Leaf(X, Config(3)), Leaf(X, Config(3))
    for _ in range(CALLS):
        assert f(a)[1] == Config(3)
    a.n.size = 4
    for _ in range(CALLS):
        assert f(b)[1] == Config(3)
    b.n.size = 5
    for tree in (a, b, Leaf(X, Config(3)), Leaf(X, Config(5))):
        for _ in range(CALLS):
            assert f(tree)[1] == tree.n


def test_several_arguments(engine):
    f = filter_jit(lambda x, nets, y, *, more, **rest: look([x, nets, y, more, rest]))
    nets = [TREES[kind]() for kind in TREES]

    def check_all(x):
        kwargs = {"more": nets[1], "other": nets[2]}
        got = f(x, (nets[0], {"a": nets[3]}), X, **kwargs)
        expected = look([x, (nets[0], {"a": nets[3]}), X, nets[1], {"other": nets[2]}])
        assert got[1] == expected[1]
        for a, b in zip(got[0], expected[0], strict=True):
            assert a is b or np.array_equal(a, b)

    for i in range(150):
        check_all([X, X + i, Leaf(X)][i // 50 % 3])
        if i % 24 == 23:
            object.__setattr__(nets[0], "weight", jnp.full((3, 2), i))
        if i % 48 == 47:
            object.__setattr__(nets[1].layers[0], "weight", jnp.full((4, 2), i))


def test_trees_whose_arrays_are_deleted_or_traced(engine):
    f = filter_jit(lambda t: jnp.sum(t.w * 2))
    tree = Leaf(X)
    for _ in range(CALLS):
        f(tree)
    assert jax.grad(lambda w: f(Leaf(w)))(X).tolist() == [2, 2, 2]
    assert jax.jit(lambda w: f(tree) + f(Leaf(w)))(X) == 12

    def inside(w):  # the tree itself, which it knows, now has a tracer
        object.__setattr__(tree, "w", w)
        return f(tree)

    assert jax.grad(inside)(X).tolist() == [2, 2, 2]
    object.__setattr__(tree, "w", X + 0)
    for _ in range(CALLS):
        assert f(tree) == 6
    tree.w.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f(tree)


class Thief:
    """A node that may take what stands before it away, while it is read."""

    def __init__(self, trees, *, steals):
        self.trees = trees
        self.steals = steals


def _steal(thief):
    if thief.steals:
        thief.trees.clear()
        thief.trees.extend([Leaf(FAR), Leaf(FAR)])
    return (X,), None


jtu.register_pytree_node(Thief, _steal, lambda _, children: children)


def test_python_in_the_middle_takes_trees_away(engine):
    # What was read of them counts. They are gone once they are to be learnt.
    f = filter_jit(lambda trees, thief: [t.w for t in trees])
    for n in (2, 3, *range(14, 22)):
        trees = [Leaf(X + 1), Leaf(X + 2)]
        for i in range(n):
            found = [x.tolist() for x in f(trees, Thief(trees, steals=i == n - 1))]
            if i < n - 1:
                assert found == [[1, 2, 3], [2, 3, 4]]
        check(fresh(), trees)
        for _ in range(CALLS):
            assert f(trees, Thief(trees, steals=False))[0].tolist() == [100, 101, 102]


def test_threads_that_change_trees(engine):
    f = filter_jit(lambda t: (t.first, t.layers[0].w))
    failed = []

    def work(k):
        tree = Net(X + k, [Leaf(X)], "n")
        for i in range(400):
            if i % 29 == 28:
                tree.layers[0] = Leaf(X + i)
            if i % 43 == 42:
                object.__setattr__(tree, "first", X + k + i)
            a, b = f(tree)
            if (a != tree.first).any() or (b != tree.layers[0].w).any():
                failed.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def _random_part(rng, depth):
    def child():
        return _random_part(rng, depth - 1)

    static = rng.choice([1, 1.0, True, None, "a", "b", (1, "a"), (1.0, "a"), jnp.tanh])
    if rng.random() < 0.3:
        static = rng.choice(rng.choice([*STATICS.values()]))
    if rng.random() < 0.3:
        static = Config(static, Init(rng.choice([1, 1.0])))
    if depth == 0:
        return rng.choice([X, X + 1, X, None, "a", jnp.tanh, 1, 1.0])
    match rng.randrange(8):
        case 0 | 1:
            return Leaf(child(), static)
        case 2:
            return Net(child(), child(), rng.choice("ab"), rng.choice([None, jnp.sin]))
        case 3:
            return [child() for _ in range(rng.randrange(4))]
        case 4:
            return tuple(child() for _ in range(rng.randrange(3)))
        case 5:
            return {key: child() for key in rng.sample("abc", rng.randrange(1, 4))}
        case 6:
            return Pair(child(), child())
        case _:
            return State(child(), child())


def _containers(tree, found):
    if isinstance(tree, eqx.Module | State):
        children = list(vars(tree).values())
    elif isinstance(tree, dict):
        children = list(tree.values())
    elif isinstance(tree, list | tuple):
        children = list(tree)
    else:
        return found
    if not isinstance(tree, tuple):
        found.append(tree)
    for x in children:
        _containers(x, found)
    return found


def _change(tree, rng):
    """Changes a tree somewhere, in place."""
    where = rng.choice(_containers(tree, []))
    config = getattr(where, "n", None)
    if isinstance(config, Config) and rng.random() < 0.7:
        new = rng.choice([1, 2, 1.0, "a"])
        match rng.randrange(4):
            case 0:
                config.size = new
            case 1:
                object.__setattr__(config.init, "gain", new)
            case 2:
                config.tags[0] = rng.choice("ab")
            case _:
                config.more["c"] = new
        return
    new = _random_part(rng, rng.randrange(2))
    if isinstance(where, dict):
        where[rng.choice("abcd")] = new
    elif isinstance(where, list):
        if where and rng.random() < 0.5:
            del where[rng.randrange(len(where))]
        where.insert(rng.randrange(len(where) + 1), new)
    else:
        name = rng.choice([f.name for f in dataclasses.fields(where)])
        if name in ("n", "name"):
            new = rng.choice([1, 1.0, "a", "b", (1, "a"), None])
        vars(where)[name] = new


@pytest.mark.one_engine
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_are_read_as_the_reference_reads_them(seed):
    rng = random.Random(seed)
    call = filter_jit(lambda tree: None)
    table = call._function.table
    found, n_learnt = {}, 0
    for _ in range(4):
        tree = Net(_random_part(rng, 3), [_random_part(rng, 3)], "n")
        for i in range(40):
            if i % 4 == 0:
                for _ in range(CALLS):
                    call(tree)
            walk = _partition.walk((tree,))
            spec = table.get(call._function, (tree,))
            n_learnt += spec.n_known
            arrays = table.arrays_of(spec, (tree,), None)
            assert list(map(id, arrays)) == list(map(id, walk.arrays))
            assert found.setdefault(tuple(walk.trail), spec) is spec
            for _ in range(rng.randrange(3)):
                _change(tree, rng)
    assert not HAS_VERSIONS or n_learnt > 10
    assert len(set(map(id, found.values()))) == len(found)


class Gain:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


class View:
    """Another object with the same attributes."""

    def __init__(self, other):
        self.__dict__ = other.__dict__


def _set_n(view, n):
    view.n = n


@dataclasses.dataclass(frozen=True)
class Settings:
    n: typing.Any


@pytest.mark.parametrize("make", [lambda n: Leaf(X, n), lambda n: Leaf(X, Settings(n))])
def test_a_dictionary_that_two_instances_share(make):
    """CPython drops the old value before the dictionary has a new version."""

    @filter_jit
    def f(leaf):
        return leaf.w * (leaf.n.n if type(leaf.n) is Settings else leaf.n)()

    leaf = make(Gain(1).get)
    owner = leaf.n if type(leaf.n) is Settings else leaf
    # One that shares its keys with none.
    object.__setattr__(owner, "__dict__", dict(vars(owner)))
    view, seen = View(owner), []
    # The interpreter adapts the code to what it is given.
    set_n = types.FunctionType(_set_n.__code__.replace(), {})
    for _ in range(50):
        set_n(view, owner.n)
    for _ in range(3 * CALLS):
        f(leaf)
    alive = weakref.ref(owner.n, lambda _: seen.append(f(leaf)))
    set_n(view, Gain(2).get)
    assert alive() is None
    assert [out.tolist() for out in (*seen, f(leaf))] == [[0, 2, 4], [0, 2, 4]]
