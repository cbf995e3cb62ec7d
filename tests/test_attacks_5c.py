"""Regression tests: faults found in a fifth adversarial review of the C files."""

import sys

import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from tests.processes import run_code


X = jnp.ones(())
_COMMON = """
import faulthandler
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import _engine, filter_jit

native = _engine.native()
x = jnp.ones(())
"""


def _run(code, **options):
    return run_code(code, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- missing arguments ---------------------------------------------------------------

_PREPARE = """
for given in (
    {},
    dict(positional=None),
    dict(positional=None, names=(), kinds=b"", defaults=()),
    dict(positional=None, function=None, table=native.Table(1), fun=None),
    dict(positional=None, names=(), kinds=b"", defaults=(), binder=None, source=5)
    | dict(function=None, table=native.Table(1), fun=None),
):
    try:
        native.Callable()._prepare(None, **given)
    except TypeError as e:
        print(e)
"""


@pytest.mark.one_engine
def test_a_callable_that_is_not_told_all_it_needs():
    out = _run(_PREPARE)
    assert out.stdout == "_prepare: arguments are missing\n" * 5, out.stderr[-4000:]


# --- memory --------------------------------------------------------------------------

_NO_MEMORY_AFTER_A_TRACE = """
import _testcapi

class Layer(eqx.Module):
    x: object
    static: object = eqx.field(static=True)

class Function:
    finishes = failures = 0

    def miss(self, values):
        flat = object()
        return native.Specialization(Jitted(flat), flat, {})

    def finished(self, call, arrays):
        self.finishes += 1

    def failed(self, call, error):
        self.failures += 1

    def translate(self, error):
        pass

    def result(self, specialization, out, arrays, compiled):
        return "result"

class Jitted:
    # Replaces `jax.jit`, so that allocations fail once it has returned.
    n = None

    def __init__(self, flat):
        self.flat = flat

    def __call__(self, *arrays):
        native.find_call(self.flat)  # as a trace does
        out = [None]
        if self.n is not None:
            _testcapi.set_nomemory(self.n, self.n + 1)
        return out

function, table, f = Function(), native.Table(9), native.Callable()
f._prepare(None, function=function, table=table, fun=None, fun_index=-1,
           names=("layer",), kinds=bytes([1]), defaults=(None,), binder=None,
           source=None, positional=None)
ends = []
for n in range(12):
    table.clear()
    Jitted.n = None
    f(Layer(x, [1]))
    Jitted.n = n
    layer = Layer(x, [1])
    function.finishes = function.failures = 0
    try:
        f(layer)
    except MemoryError:
        pass
    _testcapi.remove_mem_hooks()
    ends.append((function.finishes, function.failures, len(table)))
# It stays: which static it was traced with is known once it is traced.
print(ends[0] == (0, 1, 1), set(ends) == {(0, 1, 1), (1, 0, 1)}, ends)
"""


@pytest.mark.one_engine
def test_the_record_of_a_call_ends_without_memory():
    pytest.importorskip("_testcapi")
    out = _run(_NO_MEMORY_AFTER_A_TRACE)
    assert out.stdout.startswith("True True"), out.stdout + out.stderr[-4000:]


_ENDLESS = """
import resource

class Static:
    def method(self):
        pass

limits = resource.getrlimit(resource.RLIMIT_AS)
now = 1024 * int(open("/proc/self/statm").read().split()[0]) * 4
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), limits[1]))
endless = [Static().method]
endless.append(endless)
f = filter_jit(lambda *trees: None)
for n in range(4):
    try:
        f(*[None] * n, endless)
    except RecursionError:
        print(n)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_trees_that_do_not_end_but_whose_statics_do(engine):
    """The end of a static with many parts was taken for the end of the whole walk."""
    out = _run(_ENDLESS, engine=engine)
    assert out.stdout.split() == ["0", "1", "2", "3"], out.stderr[-4000:]


# --- Ctrl-C --------------------------------------------------------------------------


class _Interrupts(ValueError):
    def __str__(self):
        raise KeyboardInterrupt


def test_an_interrupt_while_an_exception_is_explained(engine):
    @filter_jit
    def f(x):
        raise _Interrupts

    with pytest.raises(KeyboardInterrupt):
        f(X)


class _ClassInterrupts(ValueError):
    @property
    def __class__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        if sys._getframe(1).f_code.co_name == "failed":
            raise KeyboardInterrupt
        return ValueError


def test_an_interrupt_while_a_failed_call_ends(engine):
    @filter_jit
    def f(x):
        if fail:
            raise _ClassInterrupts
        return x

    fail = True
    with pytest.raises(KeyboardInterrupt):
        f(X)
    if engine == "native":  # in Python, an interrupt there ends `failed` itself
        assert f._function.n_specializations() == 0
    fail = False
    assert f(X) == 1


class _Key:
    interrupts = False

    def __hash__(self):
        return hash("n")

    def __eq__(self, other):
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return False


def test_an_interrupt_while_a_default_is_looked_up(engine):
    def fun(x, *, n=1):
        return x * n

    f = filter_jit(fun)
    key = _Key()
    fun.__kwdefaults__ = {key: 3, "n": 2}  # changed, so that it is looked up
    key.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        f(X)
