"""When two statics are the same, and what is kept alive for them, on both engines."""

import argparse
import array
import collections
import dataclasses
import enum
import functools
import gc
import pathlib
import signal
import sys
import threading
import types
import weakref

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import _callables, filter_jit
from tests.processes import run_code
from tests.traces import count_traces


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
X = jnp.ones(3)


class Holder(eqx.Module):
    """Has a static field, whose value need not be hashable."""

    x: jax.Array
    static: object = eqx.field(static=True)


def _traces_of(f, *calls):
    """The number of traces of a function after each call."""
    traces = []

    @filter_jit
    def jitted(*args):
        traces.append(1)
        return f(*args)

    out = []
    for args in calls:
        jitted(*args)
        out.append(len(traces))
    return out


def _of_static(x, static):
    return X


# --- what is compared ---


@dataclasses.dataclass(frozen=True, slots=True)
class _Nothing:
    """Has neither fields nor a `__dict__`."""


def test_a_dataclass_without_fields():
    calls = [(X, _Nothing()), (Holder(X, _Nothing()), 1)]
    assert _traces_of(lambda x, _: x, *calls, *calls) == [1, 2, 2, 2]


def test_a_static_module_is_its_arrays_too():
    nets = [eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(2)]
    f = filter_jit(lambda m: m.static(m.x))
    for net in (*nets, *nets):
        assert jnp.allclose(f(Holder(X, net)), net(X))
    compiled = f.lower(Holder(X, nets[0])).compile()
    with pytest.raises(TypeError, match="was called with different arguments"):
        compiled(Holder(X, nets[1]))
    same = jtu.tree_map(lambda x: x + 0, nets[0])
    assert (
        _traces_of(lambda m: m.x, *[(Holder(X, n),) for n in (nets[0], same)])[-1] == 1
    )


def test_a_static_partial_is_its_arrays_too():
    f = filter_jit(lambda m: m.static(m.x))
    for factor in (2.0, 3.0, 2.0):
        partial = eqx.Partial(jnp.multiply, jnp.full(3, factor))
        assert f(Holder(X, partial)).tolist() == [factor] * 3


class _EqualByName:
    name = "same"

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None


@dataclasses.dataclass(eq=False)
class _Cfg(_EqualByName):
    sizes: list


@dataclasses.dataclass
class _Base:
    n: int = 0


@dataclasses.dataclass(eq=False)
class _Inheriting(_Base):
    sizes: list = dataclasses.field(default_factory=list)


def test_a_dataclass_with_an_inherited_eq():
    f = filter_jit(lambda m: m.x * m.static.sizes[0])
    for size in (2, 5, 2):
        assert f(Holder(X, _Cfg([size]))).tolist() == [size] * 3


class _Str(enum.StrEnum):
    a = "a"


class _Int(enum.IntEnum):
    one = 1


def test_keys_of_dictionaries_by_type():
    @filter_jit
    def f(d):
        (key,) = d
        return {"type": type(key).__name__, "x": d[key]}

    for keys in (("a", _Str.a), (1, True, 1.0, _Int.one)):
        for key in (*keys, *keys):
            assert f({key: X})["type"] == type(key).__name__


@dataclasses.dataclass(frozen=True)
class _Point:
    n: object


def test_types_and_bits_inside_of_objects():
    for a, b in ((1, 1.0), (1, True), (0.0, -0.0), ("a", _Str.a), (1, _Int.one)):
        points = [_Point(a), _Point(b), _Point(a)]
        assert _traces_of(_of_static, *[(X, p) for p in points])[-1] == 2
        held = [(Holder(X, types.SimpleNamespace(p=[p])),) for p in points]
        assert _traces_of(lambda m: m.x, *held)[-1] == 2


def test_attrs_and_pydantic():
    attrs = pytest.importorskip("attrs")

    @attrs.frozen
    class Attrs:
        n: object

    calls = [(X, Attrs(n)) for n in (1, 1.0, 1, True)]
    assert _traces_of(_of_static, *calls) == [1, 2, 2, 3]


