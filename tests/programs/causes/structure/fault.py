"""An accumulator begins as None, and becomes a tree: the step compiles twice."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def accumulate(total, x):
    for _ in range(40):
        x = jnp.tanh(x @ x.T)
    new = {"sum": x.sum(), "squares": (x * x).sum()}
    if total is None:
        return new
    return {name: total[name] + new[name] for name in new}


total = None
for i in range(4):
    x = np.full((8, 8), 0.1 * i, np.float32)
    total = accumulate(total, x)  # finding
print(f"{float(total['sum']):.4f} {float(total['squares']):.4f}")
