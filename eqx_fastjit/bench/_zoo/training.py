"""Training steps that differ in what is trained, and how: frozen parts, optax."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_loop
from eqx_fastjit.bench._zoo._shared import training


class Classifier(eqx.Module):
    backbone: list[eqx.nn.Linear]
    norms: list[eqx.nn.LayerNorm]
    activation: Callable
    head: eqx.nn.Linear

    def __init__(self, depth: int = 4, width: int = 8, *, key: jax.Array):
        key_head, *keys = jr.split(key, 1 + depth)
        self.backbone = [eqx.nn.Linear(width, width, key=key) for key in keys]
        self.norms = [eqx.nn.LayerNorm(width) for _ in keys]
        self.activation = jax.nn.gelu
        self.head = eqx.nn.Linear(width, 3, key=key_head)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, norm in zip(self.backbone, self.norms, strict=True):
            x = x + self.activation(layer(norm(x)))
        return self.head(x)


def _classifier() -> Classifier:
    return filled(lambda: Classifier(key=jr.key(0)))


def _batch() -> tuple[jax.Array, jax.Array]:
    return jnp.linspace(-1, 1, 32).reshape(4, 8), jnp.array([0, 1, 2, 1])


def loss(model: Classifier, xs: jax.Array, ys: jax.Array) -> jax.Array:
    logits = jax.vmap(model)(xs)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ys))


def _training(optimiser: optax.GradientTransformation) -> Makers:
    return training(loss, _classifier(), optimiser, *_batch())


# --- frozen and trainable parts


def frozen() -> Makers:
    """The head alone is trained; the parts go in and out as two arguments."""
    model = _classifier()
    spec = jax.tree.map(lambda _: False, model)
    spec = eqx.tree_at(lambda s: (s.head.weight, s.head.bias), spec, (True, True))
    trained, fixed = eqx.partition(model, spec)
    optimiser = optax.adam(1e-3)
    opt_state = optimiser.init(trained)

    def step(trained, opt_state, fixed, xs, ys):
        @jax.value_and_grad
        def value_and_grad(trained):
            return loss(eqx.combine(trained, fixed), xs, ys)

        value, grads = value_and_grad(trained)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(trained, updates), opt_state, value

    return of_loop(step, (trained, opt_state), (fixed, *_batch()))


# --- what optax offers


def masked_decay() -> Makers:
    def is_matrix(params):
        return jax.tree.map(lambda p: p.ndim > 1, params)

    optimiser = optax.chain(
        optax.scale_by_adam(),
        optax.masked(optax.add_decayed_weights(1e-2), is_matrix),
        optax.scale(-1e-3),
    )
    return _training(optimiser)


def schedule() -> Makers:
    warmup = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(warmup))
    return _training(optimiser)


def injected_schedule() -> Makers:
    """The hyperparameters live in the state, where they can be read and set."""
    rate = optax.cosine_decay_schedule(1e-3, 10_000)
    return _training(optax.inject_hyperparams(optax.adam)(learning_rate=rate, b1=0.9))


def multi_transform() -> Makers:
    def label(params):
        labels = jax.tree.map(lambda _: "backbone", params)
        head = jax.tree.map(lambda _: "head", params.head)
        return eqx.tree_at(lambda model: model.head, labels, head)

    of_backbone, of_head = optax.sgd(1e-4, momentum=0.9), optax.adam(1e-3)
    optimiser = optax.multi_transform({"backbone": of_backbone, "head": of_head}, label)
    return _training(optimiser)


def multi_steps() -> Makers:
    """Gradients of four batches are averaged before they are applied."""
    multi = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4)
    return _training(multi.gradient_transformation())
