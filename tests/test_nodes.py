"""Registered dataclasses and dictionaries of all kinds as nodes, on both engines."""

import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _partition, _plan, filter_jit
from eqx_fastjit._nodes import classify, NodeKind
from tests.traces import count_traces


def _check(*trees, traces=None):
    """The function receives and returns each tree as JAX flattens it."""
    seen = []

    @filter_jit
    def f(tree):
        seen.append(tree)
        return jtu.tree_map(lambda x: x * 2 if isinstance(x, jax.Array) else x, tree)

    for tree in (*trees, *trees):
        out = f(tree)
        assert jtu.tree_structure(out) == jtu.tree_structure(tree)
        for x, y in zip(jtu.tree_leaves(tree), jtu.tree_leaves(out), strict=True):
            if isinstance(x, jax.Array):
                np.testing.assert_array_equal(y, x * 2)
            else:
                assert type(x) is type(y) and x == y
    assert len(seen) == (len(trees) if traces is None else traces)


A, B = jnp.arange(3.0), jnp.arange(3.0) + 10


def _registered(*, data=None, meta=None, drop=(), **options):
    """A decorator that makes a class a dataclass and registers it with JAX."""

    def register(cls):
        cls = dataclasses.dataclass(**options)(cls)
        return jtu.register_dataclass(cls, data, meta, drop_fields=drop)

    return register


def _static(**options):
    return dataclasses.field(metadata={"static": True}, **options)


def test_a_dataclass():
    @_registered()
    class Data:
        a: object
        n: int = _static()
        b: object = None

    _check(Data(A, 1, B), Data(A, 1.0, B), Data(A, 1, None), Data({"x": A}, True, 2))


def test_a_dataclass_whose_static_fields_are_named_in_another_order():
    @_registered(data=["b", "a"], meta=["n", "m"])
    class Data:
        m: object
        a: object
        n: object
        b: object

    _check(Data(None, A, None, B), Data(1, A, 2, B), Data(2, A, 1, B))


def test_a_dataclass_with_a_field_that_jax_does_not_see():
    @_registered(data=["a"], meta=[], drop=["n"])
    class Data:
        a: object
        n: int = 5

    _check(Data(A), Data(B, 7), traces=1)


def test_a_dataclass_with_a_computed_field():
    @_registered(data=["a"], meta=["n"])
    class Data:
        a: object
        n: int
        twice: object = dataclasses.field(init=False, default=None)

        def __post_init__(self):
            self.twice = self.n * 2

    _check(Data(A, 1), Data(A, 2))


def test_a_dataclass_with_slots():
    @_registered(slots=True)
    class Data:
        a: object
        n: int = _static()

    _check(Data(A, 1), Data(A, 2))


def test_a_dataclass_with_a_property_for_a_field():
    @_registered(data=["a"], meta=["n"], init=False)
    class Data:
        a: object
        n: object

        def __init__(self, a, n):
            self.a, self.n = a, n

    Data.n = property(
        lambda self: self.__dict__["n"] + 1,
        lambda self, value: self.__dict__.__setitem__("n", value - 1),
    )
    seen = []
    f = filter_jit(lambda x: seen.append(x.n) or x.a * x.n)
    for n in (1, 2, 1):
        np.testing.assert_array_equal(f(Data(A, n)), A * n)
    assert seen == [1, 2]


def test_a_dataclass_that_reads_attributes_in_its_own_way():
    @_registered()
    class Data:
        a: object
        n: int = _static()

        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            return value + 1 if name == "n" else value

    seen = []
    f = filter_jit(lambda x: seen.append(1) or x.a)
    for n in (1, 2, 1):
        f(Data(A, n))
    assert len(seen) == 2


def test_a_class_that_is_registered_like_a_dataclass():
    class Data:
        def __init__(self, a, n):
            self.a, self.n = a, n

    jtu.register_dataclass(Data, ["a"], ["n"])
    _check(Data(A, 1), Data(A, 2))


