"""The last batch is dropped. Other calls have several sizes on purpose."""

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
    for i in range(0, 22 - 7, 8):
        batch = {"x": jnp.asarray(x[i : i + 8]), "y": jnp.asarray(y[i : i + 8])}
        params = step(params, batch, phase)
step(params, {"x": jnp.asarray(x[:2]), "y": jnp.asarray(y[:2])}, "fit")


@eqx.filter_jit
def widths(w):
    return w.sum()


# Other axes than the first, and growing sizes, are not batches.
for width in (5, 4):
    widths(jnp.ones((3, width)))
for size in (2, 3):
    widths(jnp.ones(size))
