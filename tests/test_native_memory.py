"""Memory of the native engine: reference counts, failed allocations, garbage."""

import collections
import dataclasses
import gc
import logging
import sys
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _engine, filter_jit
from tests.processes import run_code


pytestmark = [
    pytest.mark.one_engine,
    pytest.mark.filterwarnings("ignore:A JAX array is being set as static"),
]
X = jnp.ones(2)


class Layer(eqx.Module):
    weight: object
    static: object = eqx.field(static=True)


Point = collections.namedtuple("Point", "x y")


class Custom:
    def __init__(self, *children):
        self.children = children

    def __eq__(self, other):
        return type(other) is Custom and self.children == other.children

    __hash__ = None


jax.tree_util.register_pytree_node(
    Custom, lambda x: (list(x.children), "aux"), lambda _, children: Custom(*children)
)


class Equal:
    """Has an `__eq__` of its own."""

    error = None

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if Equal.error is not None:
            raise Equal.error
        return self.n == other.n


class Plain:
    pass


class Keyed(frozenset):
    pass


class Name(str):
    pass


class Count(int):
    pass


@dataclasses.dataclass(frozen=True)
class Slots:
    __slots__ = ("name",)
    name: str


@dataclasses.dataclass(frozen=True)
class Config:
    name: str
    sizes: tuple


def _big(n):
    return {f"k{i}": (X, i, [i]) for i in range(n)}


# One static for each kind of handler, created anew in each call.
STATICS = {
    "identity": Plain,
    "int": lambda: 10**6,
    "big int": lambda: 10**30,
    "float": lambda: float("1.5"),
    "complex": lambda: complex(1, -0.0),
    "str": lambda: "x" * 50,
    "bytes": lambda: b"x" * 50,
    "pure": lambda: np.dtype(np.float32),
    "opaque": lambda: Equal(1),
    "tuple": lambda: (1, ("a", (2.0,)), Plain),
    "list": lambda: [1, [2], {"a": (3,)}],
    "dict": lambda: {"a": 1, "b": [3]},
    "namedtuple": lambda: Point(1, (2,)),
    "dataclass": lambda: Config("x" * 50, (2,)),
    "set": lambda: {1, 2},
    "set of words": lambda: {"x" * 50, ("y" * 50,)},
    "set of parts": lambda: {1.5, ("y" * 50, 2.5), Plain},
    "frozenset of parts": lambda: frozenset({1.5, ("y" * 50, Config("x" * 50, ()))}),
    "set of many": lambda: {float(i) for i in range(100)},
    "set without an order": lambda: {-1.0, -2.0, Config("x" * 50, ())},
    "frozenset of words": lambda: frozenset({"x" * 50, ("y" * 50,)}),
    "key": lambda: Keyed([1, 2]),
    "slice": lambda: slice(1, 2),
    "array": lambda: np.ones(1),
    "module": lambda: Layer(1, "a"),
    "custom node in a module": lambda: Layer(Custom("x" * 50, ["y" * 50]), "a"),
    "shared": lambda: [((1,),)] * 2,
    "counter": lambda: collections.Counter("aab"),
    "subclass of str": lambda: Name("x" * 50),
    "subclass of int": lambda: Count(10**6),
    "attributes": lambda: Slots("x" * 50),
}
TREES = {
    "list": lambda: [X, 1, [X]],
    "tuple": lambda: (X, (X, None)),
    "dict": lambda: {"b": X, "a": 1},
    "odd dict": lambda: {2: X, 1: X},
    "large": lambda: _big(100),
    "namedtuple": lambda: Point(X, "a"),
    "module": lambda: Layer([X, 1], (2,)),
    "custom": lambda: Custom(X, 1),
    "ordered": lambda: collections.OrderedDict(b=X, a=1),
    "numpy": lambda: np.ones(2, np.float32),
    "key": lambda: jax.random.key(0),
}


def _parts(x):
    """An argument, its contents, and their types."""
    out = [type(x), x]
    if isinstance(x, dict):
        out += [*x.keys(), *x.values()]
    elif isinstance(x, list | tuple | set | frozenset):
        out += x
    elif isinstance(x, Config):
        out += [vars(x), *vars(x).values()]
    elif isinstance(x, Layer):
        out += [vars(x), *_parts(x.weight), *_parts(x.static)]
    elif isinstance(x, Custom):
        out += x.children
    return out


