"""Networks that look at images: ResNet, CNN, ViT, UNet, MLP-Mixer."""

import functools as ft
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function, of_loop
from eqx_fastjit.bench._zoo._shared import waves


class ResidualBlock(eqx.Module):
    conv_1: eqx.nn.Conv2d
    norm_1: eqx.nn.BatchNorm
    conv_2: eqx.nn.Conv2d
    norm_2: eqx.nn.BatchNorm
    shortcut: eqx.nn.Conv2d | eqx.nn.Identity

    def __init__(self, before: int, after: int, stride: int, *, key: jax.Array):
        keys = jr.split(key, 3)
        conv = ft.partial(eqx.nn.Conv2d, kernel_size=3, padding=1, use_bias=False)
        self.conv_1 = conv(before, after, stride=stride, key=keys[0])
        self.norm_1 = eqx.nn.BatchNorm(after, "batch", mode="ema")
        self.conv_2 = conv(after, after, key=keys[1])
        self.norm_2 = eqx.nn.BatchNorm(after, "batch", mode="ema")
        if before == after and stride == 1:
            self.shortcut = eqx.nn.Identity()
        else:
            self.shortcut = eqx.nn.Conv2d(before, after, 1, stride, key=keys[2])

    def __call__(self, x: jax.Array, state: eqx.nn.State):
        y, state = self.norm_1(self.conv_1(x), state)
        y, state = self.norm_2(self.conv_2(jax.nn.relu(y)), state)
        return jax.nn.relu(y + self.shortcut(x)), state


class ResNet(eqx.Module):
    stem: eqx.nn.Conv2d
    blocks: list[ResidualBlock]
    head: eqx.nn.Linear

    def __init__(self, *, key: jax.Array):
        key_stem, key_head, *keys = jr.split(key, 6)
        sizes = [(2, 2, 1), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        self.stem = eqx.nn.Conv2d(3, 2, 3, padding=1, key=key_stem)
        self.blocks = [
            ResidualBlock(*size, key=key) for size, key in zip(sizes, keys, strict=True)
        ]
        self.head = eqx.nn.Linear(4, 10, key=key_head)

    def __call__(self, x: jax.Array, state: eqx.nn.State):
        x = self.stem(x)
        for block in self.blocks:
            x, state = block(x, state)
        return self.head(jnp.mean(x, axis=(1, 2))), state


def _resnet() -> tuple[ResNet, eqx.nn.State]:
    return filled(lambda: eqx.nn.make_with_state(ResNet)(key=jr.key(0)))


def resnet() -> Makers:
    def loss(model: ResNet, state: eqx.nn.State, images: jax.Array, labels: jax.Array):
        batched = jax.vmap(model, (0, None), (0, None), axis_name="batch")
        logits, state = batched(images, state)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses), state

    def step(model, state, opt_state, images, labels):
        grad = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, state), grads = grad(model, state, images, labels)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state, value

    model, state = _resnet()
    optimiser = optax.sgd(1e-3, momentum=0.9, nesterov=True)
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    batch = waves(2, 3, 4, 4), jnp.array([3, 7])
    return of_loop(step, (model, state, opt_state), batch)


def resnet_inference() -> Makers:
    def classify(model: ResNet, state: eqx.nn.State, images: jax.Array) -> jax.Array:
        logits, _ = jax.vmap(model, in_axes=(0, None))(images, state)
        return jnp.argmax(logits, axis=1)

    model, state = _resnet()
    return of_function(classify, eqx.nn.inference_mode(model), state, waves(1, 3, 4, 4))


class CNN(eqx.Module):
    layers: list

    def __init__(self, *, key: jax.Array):
        keys = jr.split(key, 4)
        self.layers = [
            eqx.nn.Conv2d(1, 3, kernel_size=3, key=keys[0]),
            eqx.nn.MaxPool2d(kernel_size=2),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Linear(75, 16, key=keys[1]),
            jax.nn.sigmoid,
            eqx.nn.Linear(16, 16, key=keys[2]),
            jax.nn.relu,
            eqx.nn.Linear(16, 10, key=keys[3]),
            jax.nn.log_softmax,
        ]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


def cnn() -> Makers:
    def accuracy(model: CNN, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jnp.argmax(jax.vmap(model)(images), axis=1) == labels)

    model = filled(lambda: CNN(key=jr.key(0)))
    return of_function(accuracy, model, waves(2, 1, 8, 8), jnp.array([3, 7]))


class ViTBlock(eqx.Module):
    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout_1: eqx.nn.Dropout
    dropout_2: eqx.nn.Dropout

    def __init__(self, width: int, heads: int, *, key: jax.Array):
        keys = jr.split(key, 3)
        self.attention_norm = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=keys[0])
        self.mlp_norm = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 2 * width, key=keys[1])
        self.down = eqx.nn.Linear(2 * width, width, key=keys[2])
        self.dropout_1 = eqx.nn.Dropout(0.1)
        self.dropout_2 = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, inference: bool, key: jax.Array) -> jax.Array:
        key_1, key_2 = jr.split(key)
        y = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(y, y, y)
        y = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.mlp_norm)(x)))
        y = self.dropout_1(y, inference=inference, key=key_1)
        y = self.dropout_2(jax.vmap(self.down)(y), inference=inference, key=key_2)
        return x + y


