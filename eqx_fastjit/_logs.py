"""Corrects or drops log records of JAX that are misleading for our functions."""

import logging
from collections.abc import Callable


class _QuietEquinoxErrors(logging.Filter):
    """Drops JAX's "pure_callback failed" record when Equinox itself raised.

    The user gets an `EquinoxRuntimeError` for it; the record would be a second and less
    readable report. Records of other failing callbacks pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        exc_info = record.exc_info
        if not exc_info or exc_info[0] is None:
            return True
        return exc_info[0].__name__ != "_EquinoxRuntimeError"


def silence_equinox_callback_log() -> None:
    """Add the filter once per process, rather than in every call, as Equinox does."""
    logger = logging.getLogger("jax._src.callback")
    if not any(type(f) is _QuietEquinoxErrors for f in logger.filters):
        logger.addFilter(_QuietEquinoxErrors())


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


class _KnowsSpecializations(logging.Filter):
    """Corrects JAX's guess. To JAX, each signature is a function of its own."""

    def __init__(self, is_ours: Callable[[], bool]):
        super().__init__()
        self.is_ours = is_ours

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and _GUESS in record.msg and self.is_ours():
            record.msg = record.msg.replace(_GUESS, _INSTEAD)
        return True


def correct_cache_miss_log(is_ours: Callable[[], bool]) -> None:
    """Add the filter. `is_ours` tells whether a function of ours is being called."""
    for name in ("jax._src.interpreters.partial_eval", "jax._src.pjit"):
        logging.getLogger(name).addFilter(_KnowsSpecializations(is_ours))
