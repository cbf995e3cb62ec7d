"""The options of `filter_jit`, and what they mean for a call."""

import inspect
import itertools
from typing import Any, Literal, NamedTuple

import jax
import jax.tree_util as jtu

from ._parameters import Parameters
from ._plan import DYNAMIC, Structure
from ._statics import IsDynamic


Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]

# mode: (donate_first, donate_rest, filter_warning)
_DONATE: dict[str, tuple[bool, bool, bool]] = {
    "all": (True, True, True),
    "all-except-first": (False, True, True),
    "warn": (True, True, False),
    "warn-except-first": (False, True, False),
    "none": (False, False, False),
}


class Options(NamedTuple):
    """The options that were passed to `filter_jit`."""

    donate: str = "none"
    asynchronous: bool = True
    # Sorted `(name, value)` pairs for `jax.jit`.
    jit_kwargs: tuple[tuple[str, Any], ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None

    @property
    def donate_first(self) -> bool:
        """Whether arrays of the first positional argument are donated."""
        return _DONATE[self.donate][0]

    @property
    def donate_rest(self) -> bool:
        """Whether all other arrays are donated."""
        return _DONATE[self.donate][1]

    @property
    def filter_warning(self) -> bool:
        """Whether JAX's warning about buffers that it cannot use is hidden."""
        return _DONATE[self.donate][2]

    def kwargs(self) -> dict[str, Any]:
        """All that was passed to `filter_jit`."""
        names = ("in_shardings", "out_shardings")
        own = {name: x for name in names if (x := getattr(self, name)) is not None}
        return {
            "donate": self.donate,
            "asynchronous": self.asynchronous,
            **dict(self.jit_kwargs),
            **own,
        }


def check_asynchronous(name: str, asynchronous: Any) -> None:
    """Raises `TypeError` if the option of a function called `name` is not a bool."""
    if not isinstance(asynchronous, bool):
        raise TypeError(
            f"`{name}(..., asynchronous={asynchronous!r})`: expected True or False."
        )


def make_options(donate: Any, asynchronous: Any, jit_kwargs: dict[str, Any]) -> Options:
    """The options that `filter_jit` was given. Raises `TypeError` or `ValueError`."""
    _check_jit_kwargs(jit_kwargs)
    if not isinstance(donate, str) or donate not in _DONATE:
        modes = ", ".join(map(repr, _DONATE))
        raise ValueError(
            f"`filter_jit(..., donate={donate!r})`: expected one of {modes}."
        )
    check_asynchronous("filter_jit", asynchronous)
    if jit_kwargs:
        # Let JAX check the values now, and warn about deprecated ones.
        jax.jit(_nothing, **jit_kwargs)
    own = ("in_shardings", "out_shardings")
    return Options(
        donate,
        asynchronous,
        tuple(
            (k, dict(v) if isinstance(v, dict) else v)
            for k, v in sorted(jit_kwargs.items())
            if k not in own
        ),
        **{name: jit_kwargs.get(name) for name in own},
    )


_FORBIDDEN = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
_LEGACY = ("default", "fn", "args", "kwargs", "out")
_JIT_PARAMETERS = frozenset([*inspect.signature(jax.jit).parameters][1:])  # not `fun`


def _check_jit_kwargs(kwargs: dict[str, Any]) -> None:
    for name in kwargs:
        if name in _FORBIDDEN:
            what = "donation" if "donate" in name else "what is static"
            instead = (
                "use `donate=...`"
                if "donate" in name
                else "arrays are traced and everything else is static"
            )
            raise ValueError(
                f"`filter_jit` does not accept `{name}`: it decides {what} itself; "
                f"{instead}."
            )
        if name in _LEGACY and name not in _JIT_PARAMETERS:
            raise ValueError(
                f"`filter_jit(..., {name}=...)` was removed in Equinox 0.10: all "
                "arrays are traced and everything else is static."
            )
        if name not in _JIT_PARAMETERS:
            known = ", ".join(sorted(_JIT_PARAMETERS.difference(_FORBIDDEN)))
            raise TypeError(
                f"filter_jit() got an unexpected keyword argument {name!r}; expected "
                f"`donate`, `asynchronous` or one of `jax.jit`'s: {known}."
            )


def _nothing() -> None:
    pass


# --- a call ---


def donated(
    options: Options, parameters: Parameters, structure: Structure
) -> tuple[int, ...]:
    """The indices of the arrays to donate: all, or all but those of the first."""
    if not options.donate_rest:
        return ()
    first: list[Any] = []
    if parameters.first_is_positional() and not options.donate_first:
        first = structure.treedef.children()[:1]
        if parameters.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
            first = first[0].children()[:1]
    n_leaves = sum(x.num_leaves for x in first)
    are_arrays = [x is DYNAMIC for x in structure.leaves]
    return tuple(range(sum(are_arrays[:n_leaves]), sum(are_arrays)))


def flatten_in_shardings(
    prefix: Any,
    named: list[tuple[str, Any]],
    fun: Any,
    name: str,
    is_dynamic: IsDynamic,
) -> tuple[Any, ...]:
    """`in_shardings`, a prefix of the user's arguments, as one per array.

    `named` are the arguments of a call. Arrays of the callable `fun`, if it is one of
    them, stay where they are.
    """
    arguments = [(n, x) for n, x in named if fun is None or x is not fun]
    if isinstance(prefix, list | tuple):
        with_arrays = [
            any(map(is_dynamic, jtu.tree_leaves(value))) for _, value in arguments
        ]
        if len(prefix) > len(arguments) or any(with_arrays[len(prefix) :]):
            names = ", ".join(n for n, _ in arguments)
            raise ValueError(
                f"`in_shardings` has {len(prefix)} entries, but {name} was "
                f"called with {len(arguments)} arguments ({names}). Expected one "
                "sharding (or a pytree prefix of them) for each argument, or a "
                "single one for all."
            )
        prefixes = iter([*prefix, *[None] * (len(arguments) - len(prefix))])
    else:
        prefixes = itertools.repeat(prefix)
    out: list[Any] = []
    for path, value in named:
        is_fun = fun is not None and value is fun
        try:
            here = None if is_fun else next(prefixes)
            out += broadcast_prefix(here, value, is_dynamic)
        except ValueError as e:
            raise ValueError(
                f"`in_shardings` for argument `{path}` is not a pytree prefix of it: "
                f"{e}"
            ) from e
    return tuple(out)


def broadcast_prefix(prefix: Any, value: Any, is_dynamic: IsDynamic) -> list[Any]:
    """One sharding for each array of `value`."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, jax.sharding.Sharding)

    out: list[Any] = []

    def spread(sharding: Any, subtree: Any) -> None:
        out.extend(sharding for x in jtu.tree_leaves(subtree) if is_dynamic(x))

    jtu.tree_map(spread, prefix, value, is_leaf=is_leaf)
    return out
