"""Importing the library and calling a function loads none of the tools."""

import subprocess
import sys


_PROGRAM = """
import sys
import eqx_fastjit
assert "jax" not in sys.modules
import jax.numpy as jnp
assert eqx_fastjit.filter_jit(lambda x: x + 1)(jnp.ones(())) == 2
tools = "rich pyinstrument jinja2 executing wrapt asv matplotlib hypothesis optax"
print(*[name for name in tools.split() if name in sys.modules])
print(*[name for name in sys.modules if name.startswith("eqx_fastjit.insight")])
"""


def test_no_tool_is_loaded():
    out = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == []
