"""All batches are put where they will stay, as the fix says."""

import os


os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def total(batch):
    x = batch["x"]
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    return x.sum()


for _ in jax.devices():
    x = jax.device_put(np.ones((8, 8), np.float32), jax.devices()[0])
    print(f"{float(total({'x': x})):.4f}")
