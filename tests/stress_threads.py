"""`python -m tests.stress_threads --seconds 60`: many threads at once.

Sixteen threads call functions, call them for the first time, wrap functions, define
classes, clear caches, donate, raise, and install the library, in random order, and
check every result. Prints the number of each action as JSON. After a hang, it prints
the tracebacks of all threads and exits with code 1. A wrong result also gives code 1.
"""

import argparse
import collections
import faulthandler
import itertools
import json
import random
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_fastjit
from eqx_fastjit import filter_jit


_THREADS = 16
# Seconds without progress, on two slow cores.
_HANG = 120
_original = eqx.filter_jit
_numbers = itertools.count()


class Model(eqx.Module):
    w: jax.Array
    n: int = eqx.field(static=True)

    @filter_jit
    def method(self, x):
        return self.w * x * self.n


def _plain(m, x, n):
    return {"y": m.w * x * m.n, "n": n, "type": type(n)}


shared = filter_jit(_plain)
donating = filter_jit(lambda x, n: (x + n, n), donate="all")
checked = [
    filter_jit(lambda x, i=i: eqx.error_if(x, x < 0, f"negative in {i}"))
    for i in range(_THREADS)
]
_STATICS = (1, True, 1.0, 2, "a", None, 0.0, -0.0, (1, "b"))


def _check(condition, *what):
    if not condition:
        raise AssertionError(*what)


def _same_value(y, expected):
    _check(np.asarray(y) == expected, y, expected)


def _call(rng, thread, fun=shared):
    m = Model(jnp.array(float(rng.randrange(9))), rng.randrange(3))
    x = jnp.array(float(rng.randrange(9)))
    n = rng.choice(_STATICS)
    out = fun(m, x, n)
    _same_value(out["y"], float(m.w) * float(x) * m.n)
    _check(out["type"] is type(n) and repr(out["n"]) == repr(n), out, n)


def call(rng, thread):
    for _ in range(20):
        _call(rng, thread)


def wrap_again(rng, thread):
    _call(rng, thread, filter_jit(_plain))
    _call(rng, thread, filter_jit(filter_jit(_plain)))


def call_first(rng, thread):
    number = next(_numbers)
    f = filter_jit(lambda x, n: (x + number, n))
    for n in _STATICS[:2]:
        out, m = f(jnp.array(1.0), n)
        _same_value(out, 1.0 + number)
        _check(m is n, m, n)


def call_method(rng, thread):
    m = Model(jnp.array(2.0), rng.randrange(3))
    _same_value(m.method(jnp.array(3.0)), 6.0 * m.n)


def new_class(rng, thread):
    number = next(_numbers) % 7

    class New(eqx.Module):
        w: jax.Array
        opaque: object = eqx.field(static=True)

        def __call__(self, x):
            return self.w * x + number, self

    class Opaque:
        pass

    m = New(jnp.array(2.0), Opaque())
    for _ in range(20):  # until the function is warm
        y, out = filter_jit(m)(jnp.array(3.0))
        _same_value(y, 6.0 + number)
        _check(out.opaque is m.opaque)


def clear(rng, thread):
    rng.choice((shared.clear_cache, eqx.clear_caches, Model.method.clear_cache))()


def install(rng, thread):
    with eqx_fastjit.installed():
        _same_value(eqx.filter_jit(lambda x: x + 1)(jnp.array(1.0)), 2.0)
    rng.choice((eqx_fastjit.install, eqx_fastjit.uninstall))()
    is_ours = eqx.filter_jit.__module__.startswith("eqx_fastjit")
    _check(is_ours or eqx.filter_jit is _original)
    _call(
        rng,
        thread,
        eqx.filter_jit(_plain) if eqx.filter_jit is not _original else shared,
    )


def error(rng, thread):
    f = checked[thread]
    _same_value(f(jnp.array(1.0)), 1.0)
    try:
        f(jnp.array(-1.0))
    except eqx.EquinoxRuntimeError as e:
        _check(f"negative in {thread}\n" in str(e), str(e))
    else:
        raise AssertionError("no error")


def error_while_tracing(rng, thread):
    def fails(x, fail):
        if fail:
            raise KeyError(thread)
        return x + 1

    f = filter_jit(fails)
    try:
        f(jnp.array(1.0), True)
    except KeyError as e:
        _check(e.args == (thread,))
    _same_value(f(jnp.array(1.0), False), 2.0)


def donate(rng, thread):
    x = jnp.array(1.0)
    out, n = donating(x, 3)
    _same_value(out, 4.0)
    _check(n == 3 and x.is_deleted())


# Clearing is rare; otherwise there would hardly ever be a cache hit.
_ACTIONS = {
    call: 40,
    wrap_again: 10,
    call_first: 3,
    call_method: 20,
    new_class: 2,
    clear: 1,
    install: 3,
    error: 5,
    error_while_tracing: 2,
    donate: 10,
}


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress_threads", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()

    from .differential.harness import keep_programs
    from .records import add, stamp

    keep_programs(tempfile.mkdtemp(prefix="stress"))
    sys.setswitchinterval(1e-4)  # switch threads far more often than by default
    counts = collections.Counter()
    failed = []
    start = time.monotonic()

    def run(thread):
        rng = random.Random(f"{options.seed} {thread}")
        names = list(_ACTIONS)
        own = collections.Counter()
        try:
            # Each at least once, even on a slow machine.
            for action in rng.sample(names, len(names)):
                action(rng, thread)
                own[action.__name__] += 1
            while time.monotonic() < start + options.seconds and not failed:
                action = rng.choices(names, list(_ACTIONS.values()))[0]
                action(rng, thread)
                own[action.__name__] += 1
                faulthandler.dump_traceback_later(_HANG, exit=True)
        except BaseException as e:
            failed.append(e)
            traceback.print_exception(e)
        counts.update(own)

    faulthandler.dump_traceback_later(_HANG, exit=True)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eqx_fastjit.uninstall()
    _check(eqx.filter_jit is _original)
    _call(random.Random(0), 0)
    entry = {
        "threads": _THREADS,
        "seconds": round(time.monotonic() - start, 1),
        "engine": eqx_fastjit.engine(),
        "failures": len(failed),
        "done": dict(counts),
    }
    print(json.dumps(entry))
    if options.json is not None:
        add(options.json, {**entry, **stamp()}, "engine")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
