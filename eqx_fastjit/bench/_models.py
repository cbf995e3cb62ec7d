"""Cases about whole models: forward passes and training steps."""

# flax is timed where it is installed; no extra asks for it.
# pyright: reportMissingImports=false

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from ._case import add, Call, case, FUNCTION, Makers, OF_FLAX
from ._contenders import each, filled, of_function, of_step


def apply(model: Any, x: Any) -> Any:
    return model(x)


def _by_flax(make_model: Callable[[], Any], x: Any) -> Makers:
    """`model(x)` by both of flax's ways. `make_model` imports flax when called."""

    def nnx_jit() -> Call:
        from flax import nnx

        model, jit = make_model(), nnx.jit(apply)
        return lambda: jit(model, x)

    def nnx_cached_partial() -> Call:
        from flax import nnx

        partial = nnx.cached_partial(nnx.jit(apply), make_model())
        return lambda: partial(x)

    return {"nnx_jit": nnx_jit, "nnx_cached_partial": nnx_cached_partial}


def _identity_of_flax() -> Any:
    from flax import nnx

    class Identity(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return x

    return Identity()


def _mlp_of_flax(model: eqx.nn.MLP) -> Any:
    from flax import nnx

    def linear(layer: Any) -> Any:
        rngs = nnx.Rngs(0)
        out: Any = nnx.Linear(layer.in_features, layer.out_features, rngs=rngs)
        out.kernel[...] = layer.weight.T
        out.bias[...] = layer.bias
        return out

    class MLP(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([linear(layer) for layer in model.layers])

        def __call__(self, x: Any) -> Any:
            *hidden, last = self.layers
            for layer in hidden:
                x = jax.nn.relu(layer(x))
            return last(x)

    return MLP()


@case(
    group="identity",
    title="identity model, one (1, 1) array",
    contenders=FUNCTION + OF_FLAX,
    size={"width": 1, "leaves": 1, "nodes": 1},
)
def identity() -> Makers:
    x = jnp.ones((1, 1))
    return {
        **of_function(apply, eqx.nn.Identity(), x),
        **_by_flax(_identity_of_flax, x),
    }


def mlp(width: int, layers: int = 3) -> eqx.nn.MLP:
    """An MLP of `layers` linear layers of the same width."""
    return filled(lambda: eqx.nn.MLP(width, width, width, layers - 1, key=jr.key(0)))


def mlp_size(width: int, layers: int = 3, **more: int) -> dict[str, int]:
    """The size of a case with `mlp(width, layers)` and one other array."""
    # Of each layer the weight, the bias and itself; the MLP, its tuple of layers, and
    # its two activation functions.
    leaves, nodes = 2 * layers + 1, 3 * layers + 4
    return {"width": width, "layers": layers, **more, "leaves": leaves, "nodes": nodes}


def _forward(width: int, layers: int) -> Makers:
    model, x = mlp(width, layers), jnp.ones(width)
    by_flax = _by_flax(lambda: _mlp_of_flax(model), x)
    return {**of_function(apply, model, x), **by_flax}


for _layers in (3, 1, 16, 100):
    for _power in range(3, 11):
        _width = 2**_power
        add(
            f"mlp_{_width}" if _layers == 3 else f"mlp_{_width}_{_layers}_layers",
            ft.partial(_forward, _width, _layers),
            group="mlp",
            title=f"MLP of {_layers} linear layers, width {_width}, one sample",
            contenders=FUNCTION + OF_FLAX if _layers == 3 else FUNCTION,
            size=mlp_size(_width, _layers),
        )


def _forward_batch(batch: int) -> Makers:
    def apply_to_batch(model: Any, xs: Any) -> Any:
        return jax.vmap(model)(xs)

    return of_function(apply_to_batch, mlp(32), jnp.ones((batch, 32)))


for _power in range(0, 13, 2):
    add(
        f"batch_{2**_power}",
        ft.partial(_forward_batch, 2**_power),
        group="batch",
        title=f"MLP of 3 linear layers, width 32, vmap over {2**_power} samples",
        size=mlp_size(32, batch=2**_power),
    )


def _train(width: int, layers: int, batch: int, donate: bool) -> Makers:
    import optax

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    model, optimiser = mlp(width, layers), optax.adam(1e-3)
    state = optimiser.init(eqx.filter(model, eqx.is_array))

    def step(x: Any, model_and_state: Any) -> Any:
        model, state = model_and_state
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        updates, state = optimiser.update(grads, state)
        return (eqx.apply_updates(model, updates), state), value

    return of_step(step, jnp.ones((batch, width)), (model, state), donate)


for _layers in (3, 17):
    for _donate in (False, True):
        # Of the model, of adam's two moments, and the count of steps.
        _leaves = 3 * 2 * _layers + 1
        add(
            f"adam_{_leaves}_leaves" + ("_donated" if _donate else ""),
            ft.partial(_train, 8, _layers, 4, _donate),
            group="train",
            title=f"adam train step, {_leaves} array leaves of model and optimiser, "
            + ("donated" if _donate else "not donated"),
            size=mlp_size(8, _layers, batch=4) | {"leaves": _leaves + 1},
        )


@case(
    group="models",
    title="GRU cell of 16 units under scan, 32 steps",
    size={"width": 16, "leaves": 5, "nodes": 5},
)
def recurrent() -> Makers:
    cell = filled(lambda: eqx.nn.GRUCell(16, 16, key=jr.key(0)))

    def run(cell: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return cell(x, h), None

        return jax.lax.scan(step, jnp.zeros(16), xs)[0]

    return of_function(run, cell, jnp.linspace(-1, 1, 32 * 16).reshape(32, 16))


@case(
    group="models",
    title="two convolutions, pooling and a linear layer on a (1, 16, 16) image",
    size={"leaves": 7, "nodes": 20},
)
def convolutional() -> Makers:
    def layers() -> list[Any]:
        return [
            eqx.nn.Conv2d(1, 4, 3, key=jr.key(0)),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(4, 8, 3, key=jr.key(0)),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(200, 10, key=jr.key(0)),
        ]

    x = jnp.linspace(-1, 1, 256).reshape(1, 16, 16)
    return of_function(apply, eqx.nn.Sequential(filled(layers)), x)


class _TransformerBlock(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    mlp: eqx.nn.MLP

    def __init__(self) -> None:
        key = jr.key(0)
        self.attention = eqx.nn.MultiheadAttention(4, 32, key=key)
        self.norms = eqx.nn.LayerNorm(32), eqx.nn.LayerNorm(32)
        self.mlp = eqx.nn.MLP(32, 32, 64, 1, jax.nn.gelu, key=key)

    def __call__(self, x: Any) -> Any:
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(lambda x: self.mlp(self.norms[1](x)))(x)


@case(
    group="models",
    title="transformer block of 4 heads and width 32, 16 tokens",
    size={"width": 32, "leaves": 13, "nodes": 34},
)
def transformer() -> Makers:
    x = jnp.linspace(-1, 1, 16 * 32).reshape(16, 32)
    return of_function(apply, filled(_TransformerBlock), x)


_STEPS = 20


def _repeated(make: Callable[[], Call]) -> Call:
    call = make()

    def repeat() -> Any:
        for _ in range(_STEPS - 1):
            call()
        return call()

    return repeat


@case(
    group="pipeline",
    title=f"{_STEPS} adam train steps of an MLP of width 256, batch 64, without "
    "blocking in between",
    size=mlp_size(256, batch=64) | {"leaves": 20, "steps": _STEPS},
    steps=_STEPS,
)
def pipeline() -> Makers:
    return each(_repeated, _train(256, 3, 64, donate=False))
