"""A neural ordinary differential equation, solved by diffrax."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function


class VectorField(eqx.Module):
    scale: jax.Array
    mlp: eqx.nn.MLP

    def __init__(self, size: int, hidden: int, *, key: jax.Array):
        self.scale = jnp.ones(())
        self.mlp = eqx.nn.MLP(size, size, hidden, 2, jax.nn.softplus, jnp.tanh, key=key)

    def __call__(self, t: Any, y: jax.Array, args: Any) -> jax.Array:
        return self.scale * self.mlp(y)


class NeuralODE(eqx.Module):
    field: VectorField
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController

    def __call__(self, ts: jax.Array, start: jax.Array):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.field),
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


def neural_ode() -> Makers:
    def solve(model: NeuralODE, ts: jax.Array, start: jax.Array):
        return model(ts, start)

    model = NeuralODE(
        filled(lambda: VectorField(2, 8, key=jr.key(0))),
        diffrax.Tsit5(),
        diffrax.PIDController(rtol=1e-3, atol=1e-6),
    )
    return of_function(solve, model, jnp.linspace(0, 1, 4), jnp.array([1.0, 0.5]))
