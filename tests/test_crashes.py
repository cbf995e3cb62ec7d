"""User code runs in the middle of a lookup, in many threads."""

import os

import pytest

from tests.processes import run_code


_SCRIPT = """
import faulthandler, random, sys, threading, time
faulthandler.enable()
faulthandler.dump_traceback_later(200, exit=True)
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import _function, filter_jit

sys.setswitchinterval(1e-5)
_function._MAX_SPECIALIZATIONS = 24  # so that some are dropped now and then


class Dies:
    # Runs Python code when it is freed.
    def __del__(self):
        sum(range(200))


class Equal:
    # Runs Python code when it is compared.
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return sum(range(50)) > 0 and self.n == other.n

    def __repr__(self):
        return f"Equal({self.n})"


x = jnp.ones(())
wrong = []


def work(seed, functions, statics, stop):
    rng = random.Random(seed)
    while time.monotonic() < stop:
        f = rng.choice(functions)
        i = functions.index(f)
        for _ in range(30):
            n = rng.choice(statics)
            out, same = f(x, n)
            if repr(same) != repr(n):
                wrong.append((n, same))
        if float(out) != 1 + i:
            wrong.append((i, out))
        if rng.random() < 0.05:
            f.clear_cache()
        if rng.random() < 0.02:
            f(x, Dies())
            filter_jit(lambda x, n: x * 2)(x, Dies())


zeros = (0.0, -0.0, 1, 2)
others = (0.0, complex(0.0, -0.0), "a" * 5000, (0.0, -0.0), Equal(1), Equal(2))
for statics in (zeros, others):
    functions = [filter_jit(lambda x, n, i=i: (x + i, n)) for i in range(4)]
    for f in functions:
        for n in statics:
            f(x, n)
    stop = time.monotonic() + float(sys.argv[1])
    threads = [
        threading.Thread(target=work, args=(seed, functions, statics, stop))
        for seed in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
print("done")
"""


def test_look_ups_are_not_disturbed(engine):
    """Statics are released while lookups compare them. Unguarded, 3 of 4 runs crash."""
    out = run_code(_SCRIPT, "5", engine=engine)
    assert out.returncode == 0, out.stderr[-4000:]
    assert out.stdout == "done\n"


_GREENLETS = """
import contextlib
import greenlet
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import filter_jit


class Static(eqx.Module):
    items: list = eqx.field(static=True)


@filter_jit
def leaves(x, n):
    main.switch()
    return x + n


@filter_jit
def reads(x, static):
    return x + len(static.items)


def deeper(n, levels):
    # Writes over the part of the stack that the greenlet has left, and traces there.
    # JAX's own state is that of the other trace meanwhile, so this may raise.
    with contextlib.suppress(Exception):
        reads(x, static)
        filter_jit(lambda x: reads(x, static) * levels * n)(x)
        with jax.ensure_compile_time_eval():
            jax.jit(lambda x: x * n)(2)
    if n:
        max([0], key=lambda _: deeper(n - 1, levels) or 0)


main = greenlet.getcurrent()
x, static = jnp.float32(1), Static([1, 2])
for levels in (0, 1, 60):
    left = [greenlet.greenlet(lambda i=i: leaves(x, (levels, i)[1])) for i in range(3)]
    for other in left:
        other.switch()
        deeper(levels, levels)
    for other in left:
        with contextlib.suppress(Exception):
            other.switch()
        deeper(levels, levels)
print("done")
"""


def test_greenlets_that_are_left_in_the_middle_of_a_trace(engine):
    """Another uses the stack meanwhile, where the calls of this one were listed."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer rejects that greenlets copy the stack")
    out = run_code(_GREENLETS, engine=engine, PYTHONMALLOC="debug")
    assert out.returncode == 0, out.stderr[-4000:]
    assert out.stdout == "done\n"


_SMALL_STACK = """
import threading
import jax.numpy as jnp
from eqx_fastjit import filter_jit


class Calls:
    def __eq__(self, other):
        return True

    def __hash__(self):
        f(Calls(), jnp.float32(1))
        return 1


def work():
    try:
        f(Calls(), jnp.float32(1))
    except RecursionError:
        print("done")


f = filter_jit(lambda h, x: x)
threading.stack_size(1 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_calls_that_call_themselves_on_a_small_stack(engine):
    out = run_code(_SMALL_STACK, engine=engine)
    assert out.returncode == 0, out.stderr[-4000:]
    assert out.stdout == "done\n"
