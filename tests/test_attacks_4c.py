"""Regression tests: faults found in a fourth adversarial review of the C files."""

import dataclasses
import sys
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
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
"""


def _run(code, **options):
    return run_code(code, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- statics that are nodes ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Config:
    n: int
    scale: int = dataclasses.field(init=False, default=0)
    name: str = dataclasses.field(default="", compare=False)


jax.tree_util.register_dataclass(_Config, data_fields=[], meta_fields=["n", "name"])


class _Layer(eqx.Module):
    x: typing.Any
    config: typing.Any = eqx.field(static=True)


def _layer(scale, name=""):
    config = _Config(1, name)
    object.__setattr__(config, "scale", scale)
    return _Layer(jnp.ones(()), config)


def test_registered_dataclasses_as_statics_are_compared_by_the_fields_that_compare():
    """The node's fields, which are the parameters of `__init__`, do not decide this."""
    traces = []

    @filter_jit
    def f(layer):
        traces.append(None)
        return layer.x * layer.config.scale

    for scale in (2, 3, 2):
        assert f(_layer(scale)) == scale
    assert len(traces) == 2
    assert f(_layer(2, "another")) == 2
    assert len(traces) == 2


# --- user code that finds what is being read -----------------------------------------

_DEFAULTS = """
class Key:
    def __hash__(self):
        return hash("n")

    def __eq__(self, other):
        fun.__kwdefaults__ = {"n": 1}
        [{i: i} for i in range(200)]
        return False

def fun(x, *, n=1):
    return x * n

f = filter_jit(fun)
for _ in range(20):
    fun.__kwdefaults__ = {Key(): 3, **{f"k{i}": i for i in range(50)}, "n": 2}
    assert f(x) == 1
print("done")
"""


@pytest.mark.one_engine
def test_defaults_that_are_replaced_when_they_are_looked_up():
    out = _run(_DEFAULTS)
    assert out.stdout == "done\n", out.stderr[-4000:]


_TUPLES = """
class Key:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return 5

    def __lt__(self, other):
        return self.name < other.name

    def __eq__(self, other):
        for found in gc.get_objects():
            if type(found) is tuple and len(found) == 6:
                list(found)
        return self.name == other.name

tree = {Key(name): [name] for name in "abc"}
static = Layer(tree, 1)
print(filter_jit(lambda layer: layer.x)(Layer(x, static)))
"""


@pytest.mark.one_engine
def test_no_tuple_with_holes_is_to_be_found():
    out = _run(_TUPLES)
    assert out.stdout == "1.0\n", out.stderr[-4000:]


_ENDLESS = """
import resource, threading

class Node:
    pass

class Endless(eqx.Module):
    node: object

def flatten(node):
    root.clear()
    return (), None

class More:
    pass

register = jax.tree_util.register_pytree_node
register(Node, flatten, lambda *_: Node())
register(More, lambda _: ([More()] * endless_too, None), lambda *_: More())
endless_too = False
layer = Layer(x, Endless(More()))
endless_too = True
f = filter_jit(lambda tree: None)
endless = [1]
endless.append(endless)
root = [Node(), endless]
limits = resource.getrlimit(resource.RLIMIT_AS)
now = 1024 * int(open("/proc/self/statm").read().split()[0]) * 4
resource.setrlimit(resource.RLIMIT_AS, (now + (4 << 30), limits[1]))

def call():
    for tree in (root, layer):
        try:
            f(tree)
        except (RecursionError, SystemError):  # both are JAX's, one by mistake
            pass

# In a thread, because JAX's count of nested nodes is wrong afterwards.
thread = threading.Thread(target=call)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_trees_that_do_not_end(engine):
    """One leaves the list that is being read; the other keeps producing new nodes."""
    out = _run(_ENDLESS, engine=engine)
    assert out.stdout == "True\n", out.stderr[-4000:]


# --- memory --------------------------------------------------------------------------

_NO_MEMORY = """
import _testcapi

class Later:
    pass

value = (Later(),)
assert native.arrays_of(value) == []
flatten, unflatten = lambda _: ((x,), None), lambda *_: None
jax.tree_util.register_pytree_node(Later, flatten, unflatten)
_testcapi.set_nomemory(0, 1)
try:
    native.arrays_of(value)
except MemoryError:
    _testcapi.remove_mem_hooks()
    print(native.arrays_of(value))
"""


@pytest.mark.one_engine
def test_what_was_known_of_types_is_forgotten_in_spite_of_no_memory():
    pytest.importorskip("_testcapi")
    out = _run(_NO_MEMORY)
    assert out.stdout == "[Array(1., dtype=float32)]\n", out.stderr[-4000:]
