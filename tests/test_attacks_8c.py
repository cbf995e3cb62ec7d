"""Regression tests: faults found in an eighth adversarial review of the C files."""

import pytest

from tests.processes import run_code


_COMMON = """
import faulthandler, gc, weakref
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import filter_jit

x = jnp.ones(())

class Layer(eqx.Module):
    x: object
    static: object = eqx.field(static=True)
"""


def _run(code, *args, **options):
    return run_code(code, *args, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- metaclasses that lie -------------------------------------------------------------

_LYING_METACLASS = """
import sys
base = getattr(sys.modules["builtins"], sys.argv[1])

class Meta(type):
    __mro__ = property(lambda cls: (cls, base, object))

class Equal:
    def __eq__(self, other):
        return type(self) is type(other)

    def __hash__(self):
        return 1

class Static(Equal, metaclass=Meta):
    __slots__ = ("a", "b")

n_traces = 0

def fun(layer, static):
    global n_traces
    n_traces += 1
    return layer.x, static

f = filter_jit(fun)
for _ in range(3):
    static = Static()
    static.a = static.b = -1
    f(Layer(x, [static]), static)
    f(Layer(x, Layer(1, static)), (static,))
assert n_traces == 2
print("done")
"""


@pytest.mark.parametrize("base", ["list", "tuple", "dict", "str", "int"])
def test_classes_that_name_other_bases(base, engine):
    """Instances were read as lists, tuples and dictionaries, which they are not."""
    out = _run(_LYING_METACLASS, base, engine=engine)
    assert out.stdout == "done\n", out.stderr[-4000:]


_UNSTABLE_METACLASS = """
import sys

class Meta(type):
    def __hash__(cls):
        # Not found in JAX's registry of nodes by this library alone.
        code = sys._getframe(1).f_code
        return 2 if code.co_filename.endswith("_nodes.py") else 1

class Node(metaclass=Meta):
    __slots__ = ("a", "b")
    __class__ = property(lambda self: tuple)

jax.tree_util.register_pytree_node(Node, lambda node: ((), None), lambda *_: Node())
f = filter_jit(lambda x, node: x + 1)
for _ in range(3):
    node = Node()
    node.a = node.b = -1
    assert f(x, node) == f(x, Layer(x, node)) == 2
print("done")
"""


def test_nodes_that_claim_to_be_tuples(engine):
    out = _run(_UNSTABLE_METACLASS, engine=engine)
    assert out.stdout == "done\n", out.stderr[-4000:]


# --- functions that are never forgotten -----------------------------------------------

_DEFAULTS = """
class Default:
    pass

def wrap():
    default = Default()

    def fun(x, default=default):
        return x

    default.f = filter_jit(fun)
    return weakref.ref(default)

def alive():
    gc.collect()
    return sum(ref() is not None for ref in refs)

refs = [wrap() for _ in range(1500)]
assert alive() <= 1024, alive()
eqx.clear_caches()
assert alive() == 0, alive()
print("done")
"""


def test_functions_that_their_defaults_refer_to(engine):
    out = _run(_DEFAULTS, engine=engine)
    assert out.stdout == "done\n", out.stderr[-4000:]
