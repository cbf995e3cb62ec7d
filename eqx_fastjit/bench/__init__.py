"""Side-by-side timings of `jax.jit`, `equinox.filter_jit` and ours.

Not loaded by `import eqx_fastjit`. The command is `eqx-fastjit bench`.
"""

from ._cases import case_names as case_names, make_case as make_case
from ._timing import measure as measure, Timing as Timing
