"""Loads exported functions, and compares them with the functions themselves.

Each form of them: the native code first, as it comes into a process that has lowered
nothing. Arguments: the folder of the files; `sharded` or `single`.
"""

import sys

import jax


folder, devices = sys.argv[1:]
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_num_cpu_devices", 8 if devices == "sharded" else 1)

from tests.export import functions  # noqa: E402


is_sharded = devices == "sharded"
tests = functions.sharded_functions() if is_sharded else functions.FUNCTIONS
for trusted in (True, False):
    functions.check(folder, tests, trusted)
