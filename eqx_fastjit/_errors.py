"""Making Equinox's runtime errors readable, and texts of our own."""

from ._compat import (
    EquinoxRuntimeError,
    JaxRuntimeError,
    last_error_info,
    runtime_error_template,
)


# How `eqx.error_if`'s own exception shows in the text of the error that XLA makes of it.
_MARK = "_EquinoxRuntimeError: "
# Begins the advice that Equinox appends for users of `jax.jit`.
_ADVICE = "\n\n\n--------------------\n"


def explain_runtime_error(error: BaseException, jit_id: bytes) -> BaseException | None:
    """The `EquinoxRuntimeError` behind an error of XLA's.

    **Arguments:**

    - `error`: what a jitted function raised.
    - `jit_id`: what marks the frame of that function in recorded stacks.

    **Returns:**

    An error with the message given to `eqx.error_if` and the stack inside of JIT, or
    `None` if it is some other error.
    """
    if not isinstance(error, (JaxRuntimeError, ValueError)):
        return None
    text = str(error)
    start = text.find(_MARK)
    if start < 0:
        return None
    # The text belongs to this very call; what Equinox keeps in a global may be another
    # thread's, so of that only take the stack, and only if the message agrees.
    message = text[start + len(_MARK) :]
    message = message.partition(_ADVICE)[0]
    last_message, last_stack = last_error_info() or ("", [])
    pieces: list[str] = []
    if last_message.strip() == message.strip():
        message = last_message
        for piece in last_stack:
            if isinstance(piece, str):
                pieces.append(piece)
            elif piece == jit_id:
                break
    stack = "".join(reversed(pieces))
    return EquinoxRuntimeError(
        runtime_error_template().format(msg=message, stack=stack)
    )
