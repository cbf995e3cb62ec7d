"""jaxlib's dispatcher is not made for Python that runs in the middle of its work."""

import os
import subprocess
import sys


_SCRIPT = """
import faulthandler, random, sys, threading, time
faulthandler.enable()
faulthandler.dump_traceback_later(200, exit=True)
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import _dispatch, filter_jit

sys.setswitchinterval(1e-5)
_dispatch._MAX_PROGRAMS = 24  # so that programs are dropped all the time


class Dies:
    '''Runs Python when it is let go.'''

    def __del__(self):
        sum(range(200))


class Equal:
    '''Runs Python when it is compared.'''

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return sum(range(50)) > 0 and self.n == other.n


class Model(eqx.Module):
    w: jax.Array
    n: object = eqx.field(static=True)


functions = [filter_jit(lambda x, n, i=i: (x + i, n)) for i in range(3)]
x = jnp.ones(())
statics = [0.0, -0.0, float("nan"), 1, complex(0.0, -0.0), "a" * 5000, (0.0, -0.0)]
statics += [Equal(i) for i in range(4)] + [Model(x, Equal(i)) for i in range(2)]
stop = time.monotonic() + float(sys.argv[1])
wrong = []


def work(seed):
    rng = random.Random(seed)
    done = 0
    while time.monotonic() < stop or done < 3:
        done += 1
        f = rng.choice(functions)
        i = functions.index(f)
        for _ in range(30):
            n = rng.choice(statics)
            out, same = f(x, n)
            if float(out) != 1 + i or repr(same) != repr(n):
                wrong.append((out, i, n, same))
        if rng.random() < 0.1:
            f(x, Dies())
        if rng.random() < 0.1:
            f.clear_cache()
        if rng.random() < 0.02:
            eqx.clear_caches()
        if rng.random() < 0.05:
            g = filter_jit(lambda x, n: x * 2)
            g(x, Dies()), g(x, -0.0)


# A representation that tells them apart and has no address.
Equal.__repr__ = lambda self: f"Equal({self.n})"
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong[0]
print("done")
"""


def test_look_ups_are_not_disturbed(route):
    """While statics are compared and let go. Used to crash within a second."""
    out = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "4"],
        env=dict(os.environ, EQX_FASTJIT_ROUTE=route),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert out.returncode == 0, out.stderr[-4000:]
    assert out.stdout == "done\n"
