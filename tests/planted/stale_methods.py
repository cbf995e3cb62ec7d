"""Methods of an argument read settings, which change half way; no call names them."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp


@dataclasses.dataclass
class Settings:
    temperature: float = 1.0


SETTINGS = Settings()
EPSILON = 0.3


class Policy(eqx.Module):
    logits: jnp.ndarray

    def weights(self):
        x = jnp.exp(self.logits / SETTINGS.temperature)
        return (1 - EPSILON) * x / jnp.sum(x) + EPSILON / x.size


@eqx.filter_jit
def gain(policy, rewards):
    return jnp.sum(policy.weights() * rewards)


policy = Policy(jnp.arange(3.0))
for epoch in range(4):
    if epoch == 2:
        SETTINGS.temperature = 0.25
        EPSILON = 0.05
    gain(policy, jnp.ones(3))
