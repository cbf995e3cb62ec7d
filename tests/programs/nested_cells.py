"""A cell of IPython's within a cell, each with `%doctor`, in one process."""

import jax  # noqa: F401  # from here on the command watches
from IPython.core.interactiveshell import InteractiveShell


shell = InteractiveShell.instance()
shell.run_cell("%load_ext eqx_fastjit")
result = shell.run_cell("%%doctor\nprint('outer')\n%doctor print('inner')")
print("succeeded" if result.success else "failed")
shell.run_cell("1 / 0")
