"""The program that is exported: arrays in, arrays out, nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core

from eqx_fastjit._private import equinox_check

from ._checks import callbacks_in, WithSignal, without_dead_code
from ._tree import ExportError


# Smaller constants, such as a table of indices, stay in the program for the compiler.
_KEPT_BYTES = 1024


class Program:
    """A function of arrays alone.

    It takes `kept`, then the arrays of a call. It returns those of the result, and the
    signal of its checks (`_checks.py`) if there are any.

    **Arguments:**

    - `fun`: a function from arrays to a list of arrays, which is traced.
    - `arrays`: its arguments, or `jax.ShapeDtypeStruct`s of them.
    - `name`: its name.
    """

    def __init__(self, fun: Callable[..., Any], arrays: Sequence[Any], name: str):
        self.__name__ = self.__qualname__ = name
        traced = jax.jit(fun).trace(*arrays)
        self.outputs = list(traced.out_info)
        self._closed = without_dead_code(traced.jaxpr)
        consts = self._closed.consts
        # Large arrays that the function closes over, such as those of a Module that is
        # called, are kept beside the program. They would be compiled into it otherwise.
        self._is_kept = [getattr(x, "nbytes", 0) >= _KEPT_BYTES for x in consts]
        pairs = zip(consts, self._is_kept, strict=True)
        self.kept = [jax.numpy.asarray(x) for x, is_kept in pairs if is_kept]
        callbacks = callbacks_in([self._closed])
        if any(equinox_check(callback) is None for callback in callbacks):
            raise ExportError(f"{name} {HAS_CALLBACKS}")
        self.has_checks = bool(callbacks)
        # Of the checks, by the number in the signal.
        self.messages: list[str] = []
        if self.has_checks:
            jax.eval_shape(self, *self.kept, *arrays)

    def __call__(self, *arrays: Any) -> list[Any]:
        given = iter(arrays)
        consts = [
            next(given) if is_kept else x
            for x, is_kept in zip(self._closed.consts, self._is_kept, strict=True)
        ]
        closed = jax.extend.core.ClosedJaxpr(self._closed.jaxpr, consts)
        if not self.has_checks:
            return list(jax.extend.core.jaxpr_as_fun(closed)(*given))
        evaluation = WithSignal()
        signal, out = evaluation.run(closed, -1, list(given))
        self.messages = evaluation.messages
        return [*out, jax.numpy.asarray(signal, "int32")]


HAS_CALLBACKS = (
    "has host callbacks (`jax.debug.print`, `jax.pure_callback`, `jax.io_callback`), "
    "which call Python and cannot be exported. Remove them. If they are checks of "
    "`eqx.error_if` in another library's primitive (`lineax.linear_solve`), set "
    "`EQX_ON_ERROR=nan`."
)