def _assert_no_references(call, *things, n=50):
    """Repeated calls change the reference count of none of these objects."""
    for _ in range(3):
        call()
    gc.collect()
    before = [sys.getrefcount(x) for x in things]
    for _ in range(n):
        call()
    gc.collect()
    after = [sys.getrefcount(x) for x in things]
    leaks = [
        (x, b - a)
        # Small changes are ignored: `None` and small integers are shared with other
        # code.
        for x, a, b in zip(things, before, after, strict=True)
        if abs(b - a) >= n // 2
    ]
    assert not leaks


def _assert_no_memory(call, n=20):
    """Nor do they leave other objects.

    Caches may grow in between, and on a busy machine the first 200 calls leave some.
    """
    growth = []
    for _ in range(30):
        before = sys.getallocatedblocks()
        for _ in range(n):
            call()
        gc.collect()
        growth.append(sys.getallocatedblocks() - before)
        if growth[-1] < n // 2:
            return
    pytest.fail(f"blocks left by {n} calls, in turn: {growth}")


@pytest.mark.parametrize("name", STATICS)
def test_references_of_statics(name):
    f = filter_jit(lambda m: (m.weight, m))
    held = Layer(X, STATICS[name]())
    _assert_no_references(lambda: f(held), held, *_parts(held), f)
    fresh = STATICS[name]
    if name != "identity":
        _assert_no_references(lambda: f(Layer(X, fresh())), X, Layer, type(fresh()))
        _assert_no_memory(lambda: f(Layer(X, fresh())))
    if held.static.__hash__ is not None and not isinstance(held.static, tuple | slice):
        leaf = held.static
        _assert_no_references(lambda: f(Layer(leaf, 1)), leaf, type(leaf))


@pytest.mark.parametrize("name", TREES)
def test_references_of_trees(name):
    tree = TREES[name]()
    f = filter_jit(lambda x, *rest, key=2, **more: (x, rest, key, more))
    calls = [
        lambda: f(tree),
        lambda: f(tree, tree, key=tree, other=tree),
        lambda: f(other=tree, x=X),
    ]
    for call in calls:
        _assert_no_references(call, X, f, *_parts(tree))
        _assert_no_memory(call)


def test_references_of_the_names_of_fields():
    """Two orders of the fields are known of each class, and then forgotten."""
    names = tuple(f"field_{name}_of_this_test" for name in "abcd")
    cls = type(
        "Fields", (eqx.Module,), {"__annotations__": dict.fromkeys(names, object)}
    )
    instances = []
    for i in range(len(names)):
        instances.append(object.__new__(cls))
        for name in (*names[i:], *names[:i]):
            object.__setattr__(instances[-1], name, X)
    f = filter_jit(lambda x: x)
    keys = list(vars(instances[0]))
    _assert_no_references(lambda: [f(x) for x in instances], *keys, X, cls)


def test_references_of_results():
    """The parts of a result are kept alive by the result alone."""
    f = filter_jit(lambda x: {"a": [x + 1, Layer(x * 2, (1,)), Custom(x)]})
    for _ in range(3):
        out = f(X)
    refs = [weakref.ref(x) for x in out["a"]]
    counts = sys.getrefcount(out), sys.getrefcount(out["a"])
    assert counts == (2, 2)
    del out
    assert [ref() for ref in refs] == [None] * 3


class Raises:
    error = None

    def __init__(self, x):
        self.x = x


def _flatten_raises(x):
    if Raises.error is not None:
        raise Raises.error
    return (x.x,), None


jax.tree_util.register_pytree_node(
    Raises, _flatten_raises, lambda _, children: Raises(*children)
)


def _trace_raises(x, n):
    raise n.error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no")])