class ViT(eqx.Module):
    patches: eqx.nn.Conv2d
    class_token: jax.Array
    positions: jax.Array
    blocks: list[ViTBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, width: int, depth: int, *, key: jax.Array):
        key_patches, key_class, key_head, *keys = jr.split(key, 3 + depth)
        self.patches = eqx.nn.Conv2d(3, width, 4, stride=4, key=key_patches)
        self.class_token = jr.normal(key_class, (1, width))
        self.positions = jnp.zeros((5, width))
        self.blocks = [ViTBlock(width, 2, key=key) for key in keys]
        self.norm = eqx.nn.LayerNorm(width)
        self.head = eqx.nn.Linear(width, 10, key=key_head)

    def __call__(self, x: jax.Array, inference: bool, key: jax.Array) -> jax.Array:
        patches = self.patches(x)
        x = patches.reshape(patches.shape[0], -1).T
        x = jnp.concatenate([self.class_token, x]) + self.positions
        keys = jr.split(key, len(self.blocks))
        for block, key in zip(self.blocks, keys, strict=True):
            x = block(x, inference, key)
        return self.head(self.norm(x[0]))


def vit() -> Makers:
    def predict(model: ViT, images: jax.Array, inference: bool, key: jax.Array):
        keys = jr.split(key, images.shape[0])
        return jax.vmap(model, in_axes=(0, None, 0))(images, inference, keys)

    model = filled(lambda: ViT(16, 6, key=jr.key(0)))
    return of_function(predict, model, waves(1, 3, 8, 8), True, jr.PRNGKey(0))


class DoubleConv(eqx.Module):
    conv_1: eqx.nn.Conv2d
    conv_2: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    activation: Callable

    def __init__(self, before: int, after: int, *, key: jax.Array):
        key_1, key_2 = jr.split(key)
        self.conv_1 = eqx.nn.Conv2d(before, after, 3, padding=1, key=key_1)
        self.conv_2 = eqx.nn.Conv2d(after, after, 3, padding=1, key=key_2)
        self.norm = eqx.nn.GroupNorm(2, after)
        self.activation = ft.partial(jax.nn.leaky_relu, negative_slope=0.1)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.activation(self.conv_1(x))
        return self.activation(self.norm(self.conv_2(x)))


class UNet(eqx.Module):
    down: list[DoubleConv]
    middle: DoubleConv
    up: list[tuple[eqx.nn.ConvTranspose2d, DoubleConv]]
    out: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d

    def __init__(self, channels: tuple[int, ...], *, key: jax.Array):
        key_middle, key_out, *keys = jr.split(key, 2 + 3 * len(channels))
        self.down, self.up = [], []
        before = 1
        for after in channels:
            self.down.append(DoubleConv(before, after, key=keys.pop()))
            before = after
        self.middle = DoubleConv(before, before, key=key_middle)
        for after in reversed(channels):
            upsample = eqx.nn.ConvTranspose2d(before, after, 2, 2, key=keys.pop())
            self.up.append((upsample, DoubleConv(2 * after, after, key=keys.pop())))
            before = after
        self.out = eqx.nn.Conv2d(before, 1, 1, key=key_out)
        self.pool = eqx.nn.MaxPool2d(2, 2)

    def __call__(self, x: jax.Array) -> jax.Array:
        skipped = []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for upsample, block in self.up:
            x = block(jnp.concatenate([upsample(x), skipped.pop()]))
        return self.out(x)


def unet() -> Makers:
    def segment(model: UNet, image: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(model(image))

    model = filled(lambda: UNet((2, 4), key=jr.key(0)))
    return of_function(segment, model, waves(1, 1, 4, 4)[0])


class MixerBlock(eqx.Module):
    patch_mixer: eqx.nn.MLP
    hidden_mixer: eqx.nn.MLP
    norm_1: eqx.nn.LayerNorm
    norm_2: eqx.nn.LayerNorm

    def __init__(self, patches: int, hidden: int, mix: int, *, key: jax.Array):
        key_patch, key_hidden = jr.split(key)
        self.patch_mixer = eqx.nn.MLP(patches, patches, mix, depth=1, key=key_patch)
        self.hidden_mixer = eqx.nn.MLP(hidden, hidden, mix, depth=1, key=key_hidden)
        self.norm_1 = eqx.nn.LayerNorm((hidden, patches))
        self.norm_2 = eqx.nn.LayerNorm((patches, hidden))

    def __call__(self, y: jax.Array) -> jax.Array:
        y = y + jax.vmap(self.patch_mixer)(self.norm_1(y))
        y = y.T
        y = y + jax.vmap(self.hidden_mixer)(self.norm_2(y))
        return y.T


class Mixer(eqx.Module):
    conv_in: eqx.nn.Conv2d
    blocks: list[MixerBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, hidden: int, depth: int, *, key: jax.Array):
        key_in, key_head, *keys = jr.split(key, 2 + depth)
        self.conv_in = eqx.nn.Conv2d(1, hidden, 2, stride=2, key=key_in)
        self.blocks = [MixerBlock(4, hidden, 8, key=key) for key in keys]
        self.norm = eqx.nn.LayerNorm((hidden, 4))
        self.head = eqx.nn.Linear(hidden, 10, key=key_head)

    def __call__(self, image: jax.Array) -> jax.Array:
        y = self.conv_in(image)
        y = y.reshape(y.shape[0], -1)
        for block in self.blocks:
            y = block(y)
        return self.head(jnp.mean(self.norm(y), axis=1))


def mixer() -> Makers:
    def classify(model: Mixer, image: jax.Array) -> jax.Array:
        return jnp.argmax(model(image))

    model = filled(lambda: Mixer(8, 12, key=jr.key(0)))
    return of_function(classify, model, waves(1, 1, 4, 4)[0])
