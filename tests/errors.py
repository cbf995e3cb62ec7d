"""What the comparisons with Equinox make of errors."""

import jax


def is_error_if_let_out(error: BaseException) -> bool:
    """Whether it is XLA's error for an `eqx.error_if` that fired.

    Equinox 0.13.2 lets that out, where ours raises `EquinoxRuntimeError` always.
    """
    if not isinstance(error, ValueError | jax.errors.JaxRuntimeError):
        return False
    return "_EquinoxRuntimeError: " in str(error)