def test_equal_and_not_identical_is_a_hit():
    def make():
        return (
            _Point((1, "b" * 3, 2.5, (None, b"x"))),
            frozenset([_Point(1)]),
            range(3),
            np.dtype("float32"),
            functools.partial,
            10**30,
            1 + 2j,
        )

    for a, b in zip(make(), make(), strict=True):
        assert _traces_of(_of_static, (X, a), (X, b)) == [1, 1]


# --- subclasses of containers that lie ---


class _Tuple(tuple):
    def __iter__(self):
        return iter(())


class _List(list):
    def __iter__(self):
        return iter(())


class _Dict(dict):
    def items(self):
        return ()

    def __iter__(self):
        return iter(())


class _Frozenset(frozenset):
    def __iter__(self):
        return iter(())


class _Complex(complex):
    real = 0.0
    imag = 0.0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (_Tuple((1,)), _Tuple((2,))),
        (_List([1]), _List([2])),
        (_Dict(a=1), _Dict(a=2)),
        (_Frozenset([1]), _Frozenset([2])),
        (_Complex(1), _Complex(2)),
    ],
)
def test_containers_are_read_by_the_base_types_means(a, b):
    assert _traces_of(lambda m: m.x, (Holder(X, a),), (Holder(X, b),)) == [1, 2]


class _AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class _Vivifying(dict):
    def __missing__(self, key):
        value = self[key] = type(self)()
        return value

    def __getattr__(self, name):
        return self[name]


class _SelfDict(dict):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.__dict__ = self


@pytest.mark.parametrize("cls", [_AttrDict, _Vivifying, _SelfDict])
def test_dictionaries_with_attributes(cls):
    f = filter_jit(lambda m: m.x * dict.__getitem__(m.static, "n"))
    for n in (2, 3, 2):
        d = cls(n=n)
        assert f(Holder(X, d)).tolist() == [n] * 3
        assert list(d) == ["n"]


# --- changes ---


@dataclasses.dataclass
class _Mutable:
    n: int


@dataclasses.dataclass(unsafe_hash=True)
class _UnsafeHash:
    n: int


class _Compares:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return type(self) is type(other) and self.n == other.n

    __hash__: None = None  # pyright: ignore


@dataclasses.dataclass(eq=False)
class _ComparesFields(_Compares):
    n: int


class _ListWithN(list):
    pass


class _SetOfN(set):
    pass


def _set_n(s):
    s.n = 99


_RECORD = np.dtype([("n", int)])


def _with_n(cls):
    def make(n):
        out = cls()
        out.n = n
        return out

    return make


@pytest.mark.parametrize(
    ("make", "change", "read"),
    [
        (_Compares, _set_n, lambda s: s.n),
        (_ComparesFields, _set_n, lambda s: s.n),
        (lambda n: types.SimpleNamespace(n=n), _set_n, lambda s: s.n),
        (lambda n: argparse.Namespace(n=n), _set_n, lambda s: s.n),
        (_with_n(_ListWithN), _set_n, lambda s: s.n),
        (_with_n(_SetOfN), _set_n, lambda s: s.n),
        (lambda n: _SetOfN({n}), lambda s: (s.clear(), s.add(99)), max),
        (lambda n: _ListWithN([n]), lambda s: s.__setitem__(0, 99), lambda s: s[0]),
        (lambda n: collections.deque([n]), lambda s: s.__setitem__(0, 99), max),
        (lambda n: bytearray([n]), lambda s: s.__setitem__(0, 99), max),
        (lambda n: np.array([n]), lambda s: s.fill(99), lambda s: int(s[0])),
        (lambda n: array.array("i", [n]), lambda s: s.__setitem__(0, 99), max),
        (
            lambda n: np.array((n,), _RECORD)[()],
            lambda s: s.__setitem__("n", 99),
            lambda s: int(s["n"]),
        ),
        (
            lambda n: types.MappingProxyType({"n": [n]}),
            lambda s: s["n"].__setitem__(0, 99),
            lambda s: s["n"][0],
        ),
        (lambda n: [n], lambda s: s.__setitem__(0, 99), lambda s: s[0]),
        (lambda n: {"n": n}, lambda s: s.update(n=99), lambda s: s["n"]),
        (lambda n: {n}, lambda s: (s.clear(), s.add(99)), lambda s: max(s)),
        (_Mutable, lambda s: setattr(s, "n", 99), lambda s: s.n),
        (_UnsafeHash, lambda s: setattr(s, "n", 99), lambda s: s.n),
        (lambda n: ((n, [n]),), lambda s: s[0][1].append(9), lambda s: len(s[0][1])),
    ],
)
def test_a_static_that_was_changed_after_its_trace(make, change, read):
    """Neither the changed static nor one equal to its old value uses the old trace."""
    is_array = isinstance(make(1), np.ndarray | np.generic)
    f = filter_jit(lambda m: (m.x * read(m.static), m, None if is_array else m.static))
    first, second = make(1), make(1)
    expected = read(second)
    assert f(Holder(X, first))[0][0] == expected
    change(first)
    for static in (second, make(1), first, make(1)):
        out, holder, same = f(Holder(X, static))
        assert out[0] == read(static)
        assert read(holder.static) == read(static)
        assert is_array or read(same) == read(static)


