"""The number is an argument of its own, as the fix says."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


class Solver(eqx.Module):
    rtol: float = 1e-3
    steps: int = eqx.field(static=True, default=40)


@eqx.filter_jit
def solve(solver, y, rtol):
    for _ in range(solver.steps):
        y = y - jnp.cos(y @ y.T) * rtol
    return y


def run(solver, y, rtol):
    return float(solve(solver, y, rtol).sum())


y = np.ones((8, 8), np.float32)
print(f"{run(Solver(), y, jnp.asarray(1e-3)):.4f}")
print(f"{run(Solver(), y, jnp.asarray(1e-4)):.4f}")
print(f"{run(Solver(), y, jnp.asarray(1e-5)):.4f}")
