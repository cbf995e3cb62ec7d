"""Equinox's runtime errors made readable, and error texts of our own."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.errors
import jax.tree_util as jtu

from ._compat import instance_dict, last_error_info, runtime_error_text
from ._nodes import is_module_class


# How `eqx.error_if`'s own exception shows in the text of XLA's error.
_MARK = "_EquinoxRuntimeError: "
# Begins the advice that Equinox appends for users of `jax.jit`.
_ADVICE = "\n\n\n--------------------\n"


class UnhashableStaticError(ValueError, TypeError):
    """A static argument cannot be hashed, so no compiled function can be kept for it.

    A `ValueError`, as JAX raises for it, and a `TypeError`, as `hash` does.
    """


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


def static_field_with(name: str, x: Any, array: Any, below: bool = False) -> str | None:
    """The path of the static field of a dataclass in `x` that holds this very array.

    `below` says that `x` is in a static field itself: any field is then static.
    """
    if isinstance(x, dict):
        parts = [(f"{name}[{k!r}]", v, below) for k, v in x.items()]
    elif isinstance(x, list | tuple):
        parts = [(f"{name}[{i}]", v, below) for i, v in enumerate(x)]
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        # Of a Module not by `getattr`, as in `_describe`: a method would have it again.
        is_module = is_module_class(type(x))
        values = instance_dict(x) if is_module else {}
        parts = [
            (
                f"{name}.{f.name}",
                values.get(f.name) if is_module else getattr(x, f.name, None),
                below or f.metadata.get("static", False),
            )
            for f in dataclasses.fields(x)
        ]
    else:
        return None
    for path, part, static in parts:
        if static and any(leaf is array for leaf in jtu.tree_leaves(part)):
            return path
        if (found := static_field_with(path, part, array, static)) is not None:
            return found
    return None
