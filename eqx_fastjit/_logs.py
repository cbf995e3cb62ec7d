"""Corrects or drops log records of JAX that are misleading for our functions."""

import functools
import logging
from collections.abc import Callable


def _is_not_equinoxs(record: logging.LogRecord) -> bool:
    """Drops JAX's "pure_callback failed" record when Equinox itself raised.

    The user gets an `EquinoxRuntimeError` for it; the record would be a second and less
    readable report. Records of other failing callbacks pass.
    """
    raised = record.exc_info and record.exc_info[0]
    return not raised or raised.__name__ != "_EquinoxRuntimeError"


def silence_equinox_callback_log() -> None:
    """Add the filter once per process, rather than in every call, as Equinox does."""
    logging.getLogger("jax._src.callback").addFilter(_is_not_equinoxs)


# What `jax_explain_cache_misses` guesses about a function that it has not seen.
_GUESS = (
    "  but seen another function defined on the same line; maybe the function is\n"
    "  being re-defined repeatedly, preventing caching?"
)
_INSTEAD = (
    "  A static argument, or the structure of an argument, differs from earlier\n"
    "  calls."
    "  `eqx_fastjit.insight.explain` tells which."
)


def _correct_guess(record: logging.LogRecord, is_ours: Callable[[], bool]) -> bool:
    """Corrects JAX's guess. To JAX, each signature is a function of its own."""
    if isinstance(record.msg, str) and _GUESS in record.msg and is_ours():
        record.msg = record.msg.replace(_GUESS, _INSTEAD)
    return True


def correct_cache_miss_log(is_ours: Callable[[], bool]) -> None:
    """Add the filter. `is_ours` tells whether a function of ours is being called."""
    correct = functools.partial(_correct_guess, is_ours=is_ours)
    for name in ("jax._src.interpreters.partial_eval", "jax._src.pjit"):
        logging.getLogger(name).addFilter(correct)
