"""Reference counts before and after calls: prints what has grown, for each case.

`native_references.py`. Each case is called often with objects that are made once; what
they are referred to by must not grow, whether the call succeeds, fails or retraces.
"""

import collections
import dataclasses
import functools
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Inner, Node


X = jnp.ones(2)
N = 20


@dataclasses.dataclass
class Mutable:
    value: object


class Hashed:
    def __eq__(self, other):
        return type(other) is Hashed

    def __hash__(self):
        return 1


class Fails:
    """Raises where Python is run for it."""

    def __hash__(self):
        raise TypeError

    def __eq__(self, other):
        raise KeyError

    def __reduce_ex__(self, protocol):
        raise ValueError


class FailsToFlatten:
    pass


def _fails(*_):
    raise KeyError


jtu.register_pytree_node(FailsToFlatten, _fails, _fails)

big, text, data = 10**30, "a text " * 9, b"bytes " * 9

# What is read as an argument, and what in a static field.
VALUES = {
    "array": lambda: jnp.ones(3),
    "numpy": lambda: np.ones(3, np.float32),
    "numpy scalar": lambda: np.float32(1),
    "int": lambda: big,
    "float": lambda: float("1.5"),
    "complex": lambda: complex(1, 2),
    "str": lambda: text,
    "bytes": lambda: data,
    "tuple": lambda: (X, (big, text)),
    "list": lambda: [X, [big, text]],
    "dict": lambda: {text: X, "b": {"c": big}},
    "ordered": lambda: collections.OrderedDict(b=X, a=big),
    "default": lambda: collections.defaultdict(list, a=big),
    "set": lambda: {big, text},
    "frozenset": lambda: frozenset({big, text}),
    "namedtuple": lambda: collections.namedtuple("Pair", "a b")(X, big),
    "Module": lambda: eqx.nn.Linear(2, 2, key=jax.random.key(0)),
    "node": lambda: Node([X, big], (text, 1)),
    "dataclass": lambda: Mutable([big, text]),
    "namespace": lambda: types.SimpleNamespace(a=big, b=[text]),
    "deque": lambda: collections.deque([big]),
    "hashed": Hashed,
    "function": lambda: functools.partial(len),
    "fails": Fails,
    "fails to flatten": FailsToFlatten,
    "key": lambda: jax.random.key(0),
    "struct": lambda: jax.ShapeDtypeStruct((2,), "float32"),
}
PLACES = {
    "argument": lambda v: v,
    "static field": lambda v: Holder(X, v),
    "static Module": lambda v: Holder(X, Inner(v)),
}


def counts(objects):
    return [sys.getrefcount(x) for x in objects]


def attempt(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception:
        pass


def check(name, call, objects):
    """Print a line if an object is referred to more often after many calls."""
    for _ in range(3):
        attempt(call)
    before = counts(objects)
    for _ in range(N):
        attempt(call)
    grown = [b - a for a, b in zip(before, counts(objects), strict=True)]
    if max(map(abs, grown)) >= N // 2:
        print(name, grown, flush=True)


def readers():
    for value_name, make in VALUES.items():
        for place_name, put in PLACES.items():
            if value_name == "fails to flatten" and "static" in place_name:
                continue
            value = make()
            tree = put(value)
            f = filter_jit(lambda tree: tree)
            objects = [value, tree, type(value), big, text, data, X, f, None]
            check(f"{place_name} {value_name}", lambda: f(tree), objects)  # noqa: B023


def errors():
    f = filter_jit(lambda x, n=2, *, k=None: x * n)
    value, static = jnp.ones(3), [text]
    objects = [value, static, text, f, None, Ellipsis]
    calls = {
        "missing": lambda: f(),
        "surplus": lambda: f(value, static, static),
        "unexpected": lambda: f(value, m=static),
        "twice": lambda: f(value, x=value),
        "body": lambda: f(value, static),
        "tracer": lambda: filter_jit(lambda x: bool(x))(value),
        "static changed": lambda: (static.append(1), static.pop(), f(value, (1,))),
        "disabled": lambda: _disabled(f, value),
        "lower": lambda: f.lower(value, 3),
        "compiled": lambda: f.lower(value, 3).compile()(value, static),
        "clear": lambda: (f(value), f.clear_cache()),
        "vmap": lambda: jax.vmap(f)(value),
    }
    for name, call in calls.items():
        check(name, call, objects)


def _disabled(f, value):
    with jax.disable_jit():
        f(value)


def results():
    held = [text, object(), (big,)]
    makes = {
        "statics": lambda x: (x, *held),
        "containers": lambda x: {"a": [x, held[1]], "b": (held[2],)},
        "Module": lambda x: Holder(x, held),
        "node": lambda x: Node([x], held[0]),
        "raises": _fails,
    }
    for name, make in makes.items():
        f = filter_jit(make)
        objects = [*held, held, X, Holder, Node, f, None]
        check(f"result {name}", lambda: f(X), objects)  # noqa: B023


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    readers()
    errors()
    results()
    print("done")
