"""What importing the library and wrapping a function must not do."""

import sys

import eqx_fastjit


assert "jax" not in sys.modules
eqx_fastjit.filter_jit(lambda x: x)
assert "jax" in sys.modules

import jax  # noqa: E402


TOOLS = "rich pyinstrument jinja2 executing wrapt asv matplotlib hypothesis optax"
for name in TOOLS.split():
    assert name not in sys.modules, name
for name in sys.modules:
    assert not name.startswith(("eqx_fastjit.insight", "eqx_fastjit.cli")), name
# A program may still choose its devices.
jax.config.update("jax_num_cpu_devices", 3)
assert len(jax.devices("cpu")) == 3
# The tools need no import of their own.
assert eqx_fastjit.insight.explain.__name__ == "explain"
print("done")
