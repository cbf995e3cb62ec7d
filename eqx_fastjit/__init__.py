"""A faster drop-in for `equinox.filter_jit`.

The public names load on first use (PEP 562), so that `eqx-fastjit run SCRIPT` can begin
a program before JAX is imported: a program may set JAX's environment variables first.

PYTEST_DONT_REWRITE: the package is a pytest plugin that `run -m pytest` has imported
before pytest could rewrite it. (pytest reads this word.)
"""

import importlib
import os
from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    from . import insight as insight
    from ._engine import engine as engine
    from ._export import Exported as Exported
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
        load as load,
    )
    from ._stages import Compiled as Compiled, Lowered as Lowered, Traced as Traced

# Read by the build as well.
__version__ = "0.2.0"

# The public names, by module.
_NAMES = {
    "_engine": ("engine",),
    "_export": ("Exported",),
    "_install": ("install", "installed", "uninstall"),
    "_jit": ("BoundJit", "JitWrapped", "fast_filter_jit", "filter_jit", "load"),
    "_stages": ("Compiled", "Lowered", "Traced"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "insight":
        return importlib.import_module(".insight", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    try:
        # First, whichever name it is: where `_jit` does not work, all names, also
        # `engine`, are those that stand in.
        importlib.import_module("._jit", __name__)
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    except Exception as e:
        fallback = importlib.import_module("._fallback", __name__)
        # A file of ours that is missing, or a wrong setting, is an error.
        is_ours = isinstance(e, ImportError) and (e.name or "").startswith(__name__)
        if is_ours or isinstance(e, fallback.Misconfigured):
            raise
        # Otherwise the versions of JAX and Equinox do not fit: Equinox's own stands in,
        # with a warning; of a name that it does not have, this raises an `ImportError`.
        return globals().setdefault(name, fallback.stand_in(name, e))

    is_first = globals().keys().isdisjoint(_HOMES)
    globals()[name] = value  # from now on without this function
    if is_first and os.environ.get("EQX_FASTJIT_LOG"):
        importlib.import_module(".insight.show._log", __name__).log_from_environment()
    return value


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext eqx_fastjit`, for the magic `%%doctor` in notebooks."""
    importlib.import_module(".insight._notebook", __name__).register(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "insight"})
