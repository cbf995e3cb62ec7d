"""The program that is exported: arrays in, arrays out, nothing else.

It is made of what was traced for a call, so the user's function does not run again.
Large arrays that the function closes over become arguments, which are kept in the file:
as constants they would be compiled into the program, each time again.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core

from eqx_fastjit import _compat
from eqx_fastjit._blocking import has_host_callbacks

from ._checks import functionalize, without_dead_code
from ._tree import ExportError


# Smaller constants, such as a table of indices, stay constants for the compiler.
_LIFT_BYTES = 1024
# The names of LAPACK's routines in a program for CPUs begin with this.
LAPACK = "lapack_"


class Program:
    """A function of arrays alone.

    It takes `lifted`, then the arrays of the call in the given order, and returns a
    list: the arrays of the result, and the signal of a failed check where `checked`.
    `order` has the number of each argument of `traced` among those of the program.
    """

    def __init__(self, traced: jax.stages.Traced, order: Sequence[int], name: str):
        self._closed: Any = without_dead_code(traced.jaxpr)
        self._order = tuple(order)
        consts = self._closed.consts
        large = [getattr(x, "nbytes", 0) >= _LIFT_BYTES for x in consts]
        self._lifted = [i for i, is_large in enumerate(large) if is_large]
        self.lifted = [jax.numpy.asarray(consts[i]) for i in self._lifted]
        # Whether there are host callbacks, which must then all be `eqx.error_if`'s.
        self.checked = has_host_callbacks(traced)
        # Of each check by its number, once the program has been traced.
        self.messages: dict[int, list[str]] = {}
        self.__name__ = self.__qualname__ = name

    def __call__(self, *arrays: Any) -> list[Any]:
        n = len(self._lifted)
        consts = list(self._closed.consts)
        for i, x in zip(self._lifted, arrays[:n], strict=True):
            consts[i] = x
        closed = jax.extend.core.ClosedJaxpr(self._closed.jaxpr, consts)
        run: Any = jax.extend.core.jaxpr_as_fun(closed)
        ordered = [arrays[n + i] for i in self._order]
        if not self.checked:
            return list(run(*ordered))
        try:
            run = functionalize(run, self.messages)
            out, signal = run(*ordered)
        except _compat.MissingPrivateName as e:
            raise ExportError(
                f"{self.__name__} has checks (`eqx.error_if`), which cannot be "
                f"exported with JAX {jax.__version__}: {e} is not there."
            ) from e
        return [*out, signal]


def check_callbacks(traced: jax.stages.Traced, name: str) -> None:
    """Raise `ExportError` if a program has host callbacks."""
    if has_host_callbacks(traced):
        raise ExportError(
            f"{name} has host callbacks (`jax.debug.print`, `jax.pure_callback`, "
            "`jax.io_callback`), which call Python and cannot be exported. Remove "
            "them. The checks of `eqx.error_if` can be exported, unless they are "
            "hidden in another library's primitive (`lineax.linear_solve`): then set "
            "`EQX_ON_ERROR=nan` or `off`."
        )
