"""A neural differential equation, and a policy."""

import functools as ft
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from benchmarks.case import Call, case, Makers
from benchmarks.contenders import each, filled, FILTER_JITS, of_function


class NeuralODE(eqx.Module):
    field: eqx.nn.MLP
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController

    def __call__(self, ts: jax.Array, start: jax.Array):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: self.field(y)),
            self.solver,
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=start,
            stepsize_controller=self.controller,
            saveat=diffrax.SaveAt(ts=ts),
            max_steps=64,
        )
        return solution.ys


@case("zoo", "neural ODE by Diffrax, which checks for errors and blocks")
def neural_ode() -> Makers:
    def solve(model: NeuralODE, ts: jax.Array, start: jax.Array):
        return model(ts, start)

    model = NeuralODE(
        filled(lambda: eqx.nn.MLP(2, 2, 8, 2, jax.nn.softplus, key=jr.key(0))),
        diffrax.Tsit5(),
        diffrax.PIDController(rtol=1e-3, atol=1e-6),
    )
    return of_function(solve, model, jnp.linspace(0, 1, 4), jnp.array([1.0, 0.5]))


@case("zoo", "RL policy with a jitted method and a typed key")
def policy() -> Makers:
    observation, key = jnp.ones(4), jr.key(1)

    def new(jit: Callable[..., Any]) -> Any:
        class Policy(eqx.Module):
            torso: eqx.nn.MLP
            mean: eqx.nn.Linear
            log_std: jax.Array
            bound: float

            @jit
            def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
                mean = self.mean(self.torso(observation))
                noise = jr.normal(key, mean.shape)
                action = mean + jnp.exp(self.log_std) * noise
                return jnp.clip(action, -self.bound, self.bound)

        keys = jr.split(jr.key(0))
        torso = eqx.nn.MLP(4, 16, 16, 2, jnp.tanh, key=keys[0])
        return Policy(torso, eqx.nn.Linear(16, 2, key=keys[1]), jnp.zeros(2), 1.0)

    def by_method(jit: Callable[..., Any]) -> Call:
        policy = filled(ft.partial(new, jit))
        return lambda: policy.act(observation, key)

    def act(policy: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return policy.act(observation, key)

    plain = filled(ft.partial(new, lambda method: method))
    by_hand = of_function(act, plain, observation, key)
    return {**by_hand, **each(by_method, FILTER_JITS)}
