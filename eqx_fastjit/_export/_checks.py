"""Turns the checks of `eqx.error_if` into an output, in place of host callbacks.

JAX's `checkify` carries errors through control flow and nested jitted functions. It is
given rules: for Equinox's checks; for loops, which must end after a check has failed,
as they do when it raises; and for everything without a check, which stays as it is.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools as ft
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.extend.core
import jax.extend.core.primitives as primitives
import jax.interpreters.partial_eval
import jax.numpy as jnp
import jax.tree_util as jtu

from eqx_fastjit._blocking import equations_in
from eqx_fastjit._compat import (
    check_numbers,
    Checkify,
    equinox_callback,
    error_signal,
    Errors,
    MissingPrivateName,
)


# Of the checks seen so far: their numbers, by what they call, and their messages. JAX
# keeps the parts of a program that it has functionalized, numbers included, and so a
# check has the same number in every program.
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_messages: dict[int, list[str]] = {}


class _EquinoxChecks(Exception):
    """A category of errors: what `checkify` keeps for it was made by our rules."""


def without_dead_code(closed: Any) -> Any:
    """A program without the equations that its results do not need.

    A check whose result is unused is not performed.
    """
    outputs = [True] * len(closed.jaxpr.outvars)
    dce = jax.interpreters.partial_eval.dce_jaxpr
    jaxpr, _ = dce(closed.jaxpr, outputs, True)
    return jax.extend.core.ClosedJaxpr(jaxpr, closed.consts)


def functionalize(
    fun: Callable[..., Any], messages: dict[int, list[str]]
) -> Callable[..., Any]:
    """`fun`, with the errors of `eqx.error_if` as an additional result.

    That is an array of two integers: the number of the check that failed, or -1; and
    which of its messages. When the function is traced, the messages of each check are
    added to `messages`, by its number. Raises `MissingPrivateName`.
    """
    checkify = Checkify()
    before = dict(checkify.rules)
    ours = {x: ft.partial(_as_before, x, rule) for x, rule in before.items()}
    ours |= _rules(before)
    ours[checkify.callback] = ft.partial(_callback, checkify.callback)
    ours[checkify.sink] = ft.partial(_dropped, checkify.sink)

    def functionalized(*arrays: Any) -> Any:
        from jax.experimental import checkify as public

        checkify.rules.update({x: checkify.adapted(rule) for x, rule in ours.items()})
        try:
            kinds: Any = public.user_checks | {_EquinoxChecks}
            found: Any = public.checkify(fun, errors=kinds)(*arrays)
            error, out = found
            messages.update({i: _messages[i] for i in check_numbers(error)})
            return out, error_signal(error)
        except AttributeError as e:
            # `fun` itself has been traced before, so this is a `checkify` that does not
            # match our rules.
            raise MissingPrivateName(f"jax._src.checkify ({e})") from e
        finally:
            checkify.rules.clear()
            checkify.rules.update(before)

    return functionalized


# --- rules ----------------------------------------------------------------------------

# Of the check that is being looked at: whether it has failed.
_conditions: list[Any] = []


def _rules(before: dict[Any, Any]) -> dict[Any, Any]:
    """The rules for JAX's public primitives."""
    cond_p, jvp_p = primitives.cond_p, primitives.custom_jvp_call_p
    follow_cond = ft.partial(_as_before, cond_p, before[cond_p])
    follow_jvp = ft.partial(_as_before, jvp_p, before[jvp_p])

    def cond(errors: Errors, values: list[Any], params: dict[str, Any]) -> Any:
        branches = params["branches"]
        if len(branches) != 2 or not _is_check(*branches):
            return follow_cond(errors, values, params)
        # Equinox's check, which now needs no control flow.
        failed, *operands = values
        _conditions.append(failed != 0)
        try:
            errors.inline(branches[1], operands)
        finally:
            _conditions.pop()
        return jax.extend.core.jaxpr_as_fun(branches[0])(*operands)

    def custom_jvp(errors: Errors, values: list[Any], params: dict[str, Any]) -> Any:
        # Equinox uses this to keep a callback from being differentiated. There is no
        # callback now, and JAX's rule would make the function non-differentiable.
        if _has_check(params.values()):
            return errors.inline(params["call_jaxpr"], values)
        return follow_jvp(errors, values, params)

    return {cond_p: cond, jvp_p: custom_jvp, primitives.while_p: _while}


def _as_before(
    primitive: Any, rule: Any, errors: Errors, values: list[Any], params: dict[str, Any]
) -> Any:
    """JAX's own rule if there is a check; otherwise the equation is unchanged.

    JAX would carry the error through each loop, and evaluate its condition twice.
    """
    # (JAX 0.12 hides the jaxpr of some.)
    if "_prim" in params or _has_check(params.values(), loops=not errors.empty):
        return errors.follow(rule, values, params)
    return _bind(primitive, values, params)