@pytest.mark.parametrize("where", ["flatten", "eq", "trace", "host"])
def test_references_after_errors(where, error, monkeypatch, caplog):
    f = filter_jit(lambda x, *_: x)
    before, after, more = Plain(), [Plain()], [Plain()]
    values = (X, before, ("a", [X]))
    if where == "flatten":
        last = Raises(X)
        f(*values, last, after, more)
        monkeypatch.setattr(Raises, "error", error)
    elif where == "eq":
        last = Equal(1)
        f(*values, Equal(1), after, more)
        monkeypatch.setattr(Equal, "error", error)
    elif where == "trace":
        f, last = filter_jit(lambda *args: _trace_raises(X, args[3])), Plain()
        last.error = error
    else:
        last = Plain()
        caplog.set_level(logging.CRITICAL)  # log records keep the traceback alive

        def host(x):
            raise error

        f = filter_jit(lambda x, *_: jax.pure_callback(host, x, x))
        if not isinstance(error, Exception):
            pytest.skip("an interrupt on a thread of jaxlib's is jaxlib's affair")

    def call():
        with pytest.raises(Exception if where == "host" else type(error), match="no"):
            f(*values, last, after, more)
        error.__traceback__ = error.__context__ = None

    things = (X, before, last, after, after[0], more, more[0], values[2], f)
    _assert_no_references(call, *things, n=10)


def test_references_after_an_interrupted_explanation(monkeypatch):
    f = filter_jit(lambda x: x)
    last = Raises(X)
    f(last)
    monkeypatch.setattr(Raises, "error", ValueError("no"))

    def interrupted(self, error):
        error.__traceback__ = None
        raise KeyboardInterrupt

    monkeypatch.setattr(type(f._function), "translate", interrupted)

    def call():
        with pytest.raises(KeyboardInterrupt):
            f(last)

    _assert_no_references(call, X, last, f, Raises.error, ValueError, n=10)


def test_references_of_a_tree_that_is_asked_whether_it_ends():
    tree = [(X, 1)] * 6000
    native = _engine.native()
    answer = type(jax.tree_util.tree_structure(0))
    _assert_no_references(lambda: native.arrays_of((tree,)), X, tree[0], answer)


def test_nothing_is_referred_to_that_is_not_held():
    f = filter_jit(lambda x: x)
    f(X)
    assert gc.get_referrers(object()) == []


def test_the_collector_sees_what_a_result_is_built_from():
    first, last = Plain(), Plain()
    f = filter_jit(lambda x: (first, x, last))
    plan, _ = f._function.plan_of((X,))
    seen = gc.get_referents(plan.native)
    assert sum(x is first for x in seen) == sum(x is last for x in seen) == 1


def test_a_call_is_set_up_whole_or_not_at_all():
    f = filter_jit(lambda x: x)
    given = {
        "function": f._function,
        "table": f._function.table,
        "fun": None,
        "binder": len,
        "source": None,
        **f._binding.for_native,
    }
    for name in given:
        some = {key: value for key, value in given.items() if key != name}
        with pytest.raises(TypeError, match="_prepare: arguments are missing"):
            f._prepare(None, **some)
    np.testing.assert_array_equal(f(X), X)


def test_references_of_arguments_that_python_binds():
    f = filter_jit(lambda x, **others: x)
    held, name = Plain(), Name("k" * 50)
    _assert_no_references(lambda: f(X, **{name: held}), X, held, name, f)


def test_references_after_wrong_arguments():
    f = filter_jit(lambda x, *, y: x)
    held = Plain()
    held.key = bytes(range(100))
    calls = {
        "missing 1 required keyword-only argument: 'y'": lambda: f(X),
        "takes 1 positional argument but 2": lambda: f(X, held),
        "unexpected keyword argument 'z'": lambda: f(X, y=held, z=held),
        "multiple values for argument 'x'": lambda: f(X, x=X, y=held),
        r"`y\[1\]` is a bytearray": lambda: f(X, y=[held, bytearray(), held]),
        "while sorting pytree dictionary keys": lambda: f(
            X, y={held: X, 1: X, held.key: X}
        ),
    }
    for message, call in calls.items():

        def wrong(call=call, message=message):
            with pytest.raises((TypeError, ValueError), match=message):
                call()

        _assert_no_references(wrong, X, held, f, held.key, n=10)


def _run(code, *args, **options):
    return run_code(code, *args, common=_COMMON, **options)


_COMMON = """
import faulthandler, gc, sys
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from eqx_fastjit import _engine, filter_jit

class Layer(eqx.Module):
    weight: object
    static: object = eqx.field(static=True)

x = jnp.ones(2)
"""

