"""Finds which values a function's code reads from outside, and where."""

import dis
import functools as ft
import sys
import types
from collections.abc import Iterator
from typing import Any

import equinox as eqx

from eqx_fastjit.doctor._sites import is_library

from ._target import unwrapped


MISSING: Any = object()


def python_function(x: Any) -> types.FunctionType | None:
    """The Python function behind a function, method, or jitted function."""
    if not callable(x) or isinstance(x, type):
        return None
    x = unwrapped(x)
    for _ in range(20):
        if isinstance(x, types.FunctionType):
            inner = getattr(x, "__wrapped__", None)
            if not callable(inner):
                return x
            x = inner
        elif isinstance(x, _PARTIALS):
            x = x.func
        elif isinstance(x, types.MethodType):
            x = x.__func__
        elif isinstance(x, eqx.Module) or hasattr(x, "__wrapped__"):
            x = getattr(x, "__wrapped__", None) or type(x).__call__
        else:
            return None
    return None


def method_behind(x: Any) -> types.MethodType | None:
    """The bound method behind a callable, such as the partial of one."""
    for _ in range(20):
        if isinstance(x, types.MethodType):
            return x
        if not callable(x):
            return None
        x = x.func if isinstance(x, _PARTIALS) else getattr(x, "__wrapped__", None)
    return None


_PARTIALS = (ft.partial, eqx.Partial)
_library_names = frozenset({"jax", "jaxlib", "equinox", "numpy", "scipy", "optax"})


def is_library_module(module: types.ModuleType) -> bool:
    """Whether a module is of an installed package, or of Python itself."""
    top = module.__name__.partition(".")[0]
    if top in _library_names or top in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_library(file)


@ft.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Names that code, or code inside of it, may look up in a module or an object.

    No variable of any function is among them: what code inside reads of the code around
    it may have the name of a global, and is none.
    """
    inner = [names_in(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def readable(
    function: types.FunctionType, names: frozenset[str]
) -> Iterator[tuple[str, str, Any]]:
    """What a function may read from outside: kind, name and value.

    Kinds are "global", "closure" and "default".
    """
    for kind in ("global", "closure", "default"):
        values = _variables(function, kind)
        for name in sorted(names & values.keys()) if kind == "global" else values:
            yield kind, name, values[name]


def _variables(function: types.FunctionType, kind: str) -> dict[str, Any]:
    if kind == "global":
        return function.__globals__
    code = function.__code__
    if kind == "default":
        values = function.__defaults__ or ()
        first = code.co_argcount - len(values)
        named = zip(code.co_varnames[first : code.co_argcount], values, strict=True)
        return {**dict(named), **(function.__kwdefaults__ or {})}
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return found


def current_value(function: types.FunctionType, kind: str, name: str) -> Any:
    """The value now, or `MISSING`."""
    return _variables(function, kind).get(name, MISSING)


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of the parameters, without `*args` and `**kwargs`."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


# How code reads a name. In the body of a class, `LOAD_NAME` may also be a name of the
# class itself; what is stored there is left out.
_KINDS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_FROM_DICT_OR_GLOBALS": "global",
    "LOAD_DEREF": "closure",
    "LOAD_CLASSDEREF": "closure",
    "LOAD_FROM_DICT_OR_DEREF": "closure",
}


@ft.lru_cache(maxsize=256)
def reads(code: types.CodeType) -> dict[tuple[str, ...], int]:
    """The line that first reads a name from outside of the code, or an attribute of it.

    By kind ("global" or "closure") and name, or kind, name and attribute; also the
    attributes of parameters ("argument").
    """
    out: dict[tuple[str, ...], int] = {}
    line = code.co_firstlineno
    previous: tuple[str, ...] | None = None
    instructions = list(dis.get_instructions(code))
    stored = {str(i.argval) for i in instructions if i.opname == "STORE_NAME"}
    for instruction in instructions:
        positions = instruction.positions
        if positions is not None and positions.lineno is not None:
            line = positions.lineno
        name = str(instruction.argval)
        if instruction.opname.startswith("LOAD_FAST"):
            # Python 3.13 loads two at once.
            loaded: Any = instruction.argval
            previous = ("argument", loaded if isinstance(loaded, str) else loaded[-1])
            continue
        if (kind := _KINDS.get(instruction.opname)) is not None:
            previous = (kind, name)
            if instruction.opname != "LOAD_NAME" or name not in stored:
                out.setdefault(previous, line)
            continue
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and previous is not None:
            out.setdefault((*previous, name), line)
        previous = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for path, inner in reads(constant).items():
                if path[0] != "argument":
                    out.setdefault(path, inner)
    # A variable of this very code that code inside reads does not come from outside.
    own, parameters = set(code.co_cellvars), set(parameters_of(code))
    found: dict[tuple[str, ...], int] = {}
    for (kind, *path), line in out.items():
        if kind == "closure" and path[0] in own:
            kind = "argument"
        if kind != "argument" or (path[0] in parameters and path[1:]):
            found.setdefault((kind, *path), line)
    return found
