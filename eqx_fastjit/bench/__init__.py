"""Side-by-side timings of `jax.jit`, `equinox.filter_jit` and ours.

Not loaded by `import eqx_fastjit`. The command is `eqx-fastjit bench`.
"""

# Each adds its cases to the list, in this order.
from . import _models as _models, _calls as _calls, _studies as _studies  # isort: skip
from . import _zoo as _zoo  # isort: skip
from ._case import (
    Call as Call,
    Case as Case,
    case_info as case_info,
    case_names as case_names,
    CONTENDERS as CONTENDERS,
    contenders_of as contenders_of,
    DESCRIPTIONS as DESCRIPTIONS,
    group_names as group_names,
    make_case as make_case,
    Measured as Measured,
)
from ._markdown import markdown as markdown, Tables as Tables
from ._results import BadResults as BadResults, load as load
from ._timing import (
    check_equal as check_equal,
    measure as measure,
    OutputsDiffer as OutputsDiffer,
    Timing as Timing,
)