def test_a_change_is_seen_in_the_middle_of_shapes():
    f = filter_jit(lambda m: (m.x, m.static))
    a, b = [1], [1]
    f(Holder(X, a))
    f(Holder(jnp.ones(4), b))  # a second trace of the same specialization
    b[0] = 99
    for n in (3, 4):
        _, same = f(Holder(jnp.ones(n), [1]))
        assert same == [1]


def test_arrays_in_static_fields():
    one = np.array([1.0])
    f = filter_jit(lambda m: m.x * float(m.static[0]))
    for value in (1.0, 2.0, 1.0):
        one[0] = value
        assert f(Holder(X, one))[0] == value
    traces = _traces_of(
        lambda m: m.x,
        *[(Holder(X, np.array([v])),) for v in (0.0, -0.0, 0.0)],
    )
    assert traces == [1, 2, 2]
    inside = np.array([[1]], object)
    f = filter_jit(lambda m: m.x * m.static[0, 0])
    for value in (1, 2, 1.0):
        inside[0, 0] = value
        assert f(Holder(X, inside))[0] == value


def test_static_jax_arrays_of_one_element():
    strong, weak = jnp.ones(()), jax.jit(lambda: 1.0)()
    assert weak.weak_type and not strong.weak_type
    traces = _traces_of(
        lambda m: m.x, *[(Holder(X, a),) for a in (strong, weak, strong)]
    )
    assert traces == [1, 2, 2]
    f = filter_jit(lambda m: m.x)
    with jax.ensure_compile_time_eval():
        a, b = jnp.array([1.0]), jnp.array([1.0])
    jax.jit(lambda x: f(Holder(x, a)) + f(Holder(x, b)))(X)


def test_a_class_that_is_given_an_eq():
    class Late:
        def __init__(self, n):
            self.n = n

    f = filter_jit(lambda x, s: x * s.n)
    assert f(X, Late(2))[0] == 2
    Late.__eq__ = lambda self, other: self.n == other.n
    Late.__hash__ = lambda self: hash(self.n)
    traces = _traces_of(_of_static, (X, Late(3)), (X, Late(3)), (X, Late(4)))
    assert traces == [1, 1, 2]
    assert f(X, Late(3))[0] == 3 and f(X, Late(4))[0] == 4


class _WithAux:
    """A node whose static data is in its treedef."""

    def __init__(self, aux):
        self.aux = aux


jtu.register_pytree_node(_WithAux, lambda n: ((), n.aux), lambda aux, _: _WithAux(aux))


def _traces_around(static, change):
    """The number of traces of two calls, and after a change of two more."""
    holder = Holder(X, static)
    f, traces = count_traces(lambda m: m.x)
    f(holder), f(holder)
    before = len(traces)
    change()
    f(holder), f(holder)
    return before, len(traces)


def test_a_treedef_whose_static_data_changes():
    aux = [1]
    treedef = jtu.tree_structure(_WithAux(aux))
    assert _traces_around(treedef, lambda: aux.append(2)) == (1, 2)
    one, same, other = (jtu.tree_structure(_WithAux((n, "a"))) for n in (1, 1, 1.0))
    calls = [(Holder(X, treedef),) for treedef in (one, same, one, other, same)]
    assert _traces_of(lambda m: m.x, *calls) == [1, 1, 1, 2, 2]


