"""Fails each allocation of a cache hit in turn, and of a look-up.

`failing_allocations.py N`: the first N allocations of each. jaxlib does not survive a
failed allocation, so Python functions stand in for the result of `jax.jit`, and no type
is registered meanwhile (`isinstance(x, jax.Array)` ends the process), nor a dictionary
sorted by JAX.
"""

import _testcapi
import sys

import equinox as eqx
import jax.numpy as jnp

from eqx_fastjit import _engine, filter_jit
from tests.support.modules import Holder, Node


X = jnp.ones(2)
N = int(sys.argv[1])
native = _engine.ENGINE


def without_memory(call, start):
    """What a call returns if one allocation fails, or `None` if it raises."""
    _testcapi.set_nomemory(start, start + 1)
    try:
        return call()
    except MemoryError:
        return None
    finally:
        _testcapi.remove_mem_hooks()


def stand_in(*args, **kwargs):
    """A jitted function whose program is run by Python, and its right result."""
    f = filter_jit(lambda m, *rest, key=None, **more: (m, rest, key, more))
    function, made = f._function, []
    specialize = function.specialize

    def real(values):
        made.append(specialize(values))
        return made[-1]

    # A call that is compiled as usual, for its result and its plan.
    function.specialize = real
    right = f(*args, **kwargs)
    first, arrays = made[0]
    (handle,) = first.flat.plans

    # Then the same call with a function of Python in place of the program.
    def fake(values):
        again, _ = native.read(values, False)
        again.jitted, again.flat = lambda *arrays: [*arrays, handle], first.flat
        function.table[again] = again
        return again, arrays

    function.specialize = fake
    f.clear_cache()
    return (lambda: f(*args, **kwargs)), right, made


def same(out, right):
    return bool(eqx.tree_equal(out, right))


def calls_survive():
    """Whole cache hits."""
    module = Holder([X, {"a": X}], (1, [2]))
    for args, kwargs in (
        ((module,), {}),
        ((module, X, 1), {"key": (X, 2), "other": [X]}),
        (([X] * 80,), {}),
        (({f"k{i:02}": i for i in range(60)},), {}),
        ((Node([X, 1], ["aux"]),), {"key": {1, 2}}),
    ):
        call, right, _made = stand_in(*args, **kwargs)
        assert same(call(), right)

        failed = 0
        for start in range(N):
            out = without_memory(call, start)
            failed += out is None
            assert out is None or same(out, right)
            assert same(call(), right)
        assert failed


def look_ups_survive():
    """Reading a call and finding its specialization; some make buffers grow."""
    f = filter_jit(lambda *args: args)
    table = f._function.table
    values = [
        ([X] * 100, {f"k{i:02}": (X, i) for i in range(100)}),
        (Holder(X, [1, {"a": (2,)}, 10**30, "word", 2.5, {3}]),),
        *[([*range(n)], [Holder(X, [i]) for i in range(70)]) for n in range(150, 156)],
    ]
    for args in values:
        bound = (args,)  # one parameter
        signature, found, arrays = f._function.specialization_for(bound)

        for start in range(N):
            out = without_memory(lambda bound=bound: native.read(bound, True), start)
            if out is not None:
                assert out[0] == signature
                assert all(map(lambda a, b: a is b, out[1], arrays))

            out = without_memory(lambda s=signature: table.get(s), start)
            assert out in (None, found)
            assert table.get(signature) is found

            without_memory(found.is_stale, start)
            assert found.is_stale() is False


calls_survive()
look_ups_survive()
print("done")
