"""Divides the arguments of an exported call into bound ones and those of the caller."""

# The functions beside a class are part of it.
# pyright: reportPrivateUsage=false

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._binding import Spec
from eqx_fastjit._nodes import ARRAY_TYPES
from eqx_fastjit._partition import ANY_ARRAY, Omitted, omitted, partition

from ._arrays import placement, sharding_to_save
from ._tree import ArrayRef, DefaultRef, ExportError, with_refs, written


# Any default that was not passed, for a comparison.
SOME_DEFAULT = omitted(object())


class Parts:
    """A call, divided.

    The callable itself and the first `n_bound` parameters (the instance of a method)
    are bound: their arrays are kept in the file, and nothing else of them is. The rest
    are the parameters of the function that is loaded. There is one of `values` for each
    parameter, and one for the callable if it is one of them.
    """

    def __init__(self, wrapped: Any, values: tuple[Any, ...], n_bound: int):
        function = wrapped._function
        self.function = function
        # Which of the values the caller passes.
        at = function.spec.fun_index() if function.with_fun else None
        free_values = [i for i in range(len(values)) if i != at][n_bound:]
        self.spec = Spec(*[x[n_bound:] for x in function.spec])
        self.values = function.split(values)[1][n_bound:]
        if len(self.values) != len(free_values):
            raise ExportError(
                f"the instance of {function.name} is one of `*args`, so the rest of "
                "the arguments cannot be distinguished from it. Give the instance a "
                "parameter."
            )
        # The numbers of the arrays, in the order in which they were traced.
        owners = [i for i, x in enumerate(values) for _ in _arrays(x)]
        bound = [k for k, i in enumerate(owners) if i not in free_values]
        free = [k for k, i in enumerate(owners) if i in free_values]
        position = {k: i for i, k in enumerate([*bound, *free])}
        # For each of them, where it is among those of the program.
        self.order = [position[k] for k in range(len(owners))]
        arrays = _arrays(values)
        self.arrays = [arrays[k] for k in free]
        paths = function.array_paths(values)
        self.paths = [paths[k] for k in free]
        for k in bound:
            if not isinstance(arrays[k], ARRAY_TYPES):
                raise ExportError(
                    f"`{paths[k]}` is a {type(arrays[k]).__name__}. The arrays of "
                    "the function itself are saved in the file, and need values."
                )
        self.bound = [jnp.asarray(arrays[k]) for k in bound]
        donated = function.donated(values)
        self.donated = [i for i, k in enumerate(free) if k in donated]
        # One for each array that a caller passes; `None` where any will do.
        self.shardings = [placement(x) for x in self.arrays]
        if function.options.in_shardings is not None:
            given = function.in_shardings(values)
            self.shardings = [given[k] for k in free]
        defaults = wrapped._binding.defaults[n_bound:]
        # Defaults that stay unseen, by the parameter. (Plain data do not: nobody should
        # have to import a function for being a default.)
        self._unseen = {
            name: x
            for x, name, _, defaulted in zip(defaults, *self.spec, strict=True)
            if defaulted and not _is_plain(x)
        }
        # The default of each parameter; `None` for one that has none.
        self.defaults = [
            (name, DefaultRef(name) if name in self._unseen else x)
            for name, x in zip(self.spec.names, defaults, strict=True)
        ]

    def in_shardings(self) -> list[dict[str, Any] | None] | None:
        """The shardings as data; `None` if there are none."""
        if not any(x is not None for x in self.shardings):
            return None
        return [
            None if x is None else sharding_to_save(x, f"`{path}` has")
            for path, x in zip(self.paths, self.shardings, strict=True)
        ]

    def written(self) -> list[tuple[str, Any]]:
        """Each parameter's name and value, with numbers for the arrays."""
        values, unseen = with_refs(self.values), self._unseen
        return [
            (name, DefaultRef(name) if unseen.get(name, self) is value else value)
            for name, value in zip(self.spec.names, values, strict=True)
        ]

    def example(self) -> Any:
        """The arguments, with any arrays and any defaults."""
        values = [x for _, x in self.written()]
        return with_any_arrays(
            tuple([SOME_DEFAULT if type(x) is DefaultRef else x for x in values])
        )

    def parameters(self) -> list[dict[str, Any]]:
        """The names and kinds, and whether there is a default."""
        return [
            {"name": name, "kind": kind.name, "default": defaulted}
            for name, kind, defaulted in zip(*self.spec, strict=True)
        ]


def _is_plain(default: Any) -> bool:
    """Whether a default can be written down without the name of anything."""
    with contextlib.suppress(ExportError):
        return type(default) is not Omitted and not written(default)[1]
    return False


def _arrays(tree: Any) -> list[Any]:
    return partition(tree, abstract=True)[0]


def with_any_arrays(tree: Any) -> Any:
    """A tree with any arrays where there are numbers."""
    return jtu.tree_map(lambda x: ANY_ARRAY if type(x) is ArrayRef else x, tree)


def raw_bytes(x: Any) -> bytes:
    """What is in an array."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.ascontiguousarray(np.asarray(x)).tobytes()
