"""Whole programs, most of which call small functions many times.

`benchmarks.whole` runs each in fresh processes, with `equinox.filter_jit` and with
`eqx_fastjit` installed in its place. Hence they use `eqx.filter_jit` when they run, and
not when this file is imported.
"""

import math
import random
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import scipy.optimize

from benchmarks.zoo.networks import gan_step, new_gan


# Each takes the number of its steps, and returns what depends on all of them.
PROGRAMS: dict[str, Callable[..., object]] = {}


def _program(run: Callable[..., object]) -> Callable[..., object]:
    PROGRAMS[run.__name__] = run
    return run


@_program
def rl_loop(steps: int = 20_000) -> float:
    """a policy that acts in an environment written in Python"""

    @eqx.filter_jit
    def act(policy: eqx.nn.MLP, observation: np.ndarray, key: jax.Array):
        key, subkey = jr.split(key)
        return jr.categorical(subkey, policy(observation)), key

    policy, key = eqx.nn.MLP(4, 2, 32, 2, key=jr.key(0)), jr.key(1)
    rng = random.Random(0)
    angle, speed, place, drift, total = 0.05, 0.0, 0.0, 0.0, 0.0
    for _ in range(steps):
        observation = np.array([angle, speed, place, drift], np.float32)
        action, key = act(policy, observation, key)
        push = 10.0 if int(action) else -10.0
        # A cart-pole, in the units of Barto, Sutton and Anderson (1983).
        force = (push + 0.05 * speed**2 * math.sin(angle)) / 1.1
        pull = 9.8 * math.sin(angle) - math.cos(angle) * force
        turn = pull / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        place, drift = place + 0.02 * drift, drift + 0.02 * force
        angle, speed = angle + 0.02 * speed, speed + 0.02 * turn
        total += 1.0 - abs(angle)
        if abs(angle) > 0.2 or abs(place) > 2.4:
            angle, speed, place, drift = rng.uniform(-0.05, 0.05), 0.0, 0.0, 0.0
    return total


class Regression(eqx.Module):
    """A Bayesian logistic regression."""

    xs: jax.Array
    ys: jax.Array
    scale: float

    def log_density(self, w: jax.Array) -> jax.Array:
        likelihood = jnp.sum(jax.nn.log_sigmoid(self.ys * (self.xs @ w)))
        return likelihood - jnp.sum(w**2) / (2 * self.scale**2)


@_program
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


class Kalman(eqx.Module):
    """A Kalman filter of position and velocity."""

    transition: jax.Array
    noise: jax.Array
    observed: jax.Array
    variance: float

    def __call__(self, mean: jax.Array, covariance: jax.Array, y: float | jax.Array):
        mean = self.transition @ mean
        covariance = self.transition @ covariance @ self.transition.T + self.noise
        gain = covariance @ self.observed
        gain = gain / (self.observed @ gain + self.variance)
        mean = mean + gain * (y - self.observed @ mean)
        return mean, covariance - jnp.outer(gain, self.observed @ covariance)


@_program
def kalman(steps: int = 20_000) -> list[float]:
    """an online Kalman filter, called for each observation"""
    model = Kalman(
        jnp.array([[1.0, 0.1], [0.0, 1.0]]),
        1e-3 * jnp.eye(2),
        jnp.array([1.0, 0.0]),
        0.1,
    )
    update = eqx.filter_jit(model)
    mean, covariance, track = jnp.zeros(2), jnp.eye(2), []
    rng = random.Random(0)
    for i in range(steps):
        observation = np.float32(math.sin(i / 100) + rng.gauss(0, 0.3))
        mean, covariance = update(mean, covariance, observation)
        track.append(float(mean[0]))
    return track[-1:]


@_program
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


@_program
def train(steps: int = 10_000) -> float:
    """training of a small model, with float(loss) logged after each step"""
    optimiser = optax.adam(1e-3)

    def loss(model: eqx.nn.MLP, xs: np.ndarray, ys: np.ndarray) -> jax.Array:
        return jnp.mean((jax.vmap(model)(xs) - ys) ** 2)

    @eqx.filter_jit
    def step(model, opt_state, xs: np.ndarray, ys: np.ndarray):
        value, grads = eqx.filter_value_and_grad(loss)(model, xs, ys)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    model = eqx.nn.MLP(2, 1, 32, 3, key=jr.key(0))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_array))
    rng, mean = np.random.default_rng(0), 1.0
    for _ in range(steps):
        xs = rng.normal(size=(32, 2)).astype(np.float32)
        model, opt_state, value = step(model, opt_state, xs, xs[:, :1] * xs[:, 1:])
        mean = 0.99 * mean + 0.01 * float(value)
    return mean


@_program
def gan(steps: int = 5_000) -> float:
    """steps of a GAN, with its losses logged every 100 steps"""
    step, state = eqx.filter_jit(gan_step), new_gan()
    data = jnp.cos(jnp.arange(256.0) / 5).reshape(32, 8)
    logged = []
    for i in range(steps):
        *state, losses = step(*state, data)
        if i % 100 == 0:
            logged.append(float(losses["g_loss"]))
    return logged[-1]


@_program
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
