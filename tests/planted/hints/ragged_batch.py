"""The last batch is smaller. In the second epoch, a phase changes as well."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def step(params, batch, phase):
    x, y = batch["x"], batch["y"]
    return params - (0.1 if phase == "fit" else 0.01) * jnp.mean(x @ params - y)


x, y = np.ones((22, 3), "float32"), np.ones(22, "float32")
params = jnp.ones(3)
for phase in ("fit", "tune"):
    for i in range(0, 22, 8):
        batch = {"x": jnp.asarray(x[i : i + 8]), "y": jnp.asarray(y[i : i + 8])}
        params = step(params, batch, phase if i < 16 else "fit")
