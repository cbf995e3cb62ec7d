"""The options of `filter_jit`, and what they mean for a call."""

from typing import Any, get_args, Literal, NamedTuple

import jax

from ._plan import partition
from ._private import all_leaves


Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]
_MODES = get_args(Donate)


class Options(NamedTuple):
    """The options that were passed to `filter_jit`."""

    donate: str
    asynchronous: bool
    # For `jax.jit`, sorted by name.
    jit_kwargs: dict[str, Any]


# What `filter_jit` decides itself.
_FORBIDDEN = {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
# What Equinox has refused since version 0.10.
_REMOVED = {"default", "fn", "args", "kwargs", "out"}
# For the arrays of a call, or of its result, which JAX sees without the user's pytrees.
_SHARDINGS = {"in_shardings", "out_shardings"}


def make_options(donate: Any, asynchronous: Any, jit_kwargs: dict[str, Any]) -> Options:
    """The options that `filter_jit` was given. Raises `TypeError` or `ValueError`."""
    for name in _FORBIDDEN & jit_kwargs.keys():
        raise ValueError(
            f"`filter_jit` does not accept `{name}`: arrays are traced, everything "
            "else is static, and `donate=...` says what is donated."
        )
    for name in _REMOVED & jit_kwargs.keys():
        raise ValueError(f"`filter_jit` has no argument `{name}`, as in Equinox.")
    for name in _SHARDINGS & jit_kwargs.keys():
        if not (jit_kwargs[name] is None or all_leaves([jit_kwargs[name]])):
            raise ValueError(
                f"`{name}` must be one sharding, for all arrays. For one array of "
                "several, use `equinox.filter_shard`."
            )
    if donate not in _MODES:
        raise ValueError(f"`donate={donate!r}`: expected one of {_MODES}.")
    if not isinstance(asynchronous, bool):
        raise TypeError(f"`asynchronous={asynchronous!r}`: expected True or False.")
    if jit_kwargs:
        # Let JAX check names and values now, and warn about deprecated ones.
        jax.jit(lambda: None, **jit_kwargs)
    return Options(donate, asynchronous, dict(sorted(jit_kwargs.items())))


# --- a call ---


def donated(
    donate: str, args: tuple[Any, ...], n_arrays: int, abstract: bool
) -> tuple[int, ...]:
    """The indices of the arrays to donate: all, or all but those of the first.

    `args` are the positional arguments, in which the arrays of the call begin.
    """
    if donate == "none":
        return ()
    first = args[:1] if donate.endswith("-except-first") else ()
    return tuple(range(len(partition(first, abstract)[0]), n_arrays))
