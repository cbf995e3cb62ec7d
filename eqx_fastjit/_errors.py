"""Errors of JAX and XLA made readable: of runtime checks, and of donated arrays."""

import collections
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
from equinox import EquinoxRuntimeError
from jax.errors import JaxRuntimeError

from . import _facts
from ._private import last_error_info, runtime_error_text
from ._statics import compared_by_equality, is_array


# As which JAX and XLA raise them. (No classes of the user's, whose text may raise.)
_XLA_ERRORS = (JaxRuntimeError, RuntimeError, ValueError)
# How `eqx.error_if`'s own exception shows in the text of XLA's error.
_MARK = "_EquinoxRuntimeError: "
# Begins the advice that Equinox appends for users of `jax.jit`.
_ADVICE = "\n\n\n--------------------\n"


def clearer(
    error: BaseException, arguments: Callable[[], list[tuple[str, Any]]]
) -> BaseException:
    """What a jitted function raises in place of an error of XLA or jaxlib.

    An `EquinoxRuntimeError` with the message given to `eqx.error_if` and the stack
    inside JIT; an error about donated arrays that names leaves and calls; a
    `RecursionError` that jaxlib hid; or the same error.

    `arguments` gives name and value of each argument of the call.
    """
    better = None
    if isinstance(error, SystemError) and isinstance(error.__cause__, RecursionError):
        better = RecursionError(
            "The arguments or the result of a jitted function are nested too deeply, "
            "or contain themselves."
        )
    elif type(error) in _XLA_ERRORS:
        text = str(error)
        if _MARK in text:
            _, _, message = text.partition(_MARK)
            message, _, _ = message.partition(_ADVICE)
            better = _equinox_error(message)
        elif "deleted" in text or "donate" in text:
            with contextlib.suppress(Exception):  # of a user's flatten function
                better = type(error)(f"{text}\n{_about_donated(arguments())}")

    if better is None:
        return error
    better.__suppress_context__ = True  # as `raise better from None`
    return better


def name_static(
    error: BaseException, arguments: Callable[[], list[tuple[str, Any]]]
) -> None:
    """Note which static argument raised an error as it was compared, if one did."""
    if isinstance(error, RecursionError):  # of calls that flatten functions make, say
        return
    with contextlib.suppress(Exception):  # of a flatten function, which is run again
        for name, value in arguments():
            for x in compared_by_equality(value):
                try:
                    bool(x == x)
                except type(error):
                    error.add_note(
                        f"`{type(x).__qualname__}.__eq__` raised it, or what it "
                        f"returned is no truth value, as the static argument `{name}` "
                        "was compared with that of an earlier call."
                    )
                    return


def _equinox_error(message: str) -> BaseException:
    # The text belongs to this call. Equinox's global may be from another thread, so
    # only take its stack, and only if the message matches.
    last_message, last_stack = last_error_info()
    stack = ""
    if last_message.strip() == message.strip():
        message, stack = last_message, _inside_jit(last_stack)
    return EquinoxRuntimeError(runtime_error_text(message, stack))


def _inside_jit(stack: list[bytes | str]) -> str:
    """The frames up to the outermost jitted function, outermost first.

    The recorded stack begins with the innermost frame; bytes stand for the frame of a
    jitted function. It is that of the first trace: JAX may have kept it since.
    """
    boundaries = [i for i, piece in enumerate(stack) if isinstance(piece, bytes)]
    inside = stack[: boundaries[-1]] if boundaries else stack
    return "".join(piece for piece in reversed(inside) if isinstance(piece, str))


def hide_callback_log(is_calling: Callable[[], bool]) -> None:
    """Drop JAX's record "pure_callback failed" while a jitted function is called.

    As Equinox does: the call raises an error that says the same, and is easier to read.
    Equinox adds such a filter in every call; this one asks whether there is any.
    """

    def is_shown(record: logging.LogRecord) -> bool:
        # (Not `getMessage()`, which raises of a record whose arguments do not fit.)
        is_callback = record.msg == "jax.pure_callback failed"
        return not is_callback or not is_calling()

    logging.getLogger("jax._src.callback").addFilter(is_shown)


# --- donated arrays -------------------------------------------------------------------


def _about_donated(arguments: list[tuple[str, Any]]) -> str:
    """Which arrays were deleted, or are donated twice. Raises `ValueError` if none."""
    arrays = {
        f"{name}{jtu.keystr(path)}": x
        for name, value in arguments
        for path, x in jtu.tree_leaves_with_path(value)
        if is_array(x) and isinstance(x, jax.Array)
    }

    gone = {path: x for path, x in arrays.items() if x.is_deleted()}
    if gone:
        (path, first), *more = gone.items()
        others = f" (and {len(more)} more)" if more else ""
        by = _donors(first)
        donated = f": it was donated, in an earlier call of {by}" if by else ""
        return (
            f"`{path}`{others} was deleted{donated}. Use what that call has returned, "
            "or do not donate it."
        )

    # Or one array is donated twice.
    paths: dict[Any, list[str]] = collections.defaultdict(list)
    for path, x in arrays.items():
        paths[_buffer(x)].append(path)
    same, *_ = [found for found in paths.values() if len(found) > 1]
    names = " and ".join(f"`{path}`" for path in same)
    return f"{names} are one array, which is donated. Pass a copy of it."


def _donors(x: Any) -> str:
    """The functions that donate arrays like this one, with the lines that call them."""
    calls: dict[str, str] = {}
    for fact in reversed(_facts.history.copy()):
        specialization = fact.specialization()
        if specialization is None or specialization.flat.options.donate == "none":
            continue
        if any((a.shape, a.dtype) == (x.shape, x.dtype) for a, _ in fact.kinds):
            name = fact.function.name
            line = ""
            if fact.frames:
                line = f" ({fact.frames[0].file}:{fact.frames[0].line})"
            calls.setdefault(name, f"`{name}`{line}")
    return " or ".join(calls.values())


def _buffer(x: Any) -> Any:
    try:
        return x.unsafe_buffer_pointer()
    except Exception:  # on several devices, or taken by the call that has failed
        return f"id {id(x)}"
