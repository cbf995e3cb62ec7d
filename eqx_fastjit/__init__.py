"""A drop-in `equinox.filter_jit` that costs less than `jax.jit`."""

from importlib.metadata import PackageNotFoundError, version

from ._dispatch import route as route
from ._install import (
    install as install,
    installed as installed,
    uninstall as uninstall,
)
from ._jit import (
    BoundJit as BoundJit,
    fast_filter_jit as fast_filter_jit,
    filter_jit as filter_jit,
    JitWrapped as JitWrapped,
)
from ._stages import (
    Compiled as Compiled,
    Lowered as Lowered,
    Traced as Traced,
)


try:
    __version__ = version("eqx_fastjit")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0.0.0"
del PackageNotFoundError, version