# Only allocations between `set_nomemory` and `remove_mem_hooks` fail. JAX does not
# survive a failed allocation, so this runs the walk alone.
_NO_MEMORY = """
import _testcapi
native = _engine.native()
shared = ((1,), (2.0,))
Int, Float, Str = [type(t.__name__, (t,), {}) for t in (int, float, str)]
values = [
    ([x] * 100, {f"k{i}": (x, i) for i in range(100)}),
    (Layer(x, [1, {"a": (2,)}, (shared, shared)]),),
    ({i: x for i in range(60)}, Layer([x], {"a": 1, "b": [2]})),
    (Layer(Layer(x, (1, 2)), np.float32), [[[[[1]]]]], "a", 10**30),
    tuple([(i,) for i in range(400)]),
    (Int(10**6), Float(1.5), Str("a"), Layer(x, {Int(3): {"a", "b"}})),
    # The trail grows as a static with parts begins; one as long is not kept for later.
    *[([*range(n)], Layer(x, ((1,),)), [0] * 10100) for n in range(150, 161)],
]
f = filter_jit(lambda *args: args)
function, table = f._function, f._function.table
known = [(v, native.arrays_of(v), table.get(function, v)) for v in values]

def attempt(call, start):
    _testcapi.set_nomemory(start, start + 1)
    try:
        return call()
    except MemoryError:
        return None
    finally:
        _testcapi.remove_mem_hooks()

failed = 0
for value, arrays, spec in known:
    for call, right in (
        (
            lambda: native.arrays_of(value),
            lambda out: all(map(lambda a, b: a is b, out, arrays)),
        ),
        (lambda: table.get(function, value), lambda out: out is spec),
    ):
        for start in range(int(sys.argv[1])):
            out = attempt(call, start)
            failed += out is None
            assert out is None or right(out)
            assert right(call())
for start in range(int(sys.argv[1])):
    new = {f"k{i}": x for i in range(9)}  # keys whose order is not known
    out = attempt(lambda: native.arrays_of((new,)), start)
    assert out is None or len(out) == 9
    assert len(native.arrays_of((new,))) == 9
# 25, or 20 with `PYTHONMALLOC=malloc`, which does not pass large blocks on.
print("done", failed >= 15)
"""


def test_every_allocation_of_a_look_up_may_fail():
    pytest.importorskip("_testcapi")
    out = _run(_NO_MEMORY, "60")
    assert out.stdout == "done True\n", out.stderr[-4000:]


# The same for whole cache hits. A Python function stands in for the result of
# `jax.jit`, because jaxlib does not survive a failed allocation.
_NO_MEMORY_CALLS = """
import _testcapi

m = Layer([x, {"a": x}], (1, [2]))

def make(*args, **kwargs):
    f = filter_jit(lambda m, *rest, key=None, **more: (m, rest, key, more))
    function, specialize = f._function, f._function.specialize
    made = []
    function.specialize = lambda *a: made.append(specialize(*a)) or made[-1]
    right = f(*args, **kwargs)
    (handle,) = made[0].plans
    # In JAX's order: that of the arguments, and for a dictionary that of its keys.
    run = lambda *arrays: [*arrays, handle]
    fake = _engine.native().Specialization(run, made[0].flat, {})
    fake.plans.update(made[0].plans)
    function.specialize = (
        lambda values, cls: fake if cls is type(fake) else specialize(values, cls)
    )
    f.clear_cache()
    return (lambda: f(*args, **kwargs)), right, made

for call, right, _ in (
    make(m),
    make(m, x, 1, key=(x, 2), other=[x]),
    make(m=m, key="a"),
    make([x] * 80),
    make({i: i for i in range(60)}),
):
    assert eqx.tree_equal(call(), right)
    failed = 0
    for start in range(int(sys.argv[1])):
        _testcapi.set_nomemory(start, start + 1)
        try:
            out = call()
        except MemoryError:
            out = right
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        assert eqx.tree_equal(out, right)
        assert eqx.tree_equal(call(), right)
    assert failed
print("done")
"""


def test_every_allocation_of_a_call_may_fail():
    pytest.importorskip("_testcapi")
    out = _run(_NO_MEMORY_CALLS, "40")
    assert out.stdout == "done\n", out.stderr[-4000:]


