"""Physics and statistics: a PINN, a Gaussian process, particles, a normalising flow."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function, of_loop
from eqx_fastjit.bench._zoo._shared import training


# --- a network that learns the heat equation from its residual


def pinn() -> Makers:
    def u(network: eqx.nn.MLP, x: jax.Array, t: jax.Array) -> jax.Array:
        return network(jnp.stack([x, t]))

    def residual(network: eqx.nn.MLP, diffusivity: float, x: jax.Array, t: jax.Array):
        u_t = jax.grad(u, argnums=2)(network, x, t)
        u_xx = jax.grad(jax.grad(u, argnums=1), argnums=1)(network, x, t)
        return u_t - diffusivity * u_xx

    def loss(network: eqx.nn.MLP, inside: jax.Array, start: jax.Array):
        physics = jax.vmap(lambda p: residual(network, 0.1, p[0], p[1]))(inside)
        initial = jax.vmap(lambda x: u(network, x, jnp.zeros(())))(start)
        return jnp.mean(physics**2) + jnp.mean((initial - jnp.sin(jnp.pi * start)) ** 2)

    network = filled(lambda: eqx.nn.MLP(2, "scalar", 8, 2, jnp.tanh, key=jr.key(0)))
    optimiser = optax.adam(optax.exponential_decay(1e-3, 1000, 0.9))
    points = jnp.linspace(0, 1, 8).reshape(4, 2), jnp.linspace(0, 1, 3)
    return training(loss, network, optimiser, *points)


# --- a Gaussian process, whose parameters are a dictionary


def gaussian_process() -> Makers:
    params = {
        "mean": {"constant": jnp.array(0.0)},
        "kernel": {
            "name": "rbf",
            "log_variance": jnp.array(0.0),
            "log_lengthscale": jnp.array([0.0, 0.5]),
        },
        "likelihood": {"log_noise": jnp.array(-2.0)},
    }

    def covariance(kernel: dict, xs: jax.Array) -> jax.Array:
        scaled = xs / jnp.exp(kernel["log_lengthscale"])
        squared = jnp.sum((scaled[:, None] - scaled[None]) ** 2, axis=-1)
        shape = jnp.exp(-squared / 2) if kernel["name"] == "rbf" else 1 / (1 + squared)
        return jnp.exp(kernel["log_variance"]) * shape

    def negative_log_likelihood(params: dict, xs: jax.Array, ys: jax.Array):
        noise = jnp.exp(params["likelihood"]["log_noise"])
        k = covariance(params["kernel"], xs) + noise * jnp.eye(xs.shape[0])
        factor = jnp.linalg.cholesky(k)
        difference = ys - params["mean"]["constant"]
        alpha = jax.scipy.linalg.cho_solve((factor, True), difference)
        return difference @ alpha / 2 + jnp.sum(jnp.log(jnp.diag(factor)))

    def step(params: dict, xs: jax.Array, ys: jax.Array):
        grad = eqx.filter_value_and_grad(negative_log_likelihood)
        value, grads = grad(params, xs, ys)
        updates = jax.tree.map(lambda g: -0.01 * g, grads)
        return eqx.apply_updates(params, updates), value

    xs = jnp.linspace(0, 1, 12).reshape(6, 2)
    return of_loop(step, (params,), (xs, jnp.sin(xs[:, 0])))


# --- particles on springs


class Particles(NamedTuple):
    position: jax.Array
    velocity: jax.Array


class System(NamedTuple):
    particles: Particles
    mass: jax.Array
    time: jax.Array


def particles() -> Makers:
    def energy(position: jax.Array, stiffness: float) -> jax.Array:
        return stiffness * jnp.sum(jnp.diff(position, axis=0) ** 2) / 2

    def advance(system: System, dt: float, stiffness: float, integrator: str):
        assert integrator == "leapfrog"
        position, velocity = system.particles
        force = -jax.grad(energy)(position, stiffness)
        velocity = velocity + dt * force / system.mass[:, None]
        position = position + dt * velocity
        particles = Particles(position, velocity)
        moved = System(particles, system.mass, system.time + dt)
        return moved, energy(position, stiffness)

    start = Particles(jnp.arange(8.0).reshape(4, 2), jnp.zeros((4, 2)))
    system = System(start, jnp.ones(4), jnp.array(0.0))
    return of_loop(advance, (system,), (0.01, 2.0, "leapfrog"))


# --- a normalising flow


class Coupling(eqx.Module):
    scale_and_shift: eqx.nn.MLP
    flip: bool = eqx.field(static=True)

    def __call__(self, x: jax.Array):
        kept, changed = jnp.split(x[::-1] if self.flip else x, 2)
        log_scale, shift = jnp.split(self.scale_and_shift(kept), 2)
        log_scale = jnp.tanh(log_scale)
        out = jnp.concatenate([kept, changed * jnp.exp(log_scale) + shift])
        return (out[::-1] if self.flip else out), jnp.sum(log_scale)


class Flow(eqx.Module):
    layers: list[Coupling]

    def __init__(self, size: int, depth: int, *, key: jax.Array):
        self.layers = [
            Coupling(eqx.nn.MLP(size // 2, size, 8, 1, key=k), flip=i % 2 == 1)
            for i, k in enumerate(jr.split(key, depth))
        ]

    def log_density(self, x: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for layer in self.layers:
            x, change = layer(x)
            total = total + change
        return total + jnp.sum(jax.scipy.stats.norm.logpdf(x))


def flow() -> Makers:
    def log_likelihood(model: Flow, xs: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(model.log_density)(xs))

    model = filled(lambda: Flow(4, 8, key=jr.key(0)))
    return of_function(log_likelihood, model, jnp.linspace(-1, 1, 8).reshape(2, 4))
