"""What is timed: one function per case, giving the same call for every contender.

The contenders:

- `jit`: `jax.jit` with the statics removed by hand, the model a pytree of arrays;
- `flat`: `jax.jit` on a flat list of arrays, the least that `jax.jit` can cost;
- `eqx`: `equinox.filter_jit`;
- `ours`: `eqx_fastjit.filter_jit`.
"""

import functools as ft
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

import eqx_fastjit


Call = Callable[[], Any]
CONTENDERS = ("jit", "flat", "eqx", "ours")

_CASES: dict[str, Callable[[], dict[str, Call]]] = {}


def _case(fn: Callable[[], dict[str, Call]]) -> Callable[[], dict[str, Call]]:
    _CASES[fn.__name__] = fn
    return fn


def case_names() -> tuple[str, ...]:
    """Names of all cases."""
    return tuple(_CASES)


def make_case(name: str) -> dict[str, Call]:
    """The contenders of a case, each a function without arguments."""
    return _CASES[name]()


def _contenders(fn: Callable[..., Any], *args: Any) -> dict[str, Call]:
    """`fn(*args)` as each contender would call it."""
    arrays, statics = eqx.partition(args, eqx.is_array)

    def without_statics(*arrays: Any) -> Any:
        out = fn(*eqx.combine(arrays, statics))
        return eqx.filter(out, eqx.is_array)

    leaves, treedef = jtu.tree_flatten(arrays)

    def on_leaves(*leaves: Any) -> Any:
        return jtu.tree_leaves(without_statics(*jtu.tree_unflatten(treedef, leaves)))

    jit, flat = jax.jit(without_statics), jax.jit(on_leaves)
    theirs, ours = eqx.filter_jit(fn), eqx_fastjit.filter_jit(fn)
    return {
        "jit": lambda: jit(*arrays),
        "flat": lambda: flat(*leaves),
        "eqx": lambda: theirs(*args),
        "ours": lambda: ours(*args),
    }


@_case
def identity() -> dict[str, Call]:
    return _contenders(lambda m, x: m(x), eqx.nn.Identity(), jnp.ones((1, 1)))


def _mlp(width: int, depth: int = 2) -> eqx.nn.MLP:
    return eqx.nn.MLP(width, width, width, depth, key=jr.key(0))


def _forward(width: int, depth: int = 2) -> dict[str, Call]:
    return _contenders(lambda m, x: m(x), _mlp(width, depth), jnp.ones(width))


for _power in range(3, 11):
    _CASES[f"mlp_{2**_power}"] = ft.partial(_forward, 2**_power)
_CASES["mlp_100_layers"] = ft.partial(_forward, 8, 99)


def _train(depth: int) -> dict[str, Call]:
    import optax

    model = _mlp(8, depth)
    optimiser = optax.adam(1e-3)
    state = optimiser.init(eqx.filter(model, eqx.is_array))

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    def step(model: Any, state: Any, x: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        updates, state = optimiser.update(grads, state)
        return eqx.apply_updates(model, updates), state, value

    return _contenders(step, model, state, jnp.ones((4, 8)))


# Array leaves in model and optimiser state: 6 + 1 + 2 * 6, and 34 + 1 + 2 * 34.
_CASES["adam_19_leaves"] = ft.partial(_train, 2)
_CASES["adam_103_leaves"] = ft.partial(_train, 16)


@_case
def method() -> dict[str, Call]:
    class Model(eqx.Module):
        w: jax.Array

        @jax.jit
        def by_jit(self, x: Any) -> Any:
            return self.w * x

        @eqx.filter_jit
        def by_eqx(self, x: Any) -> Any:
            return self.w * x

        @eqx_fastjit.filter_jit
        def by_ours(self, x: Any) -> Any:
            return self.w * x

    m, x = Model(jnp.ones(3)), jnp.ones(3)
    return {
        "jit": lambda: m.by_jit(x),
        "eqx": lambda: m.by_eqx(x),
        "ours": lambda: m.by_ours(x),
    }


@_case
def error_if() -> dict[str, Call]:
    def f(x: Any) -> Any:
        return eqx.error_if(x, x < 0, "negative")

    x = jnp.array(1.0)
    theirs, ours = eqx.filter_jit(f), eqx_fastjit.filter_jit(f)
    return {"eqx": lambda: theirs(x), "ours": lambda: ours(x)}


@_case
def static_arguments() -> dict[str, Call]:
    def f(n: int, s: str) -> Any:
        return jnp.zeros(())

    jit = jax.jit(f, static_argnums=(0, 1))
    theirs, ours = eqx.filter_jit(f), eqx_fastjit.filter_jit(f)
    return {
        "jit": lambda: jit(3, "a"),
        "eqx": lambda: theirs(3, "a"),
        "ours": lambda: ours(3, "a"),
    }


def _many_statics(n: int) -> dict[str, Call]:
    def f(x: Any, n: int) -> Any:
        return x

    x = jnp.ones(3)
    jit = jax.jit(f, static_argnums=1)
    ours = eqx_fastjit.filter_jit(f)
    for i in range(n):
        jit(x, i)
        ours(x, i)
    of_jit, of_ours = itertools.cycle(range(n)), itertools.cycle(range(n))
    return {
        "jit": lambda: jit(x, next(of_jit)),
        "ours": lambda: ours(x, next(of_ours)),
    }


_CASES["statics_1"] = ft.partial(_many_statics, 1)
_CASES["statics_1000"] = ft.partial(_many_statics, 1000)


@_case
def wrap_anew() -> dict[str, Call]:
    model, x = _mlp(32), jnp.ones(32)
    return {
        "eqx": lambda: eqx.filter_jit(model)(x),
        "ours": lambda: eqx_fastjit.filter_jit(model)(x),
    }


@_case
def callable_model() -> dict[str, Call]:
    model, x = _mlp(32), jnp.ones(32)
    theirs, ours = eqx.filter_jit(model), eqx_fastjit.filter_jit(model)
    return {"eqx": lambda: theirs(x), "ours": lambda: ours(x)}
