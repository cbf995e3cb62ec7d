"""Regression tests: faults found in a sixth adversarial review of the C files."""

import pytest

from tests.processes import run_code


_COMMON = """
import faulthandler, gc
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import _engine, filter_jit

native = _engine.native()
x = jnp.ones(())

class Layer(eqx.Module):
    x: object
    static: object = eqx.field(static=True)

n_calls = 0

def count():
    global n_calls
    n_calls += 1
    assert n_calls < 10_000
"""


def _run(code, **options):
    return run_code(code, common=_COMMON, **options)


# --- calls within calls, without end --------------------------------------------------

# What calls the function again, as it is read, compared or hashed.
_ENDLESS = {
    "order of keys": """
class Key:
    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        count()
        f({Key(1): x, Key(2): x})
        return self.n < other.n

f = filter_jit(lambda tree: x)
try:
    f({Key(1): x, Key(2): x})
except RecursionError:
    print("done")
""",
    "a static that may have been changed": """
class Node:
    def __init__(self, traced_with):
        self.traced_with = traced_with

class Holder(eqx.Module):
    node: object

def flatten(node):
    if node.traced_with and armed:
        count()
        f(Layer(x, [Holder(Node(False))]))
    return (), None

jax.tree_util.register_pytree_node(Node, flatten, lambda *_: Node(False))
armed = False
f = filter_jit(lambda layer: layer.x)
f(Layer(x, [Holder(Node(True))]))
armed = True
f(Layer(x, [Holder(Node(False))]))
print("done")
""",
    "hash of a static field": """
class Static:
    def __hash__(self):
        count()
        f(Layer(x, Static()))
        return 1

    def __eq__(self, other):
        return True

f = filter_jit(lambda layer: layer.x)
f(Layer(x, Static()))
print("done")
""",
}


@pytest.mark.parametrize("name", _ENDLESS)
def test_calls_within_calls_without_end(name, engine):
    """Two overflowed the stack; of the third each level tried twice."""
    out = _run(_ENDLESS[name], engine=engine)
    assert out.stdout == "done\n", out.stderr[-4000:]


_REPLACED = """
import os

class Static:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return self.n

    def __eq__(self, other):
        return type(other) is Static and self.n == other.n

    def __del__(self):
        if self.n == 9:
            os._exit(1)
        f(x, Static(self.n + 1))

f = filter_jit(lambda x, static: x)
f(x, Static(0))
f.clear_cache()
print("done", flush=True)
os._exit(0)
"""


def test_a_cache_that_is_filled_while_it_is_cleared(engine):
    assert _run(_REPLACED, engine=engine).stdout == "done\n"


# --- parts of the engine that are used wrongly ----------------------------------------

_OF_ITSELF = """
f = filter_jit(lambda x: x)
f._prepare(f)
try:
    f(x)
except RecursionError:
    print("done")
"""


@pytest.mark.one_engine
def test_a_callable_that_calls_itself():
    assert _run(_OF_ITSELF).stdout == "done\n"


_WHILE_BINDING = """
import functools

class Callable(native.Callable):
    def _renew_binding(self):
        self._prepare(print)

f = Callable()
f._prepare(None, function=None, table=native.Table(1), fun=None, fun_index=-1,
           names=("x",), kinds=bytes([1]), defaults=(None,), binder=None,
           source=None, positional=None)
try:
    f()
except TypeError as e:
    print(e)

class Key:
    def __hash__(self):
        return hash("n")

    def __eq__(self, other):
        if other == "n" and armed:
            held.__setstate__((lambda *args: 5, (), {}, None))
            gc.collect()
        return False

def fun(x, *, n=1):
    return x * n

armed = False
key = Key()
fun.__kwdefaults__ = {key: 3, "n": 2}
held = functools.partial(filter_jit(fun))
fun.__kwdefaults__ = {key: 3, "n": 4}
armed = True
print(held(x), held(x))
"""


@pytest.mark.one_engine
def test_a_callable_that_is_lost_while_it_binds():
    out = _run(_WHILE_BINDING, PYTHONMALLOC="debug")
    assert out.stdout == "not a jitted function any more\n4.0 5\n", out.stderr[-4000:]


# --- lists that the user's code finds and changes -------------------------------------

_FOUND = """
class Key:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 5

    def __lt__(self, other):
        return self.n < other.n

    def __eq__(self, other):
        if (self.n, other.n) in ((0, 1), (1, 0)):
            empty(Key)
        return self.n == other.n

class Node:
    pass

def empty(cls):
    for found in gc.get_objects():
        if type(found) is list and len(found) == 9 and type(found[-1]) is cls:
            found.clear()

def unflatten(*_):
    empty(native.Handle)
    return Node()

jax.tree_util.register_pytree_node(Node, lambda node: ((), None), unflatten)
tree = {Key(i): [i] for i in range(9)}
f = filter_jit(lambda tree, *xs: [Node(), *xs])
for argument in (tree, Layer(1, Layer(tree, 1))):
    for _ in range(2):
        assert len(f(argument, *[x] * 8)) == 9
print("done")
"""


@pytest.mark.one_engine
def test_lists_that_are_emptied_while_they_are_read():
    out = _run(_FOUND, PYTHONMALLOC="debug")
    assert out.stdout == "done\n", out.stderr[-4000:]
