"""Checks that an installed eqx_fastjit works with only its dependencies.

    python scripts/smoke.py native|python

The argument is the engine that must be in use. Run by `.ci/run` and by cibuildwheel.
"""

import json
import sys
from importlib.metadata import distribution

import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


wanted = sys.argv[1]
installed = distribution("eqx_fastjit")
assert eqx_fastjit.__version__ == installed.version
assert eqx_fastjit.engine() == wanted, eqx_fastjit.engine()

# The installed package, not a checkout; unless that is what was installed.
origin = json.loads(installed.read_text("direct_url.json") or "{}")
is_editable = origin.get("dir_info", {}).get("editable", False)
assert is_editable or "site-packages" in eqx_fastjit.__file__, eqx_fastjit.__file__


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
