"""A training loop whose host prepares the next batch while the device works."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._case import Call, case, Makers, Measured
from ._contenders import FILTER_JITS, under


_STEPS = 10
_PRODUCTS = 4
_HOST_NUMBERS = 100_000


class _Net(eqx.Module):
    weight: jax.Array
    name: str = "net"


def _step(net: _Net, batch: Any) -> tuple[_Net, Any]:
    """One step, which cannot begin before the previous one has ended."""

    def product(_: int, x: Any) -> Any:
        return jnp.tanh(x @ net.weight)

    x = jax.lax.fori_loop(0, _PRODUCTS, product, net.weight + batch.mean())
    return _Net(0.5 * (net.weight + x), net.name), x[0, 0]


def _loop(step: Callable[[Any, Any], Any], state: Any) -> Measured:
    rng = np.random.default_rng(0)
    value, in_calls = None, 0.0
    start = time.perf_counter()
    for _ in range(_STEPS):
        batch = jnp.asarray(np.sort(rng.random(_HOST_NUMBERS, np.float32))[:64])
        called = time.perf_counter()
        state, value = step(state, batch)
        in_calls += time.perf_counter() - called
    jax.block_until_ready(value)
    total = time.perf_counter() - start
    return Measured(value, {"loop": total * 1e3, "in calls": in_calls * 1e3})


def _ready(step: Callable[[Any, Any], Any], state: Any) -> Call:
    _loop(step, state)  # compiles
    return lambda: _loop(step, state)


@case(
    group="pipeline",
    title=f"{_STEPS} steps, while the host prepares the batches: milliseconds "
    "until the last result is there, and of these in calls",
    contenders=("jit", "eqx", "ours"),
    size={"leaves": 2, "steps": _STEPS},
    modes=("loop", "in calls"),
    unit="ms",
)
def overlap() -> Makers:
    # The device should take some milliseconds a step, as the host does.
    n = 384 if jax.default_backend() == "cpu" else 4096
    net = _Net(jnp.eye(n) / 2)
    arrays, statics = eqx.partition(net, eqx.is_array)

    def without_statics(arrays: Any, batch: Any) -> Any:
        net, value = _step(eqx.combine(arrays, statics), batch)
        return eqx.filter(net, eqx.is_array), value

    by_hand = {"jit": lambda: _ready(jax.jit(without_statics), arrays)}
    return {**by_hand, **under(lambda jit: _ready(jit(_step), net), FILTER_JITS)}
