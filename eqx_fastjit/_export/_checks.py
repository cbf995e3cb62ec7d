"""The checks of `eqx.error_if` as a result of the program, instead of host callbacks.

A host callback cannot be saved. So the program is evaluated equation by equation with
one more value, the *signal*: the number of the message of the first check that failed,
or -1. A check that is reached sets it. Loops end once it is set, because they might not
end by themselves with the values that follow a failed check.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.interpreters.partial_eval
import jax.numpy as jnp

from eqx_fastjit._blocking import equations_in
from eqx_fastjit._private import equinox_check

from ._tree import ExportError


# The primitives that call one jaxpr once, by the name of the parameter that has it.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "remat", "checkpoint", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call"), "call_jaxpr"),
    **dict.fromkeys(("custom_vjp_call", "custom_vjp_call_jaxpr"), "call_jaxpr"),
}
_NONE = -1


def without_dead_code(closed: Any) -> Any:
    """A program without what its results do not need, such as unused checks."""
    dce = jax.interpreters.partial_eval.dce_jaxpr
    jaxpr, _ = dce(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    return jax.extend.core.ClosedJaxpr(jaxpr, closed.consts)


def callbacks_in(values: Iterable[Any]) -> list[Any]:
    """The host callbacks in jaxprs, or in what has them for parameters."""
    return [
        equation.params.get("callback")
        for equation in equations_in(values)
        if equation.primitive.name.endswith("callback")
        or equation.primitive.name == "debug_print"
    ]


class WithSignal:
    """Evaluates programs, and notes the messages of their checks."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def run(self, closed: Any, signal: Any, values: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The signal and the results of a program."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))
        known |= dict(zip(jaxpr.invars, values, strict=True))

        def value_of(x: Any) -> Any:
            return x.val if isinstance(x, jax.extend.core.Literal) else known[x]

        for equation in jaxpr.eqns:
            given = [value_of(x) for x in equation.invars]
            signal, out = self._equation(equation, signal, given)
            known |= dict(zip(equation.outvars, out, strict=True))
        return signal, [value_of(x) for x in jaxpr.outvars]

    def _equation(self, equation: Any, signal: Any, values: list[Any]) -> Any:
        name, params = equation.primitive.name, equation.params
        if name == "pure_callback":
            return self._check(equation, signal, values)
        if not callbacks_in(params.values()):
            if name == "while" and signal is not _NONE:
                out = jax.lax.cond(
                    signal < 0,
                    lambda: bind(equation, values),
                    lambda: [_zeros(x.aval) for x in equation.outvars],
                )
                return signal, out
            return signal, bind(equation, values)
        if name in _CALLS:
            return self.run(params[_CALLS[name]], signal, values)
        rule = {"cond": self._cond, "scan": self._scan, "while": self._while}.get(name)
        if rule is None:
            raise ExportError(
                f"a check (`eqx.error_if`) inside of `{name}` cannot be exported"
            )
        return rule(params, jnp.asarray(signal, "int32"), values)

    def _check(self, equation: Any, signal: Any, values: list[Any]) -> Any:
        """A callback of Equinox, which is only reached if its check failed."""
        messages = equinox_check(equation.params["callback"]) or []
        first = len(self.messages)
        self.messages += messages
        if messages:
            number = first + jnp.max(jnp.asarray(values[-1])).astype("int32")
            signal = jnp.where(jnp.asarray(signal) < 0, number, signal)
        return signal, [_zeros(x.aval) for x in equation.outvars]

    def _cond(self, params: Any, signal: Any, values: list[Any]) -> Any:
        index, *operands = values

        def branch(closed: Any) -> Callable[..., Any]:
            return lambda signal, *operands: self.run(closed, signal, operands)

        branches = [branch(closed) for closed in params["branches"]]
        return jax.lax.switch(index, branches, signal, *operands)

    def _scan(self, params: Any, signal: Any, values: list[Any]) -> Any:
        n = params["num_consts"]
        m = n + params["num_carry"]

        def step(carry: Any, x: Any) -> Any:
            signal, out = self.run(params["jaxpr"], carry[0], [*values[:n], *carry[1], *x])
            return (signal, out[: m - n]), out[m - n :]

        names = ("length", "reverse", "unroll")
        (signal, carry), out = jax.lax.scan(
            step,
            (signal, values[n:m]),
            values[m:],
            **{name: params[name] for name in names},
        )
        return signal, [*carry, *out]

    def _while(self, params: Any, signal: Any, values: list[Any]) -> Any:
        n = params["cond_nconsts"]
        m = n + params["body_nconsts"]
        if params["cond_jaxpr"].out_avals[0].shape:
            raise ExportError(
                "a check (`eqx.error_if`) in a `while` loop under `jax.vmap` cannot be "
                "exported"
            )

        def condition(signal: Any, carry: list[Any]) -> Any:
            signal, (active,) = self.run(
                params["cond_jaxpr"], signal, [*values[:n], *carry]
            )
            return signal, active

        def step(state: Any) -> Any:
            signal, _, carry = state
            signal, carry = self.run(
                params["body_jaxpr"], signal, [*values[n:m], *carry]
            )
            return *condition(signal, carry), carry

        signal, _, carry = jax.lax.while_loop(
            lambda state: state[1] & (state[0] < 0),
            step,
            (*condition(signal, values[m:]), values[m:]),
        )
        return signal, carry


def _zeros(aval: Any) -> jax.Array:
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jnp.zeros(aval.shape, aval.dtype)
    return jnp.broadcast_to(jax.random.key(0, impl=aval.dtype), aval.shape)


def bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The results of an equation as it is."""
    primitive, found = equation.primitive, equation.params
    found = primitive.get_bind_params(found)
    functions, params = found if isinstance(found, tuple) else ((), found)
    out = primitive.bind(*functions, *values, **params)
    return list(out) if primitive.multiple_results else [out]
