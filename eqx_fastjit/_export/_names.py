"""Classes and functions by name, and which of them a file may import.

A name is `"module:qualified.name"`. Nothing is imported for a file unless the caller
allows the package; JAX, Equinox and NumPy are looked up where they are imported.
What merely passes through an allowed package (`"numpy:os.system"`) is refused.
"""

import importlib
import sys
import types
from collections import defaultdict, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._format import ExportFileError


_OWN_PACKAGES = ("jax", "equinox", "numpy", "ml_dtypes")
_STANDARD = (
    *(bool, int, float, complex, str, bytes),
    *(list, dict, tuple, set, frozenset, OrderedDict, defaultdict),
)
# JAX defines many functions in private modules, which change. These have public names.
_PUBLIC = (
    *("jax.nn", "jax.nn.initializers", "jax.numpy", "jax.numpy.linalg", "jax.lax"),
    *("jax.random", "jax.scipy.special", "jax.tree_util", "jax", "numpy"),
)


def name_of(x: Any) -> str | None:
    """The name under which a class or function can be imported, or `None`."""
    module = getattr(x, "__module__", None)
    qualname = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
    if type(qualname) is not str or module not in sys.modules:
        return None

    places = [module]
    if module.startswith("jax._src"):
        places = [*_PUBLIC, module]
    for place in places:
        if _look_up(place, qualname) is x:
            return f"{place}:{qualname}"

    if qualname == "<lambda>":  # for `name = lambda x: ...`
        for name, value in list(vars(sys.modules[module]).items()):
            if value is x:
                return f"{module}:{name}"
    return None


def _look_up(module: str, qualname: str) -> Any:
    """An attribute of a module, or of a class in it; `None` if there is none."""
    if module not in sys.modules:
        return None
    # (Some modules import others as soon as these are asked for.)
    first, *others = qualname.split(".")
    value: Any = vars(sys.modules[module]).get(first)
    for name in others:
        if not isinstance(value, type):
            return None
        value = getattr(value, name, None)
    return None if isinstance(value, types.ModuleType) else value


def _is_inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == x or module.startswith(f"{x}.") for x in packages)


class Names:
    """What a file may name: the objects of an example, and those of some packages.

    The packages of `allow` are imported if a name needs them.
    """

    def __init__(self, of_example: Mapping[str, Any], allow: str | Iterable[str]):
        standard = {f"{x.__module__}:{x.__name__}": x for x in _STANDARD}
        self._objects = {**standard, **of_example}
        self._imported = (allow,) if isinstance(allow, str) else tuple(allow)
        self._allowed = (*self._imported, *_OWN_PACKAGES)

    def get(self, name: str) -> Any:
        """The object. Raises `ExportFileError` if it is not allowed, or not found."""
        if name in self._objects:
            return self._objects[name]

        module, _, qualname = name.partition(":")
        if not _is_inside(module, self._allowed):
            raise ExportFileError(
                f"it needs {name}, which may not be imported. If you trust this code, "
                f"pass `allow={module.partition('.')[0]!r}`; or pass `example=`, the "
                "arguments of a call as a tuple"
            )
        if _is_inside(module, self._imported):
            importlib.import_module(module)

        value = _look_up(module, qualname)
        if value is None:
            raise ExportFileError(
                f"it needs {name}, which does not exist, or is not imported here"
            )
        home = getattr(value, "__module__", None) or type(value).__module__
        is_allowed = _is_inside(home, (*self._allowed, "jaxlib"))
        # NumPy's functions read and write files, also those that `jax.numpy` has.
        is_function = not isinstance(value, np.ufunc | type)
        is_io = name == "jax.numpy:load" or (
            is_function and _is_inside(home, ("numpy",))
        )
        if is_io or not is_allowed:
            raise ExportFileError(f"it needs {name} of {home}, which is not allowed")
        return value

    def is_trusted(self, name: str) -> bool:
        """Whether the caller has passed it, or allowed its package."""
        module, _, _ = name.partition(":")
        return name in self._objects or _is_inside(module, self._imported)
