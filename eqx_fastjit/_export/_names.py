"""Names of classes and functions: how they are saved, and which may be imported.

A name is `"module:qualified.name"`. A file may name whatever it likes, so nothing is
imported for one unless its package is Equinox, JAX or NumPy and there already, or was
allowed by the caller; nor is anything taken that only passes through such a package
(`"numpy:os.system"`).
"""

import collections
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eqx_fastjit._binding import defaults_of

from ._format import ExportFileError


# Names in these packages are looked up in modules that are already imported. Their
# functions are compared and returned, but never called.
_OWN_PACKAGES = ("jax", "equinox", "numpy", "ml_dtypes")
# From the standard library.
_STANDARD = {
    "builtins:" + x.__name__: x
    for x in (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset)
}
_STANDARD |= {
    "collections:OrderedDict": collections.OrderedDict,
    "collections:defaultdict": collections.defaultdict,
}
# Public modules of JAX, because the private ones that define these names may change.
_PUBLIC = (
    "jax.nn",
    "jax.nn.initializers",
    "jax.numpy",
    "jax.numpy.linalg",
    "jax.lax",
    "jax.random",
    "jax.scipy.special",
    "jax",
    "numpy",
)


def name_of(x: Any) -> str | None:
    """The name under which a class or function can be imported, or `None`.

    For what JAX defines in a private module, the public name if it has one.
    """
    module = getattr(x, "__module__", None)
    qualname = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
    if type(qualname) is not str:
        return None
    if type(module) is not str:
        module = "numpy" if type(x).__module__ == "numpy" else ""
    if ":" in module or module not in sys.modules:
        return None
    if module.startswith("jax._src"):
        for public in _PUBLIC:
            if _look_up(sys.modules.get(public), qualname) is x:
                return f"{public}:{qualname}"
    if "<" in qualname:
        found = _anonymous(x, sys.modules[module], qualname)
        return None if found is None else f"{module}:{found}"
    return (
        f"{module}:{qualname}" if _look_up(sys.modules[module], qualname) is x else None
    )


def _anonymous(x: Any, module: Any, qualname: str) -> str | None:
    """The name that refers to a lambda in its module or class.

    Under a name; or as the default of a parameter, as `MLP.__init__?final_activation`.
    """
    outer, _, last = qualname.rpartition(".")
    scope = module if not outer else _look_up(module, outer)
    if last != "<lambda>" or scope is None:
        return None
    dot = f"{outer}." if outer else ""
    for name, value in list(vars(scope).items()):
        if value is x:
            return f"{dot}{name}"
        for parameter, default in _defaults(value).items():
            if default is x:
                return f"{dot}{name}?{parameter}"
    return None


def _defaults(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters, by name."""
    function = inspect.unwrap(function) if callable(function) else function
    return defaults_of(function) if isinstance(function, types.FunctionType) else {}


def _look_up(module: Any, qualname: str) -> Any:
    """An attribute of a module, by way of classes only; `None` if there is none."""
    qualname, _, parameter = qualname.partition("?")
    found = module
    *outer, last = qualname.split(".")
    for part in outer:
        found = getattr(found, part, None)
        if not isinstance(found, type):
            return None
    if parameter and isinstance(found, type):
        # As it is written, without what binding a method would do to it.
        found = vars(found).get(last)
    else:
        found = getattr(found, last, None)
    if parameter:
        found = _defaults(found).get(parameter)
    return None if isinstance(found, types.ModuleType) else found


def _is_inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == x or module.startswith(f"{x}.") for x in packages)


class Names:
    """The classes and functions that a file may name.

    `known` are objects by name, from the caller's example; `allow` are modules and
    packages that may be imported.
    """

    def __init__(self, known: Mapping[str, Any], allow: Iterable[str]):
        if isinstance(allow, str):
            allow = (allow,)
        self.known = {**_STANDARD, **known}
        self.allow = tuple(allow)

    def check(self, names: Sequence[Any]) -> None:
        """Raise `ExportFileError` with all of these names that are not allowed."""
        missing: list[str] = []
        for name in names:
            if type(name) is not str:
                raise ExportFileError(f"{name!r} is not a name")
            module = name.partition(":")[0]
            if name not in self.known and not _is_inside(
                module, (*self.allow, *_OWN_PACKAGES)
            ):
                missing.append(name)
        if missing:
            packages = tuple(dict.fromkeys(re.split(r"[.:]", x)[0] for x in missing))
            shown = ", ".join(missing[:8]) + ", ..." * (len(missing) > 8)
            raise ExportFileError(
                f"it needs {shown}, which may not be imported. If you "
                f"trust this code, pass `allow={packages!r}`; or pass `example=`, the "
                "arguments of a call as a tuple"
            )

    def get(self, name: str) -> Any:
        """The object. Raises `ExportFileError` if it is not allowed, or not found."""
        if type(name) is str and name in self.known:
            return self.known[name]
        self.check([name])
        module, _, qualname = name.partition(":")
        if _is_inside(module, self.allow):
            try:
                importlib.import_module(module)
            except ImportError as e:
                raise ExportFileError(f"it needs {name}, but {e}") from e
        found = _look_up(sys.modules.get(module), qualname)
        if found is None:
            raise ExportFileError(f"it needs {name}, which does not exist here")
        home = getattr(found, "__module__", None) or type(found).__module__
        if not _is_inside(home, (*self.allow, *_OWN_PACKAGES, "jaxlib")):
            raise ExportFileError(
                f"it needs {name}, which comes from {home!r} and may not be imported"
            )
        return found