class _Word(str):
    """Equal to a `str`, and no such."""


def test_treedefs_that_differ():
    trees = [0, None, (), [], {}, (0,), [0], (0, 0), [None], [(0,), 0], [0, (0,)]]
    trees += [[[0, 0]], [[0], 0], [{}], {"a": 0}, {"b": 0}, {_Word("a"): 0}, {b"a": 0}]
    trees += [{1: 0}, {True: 0}, {1.0: 0}, {"a": (0,)}, collections.OrderedDict(a=0)]
    trees += [collections.defaultdict(None, a=0), collections.defaultdict(int, a=0)]
    trees += [
        _WithAux(None),
        _WithAux(1),
        _WithAux(True),
        [_WithAux(1)],
        eqx.Partial(len),
    ]
    treedefs = [jtu.tree_structure(tree) for tree in trees]
    calls = [(Holder(X, x),) for x in treedefs] + [
        (Holder(X, jtu.tree_structure(tree)),) for tree in trees
    ]
    n = len(trees)
    assert _traces_of(lambda m: m.x, *calls) == [*range(1, n + 1), *[n] * n]


def test_more_treedefs_than_are_remembered():
    f, traces = count_traces(lambda m: m.x)
    make = jtu.tree_structure
    statics = [tuple(make((0,) * (10 * i + j)) for j in range(10)) for i in range(120)]
    for static in (*statics, *statics):
        f(Holder(X, static))
    assert len(traces) == 120


@pytest.mark.parametrize("grow", [False, True])
def test_a_treedef_whose_static_data_is_compared_anew(grow):
    class Late:
        n = 1

    class Node:
        pass

    aux = Late()

    def change():
        Late.__eq__ = lambda self, other: self.n == other.n
        Late.__hash__ = lambda self: hash(self.n)
        aux.n = 2
        if grow:  # forgets what is known of types
            jtu.register_pytree_node(Node, lambda n: ((), None), lambda _, xs: Node())

    assert _traces_around(jtu.tree_structure(_WithAux(aux)), change) == (1, 2)


def test_a_treedef_whose_static_data_gets_another_class():
    class First:
        pass

    class Second:
        pass

    aux = First()
    treedef = jtu.tree_structure(_WithAux(aux))
    change = functools.partial(setattr, aux, "__class__", Second)
    assert _traces_around(treedef, change) == (1, 2)