def test_a_dataclass_with_more_in_its_dictionary():
    @_registered()
    class Data:
        a: object
        n: int = _static()

    more = Data(A, 1)
    more.note = "not a field"
    _check(Data(A, 1), Data(B, 2))
    f = filter_jit(lambda x: x.a)
    np.testing.assert_array_equal(f(more), A)


class _Number(enum.IntEnum):
    one = 1


class _Name(str):
    pass


class _Reversed(str):
    def __lt__(self, other):
        return str.__gt__(self, other)


class _Part(enum.Enum):
    b = 1
    a = 2

    def __lt__(self, other):
        return self.value < other.value


KEYS = [
    ["b", "a"],
    [3, 1, 2],
    [2**70, -1],
    [_Number.one, 0],
    [True, 0],
    [1.5, 0.5],
    [_Name("b"), _Name("a"), _Name("c")],
    [_Name("b"), "a", _Name("c")],
    [_Reversed("b"), _Reversed("a"), _Reversed("c")],
    list(_Part),
]


@pytest.mark.parametrize("keys", [*KEYS, [("b", 1), ("a", 2)], [b"b", b"a"]])
@pytest.mark.parametrize("kind", ["dict", "ordered", "default", "list factory"])
def test_dictionaries(kind, keys):
    make = {
        "dict": dict,
        "ordered": collections.OrderedDict,
        "default": lambda pairs: collections.defaultdict(None, pairs),
        "list factory": lambda pairs: collections.defaultdict(list, pairs),
    }[kind]
    pairs = [(k, x) for k, x in zip(keys, (A, B, A + B), strict=False)]
    orders = 2 if kind == "ordered" else 1
    _check(make(pairs), make(reversed(pairs)), traces=orders)


def test_an_ordered_dict_that_was_put_in_another_order():
    """After `move_to_end`, its order differs from that of the underlying `dict`."""
    moved = collections.OrderedDict(a=A, b=B)
    moved.move_to_end("a")
    _check(
        moved, collections.OrderedDict(a=A, b=B), collections.OrderedDict(), traces=3
    )
    _check(moved, collections.OrderedDict(b=B, a=A), traces=1)


def test_keys_by_type():
    _check({1: A}, {True: A}, {1.0: A}, {_Number.one: A}, {"1": A})
    _check({1: A, 2: B}, {True: A, 2: B}, {1: A, 2.0: B})
    for cls in (collections.OrderedDict, lambda x: collections.defaultdict(int, x)):
        _check(cls({1: A}), cls({True: A}), cls({1.0: A}))


@pytest.mark.parametrize(
    ("cls", "args"),
    [(dict, ()), (collections.OrderedDict, ()), (collections.defaultdict, (list,))],
)
def test_attributes_of_keys(cls, args):
    """Keys are statics, and are different if their attributes are."""

    def make(keys, *values):
        return cls(*args, zip(keys, values, strict=True))

    def of(*values):
        names = [_Name("b"), _Name("a")]
        for name, value in zip(names, values, strict=False):
            name.value = value
        return names

    first, same, other = of(1, [2]), of(1, [2]), of(1, [3])
    _check(make(first, A, B), make(same, B, A), traces=1)
    _check(make(first, A, B), make(other, A, B))
    _check(make(first, A, B), make(of(), A, B))
    f, traces = count_traces(lambda d: None)
    changed = make(first, A, B)
    f(changed)
    first[1].value[0] = 4
    f(changed)
    assert len(traces) == 2


def test_keys_that_change_their_dictionary():
    """The call raises an error, or uses the entries that are left."""

    class Key(str):
        def __lt__(self, other):
            gone.update(d)
            d.clear()
            return str.__lt__(self, other)

    gone = {}
    d = {Key(x): jnp.asarray(float(i)) for i, x in enumerate("cab")}
    with contextlib.suppress(KeyError):
        assert filter_jit(lambda d: d)(d) == {}
    assert len(gone) == 3


