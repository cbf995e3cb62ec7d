"""Loads exported functions, and compares them with the functions themselves.

Arguments: the folder of the files; `sharded` or `single`; `trusted` or `portable`.
"""

import sys

import jax


folder, devices, form = sys.argv[1:]
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_num_cpu_devices", 8 if devices == "sharded" else 1)

from tests.export import functions  # noqa: E402


is_sharded = devices == "sharded"
tests = functions.sharded_functions() if is_sharded else functions.FUNCTIONS
functions.check(folder, tests, form == "trusted")