def test_paths_after_other_statics():
    statics = [pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b"), 1]
    statics += [pathlib.PurePosixPath("b"), pathlib.PurePosixPath("a")]
    calls = [(Holder(X, static),) for static in statics]
    assert _traces_of(lambda m: m.x, *calls) == [1, 2, 3, 3, 3]


def test_a_frozenset_whose_members_have_one_hash_and_change():
    @dataclasses.dataclass(frozen=True)
    class Member:
        n: int

        def __hash__(self):
            return 1

    members = Member(1), Member(2)
    f = filter_jit(lambda m: m.x * sum(member.n for member in m.static))
    holder = Holder(X, frozenset(members))
    assert [f(holder)[0], f(holder)[0]] == [3, 3]
    object.__setattr__(members[0], "n", 10)
    assert f(holder)[0] == 12
    # The trace has seen this very object, which is another now.
    assert f(Holder(X, frozenset({Member(10), Member(2)})))[0] == 12
    object.__setattr__(members[0], "n", 20)
    assert f(Holder(X, frozenset({Member(10), Member(2)})))[0] == 12


def test_an_object_whose_class_becomes_a_node():
    class Node:
        def __init__(self, x):
            self.x = x

    jtu.register_pytree_node(Node, lambda n: ((n.x,), None), lambda _, xs: Node(*xs))

    class Other:
        def __init__(self, x):
            self.x = x

    f = filter_jit(lambda s: s.x * 2)
    s = Other(3)
    assert f(s) == 6
    s.__class__ = Node
    s.x = X
    assert f(s).tolist() == [2, 2, 2]
    s.x = X * 2
    assert f(s).tolist() == [4, 4, 4]


def test_a_jitted_model_whose_static_changes():
    class Model(eqx.Module):
        x: jax.Array
        sizes: list = eqx.field(static=True)

        def __call__(self):
            return self.x * self.sizes[0]

    sizes = [2]
    jitted = jtu.tree_map(lambda x: x, filter_jit(Model(X, sizes)))
    f = filter_jit(lambda g: g())
    assert f(jitted)[0] == 2 and jitted()[0] == 2
    sizes[0] = 5
    assert f(jitted)[0] == 5 and jitted()[0] == 5


# --- defaults ---


def test_defaults_that_are_changed():
    def f(x, n=2, *, m=10):
        return x * n + m

    jitted = filter_jit(f)
    assert jitted(X)[0] == 12
    f.__defaults__ = (3,)
    assert jitted(X)[0] == 13
    f.__kwdefaults__["m"] = 20
    assert jitted(X)[0] == 23
    f.__kwdefaults__ = {"m": 30}
    assert jitted(X)[0] == 33
    f.__defaults__ = (jnp.array(4.0),)
    assert jitted(X)[0] == 34
    f.__defaults__ = (jnp.array(5.0),)
    assert jitted(X)[0] == 35
    assert jitted(X, 1, m=0)[0] == 1
    f.__defaults__ = None
    with pytest.raises(TypeError, match="missing"):
        jitted(X)


def _with_signature(where):
    import inspect

    class Lies:
        def __call__(self, x, n=2):
            return x * n

    lie = inspect.signature(lambda x, n=7: None)
    if where == "class":
        Lies.__signature__ = lie
    elif where == "property":
        Lies.__signature__ = property(lambda self: lie)
    out = Lies()
    if where == "instance":
        out.__signature__ = lie
    return out


@pytest.mark.parametrize("where", ["class", "property", "instance"])
def test_what_is_called_decides(where):
    f = filter_jit(_with_signature(where))
    assert f(X)[0] == 2
    assert f(X, 7)[0] == 7
    assert f(X)[0] == 2


def test_a_text_signature_is_not_believed():
    def f(x, n=2):
        return x * n

    f.__text_signature__ = "(x, n=7)"
    assert filter_jit(f)(X)[0] == 2


# --- graphs ---


@dataclasses.dataclass
class _Node:
    name: object
    neighbours: list = dataclasses.field(default_factory=list)


def _grid(n, name=0):
    nodes = {(i, j): _Node(name) for i in range(n) for j in range(n)}
    for (i, j), node in nodes.items():
        around = ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))
        node.neighbours = [nodes[k] for k in around if k in nodes]
    return nodes[0, 0]


def test_a_graph_of_dataclasses():
    assert _traces_of(
        lambda m: m.x,
        *[(Holder(X, _grid(12, name)),) for name in (0, 0, 0.0, 0)],
    ) == [1, 1, 2, 2]


def test_parts_that_are_shared():
    shared = _Node(1)
    for _ in range(60):
        shared = _Node(0, [shared, shared])
    assert _traces_of(lambda m: m.x, *[(Holder(X, shared),)] * 2) == [1, 1]


def test_a_few_parts_that_are_shared_or_not():
    part = _Node(1, [_Node(2)])
    one, two = [part, part], [part, _Node(1, [_Node(2)])]
    assert _traces_of(lambda m: m.x, (Holder(X, one),), (Holder(X, two),)) == [1, 1]


def _nested(n):
    out = [n]
    for _ in range(400):  # any deeper, and JAX's own flattening reaches its limit
        out = [out]
    return out


def _linked(n):
    out = None
    for i in range(2000):
        out = _Node(n + i, [out])
    return out


@pytest.mark.parametrize("make", [_nested, _linked])
def test_deep_statics(make):
    calls = [(Holder(X, make(n)),) for n in (1, 1, 2)]
    assert _traces_of(lambda m: m.x, *calls) == [1, 1, 2]


# --- things that raise ---


class _RaisingHash:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        raise ValueError("no hash")

    def __eq__(self, other):
        return self.n == other.n


class _RaisingIter(list):
    def __iter__(self):
        raise ValueError("no")


