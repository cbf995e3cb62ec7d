"""Reinforcement learning: a policy, Q-learning, an environment, actor and critic."""

import dataclasses
import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from eqx_fastjit.bench._case import Call, Makers
from eqx_fastjit.bench._contenders import (
    each,
    filled,
    FILTER_JITS,
    of_function,
    of_loop,
)


# --- a policy with a method that is jitted, called for each observation


def _policy_class(filter_jit: Any) -> Any:
    class Policy(eqx.Module):
        torso: eqx.nn.MLP
        mean: eqx.nn.Linear
        log_std: jax.Array
        low: float
        high: float

        def __init__(self, observation: int, action: int, *, key: jax.Array):
            key_torso, key_mean = jr.split(key)
            self.torso = eqx.nn.MLP(observation, 16, 16, 2, jnp.tanh, key=key_torso)
            self.mean = eqx.nn.Linear(16, action, key=key_mean)
            self.log_std = jnp.zeros(action)
            self.low, self.high = -1.0, 1.0

        @filter_jit
        def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
            mean = self.mean(self.torso(observation))
            noise = jr.normal(key, mean.shape)
            action = mean + jnp.exp(self.log_std) * noise
            return jnp.clip(action, self.low, self.high)

    return Policy


def policy() -> Makers:
    observation, key = jnp.ones(4), jr.key(1)

    def make(filter_jit: Any) -> Any:
        return filled(lambda: _policy_class(filter_jit)(4, 2, key=jr.key(0)))

    def by_method(filter_jit: Any) -> Call:
        policy = make(filter_jit)
        return lambda: policy.act(observation, key)

    def act(policy: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return policy.act(observation, key)

    plain = of_function(act, make(lambda f: f), observation, key)
    return {**plain, **each(by_method, FILTER_JITS)}


# --- Q-learning from a replay buffer in NumPy


class Transition(NamedTuple):
    observation: Any
    action: Any
    reward: Any
    done: Any
    next_observation: Any


def dqn() -> Makers:
    online = filled(lambda: eqx.nn.MLP(4, 2, 16, 2, key=jr.key(0)))
    optimiser = optax.chain(optax.clip(1.0), optax.rmsprop(1e-4))
    opt_state = optimiser.init(eqx.filter(online, eqx.is_array))

    def loss(online: eqx.nn.MLP, target: eqx.nn.MLP, batch: Transition, gamma: float):
        ahead = jnp.max(jax.vmap(target)(batch.next_observation), axis=1)
        goal = batch.reward + gamma * (1 - batch.done) * jax.lax.stop_gradient(ahead)
        values = jax.vmap(online)(batch.observation)
        values = jnp.take_along_axis(values, batch.action[:, None], axis=1)[:, 0]
        return jnp.mean(optax.huber_loss(values, goal))

    def step(online, target, opt_state, batch: Transition, gamma: float):
        value, grads = eqx.filter_value_and_grad(loss)(online, target, batch, gamma)
        updates, opt_state = optimiser.update(grads, opt_state)
        online = eqx.apply_updates(online, updates)

        new, rest = eqx.partition(online, eqx.is_array)
        old = eqx.filter(target, eqx.is_array)
        target = eqx.combine(optax.incremental_update(new, old, 0.005), rest)
        return online, target, opt_state, value

    rng = np.random.default_rng(0)
    batch = Transition(
        rng.normal(size=(4, 4)).astype(np.float32),
        rng.integers(0, 2, 4),
        rng.normal(size=4).astype(np.float32),
        np.zeros(4, np.float32),
        rng.normal(size=(4, 4)).astype(np.float32),
    )
    return of_loop(step, (online, online, opt_state), (batch, 0.99))


# --- an environment, whose state and parameters are registered dataclasses


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PendulumState:
    angle: jax.Array
    speed: jax.Array
    steps: jax.Array
    key: jax.Array


@ft.partial(
    jax.tree_util.register_dataclass,
    data_fields=["gravity", "mass", "length"],
    meta_fields=["dt", "max_steps", "name"],
)
@dataclasses.dataclass
class PendulumParams:
    gravity: float = 9.8
    mass: float = 1.0
    length: float = 1.0
    dt: float = 0.05
    max_steps: int = 200
    name: str = "pendulum"


def environment() -> Makers:
    def step(state: PendulumState, action: jax.Array, params: PendulumParams):
        key, subkey = jr.split(state.key)
        pull = 3 * params.gravity / (2 * params.length) * jnp.sin(state.angle)
        push = 3 / (params.mass * params.length**2) * jnp.clip(action, -2, 2)
        speed = jnp.clip(state.speed + (pull + push) * params.dt, -8, 8)
        angle = state.angle + speed * params.dt
        done = state.steps >= params.max_steps
        restart = jr.uniform(subkey, (), minval=-jnp.pi, maxval=jnp.pi)
        state = PendulumState(
            jnp.where(done, restart, angle),
            jnp.where(done, 0.0, speed),
            jnp.where(done, 0, state.steps + 1),
            key,
        )
        reward = -(angle**2) - 0.1 * speed**2 - 0.001 * action**2
        return state, {"reward": reward, "done": done}

    zero = jnp.array(0.0)
    state = PendulumState(zero + 1, zero, jnp.array(0), jr.key(0))
    return of_loop(step, (state,), (zero, PendulumParams()))


# --- actor and critic, in one module, with the rollout as a dictionary


class ActorCritic(eqx.Module):
    shared: eqx.nn.Sequential
    actor: eqx.nn.Linear
    critic: eqx.nn.Linear

    def __init__(self, *, key: jax.Array):
        keys = jr.split(key, 4)
        self.shared = eqx.nn.Sequential(
            [
                eqx.nn.Linear(4, 16, key=keys[0]),
                eqx.nn.Lambda(jnp.tanh),
                eqx.nn.Linear(16, 16, key=keys[1]),
                eqx.nn.Lambda(jnp.tanh),
            ]
        )
        self.actor = eqx.nn.Linear(16, 2, key=keys[2])
        self.critic = eqx.nn.Linear(16, "scalar", key=keys[3])

    def __call__(self, observation: jax.Array):
        hidden = self.shared(observation)
        return jax.nn.log_softmax(self.actor(hidden)), self.critic(hidden)


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01


def ppo() -> Makers:
    model = filled(lambda: ActorCritic(key=jr.key(0)))
    schedule = optax.linear_schedule(2.5e-4, 0.0, 10_000)
    clip = optax.clip_by_global_norm(0.5)
    optimiser = optax.chain(clip, optax.adam(schedule, eps=1e-5))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model: ActorCritic, rollout: dict, config: PPOConfig):
        log_probs, values = jax.vmap(model)(rollout["observation"])
        actions = rollout["action"][:, None]
        chosen = jnp.take_along_axis(log_probs, actions, axis=1)[:, 0]
        ratio = jnp.exp(chosen - rollout["log_prob"])
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        advantage = rollout["advantage"]
        actor = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
        critic = jnp.mean((values - rollout["return"]) ** 2)
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=1))
        total = actor + config.value_weight * critic - config.entropy_weight * entropy
        return total, {"actor": actor, "critic": critic, "entropy": entropy}

    def step(model, opt_state, rollout: dict, config: PPOConfig):
        grad = eqx.filter_value_and_grad(loss, has_aux=True)
        (_, metrics), grads = grad(model, rollout, config)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, metrics

    rollout = {
        "observation": jnp.linspace(-1, 1, 16).reshape(4, 4),
        "action": jnp.array([0, 1, 1, 0]),
        "log_prob": jnp.full(4, -0.7),
        "advantage": jnp.array([1.0, -1.0, 0.5, 0.0]),
        "return": jnp.ones(4),
    }
    return of_loop(step, (model, opt_state), (rollout, PPOConfig()))
