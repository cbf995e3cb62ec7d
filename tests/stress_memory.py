"""`python -m tests.stress_memory calls=1000000 lambdas=10000`: memory left behind.

For each kind, prints by how much the second half of the repetitions increased memory,
as a line of JSON: Python's memory by `tracemalloc` (bytes per repetition), and the
resident set of the process (bytes in all). The first half fills caches and pools.

Kinds: `calls`; `outputs`, large ones that are kept for a while; `lambdas`, each wrapped
and called; `wrapped`, lambdas that are only wrapped; `statics`, all different, of one
function; `classes` of Modules, each defined, jitted and dropped. `--jit equinox` is for
comparison. `--programs 40` lowers the number of programs that are kept for a function
(4,096, of 1.4 MB each, nearly all of it XLA's), to test that it is a bound.
"""

import argparse
import gc
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import _function, filter_jit

from .differential.harness import keep_programs
from .records import add, stamp


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls(jit) -> Callable[[int], object]:
    f = jit(lambda m, x, n: (m(x), n, m))
    model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    x = jnp.ones(2)
    return lambda i: f(model, x, i % 3)


def outputs(jit) -> Callable[[int], object]:
    f = jit(lambda x, n: (x + n, {"n": n}))
    donated = jit(lambda x: x + 1, donate="all")
    x = jnp.ones(100_000)
    held = []

    def do(i):
        held.append(donated(f(x, 1)[0]))
        if len(held) == 50:
            held.clear()

    return do


def lambdas(jit) -> Callable[[int], object]:
    x = jnp.array(1.0)
    return lambda i: jit(lambda x: (x + 1, i))(x)


def wrapped(jit) -> Callable[[int], object]:
    return lambda i: jit(lambda x, i=i: x + i)


def statics(jit) -> Callable[[int], object]:
    f = jit(lambda x, n: (x + 1, n))
    x = jnp.array(1.0)
    return lambda i: f(x, f"static {i}")


def classes(jit) -> Callable[[int], object]:
    def do(i):
        class M(eqx.Module):
            w: jax.Array
            n: int = eqx.field(static=True)

        f = jit(lambda m, x: (m.w * x, m))
        for _ in range(20):  # until the function is warm
            f(M(jnp.array(1.0), i), jnp.array(2.0))

    return do


KINDS = {f.__name__: f for f in (calls, outputs, lambdas, wrapped, statics, classes)}


def measure(kind: str, n: int, jit, *, trace: bool = True) -> dict[str, object]:
    do = KINDS[kind](jit)
    start = time.perf_counter()

    def half(begin: int) -> tuple[int, int]:
        for i in range(begin, begin + n // 2):
            do(i)
        gc.collect()
        python = tracemalloc.get_traced_memory()[0] if trace else 0
        return python, resident()

    do(0)
    if trace:
        tracemalloc.start()
    first = half(1)
    second = half(1 + n // 2)
    tracemalloc.stop()
    return {
        "kind": kind,
        "n": n,
        "python_bytes_each": round((second[0] - first[0]) / (n // 2), 1),
        "resident_growth": second[1] - first[1],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress_memory", description=__doc__
    )
    parser.add_argument("what", nargs="+", metavar="KIND=N")
    parser.add_argument("--jit", choices=("ours", "equinox"), default="ours")
    parser.add_argument("--programs", type=int, default=_function._MAX_SPECIALIZATIONS)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--no-trace", action="store_true", help="without tracemalloc")
    options = parser.parse_args()
    _function._MAX_SPECIALIZATIONS = options.programs
    keep_programs(tempfile.mkdtemp(prefix="memory"))  # compilations cost 50 ms
    jit = filter_jit if options.jit == "ours" else eqx.filter_jit
    for what in options.what:
        kind, _, n = what.partition("=")
        if kind not in KINDS or not n.isdecimal():
            parser.error(f"{what!r}: expected KIND=N, KIND one of {', '.join(KINDS)}")
        out = measure(kind, int(n), jit, trace=not options.no_trace)
        entry = {"jit": options.jit, **out}
        print(json.dumps(entry), flush=True)
        if options.json is not None:
            add(options.json, {**entry, **stamp()}, "jit", "kind")


if __name__ == "__main__":
    main()
