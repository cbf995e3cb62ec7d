"""How the comparisons with Equinox treat errors."""

import jax


def is_error_if_let_out(error: BaseException) -> bool:
    """Whether it is XLA's error for an `eqx.error_if` that fired.

    Equinox 0.13.2 may raise this error itself. Ours always raises
    `EquinoxRuntimeError`.
    """
    if not isinstance(error, ValueError | jax.errors.JaxRuntimeError):
        return False
    return "_EquinoxRuntimeError: " in str(error)
