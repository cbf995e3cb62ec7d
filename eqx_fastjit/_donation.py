"""Names the array in JAX's errors about donated arrays, and the call that did it."""

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
from jax.errors import JaxRuntimeError

from . import _facts
from ._statics import is_array


# As which JAX and XLA raise them.
_ERRORS = (RuntimeError, ValueError, JaxRuntimeError)


def name_donated(
    error: BaseException, arguments: Callable[[], list[tuple[str, Any]]]
) -> BaseException:
    """An error that says that an array was donated, with leaves and calls.

    **Arguments:**

    - `error`: of a call. Any other is returned as it is.
    - `arguments`: gives name and value of each argument of the call.
    """
    if type(error) not in _ERRORS:  # the text of a user's error may itself raise
        return error
    text = str(error)
    if not ("deleted" in text or "donate" in text):
        return error
    found = ""
    with contextlib.suppress(Exception):  # of a user's flatten function
        arrays = {
            f"{name}{jtu.keystr(path)}": x
            for name, value in arguments()
            for path, x in jtu.tree_leaves_with_path(value)
            if is_array(x) and isinstance(x, jax.Array)
        }
        found = _deleted(arrays) or _twice(arrays)
    if not found:
        return error
    better = type(error)(f"{text}\n{found}")
    better.__suppress_context__ = True  # as `raise better from None`
    return better


def _deleted(arrays: dict[str, Any]) -> str:
    gone = {path: x for path, x in arrays.items() if x.is_deleted()}
    if not gone:
        return ""
    first = next(iter(gone.values()))
    others = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
    by = _donors(first)
    return (
        f"`{next(iter(gone))}`{others} was deleted"
        + (f": it was donated, in an earlier call of {by}" if by else "")
        + ". Use what that call has returned, or do not donate it."
    )


def _donors(x: Any) -> str:
    """The functions that donate arrays like this one, with the lines that call them."""
    calls: dict[str, str] = {}
    for fact in reversed(tuple(_facts.history)):
        specialization = fact.specialization()
        if specialization is None or specialization.flat.options.donate == "none":
            continue
        if any((a.shape, a.dtype) == (x.shape, x.dtype) for a, _ in fact.kinds):
            line = f" ({fact.frames[0].file}:{fact.frames[0].line})" * bool(fact.frames)
            calls.setdefault(fact.function.name, f"`{fact.function.name}`{line}")
    return " or ".join(calls.values())


def _twice(arrays: dict[str, Any]) -> str:
    """Two leaves that are one array, or share its memory."""
    paths: dict[Any, list[str]] = collections.defaultdict(list)
    for path, x in arrays.items():
        paths[_buffer(x)].append(path)
    for same in paths.values():
        if len(same) > 1:
            names = " and ".join(f"`{path}`" for path in same)
            return f"{names} are one array, which is donated. Pass a copy of it."
    return ""


def _buffer(x: Any) -> Any:
    try:
        return x.unsafe_buffer_pointer()
    except Exception:  # on several devices, or taken by the call that has failed
        return f"id {id(x)}"
