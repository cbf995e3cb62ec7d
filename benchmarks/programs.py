"""Whole programs, most of which call small functions many times.

`benchmarks.whole` runs each in fresh processes, with `equinox.filter_jit` and with
`eqx_fastjit` installed in its place. Hence they use `eqx.filter_jit` when they run, and
not when this file is imported.
"""

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.optimize

from benchmarks.loops import (
    gan_in_turn,
    mlp_adam_numpy_batch,
    plainly,
    policy_on_host,
)


def _run(loop: Callable[..., Iterator[Any]], steps: int) -> Any:
    """The last of the results that a loop of `loops.py` yields."""
    results = itertools.islice(loop(plainly), steps)
    (last,) = collections.deque(results, maxlen=1)
    return float(last)


def rl_loop(steps: int = 20_000) -> float:
    """a policy that acts in an environment written in Python"""
    return _run(policy_on_host, steps)


def train(steps: int = 10_000) -> float:
    """training of a small model, with float(loss) read after each step"""
    return _run(mlp_adam_numpy_batch, steps)


def gan(steps: int = 5_000) -> float:
    """steps of the two networks of a GAN"""
    return _run(gan_in_turn, steps)


class Regression(eqx.Module):
    """A Bayesian logistic regression."""

    xs: jax.Array
    ys: jax.Array
    scale: float

    def log_density(self, w: jax.Array) -> jax.Array:
        likelihood = jnp.sum(jax.nn.log_sigmoid(self.ys * (self.xs @ w)))
        return likelihood - jnp.sum(w**2) / (2 * self.scale**2)


def sampler(steps: int = 20_000) -> list[float]:
    """a Metropolis sampler whose steps are taken from Python"""

    @eqx.filter_jit
    def step(model: Regression, w: jax.Array, key: jax.Array):
        key, key_move, key_accept = jr.split(key, 3)
        proposal = w + 0.1 * jr.normal(key_move, w.shape)
        gain = model.log_density(proposal) - model.log_density(w)
        accepted = jnp.log(jr.uniform(key_accept)) < gain
        return jnp.where(accepted, proposal, w), key, accepted

    xs = jr.normal(jr.key(0), (64, 4))
    model = Regression(xs, jnp.sign(xs[:, 0] + 0.1), 2.0)
    w, key, accepted = jnp.zeros(4), jr.key(1), 0

    for _ in range(steps):
        w, key, was_accepted = step(model, w, key)
        accepted += bool(was_accepted)
    return [accepted / steps, *w.tolist()]


def scipy_optimize(starts: int = 200) -> float:
    """scipy.optimize, which calls a jitted objective"""

    @eqx.filter_jit
    def objective(network: eqx.nn.MLP, w: np.ndarray):
        def loss(w: jax.Array) -> jax.Array:
            return jnp.sum((jax.vmap(network)(w.reshape(4, 2)) - 1.0) ** 2)

        return jax.value_and_grad(loss)(w)

    def for_scipy(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(network, w.astype(np.float32))
        return float(value), np.asarray(gradient, np.float64)

    network = eqx.nn.MLP(2, 1, 32, 3, jnp.tanh, key=jr.key(0))
    points = np.random.default_rng(0).normal(size=(starts, 8))
    runs = [scipy.optimize.minimize(for_scipy, w, jac=True) for w in points]
    return min(float(run.fun) for run in runs)


def diffeqsolve(steps: int = 200_000) -> list[float]:
    """one long solve by Diffrax"""

    def lorenz(t, y, args):
        a, b, c = y
        return jnp.stack([10.0 * (b - a), a * (28.0 - c) - b, a * b - 8 / 3 * c])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lorenz),
        diffrax.Tsit5(),
        t0=0.0,
        t1=0.005 * steps,
        dt0=0.005,
        y0=jnp.ones(3),
        max_steps=None,
    )
    return solution.ys[-1].tolist()


# Each takes the number of its steps, and returns what depends on all of them.
PROGRAMS: dict[str, Callable[..., object]] = {
    program.__name__: program
    for program in (rl_loop, train, gan, sampler, scipy_optimize, diffeqsolve)
}
