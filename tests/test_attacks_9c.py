"""Regression tests: faults found in a ninth adversarial review of the C files."""

import pytest

from tests.processes import run_code


_COMMON = """
import faulthandler, gc, sys, threading, tracemalloc
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp
import jax.tree_util as jtu
import eqx_fastjit
from eqx_fastjit import filter_jit

x = jnp.ones(())
"""

pytestmark = pytest.mark.one_engine


def _run(code, *args, **options):
    return run_code(code, *args, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- statics after a large one --------------------------------------------------------

# What the parts of a static were noted in is seen by its memory, as long as the walk is
# in the middle of the call: each later static had all of it to clear.
_AFTER_A_LARGE_STATIC = """
class Noted:
    def __init__(self):
        self.memory = []

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        self.memory.append(tracemalloc.get_traced_memory()[0])
        return 1

noted = Noted()

class Layer(eqx.Module):
    x: object
    static: object = eqx.field(static=True)

@filter_jit
def f(layers):
    return layers[0].x

large = Layer(x, (*[((i,),) for i in range(1000)], noted))
layers = [large, Layer(x, ((1, 2), (noted,)))]
for _ in range(3):
    f(layers)
tracemalloc.start()
noted.memory.clear()
f(layers)
at_its_end, after_it = noted.memory[:2]
assert after_it < at_its_end - 10_000, noted.memory
print("done")
"""


def test_a_large_static_leaves_nothing_to_clear():
    out = _run(_AFTER_A_LARGE_STATIC)
    assert out.stdout == "done\n", out.stderr[-4000:]


# --- a second import ------------------------------------------------------------------

_SECOND_IMPORT = """
class Model(eqx.Module):
    x: jax.Array

    @filter_jit
    def __call__(self, y):
        return self.x * y

first, engine = eqx_fastjit, eqx_fastjit.engine()
f, model = filter_jit(lambda x, n: x * n), Model(x)
f(x, 2), model(x)
for name in [name for name in sys.modules if name.split(".")[0] == "eqx_fastjit"]:
    del sys.modules[name]
import eqx_fastjit

assert eqx_fastjit is not first
g = eqx_fastjit.filter_jit(lambda x, n: x * n)
assert eqx_fastjit.engine() == "python"
assert g(x, 2) == f(x, 2) == 2 and g(x, 3) == f(x, 3) == 3
assert f.lower(x, 4).compile()(x, 4) == 4 and model(2 * x) == 2
assert first.filter_jit(lambda x: f(x, 2) + g(x, 3))(x) == 5
with jax.disable_jit():
    assert g(x, 5) == f(x, 5) == 5
print(engine)
"""


@pytest.mark.parametrize("which", ["python", "auto"])
def test_the_package_is_imported_twice(which):
    out = _run(_SECOND_IMPORT, engine=which)
    first = "native" if which == "auto" else which
    assert out.stdout == f"{first}\n", out.stderr[-4000:]


# Both have asked whether the type is registered before either has registered it.
_TWO_THREADS_BEGIN = """
together = threading.Barrier(2, timeout=60)
register = jtu.register_pytree_node

def register_together(cls, *functions):
    if cls.__name__ == "Handle":
        together.wait()
    register(cls, *functions)

jtu.register_pytree_node = register_together
results = []

def wrap_and_call():
    results.append(filter_jit(lambda x: x + 1)(x))

threads = [threading.Thread(target=wrap_and_call) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [2, 2], results
print(eqx_fastjit.engine())
"""


def test_two_threads_wrap_the_first_function():
    out = _run(_TWO_THREADS_BEGIN)
    assert out.stdout == "native\n", out.stderr[-4000:]


# --- keywords -------------------------------------------------------------------------

# Where a keyword is looked for depends on the last one, and on whether it is interned.
_KEYWORDS = """
import random

class Name(str):
    pass

def fun(a, /, b, c=3, *rest, d, e=5, bb=6, **more):
    return a, b, c, rest, d, e, bb, more

def twice_named(a, /, b=2, *, c=3, **more):
    return a, b, c, more

rng = random.Random(0)
makes = [sys.intern, lambda name: "".join(list(name)), Name]
n_errors = 0
for plain in (fun, twice_named):
    f = filter_jit(plain)
    for _ in range(120):
        known = ["a", "b", "c", "d", "e", "bb", "ee", "dd"]
        names = rng.sample(known, rng.randint(0, 6))
        make = makes[rng.choice([0, 0, 1, 1, 2])]
        mixed = rng.random() < 0.3
        keywords = {
            (rng.choice(makes) if mixed else make)(name): rng.randint(0, 1)
            for name in names
        }
        args = [rng.randint(0, 1) for _ in range(rng.randint(0, 4))]
        try:
            expected = plain(*args, **keywords)
        except TypeError as e:
            n_errors += 1
            try:
                f(*args, **keywords)
            except TypeError as ours:
                assert str(ours) == str(e), (ours, e)
            else:
                raise AssertionError((args, keywords))
        else:
            assert f(*args, **keywords) == expected, (args, keywords)
assert 40 < n_errors < 200, n_errors
print("done")
"""


@pytest.mark.parametrize("which", ["python", "native"])
def test_keywords_in_any_order(which):
    out = _run(_KEYWORDS, engine=which)
    assert out.stdout == "done\n", out.stderr[-4000:]


# --- plans ----------------------------------------------------------------------------

_WRONG_PLANS = """
import types

from eqx_fastjit import _engine

native = _engine.native()
assert filter_jit(lambda x: x)(x) == 1
OP_MODULE, OP_PLAIN_NAMEDTUPLE = 5, 8

class Words(dict):
    pass

for step in [
    (OP_PLAIN_NAMEDTUPLE, 0, 5),
    (OP_PLAIN_NAMEDTUPLE, 0, list),
    (OP_MODULE, 0, (types.FrameType, {}, (), vars(types.FrameType)["f_lineno"], None)),
    (OP_MODULE, 0, (type, {}, (), vars(type)["__dict__"], None)),
    (OP_MODULE, 0, (type, {}, (), vars(Words)["__dict__"], None)),
    (OP_MODULE, 0, (Words, {}, (), vars(Words)["__dict__"], dict)),
]:
    plan, handle = types.SimpleNamespace(steps=(step,)), native.Handle()
    try:
        handle.set_plan(plan)
    except SystemError:
        assert not hasattr(plan, "native")
    else:
        plan.native.build([])
        raise AssertionError(step)
print("done")
"""


def test_plans_of_what_cannot_be_created():
    out = _run(_WRONG_PLANS)
    assert out.stdout == "done\n", out.stderr[-4000:]