class _Factory:
    def __init__(self, n):
        self.n = n

    def __call__(self):
        return self.n

    def __eq__(self, other):
        return type(other) is _Factory and other.n == self.n

    def __hash__(self):
        return hash(self.n)


def test_factories():
    make = collections.defaultdict
    _check(make(list, a=A), make(dict, a=A), make(None, a=A), make(_Factory(1), a=A))
    _check(make(_Factory(1), a=A), make(_Factory(1), a=B), traces=1)


def test_kinds_of_dictionaries():
    pairs = {"a": A}
    _check(pairs, collections.OrderedDict(pairs), collections.defaultdict(None, pairs))


def test_many_keys():
    _check(dict.fromkeys(range(200), A), {f"k{i}": A for i in reversed(range(200))})


def test_keys_that_cannot_be_sorted():
    f = filter_jit(lambda d: d)
    with pytest.raises((TypeError, ValueError)):
        f({1: A, "a": B})
    with pytest.raises((TypeError, ValueError)):
        f(collections.defaultdict(None, {1: A, "a": B}))
    _check(collections.OrderedDict({1: A, "a": B}))


def test_static_data_of_a_result_that_can_be_changed():
    """As under Equinox, it is the very object that was in the static field."""

    @_registered()
    class Data:
        a: object
        n: list = _static()

    data = Data(A, [1])
    for jit in (filter_jit, eqx.filter_jit):
        f = jit(lambda x: x)
        assert f(data).n is data.n and f(data).n is data.n


@jtu.register_pytree_node_class
class _WithData:
    def __init__(self, x, *data):
        self.x, self.data = x, data

    def tree_flatten(self):
        return (self.x,), self.data

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children, *data)


@jtu.register_pytree_node_class
class _WithCopies(_WithData):
    def tree_flatten(self):
        return (self.x,), ("a", tuple(map(list, self.data)))

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children, *data[1])


@pytest.mark.one_engine
def test_what_is_flattened_again_for_each_result():
    def template(tree):
        return _plan._template(_partition.partition(tree)[1])

    assert template({"a": [A, (B, None)], "b": eqx.nn.Identity()}) is None
    assert template([_WithData(A, "a"), _WithData(A, (1, "b"))]) is None
    assert template([_WithData(A, ["a"])]) is None
    assert template([_WithCopies(A)]) is None
    assert template([_WithCopies(A, ["a"])]) is not None


def test_static_data_that_is_copied_from_a_result():
    """Of the others, each result has the very object, as under `jax.jit`."""
    f = filter_jit(lambda x: {"a": [x], "b": x})
    shared = ["a"]
    first, second = f(_WithData(A, shared)), f(_WithData(A, shared))
    assert first["b"].data[0] is second["b"].data[0]
    for n in range(3):
        out = f(_WithCopies(A + n, ["a"], ["b"]))
        assert out["a"][0].data == out["b"].data == (["a"], ["b"])
        np.testing.assert_array_equal(out["b"].x, A + n)
        out["b"].data[1].append(n)


def test_a_named_tuple_that_overrides_new_is_made_by_it():
    made = []

    class Counted(collections.namedtuple("Counted", "x name")):
        __slots__ = ()

        def __new__(cls, x, name):
            made.append(name)
            return super().__new__(cls, x, name)

    f = filter_jit(lambda x: Counted(x, "static"))
    f(A)
    made.clear()
    out = f(B)
    assert made == ["static"]
    assert type(out) is Counted
    np.testing.assert_array_equal(out.x, B)
    assert out.name == "static"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (jnp.ones(2), NodeKind.ARRAY),
        (np.ones(2), NodeKind.NUMPY),
        (np.float32(1), NodeKind.OTHER_ARRAY),
        (jax.random.key(0), NodeKind.OTHER_ARRAY),
        (jax.random.PRNGKey(0), NodeKind.ARRAY),
    ],
    ids=lambda x: type(x).__name__,
)
def test_kinds_of_arrays(array, kind):
    """The native walk takes the class of the first `ARRAY` for that of all others."""
    assert classify(array).kind == kind


