"""The cases: each is defined here or in `zoo/`, once.

`CASES` has all of them by name. Groups are `table`, which the command times by default,
and those that `GROUPS` describes.
"""

import argparse
import functools as ft
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from . import loops  # noqa: F401, for its cases
from .case import Call, case, CASES, FUNCTION, JITS, Makers
from .contenders import (
    ALL_JITS,
    each,
    filled,
    FILTER_JITS,
    of_function,
    of_retraces,
    training,
)
from .zoo import networks, parameters  # noqa: F401


GROUPS = {
    "table": "identity, and MLPs of width 8 to 1024",
    "depth": "MLPs of 1 to 100 linear layers",
    "steps": "training steps",
    "calls": "ways to call",
    "loops": "iterations of whole loops",
    "first": "first calls",
    "strategies": "which functions to jit",
    "eager": "with and without jit",
    "zoo": "whole functions, as people write them",
}


class UnknownCase(argparse.ArgumentTypeError):
    """A name that is neither of a case nor of a group."""


def choose(names: str) -> list[str]:
    """The cases that are meant by names of cases and groups, separated by commas.

    Raises `UnknownCase` in one line.
    """
    order = list(GROUPS)
    out: dict[str, None] = {}
    for name in filter(None, map(str.strip, names.split(","))):
        chosen = [c for c in CASES.values() if name in (c.name, c.group, "all")]
        if not chosen:
            groups = ", ".join(["all", *GROUPS])
            raise UnknownCase(f"no case or group {name!r}; groups are {groups}")
        chosen.sort(key=lambda c: order.index(c.group))
        out.update(dict.fromkeys(c.name for c in chosen))

    if not out:
        raise UnknownCase("expected at least one case")
    return list(out)


# --- models: width and depth ----------------------------------------------------------


def apply(model: Any, x: Any) -> Any:
    return model(x)


def mlp(width: int, layers: int = 3) -> eqx.nn.MLP:
    """An MLP of `layers` linear layers of the same width."""
    return filled(lambda: eqx.nn.MLP(width, width, width, layers - 1, key=jr.key(0)))


@case("table", "identity model, one (1, 1) array")
def identity() -> Makers:
    return of_function(apply, eqx.nn.Identity(), jnp.ones((1, 1)))


def _forward(width: int, layers: int) -> Makers:
    return of_function(apply, mlp(width, layers), jnp.ones(width))


def _add_mlp(name: str, group: str, width: int, layers: int) -> None:
    title = f"MLP of {layers} linear layers, width {width}, one sample"
    case(group, title, name=name)(ft.partial(_forward, width, layers))


for _width in (8, 16, 32, 64, 128, 256, 512, 1024):
    _add_mlp(f"mlp_{_width}", "table", _width, 3)
for _layers in (1, 3, 16, 100):
    _add_mlp(f"depth_{_layers}", "depth", 8, _layers)


# --- training steps -------------------------------------------------------------------


def _mean_square(model: Any, x: Any) -> Any:
    return jnp.mean(jax.vmap(model)(x) ** 2)


def _adam(width: int, layers: int, batch: int) -> Makers:
    x = jnp.ones((batch, width))
    return training(_mean_square, mlp(width, layers), optax.adam(1e-3), x)


for _layers in (3, 17):
    # Those of the model, of Adam's two moments, and the count of steps.
    _leaves = 3 * 2 * _layers + 1
    case(
        "steps",
        f"Adam step of an MLP, {_leaves} array leaves of model and optimiser",
        name=f"adam_{_leaves}_leaves",
    )(ft.partial(_adam, 8, _layers, 4))


# --- ways to call, with as little computation as possible -----------------------------


@case("calls", "jitted method of a module with one array", contenders=JITS)
def method() -> Makers:
    def by(jit: Any) -> Call:
        class Scale(eqx.Module):
            w: jax.Array

            @jit
            def apply(self, x: Any) -> Any:
                return self.w * x

        model, x = Scale(jnp.ones(3)), jnp.ones(3)
        return lambda: model.apply(x)

    return each(by)


@case("calls", "jitted MLP of width 32, a callable with arrays", contenders=JITS)
def callable_model() -> Makers:
    model, x = mlp(32), jnp.ones(32)

    def filtered(filter_jit: Any) -> Call:
        jitted = filter_jit(model)
        return lambda: jitted(x)

    by_hand = of_function(apply, model, x)["jit"]
    return {"jit": by_hand, **each(filtered, FILTER_JITS)}


@case("calls", "equinox.error_if, for which calls block", contenders=("eqx", "ours"))
def error_if() -> Makers:
    def f(x: Any) -> Any:
        return eqx.error_if(x, x < 0, "negative")

    return of_function(f, jnp.array(1.0))


def _static_arguments(n: int) -> Makers:
    def f(x: Any, n: int) -> Any:
        return x

    x = jnp.ones(3)

    def by(jit: Any) -> Call:
        jitted = jit(f)
        for i in range(n):
            jitted(x, i)
        numbers = itertools.cycle(range(n))
        return lambda: jitted(x, next(numbers))

    return each(by, {"jit": ft.partial(jax.jit, static_argnums=1), **FILTER_JITS})


for _n, _values in ((1, "always the same"), (1000, "one of 1,000 in turn")):
    _title = f"an array and a static integer, {_values}"
    case("calls", _title, name=f"statics_{_n}", contenders=JITS)(
        ft.partial(_static_arguments, _n)
    )


@case("calls", "MLP of width 32 on a NumPy array")
def numpy_inputs() -> Makers:
    return of_function(apply, mlp(32), np.ones(32, np.float32))


