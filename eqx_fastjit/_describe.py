"""A call in words: what each leaf of its arguments was, without holding on to any.

Written down whenever something is traced, so that a later trace can be compared with
it. Only shapes, dtypes, types and short texts are kept, and no `__repr__` of a user's
class is ever called: it may be slow, and it may print what nobody wants in a report.
"""

import dataclasses
import enum
import functools
import inspect
import itertools
import os
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ._compat import instance_dict
from ._nodes import ARRAY_TYPES, is_module_class
from ._parts import compares_attributes
from ._policy import Kind
from ._static_keys import policy_of, static_key


_MAX_TEXT = 60
_MAX_ITEMS = 6
# A larger set is not put in order.
_MAX_MEMBERS = 1000
# Of a static, levels of fields, and fields in all.
_MAX_DEPTH = 4
_MAX_FIELDS = 100


class Entry(NamedTuple):
    """One leaf, node or static field of a call."""

    # As the user would write it: `model.layers[1].weight`.
    path: str
    # "array", "static" or "node".
    kind: str
    # What can differ from call to call, as `(name, text)`: for an array shape, dtype,
    # weak_type, and sharding and committed if it is on a device; for a static type,
    # value and identity, and the class if it is a field of another static; for a node
    # type and size.
    facets: tuple[tuple[str, str], ...]


# Types of which `lambda`, `def`, `functools.partial` and methods create new objects.
FUNCTIONS = {"function", "method", "functools.partial"}


def is_below(path: str, node: str) -> bool:
    """Whether a path leads into the node at another path."""
    return path.startswith((f"{node}.", f"{node}[", f"{node}<"))


def describe_static(x: Any) -> str:
    """A static value in about 60 characters at most. Never raises."""
    text = _text(x, 2)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _text(x: Any, depth: int) -> str:
    try:
        return _any_text(x, depth)
    except Exception:  # of an object that lies about its type, say
        return _with_article(type(x).__qualname__)


def _any_text(x: Any, depth: int) -> str:
    cls = type(x)
    if cls is str or cls is bytes:
        return repr(x) if len(x) <= 40 else f"{x[:30]!r}... (length {len(x)})"
    if x is None or cls in (bool, float, complex, range, types.EllipsisType):
        return repr(x)
    if cls is int:
        return repr(x) if abs(x) < 10**40 else f"an int of {x.bit_length()} bits"
    if cls in (tuple, list, set, frozenset, dict):
        return _container_text(x, depth)
    if isinstance(x, types.FunctionType | types.MethodType):
        code = x.__code__
        file = os.path.basename(code.co_filename)
        return f"{x.__qualname__} ({file}:{code.co_firstlineno})"
    if isinstance(x, type):
        return x.__qualname__
    if isinstance(x, types.BuiltinFunctionType | types.ModuleType):
        return x.__name__
    if isinstance(x, enum.Enum):
        return f"{cls.__qualname__}.{x.name}"
    if isinstance(x, np.dtype):
        return str(x)
    if isinstance(x, np.bool_ | np.number):
        return f"{x.item()!r} ({x.dtype})"
    if isinstance(x, ARRAY_TYPES):
        return show_array(x.shape, x.dtype)
    if isinstance(x, functools.partial):
        return f"partial of {_text(x.func, depth)}"
    # Not by `getattr`, which may run the user's code, and change `x`.
    name = inspect.getattr_static(x, "__qualname__", None)
    if isinstance(name, str):
        return name
    return _with_article(cls.__qualname__)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"


def _container_text(x: Any, depth: int) -> str:
    is_set = isinstance(x, set | frozenset)
    if depth == 0 or (is_set and len(x) > _MAX_MEMBERS):
        return f"{type(x).__name__} of {len(x)}"
    if is_set and not x:
        return f"{type(x).__name__}()"
    if is_set:
        # In another order in each process, which lock files must not depend on.
        texts = iter(sorted([_text(item, depth - 1) for item in x]))
    elif isinstance(x, dict):
        parts = x.items()
        texts = (f"{_text(k, depth - 1)}: {_text(v, depth - 1)}" for k, v in parts)
    else:
        texts = (_text(item, depth - 1) for item in x)
    items = list(itertools.islice(texts, _MAX_ITEMS))
    if len(x) > _MAX_ITEMS:
        items.append("...")
    inside = ", ".join(items)
    if isinstance(x, tuple):
        return f"({inside},)" if len(x) == 1 else f"({inside})"
    if isinstance(x, list):
        return f"[{inside}]"
    if isinstance(x, frozenset):
        return f"frozenset({{{inside}}})"
    return f"{{{inside}}}"


def describe_call(arguments: list[tuple[str, Any]]) -> list[Entry]:
    """One entry per leaf, node and static field of a call, in order.

    The arguments have their names, as `Spec.named` gives them.
    """
    out: list[Entry] = []
    # An explicit stack: trees may be deeper than Python's limit.
    pending = [(name, value, False) for name, value in reversed(arguments)]
    while pending:
        path, x, is_static_field = pending.pop()
        if isinstance(x, _ARRAYS) and not is_static_field:
            out.append(_array(path, x))
            continue
        children = None if is_static_field else _children(path, x)
        if children is None:
            out += itertools.islice(_statics(path, x), 1 + _MAX_FIELDS)
        else:
            size = str(len(children))
            facets = (("type", _type_name(type(x))), ("size", size))
            out.append(Entry(path, "node", facets))
            pending.extend(reversed(children))
    return out