def _callback(
    primitive: Any, errors: Errors, values: list[Any], params: dict[str, Any]
) -> Any:
    """The rule for host callbacks. Those of Equinox are checks."""
    found = equinox_callback(params["callback"])
    if found is None:
        return primitive.bind(*values, **params)
    kind, texts = found
    avals = params["result_avals"]
    if kind == "tpu_msg":
        return values[: len(avals)]
    callback = params["callback"].callback_func
    number = _numbers.setdefault(callback, len(_messages))
    _messages[number] = texts
    index = jnp.asarray(values[-1]).astype("int32").max()
    errors.add(_conditions[-1] if _conditions else True, number, index)
    return [jnp.zeros(a.shape, a.dtype) for a in avals]


def _dropped(sink: Any, _: Errors, values: list[Any], params: dict[str, Any]) -> Any:
    """The rule for primitives that keep a value from being removed as dead code.

    `checkify` puts one into loops. It is nothing but an effect: calls of a program with
    effects are dispatched in Python (130 us rather than 22), and it has no native code.
    """
    return sink.bind(*values, **params) if params.get("prevent_mlir_dce") else []


def _while(errors: Errors, values: list[Any], params: dict[str, Any]) -> Any:
    """A loop that ends once a check has failed.

    Under `filter_jit` the check raises. Here, its value goes on, and the condition of
    the loop may then hold for ever.
    """
    jaxprs = params["cond_jaxpr"], params["body_jaxpr"]
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    consts, init = (values[:n], values[n:m]), values[m:]
    (predicate,) = getattr(jaxprs[0], "jaxpr", jaxprs[0]).outvars
    batched = bool(predicate.aval.shape)

    def advance(active: Any, new: list[Any], old: list[Any]) -> list[Any]:
        if not batched:
            return new
        return [
            jnp.where(jnp.expand_dims(active, tuple(range(active.ndim, x.ndim))), x, y)
            for x, y in zip(new, old, strict=True)
        ]

    if not _has_check(jaxprs):
        if errors.empty:
            return _bind(primitives.while_p, values, params)
        condition, body = map(jax.extend.core.jaxpr_as_fun, jaxprs)
        ok = ~errors.failed

        def is_active(carry: list[Any]) -> Any:
            return condition(*consts[0], *carry)[0]

        return jax.lax.while_loop(
            lambda carry: jnp.any(is_active(carry)) & ok,
            lambda carry: advance(
                is_active(carry) if batched else None, body(*consts[1], *carry), carry
            ),
            init,
        )

    if errors.empty:  # a loop must carry what it begins with
        errors.add(False, None, jnp.zeros((), "int32"))
    (active,) = errors.inline(jaxprs[0], [*consts[0], *init])
    leaves, structure = jtu.tree_flatten(errors.error)
    leaves = [jnp.asarray(x) for x in leaves]

    def step(state: Any) -> Any:
        nonlocal structure
        active, leaves, carry = state
        errors.error = jtu.tree_unflatten(structure, leaves)
        new = advance(active, errors.inline(jaxprs[1], [*consts[1], *carry]), carry)
        (active,) = errors.inline(jaxprs[0], [*consts[0], *new])
        # With the numbers of the checks in the body.
        after, structure = jtu.tree_flatten(errors.error)
        after = [jnp.asarray(x, y.dtype) for x, y in zip(after, leaves, strict=True)]
        return active & ~errors.failed, after, new

    state = active & ~errors.failed, leaves, init
    _, leaves, out = jax.lax.while_loop(lambda state: jnp.any(state[0]), step, state)
    errors.error = jtu.tree_unflatten(structure, leaves)
    return out


# --- looking for checks ---------------------------------------------------------------


def _has_check(values: Iterable[Any], loops: bool = False) -> bool:
    """Whether there is a check in jaxprs, at any depth, or a `while` loop."""
    return any(
        equation.primitive.name == "check"
        or "_prim" in equation.params
        or equinox_callback(equation.params.get("callback")) is not None
        or (loops and equation.primitive is primitives.while_p)
        for equation in equations_in(values)
    )


def _is_check(otherwise: Any, raises: Any) -> bool:
    """Whether the branches of a `cond` are those of Equinox's check."""
    otherwise, raises = (getattr(x, "jaxpr", x) for x in (otherwise, raises))
    found = [equinox_callback(x.params.get("callback")) for x in raises.eqns]
    rest = [x for x, callback in zip(raises.eqns, found, strict=True) if not callback]
    return (
        not otherwise.eqns
        and any(found)
        and not any(_has_check(x.params.values(), loops=True) for x in rest)
    )


def _bind(primitive: Any, values: list[Any], params: dict[str, Any]) -> Any:
    """An equation as it is."""
    found = primitive.get_bind_params(params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # JAX 0.7
    return primitive.bind(*functions, *values, **params)
