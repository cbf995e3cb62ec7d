"""What importing the library, and calling a wrapped function, must not do."""

import sys

import eqx_fastjit


assert "jax" not in sys.modules
f = eqx_fastjit.filter_jit(lambda x, n: x * n)
assert "jax" in sys.modules

import jax  # noqa: E402


# A program may still choose its devices.
jax.config.update("jax_num_cpu_devices", 3)
assert len(jax.devices("cpu")) == 3
for n in range(3):
    f(jax.numpy.ones(2), n)
TOOLS = "rich pyinstrument jinja2 executing wrapt asv matplotlib hypothesis optax"
for name in TOOLS.split():
    assert name not in sys.modules, name
# So nothing is described or compared, whatever is compiled.
for name in sys.modules:
    assert not name.startswith(("eqx_fastjit.insight", "eqx_fastjit.cli")), name
assert eqx_fastjit._facts.watchers == []
# The tools need no import of their own.
assert eqx_fastjit.insight.explain.__name__ == "explain"
print("done")
