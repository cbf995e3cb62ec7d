"""Cases about ways to call, with as little computation as possible."""

import functools as ft
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ._case import add, Call, case, Makers
from ._contenders import each, FILTER_JITS, JITS, of_function
from ._models import apply, mlp, mlp_size


_call_case = ft.partial(case, group="calls")


@_call_case(
    title="jitted method of a module with one array",
    contenders=tuple(JITS),
    size={"leaves": 2, "nodes": 2},
)
def method() -> Makers:
    def of(jit: Any) -> Call:
        class Scale(eqx.Module):
            w: jax.Array

            @jit
            def apply(self, x: Any) -> Any:
                return self.w * x

        m, x = Scale(jnp.ones(3)), jnp.ones(3)
        return lambda: m.apply(x)

    return each(of)


@_call_case(
    title="callable that contains arrays: a jitted MLP of 3 linear layers, width 32",
    contenders=tuple(JITS),
    size=mlp_size(32),
)
def callable_model() -> Makers:
    model, x = mlp(32), jnp.ones(32)

    def filtered(filter_jit: Any) -> Call:
        jitted = filter_jit(model)
        return lambda: jitted(x)

    return {**of_function(apply, model, x), **each(filtered, FILTER_JITS)}


@_call_case(
    title="function with equinox.error_if, which blocks so that it can raise",
    contenders=("eqx", "ours"),
    size={"leaves": 1},
)
def error_if() -> Makers:
    def f(x: Any) -> Any:
        return eqx.error_if(x, x < 0, "negative")

    return of_function(f, jnp.array(1.0))


@_call_case(
    title="a static integer and a static string, without an array",
    contenders=tuple(JITS),
    size={"leaves": 0},
)
def static_arguments() -> Makers:
    def f(n: int, s: str) -> Any:
        return jnp.zeros(())

    def by(jitted: Any) -> Call:
        return lambda: jitted(3, "a")

    return _of_statics(f, (0, 1), by)


def _of_statics(f: Any, static: tuple[int, ...], by: Callable[[Any], Call]) -> Makers:
    """What `by` makes of a function whose arguments at these numbers are static."""
    by_hand = ft.partial(jax.jit, static_argnums=static)
    return each(lambda jit: by(jit(f)), {"jit": by_hand, **FILTER_JITS})


def _statics(n: int) -> Makers:
    def f(x: Any, n: int) -> Any:
        return x

    x = jnp.ones(3)

    def by(jitted: Any) -> Call:
        for i in range(n):
            jitted(x, i)
        numbers = itertools.cycle(range(n))
        return lambda: jitted(x, next(numbers))

    return _of_statics(f, (1,), by)


for _n, _values in ((1, "always the same"), (1000, "one of 1,000 in turn")):
    add(
        f"statics_{_n}",
        ft.partial(_statics, _n),
        group="calls",
        title=f"an array and a static integer, {_values}",
        contenders=tuple(JITS),
        size={"leaves": 1, "statics": _n},
    )


@_call_case(
    title="NumPy inputs: an MLP of 3 linear layers, width 32, on a NumPy array",
    size=mlp_size(32),
)
def numpy_inputs() -> Makers:
    return of_function(apply, mlp(32), np.ones(32, np.float32))


@_call_case(title="typed key, which generates three normal numbers", size={"leaves": 2})
def typed_key() -> Makers:
    def f(key: Any, x: Any) -> Any:
        return x + jr.normal(key, x.shape)

    return of_function(f, jr.key(0), jnp.ones(3))


@_call_case(
    title="keyword call of an MLP of 3 linear layers, width 32",
    contenders=("jit", "aot", "eqx", "ours"),
    size=mlp_size(32),
)
def keywords() -> Makers:
    def f(model: Any, *, x: Any, scale: Any) -> Any:
        return scale * model(x)

    model, x, scale = mlp(32), jnp.ones(32), jnp.array(2.0)
    arrays, statics = eqx.partition(model, eqx.is_array)

    def without_statics(arrays: Any, *, x: Any, scale: Any) -> Any:
        return f(eqx.combine(arrays, statics), x=x, scale=scale)

    def by(function: Any, model: Any) -> Call:
        return lambda: function(model, x=x, scale=scale)

    def aot() -> Call:
        lowered = jax.jit(without_statics).lower(arrays, x=x, scale=scale)
        return by(lowered.compile(), arrays)

    return {
        "jit": lambda: by(jax.jit(without_statics), arrays),
        "aot": aot,
        **each(lambda filter_jit: by(filter_jit(f), model), FILTER_JITS),
    }


@_call_case(
    title="an MLP of 3 linear layers, width 32, wrapped again for each call",
    contenders=tuple(JITS),
    size=mlp_size(32),
)
def wrap_anew() -> Makers:
    model, x = mlp(32), jnp.ones(32)
    arrays, statics = eqx.partition(model, eqx.is_array)

    def without_statics(arrays: Any, x: Any) -> Any:
        return eqx.combine(arrays, statics)(x)

    return {
        "jit": lambda: lambda: jax.jit(without_statics)(arrays, x),
        **each(lambda filter_jit: lambda: filter_jit(model)(x), FILTER_JITS),
    }


_DEVICES = 8


@_call_case(
    title=f"sharded inputs: a batch over {_DEVICES} virtual CPU devices, the MLP of 3 "
    "linear layers and width 32 on all of them",
    size=mlp_size(32, batch=64) | {"devices": _DEVICES},
    cpu_devices=_DEVICES,
)
def sharded() -> Makers:
    devices = jax.devices("cpu")
    if len(devices) < _DEVICES:
        raise RuntimeError(
            f"the case 'sharded' needs {_DEVICES} CPU devices and there are "
            f"{len(devices)}: set jax_num_cpu_devices before JAX is first used"
        )
    mesh = jax.sharding.Mesh(np.array(devices[:_DEVICES]), ("batch",))
    over_batch = NamedSharding(mesh, PartitionSpec("batch"))
    model = eqx.filter_shard(mlp(32), NamedSharding(mesh, PartitionSpec()))
    x = jax.device_put(jnp.ones((64, 32)), over_batch)
    return of_function(lambda model, x: jax.vmap(model)(x), model, x)


_LOOP = 20


def _double(x: Any) -> Any:
    return x * 2


def _loop_of(jit: Any, fresh: bool) -> Call:
    x = jnp.ones(3)

    def call() -> Any:
        y = x
        for _ in range(_LOOP):
            y = jit((lambda x: x * 2) if fresh else _double)(y)
        return y

    return call


def _wrapped_in_loop(fresh: bool) -> Makers:
    return each(lambda jit: _loop_of(jit, fresh))


for _fresh, _what in ((True, "a lambda made there"), (False, "a named function")):
    add(
        "lambda_in_loop" if _fresh else "named_in_loop",
        ft.partial(_wrapped_in_loop, _fresh),
        group="wrapping",
        title=f"a loop of {_LOOP} that jits and calls {_what}",
        contenders=tuple(JITS),
        size={"steps": _LOOP},
        computes="wrapped in a loop",
        steps=_LOOP,
    )
