"""Every call passes an array, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


class Solver(eqx.Module):
    rtol: jnp.ndarray
    steps: int = eqx.field(static=True, default=40)


@eqx.filter_jit
def solve(solver, y):
    for _ in range(solver.steps):
        y = y - jnp.cos(y @ y.T) * solver.rtol
    return y


def run(solver, y):
    return float(solve(solver, y).sum())


y = np.ones((8, 8), np.float32)
print(f"{run(Solver(rtol=jnp.asarray(1e-3)), y):.4f}")
print(f"{run(Solver(rtol=jnp.asarray(1e-4)), y):.4f}")
print(f"{run(Solver(rtol=jnp.asarray(1e-5)), y):.4f}")
