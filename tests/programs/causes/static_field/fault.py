"""A number in a solver changes, and a helper is called at several lines."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


class Solver(eqx.Module):
    rtol: float
    steps: int = eqx.field(static=True, default=40)


@eqx.filter_jit
def solve(solver, y):
    for _ in range(solver.steps):
        y = y - jnp.cos(y @ y.T) * solver.rtol
    return y


def run(solver, y):
    return float(solve(solver, y).sum())  # finding


y = np.ones((8, 8), np.float32)
print(f"{run(Solver(rtol=1e-3), y):.4f}")
print(f"{run(Solver(rtol=1e-4), y):.4f}")
print(f"{run(Solver(rtol=1e-5), y):.4f}")