@pytest.mark.parametrize("make", [_RaisingHash, lambda n: _RaisingIter([n])])
def test_static_fields_that_raise(make):
    assert _traces_of(lambda m: m.x, *[(Holder(X, make(n)),) for n in (1, 1, 2)]) == [
        1,
        1,
        2,
    ]


@dataclasses.dataclass
class parity:
    """Has a name that sorts after that of any generated function."""

    n: int

    def __eq__(self, other):
        return self.n % 2 == other.n % 2

    def __hash__(self):
        return self.n % 2


def test_a_dataclass_that_compares_in_its_own_way():
    calls = [(Holder(X, parity(n)),) for n in (1, 3, 2, 4)]
    assert _traces_of(lambda m: m.x, *calls) == [1, 1, 2, 2]


def test_static_leaves_that_raise():
    with pytest.raises(ValueError, match="no hash"):
        filter_jit(lambda x, s: x)(X, _RaisingHash(1))


# --- blocking ---


def test_callbacks_that_appear_at_lowering():
    def impl(x):
        return eqx.error_if(x, x < 0, "negative")

    for f, x, blocks in (
        (lambda x: eqxi.noinline(impl)(x), jnp.array(1.0), True),
        (lambda x: jnp.linalg.inv(x) + jax.nn.relu(x), jnp.eye(2), False),
    ):
        jitted = filter_jit(f)
        jitted(x)
        function = jitted._function
        plan, _ = function.plan_of((x,))
        specialization = function.specialization_for((x,))
        assert function.decide_blocks(specialization, plan, [x]) is blocks


def _aligned(shape):
    """A NumPy array that JAX uses in place, without a copy, on the CPU."""
    n = int(np.prod(shape))
    raw = np.empty(n + 32, np.float32)
    offset = (-raw.ctypes.data % 64) // 4
    return raw[offset : offset + n].reshape(shape)


@pytest.mark.parametrize("transform", ["call", "grad", "jvp", "vmap", "linearize"])
def test_a_numpy_buffer_that_is_filled_again(transform):
    @filter_jit
    def f(w, batch):
        y = w
        for _ in range(6):
            y = jnp.tanh(y @ batch)
        return jnp.sum(y) + jnp.sum(batch)

    w = jnp.zeros((400, 400))
    batch = _aligned((400, 400))

    def call():
        if transform == "call":
            return f(w, batch)
        if transform == "grad":
            return jax.value_and_grad(f)(w, batch)[0]
        if transform == "jvp":
            return jax.jvp(lambda w: f(w, batch), (w,), (w,))[0]
        if transform == "vmap":
            return jax.vmap(lambda w: f(w, batch))(w[None])[0]
        return jax.linearize(lambda w: f(w, batch), w)[0]

    results = []
    for i in range(4):
        batch[:] = i
        results.append(call())
        batch[:] = -1
    assert [float(r) for r in results] == [i * 400.0 * 400 for i in range(4)]


# --- what is kept alive ---


def test_classes_of_statics_die():
    f = filter_jit(lambda m, s: m.x)

    def make():
        class Static:
            pass

        class Node:
            pass

        jtu.register_pytree_node(Node, lambda n: ((), None), lambda *_: Node())
        f(Holder(X, Static()), Static())
        return weakref.ref(Static)

    refs = [make() for _ in range(3)]
    f.clear_cache()
    gc.collect()
    assert [r() for r in refs] == [None] * 3


def test_a_function_that_its_static_refers_to_dies(monkeypatch):
    """It dies once `_MAX_FUNCTIONS` other functions have been wrapped."""
    monkeypatch.setattr(_callables, "_MAX_FUNCTIONS", 4)

    def make():
        @filter_jit
        def f(x, s):
            return x, s

        _, same = f(X, lambda: f)
        assert same() is f
        return weakref.ref(f)

    ref = make()
    others = [lambda x, i=i: x + i for i in range(5)]
    for other in others:
        filter_jit(other)
    gc.collect()
    assert ref() is None


def test_a_function_dies_with_its_compiled_functions():
    def make():
        def f(x):
            return x, Static()

        class Static:
            pass

        return weakref.ref(f), weakref.ref(filter_jit(f)(X)[1])

    refs = make()
    gc.collect()
    assert [r() for r in refs] == [None] * 2


