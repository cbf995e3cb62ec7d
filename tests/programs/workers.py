"""Calls a jitted function in worker processes: `workers.py spawn` or `fork`."""

import multiprocessing
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import filter_jit


@filter_jit
def work(model, n):
    return model(jnp.ones(2)) * n, n


def make():
    return eqx.nn.Linear(2, 2, key=jax.random.key(0))


def child(n, out):
    first, _ = work(make(), n)
    second, static = work(make(), n)
    out.put((n, first.tolist(), second.tolist(), static))


def main(method):
    context = multiprocessing.get_context(method)
    numbers = (1, 2.0) if method == "fork" else (1,)
    if method == "spawn":  # a process that has used JAX must not fork
        work(make(), 0)

    out = context.Queue()
    workers = [context.Process(target=child, args=(n, out)) for n in numbers]
    for worker in workers:
        worker.start()
    results = [out.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0

    for n, first, second, static in results:
        expected, _ = work(make(), n)
        assert first == second == expected.tolist()
        assert static == n

    if method == "spawn":  # the function itself is sent by pickle
        with context.Pool(1) as pool:
            assert pool.apply(work, (make(), 3))[1] == 3


if __name__ == "__main__":
    main(sys.argv[1])
