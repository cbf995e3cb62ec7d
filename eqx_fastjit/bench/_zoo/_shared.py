"""What programs of several files share."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import of_loop


def waves(*shape: int) -> jax.Array:
    return jnp.sin(jnp.arange(math.prod(shape)) / 7).reshape(shape)


def training(
    loss: Callable[..., Any], model: Any, optimiser: Any, *batch: Any
) -> Makers:
    """The step that everybody writes, with one optimiser or another."""

    def step(model, opt_state, *batch):
        value, grads = eqx.filter_value_and_grad(loss)(model, *batch)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), opt_state, value

    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    return of_loop(step, (model, opt_state), batch)
