"""Checks that an installed eqx_fastjit works with only its dependencies.

    python scripts/smoke.py native|python

The argument is the engine that must be in use. Run by `.ci/run` and by cibuildwheel.
"""

import sys
from importlib.metadata import version

import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


wanted = sys.argv[1]
# The installed package, not a checkout.
assert "site-packages" in eqx_fastjit.__file__, eqx_fastjit.__file__
assert eqx_fastjit.__version__ == version("eqx_fastjit")
assert eqx_fastjit.engine() == wanted, eqx_fastjit.engine()


@eqx_fastjit.filter_jit
def apply(model, x, power):
    return model(x) ** power, power


model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
x = jnp.ones(2)
for power in (1, 2, 1):
    y, static = apply(model, x, power)
    assert jnp.allclose(y, model(x) ** power, rtol=1e-5), y
    assert static == power, static
print(f"eqx_fastjit {eqx_fastjit.__version__} works: {wanted} engine")
