"""Regression tests: faults found in a seventh adversarial review of the C files."""

import pytest

from tests.processes import run_code


pytestmark = pytest.mark.one_engine

_COMMON = """
import faulthandler, functools, gc, sys, threading, weakref
faulthandler.enable()
import jax, jax.numpy as jnp
from eqx_fastjit import _engine, filter_jit

native = _engine.native()
x = jnp.ones(())
"""


def _run(code, **options):
    return run_code(code, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- a collector in another thread ----------------------------------------------------

# A function that is garbage is found by a weak reference which a finalizer has made. A
# thread is in the middle of a call of it while the collector clears its parts. (Python
# 3.14 clears such references.)
_GARBAGE = """
inside, collected = threading.Event(), threading.Event()
armed = False

def pause():
    if armed:
        inside.set()
        collected.wait(60)

class Static:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        pause()
        return True

class Node:
    pass

def unflatten(*_):
    pause()
    return Node()

jax.tree_util.register_pytree_node(Node, lambda node: ((), None), unflatten)

class Held:
    pass

class Finalized:
    def __del__(self):
        found.append(weakref.ref(self.f))
        found.append(weakref.ref(self.held[0], hand_over))

def hand_over(_):
    thread = threading.Thread(target=call, args=(found[0](),))
    threads.append(thread)
    thread.start()
    inside.wait(60)

def call(f):
    try:
        results.append(f(x, *argument()))
    except Exception:
        pass

def run(fun):
    # The collector clears the oldest first.
    held = [Held()]
    finalized = Finalized()
    f = filter_jit(fun)
    for _ in range(2):
        f(x, *argument())
    finalized.held, finalized.f, f.__dict__["finalized"] = held, f, finalized

found, threads, results = [], [], []
gc.collect()
gc.disable()
"""
_IN_EQUALITY = """
argument = lambda: [Static()]
run(lambda x, static: x)
"""
_IN_UNFLATTEN = """
argument = lambda: []
run(lambda x: [Node(), *[(i, x, Held()) for i in range(40)]])
"""
_COLLECT = """
others = [lambda: 0 for _ in range(1100)]
for other in others:
    filter_jit(other)  # so that nothing remembers the first
armed = True
gc.collect()
reused = [Held() for _ in range(1000)]
collected.set()
for thread in threads:
    thread.join()
assert len(threads) == (sys.version_info < (3, 14)), threads
print("done", [len(out) for out in results if type(out) is list])
"""


@pytest.mark.parametrize(
    "where, lengths",
    [(_IN_EQUALITY, "[]"), (_IN_UNFLATTEN, "[41]")],
    ids=["equality", "unflatten"],
)
def test_a_call_while_another_thread_collects_garbage(where, lengths):
    out = _run(_GARBAGE + where + _COLLECT)
    assert out.stdout == f"done {lengths}\n", out.stderr[-4000:]


# --- arguments that nobody holds ------------------------------------------------------

# A `partial` passes its arguments without holding them, and may be given others.
_LOST = """
class Key:
    def __hash__(self):
        return hash("n")

    def __eq__(self, other):
        if armed:
            lose()
        return False

def lose():
    held.__setstate__((print, (), {}, None))
    reused.extend(bytes(i) for i in range(100))

def fun(*args, n=1):
    return args[0] * n, args[1]

armed, reused = False, []
fun.__kwdefaults__ = {Key(): 3, "n": 2}
f = filter_jit(fun)
fun.__kwdefaults__ = {Key(): 3, "n": 4}
held = functools.partial(f, jnp.ones(3) * 2, ("a", float("1.5")))
armed = True
print(held())
"""


def test_arguments_that_are_lost_while_a_default_is_looked_up():
    out = _run(_LOST)
    assert out.stdout == "(Array([8., 8., 8.], dtype=float32), ('a', 1.5))\n", (
        out.stderr[-4000:]
    )


_LOST_TO_THE_COLLECTOR = """
class Finalized:
    def __init__(self):
        self.me = self

    def __del__(self):
        held.__setstate__((print, (), {}, None))
        reused.extend(bytes(i) for i in range(100))

reused = []
f = filter_jit(lambda *args, **kwargs: (args[-1], sorted(kwargs)))
f(*[x] * 22, ("a",), n=1)
for _ in range(5):
    held = functools.partial(f, *[jnp.ones(()) for _ in range(22)], ("a",))
    gc.disable()
    Finalized()
    gc.set_threshold(1)
    kept = [[] for _ in range(200)]
    gc.enable()
    out = held(n=1)
    gc.set_threshold(700)
    assert out == (("a",), ["n"]), out
print("done")
"""


def test_arguments_that_are_lost_to_the_collector():
    out = _run(_LOST_TO_THE_COLLECTOR)
    assert out.stdout == "done\n", out.stderr[-4000:]


_ORDER = """
def fun(x, *, a=1, b=2, c=3):
    return x, (a, b, c)

f = filter_jit(fun)
names = "".join(["a", " b", " c"]).split()
for defaults in ({"c": 3, "b": 2, "a": 1}, dict(zip(names, (4, 5, 6)))):
    fun.__kwdefaults__ = defaults
    a, b, c = defaults["a"], defaults["b"], defaults["c"]
    for _ in range(2):
        assert f(x)[1] == (a, b, c)
        assert f(x, b=7)[1] == (a, 7, c)
        assert f(x, c=7)[1] == (a, b, 7)
defaults["b"] = 8
assert f(x)[1] == (4, 8, 6)
del defaults["b"]
try:
    f(x)
except TypeError as e:
    print("done")
"""


def test_defaults_of_keywords_in_another_order():
    out = _run(_ORDER)
    assert out.stdout == "done\n", out.stderr[-4000:]


# --- interrupts -----------------------------------------------------------------------

# At every event of a profile function, where a signal's handler may raise as well.
_INTERRUPTED = """
class Interrupt(BaseException):
    pass

def interrupt(frame, event, arg):
    global n
    file = frame.f_code.co_filename
    if event in ("call", "return") and file.endswith(("contextlib.py", "_engine.py")):
        n -= 1
        if n == 0:
            raise Interrupt

def inner(x):
    filter_jit(lambda x: x + 1).lower(x)
    return x

sys.unraisablehook = print  # a generator that is interrupted as it is closed
for first in range(1, 1000):
    f = filter_jit(lambda x: inner(x) * 2)
    n = first
    sys.setprofile(interrupt)
    try:
        f.lower(x)
        break
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    assert _engine.innermost_call() is None, first
assert first > 20
print("done")
"""


def test_a_call_that_is_interrupted_as_it_begins_or_ends():
    out = _run(_INTERRUPTED)
    assert out.stdout.endswith("done\n"), out.stderr[-4000:]


# --- lists that a profiler finds and changes ------------------------------------------

_PROFILED = """
class Node:
    pass

def unflatten(*_):
    for out in found:
        out.clear()
    return Node()

def profile(frame, event, arg):
    values = [arg, *(arg if type(arg) is tuple else ())]
    if frame.f_code.co_name == "decide_blocks":
        found.append(frame.f_locals["results"])
    for value in values:
        if type(value) is list and value and type(value[-1]) is native.Handle:
            found.append(value)

found = []
jax.tree_util.register_pytree_node(Node, lambda node: ((), None), unflatten)
f = filter_jit(lambda *xs: [Node(), *[x * 2 for x in xs]])
sys.setprofile(profile)
for _ in range(3):
    assert [float(y) for y in f(*[x] * 8)[1:]] == [2] * 8
assert found
print("done")
"""


def test_results_that_a_profiler_changes():
    out = _run(_PROFILED)
    assert out.stdout == "done\n", out.stderr[-4000:]


_PROFILED_INSIDE = """
import equinox as eqx

class Model(eqx.Module):
    sizes: list = eqx.field(static=True)

def profile(frame, event, arg):
    for value in frame.f_locals.values():
        if type(value) is list and value and type(value[-1]) is native.Handle:
            found.append(value)
    name = frame.f_code.co_name
    if event == "call":
        names.append(name)
    if name in ("finished", "decide_blocks"):
        for value in found:
            value.clear()
        junk.append([bytearray(2400) for _ in range(50)])

@filter_jit
def inner(model, x):
    return [x + i for i in range(300)]

@filter_jit
def outer(model, x):
    sys.setprofile(profile)
    try:
        out = inner(model, x)
    finally:
        sys.setprofile(None)
    return out[0] + out[-1]

found, junk, names = [], [], []
assert outer(Model([1]), x) == 2 * x + 299
assert "tell_outer" in names
print("done")
"""


def test_results_that_a_profiler_changes_inside_of_another_call():
    out = _run(_PROFILED_INSIDE)
    assert out.stdout == "done\n", out.stderr[-4000:]
