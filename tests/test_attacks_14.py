"""Regression tests: faults found in a fourteenth adversarial review: statics."""

import collections
import collections.abc
import contextvars
import gc
import optparse
import os
import pathlib
import time
import types
import typing
import uuid
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from tests.traces import count_traces


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")


class Holder(eqx.Module):
    """A static field."""

    x: np.ndarray
    value: typing.Any = eqx.field(static=True)


def _holder(value):
    return Holder(np.ones(3), value)


def _check(see, *makes, n=None):
    """Equal and not identical, the second time; in a field and in a tuple."""
    f, traces = count_traces(lambda h: see(h.value))
    g, _ = count_traces(lambda h: see(h.value[0]))
    for _ in range(2):
        for make in makes:
            value, right = make(), see(make())
            assert f(_holder(value)) == g(_holder((value,))) == right
    assert len(traces) == (len(makes) if n is None else n)


class FrozenMapping(collections.abc.Mapping):
    """As programs write their own, since a dictionary has no hash."""

    def __init__(self, *pairs):
        self._values = dict(pairs)
        self._hash = None

    def __getitem__(self, key):
        return self._values[key]

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __hash__(self):
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash


class WithSlots(FrozenMapping):
    __slots__ = ("_hash", "_values")


class Unhashable(FrozenMapping):
    __hash__ = None  # pyright: ignore[reportAssignmentType]


class Members(collections.abc.Set):
    def __init__(self, members):
        self._members = tuple(members)

    def __contains__(self, x):
        return x in self._members

    def __iter__(self):
        return iter(self._members)

    def __len__(self):
        return len(self._members)


@pytest.mark.parametrize("cls", [FrozenMapping, WithSlots, Unhashable])
def test_mappings_of_the_users_own(cls):
    """`Mapping.__eq__` takes 1 for 1.0, and does not look at the order."""
    pairs = [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 1.0), ("b", 2)]
    makes = [lambda pairs=pairs: cls(*pairs) for pairs in pairs]
    _check(lambda x: repr([*x.items()]), *makes)
    f, _ = count_traces(lambda h: repr([*h.value.items()]))
    changed = cls(("a", 1))
    for value in (1, 2, 2.0, True, [1]):
        changed._values["a"] = value
        assert f(_holder(changed)) == repr([("a", value)])


def test_sets_of_the_users_own():
    makes = [lambda x=x: Members([x]) for x in (1, 1.0, True)]
    _check(lambda x: repr([*x]), *makes)


@pytest.mark.parametrize("cls", [collections.UserDict, collections.ChainMap])
@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_views_of_mappings(cls, name):
    makes = [lambda x=x: getattr(cls({x: x}), name)() for x in (1, 1.0, True)]
    _check(lambda x: repr([*x]), *makes)
    f, _ = count_traces(lambda h: repr([*h.value]))
    changed = cls()
    view = getattr(changed, name)()
    for value in (1, 1.0, 2):
        changed[value] = value
        assert f(_holder(view)) == repr([*view])


ALIASES = [
    [int | str, str | int],
    [typing.Union[int, str], typing.Union[str, int]],  # noqa: UP007
    [typing.Literal["a", "b"], typing.Literal["b", "a"]],
    [typing.Literal[1], typing.Literal[True]],
    [typing.Annotated[int, 1], typing.Annotated[int, 1.0]],
    [list[typing.Annotated[int, 1]], list[typing.Annotated[int, True]]],
    [typing.List[int], list[int], list[str]],  # noqa: UP006
]


@pytest.mark.parametrize("types", ALIASES, ids=str)
def test_types_that_are_equal_and_differ(types):
    """`typing.get_args` shows an order, and a program may go by it."""
    _check(repr, *[lambda x=x: x for x in types])


def _time(zone):
    return time.struct_time((2020, 1, 1, 0, 0, 0, 2, 1, 0, zone, 0))


def _stat(atime):
    return os.stat_result((*range(10), atime))


def _uuid(is_safe):
    return uuid.UUID(int=1, is_safe=is_safe)


def _values(a):
    return optparse.Values({"a": a})


@pytest.mark.parametrize(
    ("see", "makes"),
    [
        (lambda x: x.tm_zone, [lambda: _time("UTC"), lambda: _time("GMT")]),
        (lambda x: x.st_atime, [lambda: _stat(1.5), lambda: _stat(2.5)]),
        (str, [lambda x=x: pathlib.PureWindowsPath(x) for x in "aA"]),
        (
            lambda x: x.is_safe,
            [lambda x=x: uuid.UUID(int=1, is_safe=x) for x in uuid.SafeUUID],
        ),
        (
            lambda x: repr(x.a),
            [lambda x=x: optparse.Values({"a": x}) for x in (1, 1.0)],
        ),
        (
            repr,
            [
                lambda x=x: types.MappingProxyType(x(a=1))
                for x in (dict, collections.OrderedDict, collections.Counter)
            ],
        ),
    ],
    ids=["time", "stat", "path", "uuid", "optparse", "proxy"],
)
def test_what_eq_does_not_look_at(see, makes):
    _check(see, *makes)


