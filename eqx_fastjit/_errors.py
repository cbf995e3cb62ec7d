"""Equinox's runtime errors made readable, and error texts of our own."""

import logging
import types
from typing import Any

import equinox as eqx
import jax.errors

from ._private import last_error_info, runtime_error_text


# How `eqx.error_if`'s own exception shows in the text of XLA's error.
_MARK = "_EquinoxRuntimeError: "
# Begins the advice that Equinox appends for users of `jax.jit`.
_ADVICE = "\n\n\n--------------------\n"
# How deep a cycle is looked for.
_MAX_DEPTH = 200


def explain_runtime_error(error: BaseException) -> BaseException | None:
    """The error behind one of XLA's or of jaxlib's, which a jitted function raised.

    An `EquinoxRuntimeError` with the message given to `eqx.error_if` and the stack
    inside of JIT; a `RecursionError` that jaxlib hid; or `None` if it is neither.
    """
    if isinstance(error, SystemError) and isinstance(error.__cause__, RecursionError):
        return RecursionError(
            "The arguments or the result of a jitted function are nested too deeply, "
            "or contain themselves."
        )
    if not isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):
        return None
    try:
        text = str(error)
    except Exception:  # the user's own subclass of `ValueError`, say
        return None
    start = text.find(_MARK)
    if start < 0:
        return None
    # The text belongs to this call. Equinox's global may be from another thread, so
    # only take its stack, and only if the message matches.
    message = text[start + len(_MARK) :]
    message = message.partition(_ADVICE)[0]
    last_message, last_stack = last_error_info()
    stack = ""
    if last_message.strip() == message.strip():
        message = last_message
        stack = _inside_jit(last_stack)
    return eqx.EquinoxRuntimeError(runtime_error_text(message, stack))


def _inside_jit(stack: list[bytes | str]) -> str:
    """The frames up to the outermost jitted function, outermost first.

    The recorded stack begins with the innermost frame; bytes stand for the frame of a
    jitted function. It is that of the first trace: JAX may have kept it since.
    """
    boundaries = [i for i, piece in enumerate(stack) if isinstance(piece, bytes)]
    inside = stack[: boundaries[-1]] if boundaries else stack
    return "".join(reversed([piece for piece in inside if isinstance(piece, str)]))


def silence_equinox_callback_log() -> None:
    """Drop JAX's "pure_callback failed" record where Equinox itself raised.

    The user gets an `EquinoxRuntimeError` for it; the record would be a second and less
    readable report. Once per process, rather than in every call, as Equinox does.
    """
    logging.getLogger("jax._src.callback").addFilter(_is_not_equinoxs)


def _is_not_equinoxs(record: logging.LogRecord) -> bool:
    raised = record.exc_info and record.exc_info[0]
    return not raised or raised.__name__ != "_EquinoxRuntimeError"


def cycle_in(named: list[tuple[str, Any]]) -> str | None:
    """The path of an argument's part that contains itself, or `None`.

    `named` are the arguments of a call, by name.
    """
    done: set[int] = set()
    for name, value in named:
        if (found := _cycle(name, value, set(), done)) is not None:
            return found
    return None


def _cycle(path: str, x: Any, above: set[int], done: set[int]) -> str | None:
    # By id, of objects that the arguments keep alive.
    if id(x) in above:
        return path
    if id(x) in done or len(above) > _MAX_DEPTH:
        return None
    above.add(id(x))
    found = None
    for where, part in _parts(path, x):
        found = _cycle(where, part, above, done)
        if found is not None:
            break
    above.remove(id(x))
    done.add(id(x))
    return found


def _parts(path: str, x: Any) -> list[tuple[str, Any]]:
    if isinstance(x, dict):
        return [(f"{path}[{k!r}]", v) for k, v in x.items()]
    if isinstance(x, list | tuple):
        return [(f"{path}[{i}]", v) for i, v in enumerate(x)]
    if isinstance(x, type | types.FunctionType | types.ModuleType):
        return []
    try:
        return [(f"{path}.{k}", v) for k, v in object.__getattribute__(x, "__dict__").items()]
    except AttributeError:
        return []
