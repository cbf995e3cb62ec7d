"""Equinox's runtime errors made readable, and error texts of our own."""

import logging
from collections.abc import Callable

from equinox import EquinoxRuntimeError
from jax.errors import JaxRuntimeError

from ._private import last_error_info, runtime_error_text


# As which XLA raises it if a host callback did. (No classes of the user's.)
_XLA_ERRORS = (JaxRuntimeError, ValueError)
# How `eqx.error_if`'s own exception shows in the text of XLA's error.
_MARK = "_EquinoxRuntimeError: "
# Begins the advice that Equinox appends for users of `jax.jit`.
_ADVICE = "\n\n\n--------------------\n"


def clearer(error: BaseException) -> BaseException:
    """What a jitted function raises in place of an error of XLA or jaxlib.

    An `EquinoxRuntimeError` with the message given to `eqx.error_if` and the stack
    inside JIT; a `RecursionError` that jaxlib hid; or the same error.
    """
    if isinstance(error, SystemError) and isinstance(error.__cause__, RecursionError):
        better = RecursionError(
            "The arguments or the result of a jitted function are nested too deeply, "
            "or contain themselves."
        )
    elif type(error) in _XLA_ERRORS and _MARK in str(error):
        better = _equinox_error(str(error).partition(_MARK)[2].partition(_ADVICE)[0])
    else:
        return error
    better.__suppress_context__ = True  # as `raise better from None`
    return better


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
    return "".join(reversed([piece for piece in inside if isinstance(piece, str)]))


def hide_callback_log(is_calling: Callable[[], bool]) -> None:
    """Drop JAX's record "pure_callback failed" while a jitted function is called.

    As Equinox does: the call raises an error that says the same, and is easier to read.
    Equinox adds such a filter in every call; this one asks whether there is any.
    """

    def is_shown(record: logging.LogRecord) -> bool:
        return record.getMessage() != "jax.pure_callback failed" or not is_calling()

    logging.getLogger("jax._src.callback").addFilter(is_shown)
