"""The program that is exported: arrays in, arrays out, nothing else.

A host callback cannot be saved, so the checks of `eqx.error_if` become a result. The
program is evaluated equation by equation, with one more value, the *signal*: the number
of the message of the first check that failed, or -1. `while` loops do not begin once
it is set: with the values that follow a failed check they might not end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.interpreters.partial_eval
import jax.numpy as jnp

from eqx_fastjit._blocking import equations_in
from eqx_fastjit._private import equinox_check

from ._tree import ExportError


# Smaller constants, such as a table of indices, stay in the program for the compiler.
_KEPT_BYTES = 1024
HAS_CALLBACKS = (
    "has host callbacks (`jax.debug.print`, `jax.pure_callback`, `jax.io_callback`), "
    "which call Python and cannot be exported. Remove them. If they are checks of "
    "`eqx.error_if` in a loop, or in a primitive such as `lineax.linear_solve`, set "
    "`EQX_ON_ERROR=nan`."
)


class Program:
    """A function of arrays alone.

    It takes `kept`, then the arrays of a call. It returns those of the result, and the
    signal of its checks if there are any.

    **Arguments:**

    - `fun`: a function from arrays to a list of arrays, which is traced.
    - `arrays`: its arguments, or `jax.ShapeDtypeStruct`s of them.
    - `name`: its name.
    """

    def __init__(self, fun: Callable[..., Any], arrays: Sequence[Any], name: str):
        self.__name__ = self.__qualname__ = name
        traced = jax.jit(fun).trace(*arrays)
        self.outputs = list(traced.out_info)
        # Without checks whose value is not used: these are not performed.
        dce = jax.interpreters.partial_eval.dce_jaxpr
        outvars = traced.jaxpr.jaxpr.outvars
        self._jaxpr = dce(traced.jaxpr.jaxpr, [True] * len(outvars), True)[0]
        self._consts = traced.jaxpr.consts
        # Large arrays that the function closes over, such as those of a Module that is
        # called, are kept beside the program. They would be compiled into it otherwise.
        self._is_kept = [getattr(x, "nbytes", 0) >= _KEPT_BYTES for x in self._consts]
        pairs = zip(self._consts, self._is_kept, strict=True)
        self.kept = [jnp.asarray(x) for x, is_kept in pairs if is_kept]
        # Of the checks, by the number in the signal.
        self.messages: list[str] = []
        self.has_checks = bool(_callbacks_in([self._jaxpr]))
        if self.has_checks:
            jax.eval_shape(self, *self.kept, *arrays)

    def __call__(self, *arrays: Any) -> list[Any]:
        given = iter(arrays)
        pairs = zip(self._consts, self._is_kept, strict=True)
        consts = [next(given) if is_kept else x for x, is_kept in pairs]
        if not self.has_checks:
            closed = jax.extend.core.ClosedJaxpr(self._jaxpr, consts)
            return list(jax.extend.core.jaxpr_as_fun(closed)(*given))
        self.messages.clear()
        signal, out = self._run(self._jaxpr, consts, jnp.int32(-1), list(given))
        return [*out, signal]

    def _run(
        self, jaxpr: Any, consts: Sequence[Any], signal: Any, values: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """The signal and the results of a part of the program."""
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known |= zip(jaxpr.invars, values, strict=True)

        def value_of(x: Any) -> Any:
            return x.val if isinstance(x, jax.extend.core.Literal) else known[x]

        for equation in jaxpr.eqns:
            given = [value_of(x) for x in equation.invars]
            signal, out = self._equation(equation, signal, given)
            known |= zip(equation.outvars, out, strict=True)
        return signal, [value_of(x) for x in jaxpr.outvars]

    def _equation(self, equation: Any, signal: Any, values: list[Any]) -> Any:
        name, params = equation.primitive.name, equation.params
        zeros = [_zeros(x.aval) for x in equation.outvars]
        if name == "while" and not _callbacks_in(params.values()):
            out = jax.lax.cond(signal < 0, lambda: _bind(equation, values), lambda: zeros)
            return signal, out
        if not _callbacks_in(params.values()) and not name.endswith("callback"):
            return signal, _bind(equation, values)
        messages = equinox_check(params.get("callback"))
        if messages is not None:  # only reached if the check failed
            if messages:
                number = jnp.max(values[-1]).astype("int32") + len(self.messages)
                signal = jnp.where(signal < 0, number, signal)
            self.messages += messages
            return signal, zeros
        if name == "cond":
            run = self._branch
            branches = [run(closed) for closed in params["branches"]]
            return jax.lax.switch(values[0], branches, signal, values[1:])
        closed = params.get("jaxpr", params.get("call_jaxpr"))
        if name in ("scan", "shard_map") or closed is None:
            raise ExportError(f"{self.__name__} {HAS_CALLBACKS}")
        return self._branch(closed)(signal, values)  # a call of another function

    def _branch(self, closed: Any) -> Callable[[Any, Sequence[Any]], Any]:
        jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        return lambda signal, values: self._run(jaxpr, consts, signal, values)


def _callbacks_in(values: Any) -> list[Any]:
    """The equations in jaxprs that call Python."""
    return [
        equation
        for equation in equations_in(values)
        if equation.primitive.name.endswith("callback")
        or equation.primitive.name == "debug_print"
    ]


def _zeros(aval: Any) -> jax.Array:
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jnp.zeros(aval.shape, aval.dtype)
    return jnp.broadcast_to(jax.random.key(0, impl=aval.dtype), aval.shape)


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The results of an equation as it is."""
    primitive, found = equation.primitive, equation.params
    found = primitive.get_bind_params(found)
    functions, params = found if isinstance(found, tuple) else ((), found)
    out = primitive.bind(*functions, *values, **params)
    return list(out) if primitive.multiple_results else [out]
