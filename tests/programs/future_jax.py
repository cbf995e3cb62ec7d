"""Uses the library with a JAX that says it is of a later version."""

import sys
import warnings

import jax


warnings.simplefilter("error")
jax.__version__ = sys.argv[1]
jax.__version_info__ = tuple(map(int, sys.argv[1].split(".")))

import eqx_fastjit  # noqa: E402


f = eqx_fastjit.filter_jit(lambda x, n: x * n)
assert f(jax.numpy.ones(2), 3).tolist() == [3, 3]