def test_results_have_their_fields_in_order():
    class Model(eqx.Module):
        b: jax.Array
        name: str = eqx.field(static=True)
        a: jax.Array

    expected = list(vars(eqx.filter_jit(lambda m: m)(Model(X, "n", X))))
    f = filter_jit(lambda m: m)
    m = Model(X, "n", X)
    for _ in range(40):
        m = f(m)
        assert list(vars(m)) == expected


def test_a_wrap_in_a_signal_handler():
    """The handler wraps a function while this thread, or another, is wrapping one."""
    done = []

    def handler(*_):
        # This is a tracer if the signal arrives during a trace.
        done.append(filter_jit(lambda x: x + 1)(X).shape)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(20):
            signal.setitimer(signal.ITIMER_REAL, 0.002 * i + 0.001)
            assert filter_jit(lambda x, i=i: x * i)(X)[0] == i
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert all(shape == X.shape for shape in done)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="POSIX only")
def test_a_signal_while_jax_holds_its_lock(engine):
    """JAX hashes keys under a lock, so a handler that calls it then would deadlock."""
    out = run_code(
        """
        import signal, sys
        import jax.numpy as jnp
        from eqx_fastjit import filter_jit

        done = []

        def handler(number, frame):
            assert number == signal.SIGUSR1 and frame is not None
            done.append(filter_jit(lambda x: x + 1)(2.0))

        def profile(frame, event, _):
            if event == "call" and frame.f_code.co_name == "__hash__":
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

        f = filter_jit(lambda x, n: x * n)
        x = jnp.arange(2.0)
        f(x, 2)
        signal.signal(signal.SIGUSR1, handler)
        sys.setprofile(profile)
        assert f(x, 3).tolist() == [0, 3]
        assert sys.getprofile() is None and done == [3.0]
        assert signal.getsignal(signal.SIGUSR1) is handler
        """,
        engine=engine,
        timeout=120,
    )
    assert out.returncode == 0, out.stderr


def test_wraps_in_many_threads():
    def f(x):
        return x + 1

    out = []

    def run():
        out.extend([float(filter_jit(f)(X)[0]) for _ in range(20)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out == [2.0] * 80


def test_counters_and_ordered_dicts():
    for make in (collections.Counter, collections.OrderedDict):
        calls = [(Holder(X, make(a=n)),) for n in (1, 1, 1.0, 2)]
        assert _traces_of(lambda m: m.x, *calls) == [1, 1, 2, 3]


@dataclasses.dataclass(frozen=True)
class HashedByName:
    name: str
    parts: object

    def __hash__(self):
        return hash(self.name)


def test_a_static_leaf_is_asked_for_its_hash_as_a_whole(engine):
    """As in Equinox: the leaf has a hash, although one of its parts has none."""
    for jit in (eqx.filter_jit, filter_jit):
        f = jit(lambda x, s: (x + len(s.parts), s))
        out, s = f(jnp.ones(()), HashedByName("a", [1, 2]))
        assert out == 3 and s == HashedByName("a", [1, 2])
    # Nor does the unhashable part cause a fallback to Python.
    ran = []
    sys.setprofile(lambda frame, event, arg: ran.append(frame.f_code.co_name))
    try:
        f(jnp.ones(()), s)
    finally:
        sys.setprofile(None)
    assert ("walk" in ran) == (engine == "python")


def test_a_dataclass_that_can_neither_be_hashed_nor_copied():
    """By parts, so that a change is noticed: with itself it is always equal."""

    @dataclasses.dataclass
    class Settings:
        scales: list
        lock: object

        def __eq__(self, other):
            return type(other) is Settings and self.scales == other.scales

        def __hash__(self):
            return hash(self.scales)

    f, traces = count_traces(lambda h: h.x * h.static.scales[0])
    settings = Settings([2.0], threading.Lock())
    holder = Holder(X, settings)
    assert f(holder)[0] == 2.0 and f(holder)[0] == 2.0
    settings.scales[0] = 3.0
    assert f(holder)[0] == 3.0
    assert len(traces) == 2
