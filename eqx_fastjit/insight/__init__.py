"""Why functions compile, recompile or block, by leaf path and source line.

Never imported by `import eqx_fastjit`. Nothing is watched until one of these is called.
They load on first use, so that the doctor can begin before JAX is imported.
"""

import importlib
from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    from ._doctor import (
        doctor as doctor,
        DoctorReport as DoctorReport,
        report as report,
    )
    from ._explain import explain as explain, Explanation as Explanation
    from ._guard import (
        guard as guard,
        RetraceError as RetraceError,
        RetraceWarning as RetraceWarning,
    )
    from ._inspect import inspect as inspect
    from ._profile import profile as profile
    from .rules._rules import Part as Part, Row as Row

# Where the public names are.
_FILES = {
    "_doctor": ("DoctorReport", "doctor", "report"),
    "_explain": ("Explanation", "explain"),
    "_guard": ("RetraceError", "RetraceWarning", "guard"),
    "_inspect": ("inspect",),
    "_profile": ("profile",),
    "rules._rules": ("Part", "Row"),
}
_HOMES = {name: file for file, names in _FILES.items() for name in names}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    # From now on without this function.
    return globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
