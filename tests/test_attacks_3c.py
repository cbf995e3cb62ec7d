"""Regression tests: faults found in a third adversarial review of `_native.c`."""

import gc
import sys
import typing
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _engine, filter_jit
from tests.processes import run_code


class _List(list):
    """A list that can be weakly referenced."""


class _Layer(eqx.Module):
    x: typing.Any
    static: typing.Any = eqx.field(static=True)


pytestmark = pytest.mark.one_engine

_COMMON = """
import collections, faulthandler, gc, sys
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from eqx_fastjit import _engine, filter_jit

native = _engine.native()
x = jnp.ones(2)
"""


# An `OrderedDict` keeps a list of its keys. A key removed by a method of `dict` stays
# in that list, and iteration asks it for its hash.
_ORDERED_DICT = """
class Key:
    armed = False
    def __hash__(self):
        return hash("a")
    def __eq__(self, other):
        if Key.armed:
            Key.armed = False
            tree.clear()
            New = type("New", (), {})
            flatten, unflatten = lambda _: ((), None), lambda *_: None
            jax.tree_util.register_pytree_node(New, flatten, unflatten)
            native.arrays_of((New(),))
            return True
        return self is other

for _ in range(3):
    native.arrays_of((collections.OrderedDict(), ""))
    key, ordered = Key(), collections.OrderedDict()
    ordered[key], ordered["a"], ordered["b"] = 1, 2.5, "c"
    dict.__delitem__(ordered, key)
    names = [[f"{i} {j}" for i in range(50)] for j in range(2)]
    tree = [names[0], {f"k{i}": f"v{i}" for i in range(50)}, ordered, names[1]]
    arguments = ([tree],)
    del ordered, names
    Key.armed = True
    try:
        native.arrays_of(arguments)
    except KeyError:
        pass
    assert not Key.armed
print("done")
"""


def test_an_ordered_dict_that_runs_python_when_it_is_read():
    out = run_code(_ORDERED_DICT, common=_COMMON, PYTHONMALLOC="debug")
    assert out.stdout == "done\n", out.stderr[-4000:]


def test_numpy_arrays_with_as_many_bytes_as_there_are_numbers_for():
    huge = np.broadcast_to(np.zeros((), np.int8), (sys.maxsize,))
    f = filter_jit(lambda *arrays: len(arrays))
    assert f(np.ones(3, np.int8), huge) == 2


def test_statics_of_calls_without_jit_are_not_kept():
    f = filter_jit(lambda m: m.x)
    refs = []
    with jax.disable_jit():
        for _ in range(20):
            static = _List([1])
            refs.append(weakref.ref(static))
            f(_Layer(jnp.ones(()), static))
    del static
    gc.collect()
    # The specialization was made for the first static, and keeps it.
    assert [ref() for ref in refs[1:]] == [None] * 19


def test_a_specialization_that_was_never_made():
    class Misses:
        def miss(self, values):
            return native.Specialization.__new__(native.Specialization)

    native = _engine.native()
    with pytest.raises(TypeError, match="specialization"):
        native.Table(1).get(Misses(), (1,))
