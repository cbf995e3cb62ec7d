"""A neural differential equation, and a policy."""

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


class Policy(eqx.Module):
    torso: eqx.nn.MLP
    mean: eqx.nn.Linear
    log_std: jax.Array
    bound: float

    def __init__(self, observation: int, action: int, *, key: jax.Array):
        key_torso, key_mean = jr.split(key)
        self.torso = eqx.nn.MLP(observation, 16, 16, 2, jnp.tanh, key=key_torso)
        self.mean = eqx.nn.Linear(16, action, key=key_mean)
        self.log_std = jnp.zeros(action)
        self.bound = 1.0

    def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
        mean = self.mean(self.torso(observation))
        noise = jr.normal(key, mean.shape)
        action = mean + jnp.exp(self.log_std) * noise
        return jnp.clip(action, -self.bound, self.bound)


class PolicyOfEquinox(Policy):
    act = FILTER_JITS["eqx"](Policy.act)


class PolicyOfOurs(Policy):
    act = FILTER_JITS["ours"](Policy.act)


@case("zoo", "RL policy with a jitted method and a typed key")
def policy() -> Makers:
    observation, key = jnp.ones(4), jr.key(1)

    def make(cls: type[Policy]) -> Policy:
        return filled(lambda: cls(4, 2, key=jr.key(0)))

    def by_method(cls: type[Policy]) -> Call:
        policy = make(cls)
        return lambda: policy.act(observation, key)

    def act(policy: Policy, observation: jax.Array, key: jax.Array) -> jax.Array:
        return policy.act(observation, key)

    plain = of_function(act, make(Policy), observation, key)
    classes = {"eqx": PolicyOfEquinox, "ours": PolicyOfOurs}
    return {**plain, **each(by_method, classes)}
