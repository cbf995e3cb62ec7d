"""Reading, failing and returning leave every reference count as it was.

So calls keep nothing alive and leave no cycle, whatever they are given; and any
allocation may fail.
"""

import collections
import dataclasses
import enum
import gc
import logging
import re
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _statics, engine, filter_jit
from tests.support.memory import growth
from tests.support.modules import Hashed, Holder, Inner, Node, Unhashed
from tests.support.programs import run_program
from tests.support.traces import count_traces


pytestmark = [
    pytest.mark.one_engine,
    pytest.mark.filterwarnings("ignore:A JAX array is being set as static"),
    pytest.mark.skipif(engine() != "native", reason="the extension was not built"),
]
X = jnp.ones(2)
READ_C = Path(_statics.__file__).parent / "csrc" / "read.c"

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Config:
    name: str
    sizes: list


class Color(enum.Enum):
    RED = 1


# Makes a value for each reader.
VALUES = {
    "array": lambda: jnp.ones(3),
    "scalar": lambda: np.float32(2.5),
    "numpy": lambda: np.ones(2, np.float32),
    "struct": lambda: jax.ShapeDtypeStruct((7,), np.float32),
    "tuple": lambda: Point((1000, X), (2.5,)),
    "list": lambda: [1000, [X], "word" * 3],
    "dict": lambda: {"b" * 3: X, "a" * 3: [10**6]},
    "node": lambda: Node([X, 1000], ["aux"]),
    "module": lambda: Holder(X, [1000, "word" * 3]),
    "same": lambda: Color.RED,
    "text": lambda: "word" * 10,
    "hashed": lambda: Hashed("word" * 10),
    "int": lambda: 10**30,
    "float": lambda: float("2.5"),
    "complex": lambda: complex(1, -0.0),
    "set": lambda: {1000, "word" * 3},
    "fields": lambda: Config("word" * 3, [1000]),
    "state": lambda: Unhashed(["word" * 3, 1000]),
}


def parts_of(x):
    """A value, what it contains, and their types; no numbers, which others share."""
    parts = [x]
    if isinstance(x, dict):
        parts += [*x.keys(), *x.values()]
    elif isinstance(x, list | tuple | set):
        parts += x
    elif hasattr(x, "__dict__") and not isinstance(x, enum.Enum):
        parts += vars(x).values()
    parts += [type(part) for part in parts]
    return [part for part in parts if part is not None and type(part) is not int]


def check_references(call, *things, n=30):
    """Repeated calls change the reference count of none of these."""
    for _ in range(3):
        call()
    gc.collect()
    gc.freeze()  # the collection below need not look at what is there already
    try:
        before = [sys.getrefcount(x) for x in things]
        for _ in range(n):
            call()
        gc.collect()
    finally:
        gc.unfreeze()
    after = [sys.getrefcount(x) for x in things]
    # Others use a few types, too. What is leaked or lost is so each time.
    wrong = [
        (x, b - a)
        for x, a, b in zip(things, before, after, strict=True)
        if abs(b - a) >= n // 2
    ]
    assert not wrong


def test_there_is_a_value_for_each_reader():
    """Tracers apart, which only a trace has."""
    text = READ_C.read_text()
    names = set(re.findall(r'\{"(\w+)", read_\1\}', text))
    assert names - {"tracer"} == VALUES.keys()
    assert {k: _statics.reader_of(make()).name for k, make in VALUES.items()} == {
        name: name for name in VALUES
    }


@pytest.mark.parametrize("name", VALUES)
def test_an_argument(name):
    """Positional, by keyword, in a container, and as what it returns."""
    value, f = VALUES[name](), filter_jit(lambda x, *args, key=1, **more: (x, key))
    things = [*parts_of(value), X, f]
    check_references(lambda: f(value), *things)
    check_references(lambda: f(X, value, key=[value], other=value), *things)


@pytest.mark.parametrize("name", VALUES)
def test_a_static_field(name):
    """The same value, and an equal one that is created and compared."""
    value, f = VALUES[name](), filter_jit(lambda m: (m.x, m))
    held = Holder(X, value)
    check_references(lambda: f(held), held, vars(held), *parts_of(value), X, f)
    if name != "array":  # another array is another static
        things = [X, Holder, type(value)]
        check_references(lambda: f(Holder(X, VALUES[name]())), *things)


def test_a_tracer():
    """In a jitted function within another, and in eager transformations."""
    f = filter_jit(lambda m, x: (m.value * x).sum())
    held = Inner(X)
    for transform in (jax.jit, jax.grad, jax.vmap):

        def call(transform=transform):
            transform(lambda x: f(held, x))(X)  # another function, so it is traced

        check_references(call, held, X, f, n=10)


def test_a_static_that_is_read_again():
    """A trace ends when a mutable object that it was made with has changed."""
    values = [[i] for i in range(3)]
    f = filter_jit(lambda m: m.x * m.static[0])

    def call():
        for value in values:
            f(Holder(X, value))
        values[0].append(1)
        f(Holder(X, [0]))
        values[0].pop()

    check_references(call, *values, X, f)