_VARIABLE = contextvars.ContextVar("_VARIABLE")


def _context(value):
    context = contextvars.Context()
    context.run(_VARIABLE.set, value)
    return context


def test_contexts():
    makes = [lambda x=x: _context(x) for x in (1, 1.0, True)]
    _check(lambda x: repr(x[_VARIABLE]), *makes)


class Object:
    def method(self):
        pass


def _with_callback(x):
    return weakref.ref(x, print)


@pytest.mark.parametrize("make", [weakref.ref, _with_callback, weakref.WeakSet])
def test_what_a_reference_refers_to_is_gone(make):
    f, traces = count_traces(lambda h: gone(h.value))
    alive = Object()
    for _ in range(2):
        value = make(alive if make is not weakref.WeakSet else [alive])
        gone = len if make is weakref.WeakSet else lambda x: x() is None
        before = f(_holder(value))
        assert f(_holder(value)) == before == gone(value)
    assert len(traces) == 1
    del alive
    gc.collect()
    assert f(_holder(value)) == gone(value) != before


def test_references_to_what_is_equal_and_differs():
    """`==` of two references is that of what they refer to."""
    one, other = frozenset([1]), frozenset([1.0])
    makes = [lambda x=x: weakref.ref(x) for x in (one, other)]
    _check(lambda x: repr(x()), *makes)
    bound = Object()
    makes = [lambda: weakref.WeakMethod(bound.method), lambda: weakref.ref(bound)]
    _check(lambda x: type(x), *makes)


@pytest.mark.parametrize(
    "cls", [weakref.WeakKeyDictionary, weakref.WeakValueDictionary]
)
def test_weak_dictionaries(cls):
    one = Object()
    if cls is weakref.WeakKeyDictionary:
        pairs = [(one, 1)], [(one, 1.0)], [(one, True)]
    else:
        pairs = [(1, one)], [(1.0, one)], [(True, one)]
    makes = [lambda x=x: cls(x) for x in pairs]
    _check(lambda x: repr([*x.items()]), *makes)
    f, _ = count_traces(lambda h: len(h.value))
    changed = makes[0]()
    assert f(_holder(changed)) == 1
    del one, pairs, makes
    gc.collect()
    assert f(_holder(changed)) == 0


class Below(eqx.Module):
    w: jax.Array


def test_devices_of_arrays_in_a_static_module():
    """A program may put its results where such an array is."""
    f, traces = count_traces(lambda h: str(h.value.w.sharding))
    mesh = jax.make_mesh((2,), ("x",))
    spec = jax.sharding.PartitionSpec
    places = [
        *jax.devices()[:2],
        *[jax.sharding.NamedSharding(mesh, spec(x)) for x in ("x", None)],
    ]
    for _ in range(2):
        for place in places:
            w = jax.device_put(jnp.ones(2), place)
            assert f(_holder(Below(w))) == str(w.sharding)
    assert len(traces) == 4


@pytest.mark.parametrize("cls", [scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_matrices_that_cannot_be_compared(cls):
    """`==` of two gives a matrix, so there is no copy that is known to be equal."""
    f, traces = count_traces(lambda h: h.value.toarray().tolist())
    matrix = cls(np.eye(2))
    for _ in range(2):
        assert f(_holder(matrix)) == [[1, 0], [0, 1]]
    assert len(traces) == 1
    matrix.data[1] = 3
    assert f(_holder(matrix)) == [[1, 0], [0, 3]]
    assert f(_holder(cls(np.ones((2, 2))))) == [[1, 1], [1, 1]]


class Rooted:
    """Has an `==`, and no copy that is equal."""

    __slots__ = ("children", "n", "root")

    def __init__(self, n):
        self.n = n
        self.root = self
        self.children = [object()]

    def __eq__(self, other):
        return self.root is other.root


def test_objects_that_contain_themselves_and_have_no_copy():
    f, traces = count_traces(lambda h: h.value.n)
    rooted = Rooted(1)
    for n in (1, 1, 2, 2.0):
        rooted.n = n
        assert repr(f(_holder(rooted))) == repr(n)
    assert len(traces) == 3


def test_traces_that_jax_forgets_are_freed():
    """Of programs that call `jax.clear_caches()`, say after each epoch."""
    refs = []

    def make(h):
        out = Object()
        refs.append(weakref.ref(out))
        return h.x, out

    f, traces = count_traces(make)
    for _ in range(4):
        f(_holder(1))
        jax.clear_caches()
    out = f(_holder(1))
    gc.collect()
    assert len(traces) == len(refs) == 5
    assert [ref() for ref in refs] == [None] * 4 + [out[1]]