_ARRAYS = (*ARRAY_TYPES, jax.ShapeDtypeStruct)


def _children(path: str, x: Any) -> list[tuple[str, Any, bool]] | None:
    """Paths and values below a node, static fields included; `None` for a leaf."""
    cls = type(x)
    if cls is tuple or cls is list:
        return [(f"{path}[{i}]", value, False) for i, value in enumerate(x)]
    if cls is dict:
        return [
            (f"{path}[{describe_static(k)}]", v, False) for k, v in _sorted_items(x)
        ]
    if is_module_class(cls):
        # Not by `getattr`: a function that is a default, where `__init__` has not set
        # the field, would be a bound method, whose `__self__` has it again.
        values = instance_dict(x)
        return [
            (f"{path}.{f.name}", values[f.name], bool(f.metadata.get("static")))
            for f in dataclasses.fields(x)
            if f.name in values
        ]
    if x is None:
        return []
    pairs, treedef = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if jtu.treedef_is_leaf(treedef):
        return None
    names = _attributes(x)
    out = [(f"{path}{_child(keys, v, names)}", v, False) for keys, v in pairs]
    data = treedef.node_data()
    if data is not None and data[1] is not None:
        out.append((f"{path}<static>", data[1], True))
    return out


def _attributes(x: Any) -> list[tuple[str, Any]]:
    try:
        found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return []
    return [(name, v) for name, v in found.items() if not name.startswith("_")]


# Of which two that are equal may be one object.
_SHARED = (int, float, complex, str, bytes, tuple, types.NoneType)


def _child(keys: Any, value: Any, attributes: list[tuple[str, Any]]) -> str:
    """How the child of a node is written: `.data`, where its class gives no names.

    Takes it from the attributes, as the next child may be the same array.
    """
    if isinstance(keys[0], jtu.FlattenedIndexKey) and not isinstance(value, _SHARED):
        for i, (name, attribute) in enumerate(attributes):
            if attribute is value:
                del attributes[i]
                return f".{name}"
    return jtu.keystr(keys)


def _sorted_items(x: dict[Any, Any]) -> list[tuple[Any, Any]]:
    try:
        return sorted(x.items(), key=lambda item: item[0])
    except TypeError:  # keys of several types
        return list(x.items())


def _type_name(cls: type) -> str:
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _statics(
    path: str, x: Any, of: str = "", depth: int = _MAX_DEPTH
) -> Iterator[Entry]:
    """A static, and the fields of one that is compared by them: a configuration."""
    yield _static(path, x, of)
    if depth > 0:
        for part, value in _fields(path, x):
            yield from _statics(part, value, type(x).__qualname__, depth - 1)


def _fields(path: str, x: Any) -> Iterator[tuple[str, Any]]:
    cls = type(x)
    if cls is dict:
        few = list(itertools.islice(x.items(), _MAX_FIELDS))
        yield from [(f"{path}[{k!r}]", v) for k, v in few if type(k) is str]
        return
    names: Any = ()
    policy = policy_of(cls)
    if compares_attributes(cls):
        names = tuple(object.__getattribute__(x, "__dict__"))
    elif policy.kind in (Kind.FIELDS, Kind.ATTRIBUTES):
        names = policy.data
    for name in names:
        try:  # not by `getattr`, as above
            yield f"{path}.{name}", object.__getattribute__(x, name)
        except AttributeError:
            pass


def _static(path: str, x: Any, of: str) -> Entry:
    # The hash distinguishes what the text does not: two lambdas on one line, or two
    # long strings that begin alike.
    identity = str(hash(static_key(x)))
    facets = (
        ("type", _type_name(type(x))),
        ("value", describe_static(x)),
        ("identity", identity),
    )
    return Entry(path, "static", (*facets, ("of", of)) if of else facets)


def show_array(shape: tuple[Any, ...], dtype: Any) -> str:
    """`float32[8,4]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def show_shape(shape: tuple[int, ...]) -> str:
    """A shape as Python writes it, of dimensions of any kind."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _array(path: str, x: Any) -> Entry:
    facets = [
        ("shape", show_shape(x.shape)),
        ("dtype", str(x.dtype)),
        ("weak_type", str(bool(getattr(x, "weak_type", False)))),
    ]
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        facets.append(("sharding", _sharding_text(x.sharding)))
        facets.append(("committed", str(bool(getattr(x, "committed", False)))))
    elif isinstance(x, Tracer):
        facets.append(("sharding", "traced"))
    return Entry(path, "array", tuple(facets))


@functools.lru_cache(maxsize=256)
def _sharding_text(sharding: Any) -> str:
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return str(device)
    if isinstance(sharding, jax.sharding.NamedSharding):
        return f"{sharding.spec} over {dict(sharding.mesh.shape)}"
    return str(sharding)