def test_a_result():
    """What is built belongs to the caller alone."""
    f = filter_jit(lambda x: {"a": [x + 1, Holder(x * 2, (1,)), Point(x, [2])]})
    for _ in range(3):
        out = f(X)
    new = [object(), Holder(X, (1,)), Point(X, [2])]
    assert [sys.getrefcount(x) for x in out["a"]] == [sys.getrefcount(x) for x in new]


# --- errors ---------------------------------------------------------------------------


class Fault:
    """Raises in `__eq__`, `__hash__`, its state or flatten function, if asked."""

    where = None
    error = None

    def __init__(self, n):
        self.n = n

    def fail(self, where):
        if Fault.where == where:
            raise Fault.error

    def __eq__(self, other):
        self.fail("eq")
        return self.n == other.n


class FaultHashed(Fault):
    __eq__ = Fault.__eq__

    def __hash__(self):
        self.fail("hash")
        return 7


class FaultState(Fault):
    __eq__, __hash__ = Fault.__eq__, None

    def __reduce_ex__(self, protocol):
        self.fail("state")
        return FaultState, (self.n,)


class FaultNode(Fault):
    pass


def _flatten(x):
    x.fail("flatten")
    return (X,), x.n


jax.tree_util.register_pytree_node(FaultNode, _flatten, lambda n, _: FaultNode(n))

# Where it fails, what the error is, and what is passed.
FAULTS = {
    "eq": (ValueError, FaultHashed),
    "eq, interrupted": (KeyboardInterrupt, FaultHashed),
    "hash": (RecursionError, FaultHashed),
    "state": (RecursionError, FaultState),
    "flatten": (ValueError, FaultNode),
    "flatten, interrupted": (KeyboardInterrupt, FaultNode),
}


@pytest.mark.parametrize("name", FAULTS)
def test_after_an_error_of_the_users(name, monkeypatch):
    """It reaches the caller, and what was read until then is let go."""
    kind, make = FAULTS[name]
    f = filter_jit(lambda x, *_: x)
    before, after = Hashed("before"), [Hashed("after")]
    values = X, before, ("a", [X])
    f(*values, make(1), after)
    error = kind("no")
    monkeypatch.setattr(Fault, "where", name.split(",")[0])
    monkeypatch.setattr(Fault, "error", error)
    last = make(1)

    def call():
        with pytest.raises(kind, match="no"):
            f(*values, last, after)
        error.__traceback__ = error.__context__ = None

    check_references(call, X, before, values[2], last, after, after[0], f, n=10)


def test_after_an_error_while_tracing():
    error = ValueError("no")

    def fails(x, held):
        raise error

    f, held = filter_jit(fails), Hashed("held")

    def call():
        with pytest.raises(ValueError, match="no"):
            f(X, held)
        error.__traceback__ = error.__context__ = None

    check_references(call, X, held, f, error, n=10)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (lambda x: jax.pure_callback(lambda x: 1 / 0, x, x), "division"),
        (lambda x: eqx.error_if(x, x > 0, "too large"), "too large"),
    ],
    ids=["callback", "error_if"],
)
def test_after_an_error_of_the_program(fails, message, caplog):
    caplog.set_level(logging.CRITICAL)  # log records keep the traceback alive
    f, held = filter_jit(lambda x, _: fails(x)), Hashed("held")

    def call():
        with pytest.raises(Exception, match=message):
            f(X, held)

    check_references(call, X, held, f, n=10)


def test_after_wrong_arguments():
    """Of a number, a name or a kind that the function does not take."""
    f, held = filter_jit(lambda x, *, y: x), Hashed("held")
    deep = held
    for _ in range(200_000):
        deep = (deep,)
    calls = {
        "missing 1 required .*'y'": lambda: f(X),
        "takes 1 positional argument but 2": lambda: f(X, held),
        "unexpected keyword argument 'z'": lambda: f(X, y=held, z=held),
        "multiple values for argument 'x'": lambda: f(X, x=X, y=held),
        "pytree dictionary keys": lambda: f(X, y={held: X, "a": X}),
        "recursion depth|Stack overflow": lambda: f(X, y=Config("name", deep)),
    }
    for message, call in calls.items():

        def wrong(call=call, message=message):
            with pytest.raises((TypeError, ValueError, RecursionError), match=message):
                call()

        check_references(wrong, X, held, f, n=10)


def test_what_is_known_of_classes_is_bounded():
    """Of thousands that live; tens of thousands that die are forgotten."""

    def made_up(n):
        return [type("Own", (), {})() for _ in range(n)]

    def call(i):
        with pytest.raises(ValueError, match="pytree dictionary keys"):
            f(X, [living, made_up(1_500), {1: X, "a": X}])
        f(X, living), gc.collect()

    f, traces = count_traces(lambda x, _: x)
    living = made_up(2_000)

    assert growth(call, 20)[0] < 100_000 and len(traces) == 1


def test_every_allocation_of_a_call_may_fail():
    """One after the other, of cache hits and of reading alone: a `MemoryError`."""
    pytest.importorskip("_testcapi", reason="this Python has no _testcapi")
    assert run_program("failing_allocations.py", 40).stdout == "done\n"
