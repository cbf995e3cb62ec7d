"""Methods count their traces; what they do not read changes; one setting stays."""

import dataclasses
import types

import equinox as eqx
import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Settings:
    temperature: float = 1.0
    epoch: int = 0


SETTINGS = Settings()
SEEN = types.SimpleNamespace(traces=0)
calls = traces = 0
best = None
history = []


class Policy(eqx.Module):
    logits: jnp.ndarray

    def weights(self):
        global traces
        traces += 1
        SEEN.traces += 1
        history.append(self.logits.shape)
        return jax.nn.softmax(self.logits / SETTINGS.temperature)

    def report(self):
        return f"{calls} {best} {SETTINGS.epoch} {self.logits}"


@eqx.filter_jit
def gain(policy, rewards):
    return jnp.sum(policy.weights() * rewards)


def train(policy):
    global calls, best
    for _ in range(2):
        calls += 1
        best = gain(policy, jnp.ones(policy.logits.shape))


for SETTINGS.epoch in range(3):
    for size in (2, 3):
        train(Policy(jnp.arange(float(size))))
Policy(jnp.arange(3.0)).report()
