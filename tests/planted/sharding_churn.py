"""Each batch is on another device, for which the function is compiled again."""

import os


os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=6")

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def total(batch):
    return jnp.sum(batch["tokens"])


for device in jax.devices():
    total({"tokens": jax.device_put(jnp.ones(4), device)})