def test_an_ordered_dictionary_that_disagrees_with_itself():
    """`dict` and `OrderedDict` have each a list of the keys."""
    tree = collections.OrderedDict(a=A, b=B)
    f = filter_jit(lambda tree: tree["b"])
    f(tree)
    dict.__delitem__(tree, "a")
    dict.__setitem__(tree, "c", A)
    with pytest.raises(KeyError, match="a"):
        f(tree)


class _Caching(eqx.Module):
    """Instances come to have attributes that are no fields."""

    w: jax.Array
    scale: float = 2.0
    n: int = eqx.field(static=True, default=3)

    @functools.cached_property
    def area(self):
        return self.n**2


def _others():
    """What instances may have, in any order; as cached values, and as of a wrapper."""
    fields = {"w": A, "scale": 2.0, "n": 3}
    others = {"area": 9, "__doc__": "A doc.", "odd": [1]}
    for n in range(4):
        for names in itertools.permutations(others, n):
            chosen = {name: others[name] for name in names}
            yield {**fields, **chosen}
            yield {**chosen, **fields}
            yield {"w": A, **chosen, "scale": 2.0, "n": 3}
    for rest in ({}, {"area": 9}):
        yield {**fields, "scale": 2.5, **rest}
        yield {**fields, "n": 4, **rest}


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("static", (False, True))
def test_attributes_that_are_no_fields(engine, static):
    """Equinox reads them if they are of a wrapper, and notices if there are any."""

    class Holder(eqx.Module):
        model: _Caching = eqx.field(static=static)

    def step(holder, x):
        model = holder.model
        return model.w * x * model.scale * model.n, model

    ours, traces = count_traces(step)
    theirs, expected_traces = count_traces(step, jit=eqx.filter_jit)
    for _ in range(2):
        for attributes in _others():
            model = object.__new__(_Caching)
            vars(model).update(attributes)
            holder = Holder(model)
            y, out = ours(holder, B)
            expected_y, expected = theirs(holder, B)
            np.testing.assert_array_equal(y, expected_y)
            if static:
                continue  # it is the model itself, or one that is equal
            assert list(vars(out)) == list(vars(expected))
            assert jtu.tree_structure(out) == jtu.tree_structure(expected)
    assert len(traces) == len(expected_traces)


def test_another_attribute_and_a_field_that_is_not_there(engine):
    """To Equinox, one makes up for the other; its own `filter_jit` raises."""
    f, traces = count_traces(lambda m, x: m.w * x * m.scale * m.n)
    met = []
    for _ in range(2):
        for values in ({}, {"area": 9}, {"area": 9, "odd": 1}, {"__doc__": "A doc."}):
            for missing in ("scale", "n"):
                model = _Caching(A)
                del vars(model)[missing]
                vars(model).update(values)
                np.testing.assert_array_equal(f(model, B), A * B * 6)
        met.append(len(traces))
    assert met[0] == met[1] <= 8


def _dataclasses():
    """Classes of the fields x, y, n, by what their instances are made of."""
    static = {"metadata": {"static": True}}

    @dataclasses.dataclass
    class Plain:
        x: jax.Array
        n: int = dataclasses.field(**static)
        y: object = None

    @dataclasses.dataclass
    class Derived(Plain):
        y: object = dataclasses.field(default_factory=list, kw_only=True)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Frozen:
        y: object = dataclasses.field(default_factory=dict)
        x: jax.Array
        n: int = dataclasses.field(**static)

    @dataclasses.dataclass
    class Checked(Plain):
        def __post_init__(self):
            self.made = True

    @dataclasses.dataclass
    class Setting(Plain):
        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            object.__setattr__(self, name + "_set", True)

    @dataclasses.dataclass
    class Written(Plain):
        def __init__(self, x, n, y):
            self.n, self.y, self.x = n, y, x

    @dataclasses.dataclass
    class New(Plain):
        def __new__(cls, *args, **kwargs):
            self = object.__new__(cls)
            self.new = True
            return self

    @dataclasses.dataclass
    class Found(Plain):
        y = property(lambda self: self._y, lambda self, y: setattr(self, "_y", y))

    @dataclasses.dataclass(slots=True)
    class Slots:
        x: jax.Array
        n: int = dataclasses.field(**static)
        y: object = None

    @dataclasses.dataclass
    class More(Plain):
        more: list = dataclasses.field(default_factory=list, init=False)

    return Plain, Derived, Frozen, Checked, Setting, Written, New, Found, Slots, More