_GARBAGE = """
class Node:
    # Garbage whose finalizer runs Python code and uses a type that is not known yet.
    def __init__(self):
        self.me = self
    def __del__(self):
        if runs[0]:
            runs[0] -= 1
            cls = type("New", (), {})
            flatten, unflatten = lambda x: ((), None), lambda _, c: cls()
            jax.tree_util.register_pytree_node(cls, flatten, unflatten)
            f(cls(), [1])
runs = [0]
f = filter_jit(lambda *args: args)
gc.set_threshold(1)
for i in range(40):
    runs[0] = 3
    Node()
    # Instances whose `__dict__` has not been accessed yet.
    tree = [Layer(x, (i % 3, [j])) for j in range(5)]
    out, n = f(tree, i % 2)
    assert eqx.tree_equal(out, tree) and n == i % 2
    if i % 10 == 0:
        f.clear_cache()
print("done")
"""


def test_garbage_is_collected_at_every_allocation():
    out = _run(_GARBAGE)
    assert out.stdout == "done\n", out.stderr[-4000:]


# Hashing a NumPy dtype allocates. Before Python 3.12 this may start the garbage
# collector, which here frees the objects that are being walked.
_GARBAGE_AT_HASH = """
native = _engine.native()
native.arrays_of(([Layer(x, np.dtype(">f4")), "a"],))

class Drops:
    def __init__(self, tree):
        self.tree, self.me = tree, self
    def __del__(self):
        self.tree.clear()

for i in range(50):
    fresh = [np.dtype(np.float32).newbyteorder(">") for _ in range(2)]
    tree = [[f"{i} {k}" for k in range(20)], *[Layer(x, dtype) for dtype in fresh]]
    del fresh
    gc.disable()
    gc.set_threshold(1)
    Drops(tree)
    kept = [[] for _ in range(200)], [(object(),) * 5 for _ in range(3000)]
    arguments = (tree,)
    gc.enable()
    native.arrays_of(arguments)
    assert not tree or sys.version_info >= (3, 12)
    del kept
print("done")
"""


def test_garbage_is_collected_when_a_dtype_is_hashed():
    out = _run(_GARBAGE_AT_HASH, PYTHONMALLOC="debug")
    assert out.stdout == "done\n", out.stderr[-4000:]


_UNPREPARED = """
from eqx_fastjit import _native

class Plan:
    steps = (2, -3, None), (2, 4, None)

def fails(error, call, *args):
    try:
        call(*args)
    except error:
        return
    raise AssertionError(call)

made = _native.Specialization(print, print, {})
fails(RuntimeError, made.__init__, len, len, {})
fails(RuntimeError, _native.arrays_of, (1,))
fails(RuntimeError, _native.Table(1).get, None, (1,))
fails(ValueError, _native.Table, -1)
fails(SystemError, _native.Handle().set_plan, Plan())
fails(TypeError, _native.Callable.__new__(_native.Callable))
fails(RuntimeError, _native.Calling.__new__(_native.Calling).__enter__)
with _native.Calling(1) as _, _native.Calling(2) as _:
    context = _native.Calling(3)
    with context:
        fails(RuntimeError, context.__enter__)
        fails(RuntimeError, context.__init__, 4)
assert _native.innermost_call() is None
print("done")
"""


def test_parts_of_the_engine_that_are_used_wrongly():
    out = _run(_UNPREPARED)
    assert out.stdout == "done\n", out.stderr[-4000:]


_SUBINTERPRETER = (
    """
import _testcapi
code = """
    + repr(
        """
import sys
sys.path[:0] = %r
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("_native", %r)
spec = importlib.util.spec_from_loader("_native", loader)
native = importlib.util.module_from_spec(spec)
try:
    native.setup()
except ImportError as e:
    print(e)
"""
    )
    + """ % (sys.path, _engine.native().__file__)
assert _testcapi.run_in_subinterp(code) == 0
assert eqx.tree_equal(filter_jit(lambda x: x)(x), x)
print("done")
"""
)


def test_subinterpreters_have_the_python_engine():
    pytest.importorskip("_testcapi")
    out = _run(_SUBINTERPRETER)
    assert out.stdout == "not in a subinterpreter\ndone\n", out.stderr[-4000:]
