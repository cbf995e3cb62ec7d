"""The options of `filter_jit`, and what they mean for a call."""

import inspect
import itertools
from typing import Any, Literal, NamedTuple

import jax
import jax.tree_util as jtu

from ._binding import Spec
from ._nodes import is_array_or_struct
from ._partition import DYNAMIC, partition
from ._signals import held, with_handlers


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

    donate_first: bool = False
    donate_rest: bool = False
    filter_warning: bool = False
    # Sorted `(name, value)` pairs for `jax.jit`.
    jit_kwargs: tuple[tuple[str, Any], ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None


def make_jit(fun: Any, **kwargs: Any) -> Any:
    """`jax.jit(fun, **kwargs)`, which no signal handler interrupts.

    JAX looks the function up in a table, holding a lock while it asks a key for its
    hash, which is Python: a handler that calls `jax.jit` there waits for ever.
    """
    with held(with_handlers()):
        return jax.jit(fun, **kwargs)


def make_options(donate: Any, jit_kwargs: dict[str, Any]) -> Options:
    """The options that `filter_jit` was given. Raises `TypeError` or `ValueError`."""
    _check_jit_kwargs(jit_kwargs)
    try:
        donate_first, donate_rest, filter_warning = _DONATE[donate]
    except (KeyError, TypeError):
        modes = ", ".join(map(repr, _DONATE))
        raise ValueError(
            f"`filter_jit(..., donate={donate!r})`: expected one of {modes}."
        ) from None
    if jit_kwargs:
        # Let JAX check the values now, and warn about deprecated ones.
        make_jit(_nothing, **jit_kwargs)
    own = ("in_shardings", "out_shardings")
    return Options(
        donate_first,
        donate_rest,
        filter_warning,
        tuple([(k, _copied(v)) for k, v in sorted(jit_kwargs.items()) if k not in own]),
        **{name: jit_kwargs.get(name) for name in own},
    )


_FORBIDDEN = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
_LEGACY = ("default", "fn", "args", "kwargs", "out")
_JIT_PARAMETERS = frozenset(
    {
        name
        for name, p in inspect.signature(jax.jit).parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
)


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
                f"`donate` or one of `jax.jit`'s: {known}."
            )


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _nothing() -> None:
    pass


# --- a call ---


def donated(options: Options, spec: Spec, values: tuple[Any, ...]) -> tuple[int, ...]:
    """The indices of the arrays to donate."""
    _, structure = partition(values, abstract=True)
    groups = [(x, options.donate_rest) for x in structure.treedef.children()]
    if spec.first_is_positional():
        first = groups[0][0]
        firsts = [(first, options.donate_first)]
        if spec.kinds[0] is inspect.Parameter.VAR_POSITIONAL:
            firsts = [(x, options.donate_rest) for x in first.children()]
            firsts[:1] = [(x, options.donate_first) for x, _ in firsts[:1]]
        groups[:1] = firsts
    out = []
    number = 0
    leaves = iter(structure.leaves)
    for treedef, donate in groups:
        for _ in range(treedef.num_leaves):
            if next(leaves) is DYNAMIC:
                if donate:
                    out.append(number)
                number += 1
    return tuple(out)


def flatten_in_shardings(
    prefix: Any, named: list[tuple[str, Any]], fun: Any, name: str
) -> tuple[Any, ...]:
    """`in_shardings`, a prefix of the user's arguments, as one per array.

    **Arguments:**

    - `prefix`: what the user passed.
    - `named`: the arguments of a call, with their names.
    - `fun`: the callable, if it is one of them: its arrays stay where they are.
    - `name`: its name.
    """
    arguments = [(n, x) for n, x in named if fun is None or x is not fun]
    if isinstance(prefix, list | tuple):
        with_arrays = [
            any(map(is_array_or_struct, jtu.tree_leaves(value)))
            for _, value in arguments
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
        out += _broadcast_prefix(None if is_fun else next(prefixes), value, path)
    return tuple(out)


def _broadcast_prefix(prefix: Any, value: Any, name: str) -> list[Any]:
    """One sharding per array of `value`."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, jax.sharding.Sharding)

    out: list[Any] = []

    def spread(sharding: Any, subtree: Any) -> None:
        out.extend(sharding for x in jtu.tree_leaves(subtree) if is_array_or_struct(x))

    try:
        jtu.tree_map(spread, prefix, value, is_leaf=is_leaf)
    except ValueError as e:
        raise ValueError(
            f"`in_shardings` for argument `{name}` is not a pytree prefix of it: {e}"
        ) from e
    return out