@pytest.mark.parametrize("number", range(10))
def test_registered_dataclasses_in_results(engine, number):
    """They are as JAX makes them: by calling their class."""
    cls = _dataclasses()[number]
    jtu.register_dataclass(cls, data_fields=["x", "y"], meta_fields=["n"])

    def attributes(x):
        names = ("x", "n", "y") if cls.__dictoffset__ == 0 else vars(x)
        return [(name, getattr(x, name)) for name in names]

    def step(x):
        return cls(x=2 * x.x, n=[x.n], y=(x.y, None))

    f, jitted = filter_jit(step), jax.jit(step)
    tree = cls(x=A, n=3, y={"b": B})
    expected = attributes(jitted(tree))
    for _ in range(3):
        out = f(tree)
        assert type(out) is cls
        got = attributes(out)
        assert [name for name, _ in got] == [name for name, _ in expected]
        assert eqx.tree_equal(got, expected)


@pytest.mark.skipif(
    "drop_fields" not in inspect.signature(jtu.register_dataclass).parameters,
    reason="this JAX drops no fields",
)
def test_a_field_that_jax_drops(engine):
    @dataclasses.dataclass
    class Point:
        x: jax.Array
        seen: list = dataclasses.field(default_factory=list)

    jtu.register_dataclass(Point, ["x"], [], drop_fields=["seen"])
    f = filter_jit(lambda point: point)
    outs = [f(Point(A, [1])) for _ in range(3)]
    for out in outs:
        np.testing.assert_array_equal(out.x, A)
        assert out.seen == []
    assert outs[0].seen is not outs[1].seen is not outs[2].seen


def test_dataclasses_that_notice_that_they_are_made(engine):
    made = []

    @jtu.register_dataclass
    @dataclasses.dataclass
    class New:
        x: jax.Array

        def __new__(cls, *args, **kwargs):
            made.append("new")
            return object.__new__(cls)

    @jtu.register_dataclass
    @dataclasses.dataclass
    class Setting:
        x: jax.Array

        def __setattr__(self, name, value):
            made.append("set")
            object.__setattr__(self, name, value)

    f = filter_jit(lambda x: (New(x), Setting(x)))
    f(A)
    for _ in range(2):
        made.clear()
        f(A)
        assert made == ["new", "set"]


def test_modules_of_a_result_share_the_keys_of_their_dictionaries(engine):
    class Pair(eqx.Module):
        x: jax.Array
        y: jax.Array

    @jtu.register_dataclass
    @dataclasses.dataclass
    class Point:
        x: jax.Array
        y: jax.Array

    for cls in (Pair, Point):
        # The more there are, the less room each has for attributes to come.
        *_, last = [cls(A, B) for _ in range(40)]
        made = filter_jit(lambda x: x)(last)
        size = sys.getsizeof(vars(last))
        assert sys.getsizeof(vars(made)) == size < sys.getsizeof({**vars(made)})


