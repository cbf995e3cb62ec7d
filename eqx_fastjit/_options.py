"""The options of `filter_jit`, and what they mean for a call."""

from typing import Any, get_args, Literal, NamedTuple

import jax
import jax.tree_util as jtu

from ._statics import is_array, partition


Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]
_MODES = get_args(Donate)


class Options(NamedTuple):
    """The options that were passed to `filter_jit`."""

    donate: str
    asynchronous: bool
    # For `jax.jit`, sorted by name.
    jit_kwargs: dict[str, Any]


# What `filter_jit` decides itself; and the options of Equinox before 0.10.
_REFUSED = {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
_REFUSED |= {"default", "fn", "args", "kwargs", "out"}


def make_options(donate: Any, asynchronous: Any, jit_kwargs: dict[str, Any]) -> Options:
    """The options that `filter_jit` was given. Raises `TypeError` or `ValueError`."""
    for name in _REFUSED & jit_kwargs.keys():
        raise ValueError(
            f"`filter_jit` does not accept `{name}`: arrays are traced, everything "
            "else is static, and `donate=...` says what is donated."
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


def arguments_of_jit(
    options: Options,
    fun: Any,
    args: tuple[Any, ...],
    named: list[tuple[str, Any]],
    n_arrays: int,
    abstract: bool,
) -> dict[str, Any]:
    """The arguments of `jax.jit` for a call of `fun`.

    `args` are the positional arguments, in which the arrays of the call begin. `named`
    has all arguments, and the callable, with their paths.
    """
    kwargs = dict(options.jit_kwargs)
    if indices := donated(options.donate, args, n_arrays, abstract):
        kwargs["donate_argnums"] = indices
    if kwargs.get("in_shardings") is not None:
        kwargs["in_shardings"] = _flatten_in_shardings(
            kwargs["in_shardings"], named, fun, abstract
        )
    if kwargs.get("out_shardings") is not None:
        kwargs["out_shardings"] = (kwargs["out_shardings"], None)
    return kwargs


def donated(
    donate: str, args: tuple[Any, ...], n_arrays: int, abstract: bool
) -> tuple[int, ...]:
    """The indices of the arrays to donate: all, or all but those of the first."""
    if donate == "none":
        return ()
    first = args[:1] if donate.endswith("-except-first") else ()
    return tuple(range(len(partition(first, abstract)[0]), n_arrays))


def _flatten_in_shardings(
    prefix: Any, arguments: list[tuple[str, Any]], fun: Any, abstract: bool
) -> tuple[Any, ...]:
    """`in_shardings`, a prefix of the user's arguments, as one per array.

    Arrays of the callable itself, `fun`, stay where they are.
    """
    passed = [(path, value) for path, value in arguments if value is not fun]

    # A sharding for each argument, or a prefix of one.
    prefixes: list[Any] = [prefix] * len(passed)
    if isinstance(prefix, list | tuple):
        # What has no entry has to be without arrays.
        rest = jtu.tree_leaves([value for _, value in passed[len(prefix) :]])
        if len(prefix) > len(passed) or any(is_array(x, abstract) for x in rest):
            names = ", ".join(path for path, _ in passed)
            raise ValueError(
                f"`in_shardings` has {len(prefix)} entries, but the call has "
                f"{len(passed)} arguments ({names}). Expected one sharding (or a "
                "pytree prefix of them) for each argument, or a single one for all."
            )
        prefixes = [*prefix, *[None] * (len(passed) - len(prefix))]

    # One for each array.
    out: list[Any] = []

    def spread(sharding: Any, subtree: Any) -> None:
        out.extend(sharding for x in jtu.tree_leaves(subtree) if is_array(x, abstract))

    for path, value in arguments:
        here = None if value is fun else prefixes.pop(0)
        try:
            jtu.tree_map(spread, here, value, is_leaf=lambda x: x is None)
        except ValueError as e:
            raise ValueError(
                f"`in_shardings` for argument `{path}` is not a pytree prefix of it: "
                f"{e}"
            ) from e
    return tuple(out)