@case("calls", "typed key, for three normal numbers")
def typed_key() -> Makers:
    def f(key: Any, x: Any) -> Any:
        return x + jr.normal(key, x.shape)

    return of_function(f, jr.key(0), jnp.ones(3))


# --- first calls ----------------------------------------------------------------------


def _first_calls(new: Callable[[], Callable[..., Any]], *args: Any) -> Makers:
    """First calls of the functions that `new` makes, as each contender calls them."""

    def by(contender: str) -> Call:
        return lambda: of_function(new(), *args)[contender]()()

    return {name: ft.partial(by, name) for name in FUNCTION}


@case("first", "gradient step of an MLP of 4 linear layers", first=True, rounds=10)
def first_call() -> Makers:
    def new() -> Callable[..., Any]:
        def step(model: Any, x: Any) -> Any:
            value, grads = eqx.filter_value_and_grad(_mean_square)(model, x)
            return eqx.apply_updates(model, grads), value

        return step

    return _first_calls(new, mlp(8, 4), jnp.ones((4, 8)))


@case("first", "retrace for another shape, with 400 arrays", first=True, rounds=10)
def retrace() -> Makers:
    layers = filled(
        lambda: [eqx.nn.Linear(2, 2, key=jax.random.key(0)) for _ in range(200)]
    )
    return of_retraces(lambda layers, x: x.sum(), layers)


def _new_loop(steps: int) -> Callable[..., Any]:
    def loop(w: Any, x: Any) -> Any:
        for _ in range(steps):
            x = jnp.tanh(w * x)
        return x

    return loop


def _new_scan(steps: int) -> Callable[..., Any]:
    def scan(w: Any, x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            return jnp.tanh(w * x), None

        return jax.lax.scan(step, x, length=steps)[0]

    return scan


def _of_steps(new: Callable[[int], Any], steps: int) -> Makers:
    return _first_calls(ft.partial(new, steps), jnp.linspace(1, 2, 8), jnp.ones(8))


def _add_steps(name: str, new: Callable[[int], Any], steps: int, how: str) -> None:
    options: Any = {"contenders": JITS, "first": True, "rounds": 5}
    register = case("first", f"{steps} steps {how}", name=f"{name}_{steps}", **options)
    register(ft.partial(_of_steps, new, steps))


for _steps in (10, 100, 300):
    _add_steps("loop", _new_loop, _steps, "in a Python loop")
    _add_steps("scan", _new_scan, _steps, "under lax.scan")


@case(
    "first",
    "a loop of 20 that jits and calls a new lambda",
    contenders=JITS,
    first=True,
    rounds=5,
)
def lambda_in_loop() -> Makers:
    def by(jit: Any) -> Call:
        def call() -> Any:
            x = jnp.ones(3)
            for _ in range(20):
                double = jit(lambda x: x * 2)
                x = double(x)
            return x

        return call

    return each(by)


# --- which functions to jit -----------------------------------------------------------


_CALLS = 101
_STRATEGIES = {
    "whole": f"jit of a function that calls another {_CALLS} times",
    "part": f"jit of the other function, called {_CALLS} times from Python",
    "both": "jit of both",
    "none": "no jit",
}


def _strategy(strategy: str) -> Makers:
    def by(jit: Any) -> Call:
        def affine(x: Any) -> Any:
            return x * 0.99 + 0.01

        inner = affine
        if strategy in ("part", "both"):
            inner = jit(affine)

        def calls(x: Any) -> Any:
            for _ in range(_CALLS):
                x = inner(x)
            return x

        outer = calls
        if strategy in ("whole", "both"):
            outer = jit(calls)

        x = jnp.ones((1000, 1000))
        return lambda: outer(x)

    if strategy == "none":
        return each(by, {"eager": None})
    return each(by, ALL_JITS)


for _name, _title in _STRATEGIES.items():
    case(
        "strategies",
        f"{_title}, on a (1000, 1000) array",
        name=f"strategy_{_name}",
        contenders=("eager",) if _name == "none" else JITS,
        steps=_CALLS if _name in ("part", "none") else 1,
        rounds=6,
    )(ft.partial(_strategy, _name))


@case("eager", "SELU on a million numbers", contenders=("eager", "jit", "eqx", "ours"))
def selu() -> Makers:
    def selu(x: Any) -> Any:
        alpha, scale = 1.6732632, 1.0507010
        return scale * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)

    return of_function(selu, jnp.linspace(-3, 3, 10**6))


_WALKERS, _WALK_STEPS = 4, 32


def _walk_by_loops(key: Any) -> Any:
    walks = []
    for noise in jr.normal(key, (_WALKERS, _WALK_STEPS)):
        position = jnp.zeros(())
        walk = []
        for step in noise:
            position = position + step
            walk.append(position)
        walks.append(jnp.stack(walk))
    return jnp.stack(walks)


# Outside of jit, `scan` compiles its function again if that is made in each call.
def _walk_step(position: Any, noise: Any) -> Any:
    position = position + noise
    return position, position


def _walk_of_noise(noise: Any) -> Any:
    return jax.lax.scan(_walk_step, jnp.zeros(()), noise)[1]


def _walk_by_scan(key: Any) -> Any:
    return jax.vmap(_walk_of_noise)(jr.normal(key, (_WALKERS, _WALK_STEPS)))


for _name, _walk, _how in (
    ("loops", _walk_by_loops, "nested Python loops"),
    ("scan", _walk_by_scan, "scan and vmap"),
):
    case(
        "eager",
        f"Gaussian random walk of {_WALKERS} walkers, {_WALK_STEPS} steps, by {_how}",
        name=f"walk_{_name}",
        contenders=("eager", "jit", "eqx", "ours"),
        rounds=10,
    )(lambda walk=_walk: of_function(walk, jr.key(0)))