def test_a_dataclass_that_is_changed_after_a_call(engine):
    @jtu.register_dataclass
    @dataclasses.dataclass
    class Point:
        x: jax.Array
        y: jax.Array

    f = filter_jit(lambda point: Point(point.y, point.x))
    point = Point(A, B)
    for _ in range(2):
        assert list(vars(f(point))) == ["x", "y"]
    init = Point.__init__

    def slower(self, x, y):
        init(self, x, y)
        self.collects = gc.isenabled()

    Point.__init__ = slower
    for _ in range(2):
        assert list(vars(f(point))) == ["x", "y", "collects"]
        assert f(point).collects
    Point.__init__ = init
    Point.__setattr__ = lambda self, name, x: object.__setattr__(self, name, x + 1)
    for _ in range(2):
        out = f(point)
        np.testing.assert_array_equal(out.x, B + 1)
        np.testing.assert_array_equal(out.y, A + 1)


# --- eqx.nn.State --------------------------------------------------------------------


class _Counts(eqx.Module):
    indices: list[eqx.nn.StateIndex]

    def __init__(self, *init):
        self.indices = [eqx.nn.StateIndex(x) for x in init]


def _state(*init):
    return eqx.nn.make_with_state(_Counts)(*init)[1]


def _dictionary(state):
    (dictionary,) = vars(state).values()
    return dictionary


def test_states():
    one = _state(jnp.ones(2), {"b": jnp.arange(3), "a": (jnp.ones(1), jnp.zeros(2))})
    other = _state(*[jnp.arange(float(i)) for i in range(60)])
    turned, longer = _state(jnp.ones(2), jnp.ones(2)), _state(jnp.ones(2))
    keys = list(_dictionary(turned))
    for key in keys[::-1]:
        _dictionary(turned)[key] = _dictionary(turned).pop(key)
    _dictionary(longer).update(more=jnp.ones(2))
    _check(one, other, _state(), turned, longer, traces=5)
    assert _dictionary(turned).keys() == set(keys)


def test_the_keys_of_a_state_are_static(engine):
    traces = []

    @filter_jit
    def f(state):
        traces.append(keys := list(_dictionary(state)))
        return keys

    x = jnp.ones(2)
    state = _state(x)
    for keys in (["a"], ["b"], ["a", "b"], ["b", "a"], [1], [True], [object()], []):
        _dictionary(state).clear()
        _dictionary(state).update(dict.fromkeys(keys, x))
        n = len(traces)
        for _ in range(20):
            found = f(state)
            assert found == keys and list(map(type, found)) == list(map(type, keys))
        assert len(traces) == n + 1


def test_a_state_with_other_attributes(engine):
    x = jnp.ones(2)
    f = filter_jit(lambda state: jtu.tree_map(lambda x: x * 2, state))
    for names in (["before", None], [None, "after"], ["before", None, "after"]):
        state, (name, dictionary) = (
            object.__new__(eqx.nn.State),
            *vars(_state(x)).items(),
        )
        for other in names:
            setattr(state, *((name, dictionary) if other is None else (other, 1)))
        for _ in range(20):
            (out,) = _dictionary(f(state)).values()
            assert out.tolist() == [2, 2]


def test_a_state_that_was_replaced_is_an_error_as_in_equinox(engine):
    x = jnp.ones(2)
    model, state = eqx.nn.make_with_state(_Counts)(x)
    f = filter_jit(lambda state: jtu.tree_leaves(state)[0] * 2)
    for _ in range(20):
        f(state)
    new = state.set(model.indices[0], x + 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="old state"):
            f(state)
        assert f(new).tolist() == [4, 4]


def test_a_state_that_is_more_than_a_dictionary_is_asked(monkeypatch):
    assert classify(_state()).kind == NodeKind.STATE
    with monkeypatch.context() as patch:
        patch.setattr(eqx.nn.State, "tree_flatten", lambda self: ((), None))
        assert classify(_state()).kind == NodeKind.CUSTOM
    with monkeypatch.context() as patch:
        patch.setattr(
            eqx.nn.State, "__getattribute__", lambda *a: object.__getattribute__(*a)
        )
        assert classify(_state()).kind == NodeKind.CUSTOM
