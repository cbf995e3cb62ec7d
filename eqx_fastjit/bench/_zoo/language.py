"""Language models: a GPT, an encoder, decoding with a cache, LoRA."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_function, of_loop
from eqx_fastjit.bench._zoo._shared import training


WIDTH, HEADS, LENGTH, VOCABULARY = 16, 2, 8, 32


class CausalSelfAttention(eqx.Module):
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: jax.Array):
        key_qkv, key_out = jr.split(key)
        self.qkv = eqx.nn.Linear(width, 3 * width, use_bias=False, key=key_qkv)
        self.out = eqx.nn.Linear(width, width, use_bias=False, key=key_out)
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        length, width = x.shape
        qkv = jax.vmap(self.qkv)(x).reshape(length, 3, self.heads, -1)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        x = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return jax.vmap(self.out)(x.reshape(length, width))


class Block(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    attention: CausalSelfAttention
    norm_2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, width: int, heads: int, *, key: jax.Array):
        key_attention, key_mlp = jr.split(key)
        self.norm_1 = eqx.nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, key=key_attention)
        self.norm_2 = eqx.nn.LayerNorm(width)
        self.mlp = eqx.nn.MLP(width, width, 2 * width, 1, jax.nn.gelu, key=key_mlp)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(jax.vmap(self.norm_1)(x))
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm_2)(x))


class GPT(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, depth: int, *, key: jax.Array):
        key_tokens, key_positions, key_head, *keys = jr.split(key, 3 + depth)
        self.tokens = eqx.nn.Embedding(VOCABULARY, WIDTH, key=key_tokens)
        self.positions = eqx.nn.Embedding(LENGTH, WIDTH, key=key_positions)
        self.blocks = [Block(WIDTH, HEADS, key=key) for key in keys]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=key_head)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(tokens.shape[0])
        x = jax.vmap(self.tokens)(tokens) + jax.vmap(self.positions)(positions)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda x: self.head(self.norm(x)))(x)


def _tokens(*shape: int) -> jax.Array:
    return jnp.arange(math.prod(shape)).reshape(shape) % VOCABULARY


def gpt() -> Makers:
    def logits(model: GPT, tokens: jax.Array) -> jax.Array:
        return jax.vmap(model)(tokens)

    model = filled(lambda: GPT(12, key=jr.key(0)))
    return of_function(logits, model, _tokens(1, LENGTH))


def gpt_adamw() -> Makers:
    def loss(model: GPT, tokens: jax.Array) -> jax.Array:
        logits, labels = model(tokens[:-1]), tokens[1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses)

    model = filled(lambda: GPT(12, key=jr.key(0)))
    optimiser = optax.adamw(3e-4, weight_decay=0.1)
    return training(loss, model, optimiser, _tokens(LENGTH))


class EncoderLayer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    feed_forward: eqx.nn.Sequential
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, heads: int, dropout: float, *, key: jax.Array):
        key_attention, key_up, key_down = jr.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=key_attention)
        self.norms = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.feed_forward = eqx.nn.Sequential(
            [
                eqx.nn.Linear(width, 2 * width, key=key_up),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Linear(2 * width, width, key=key_down),
            ]
        )
        self.dropout = eqx.nn.Dropout(dropout)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        attended = self.attention(x, x, x, mask=mask)
        x = jax.vmap(self.norms[0])(x + self.dropout(attended))
        forward = jax.vmap(self.feed_forward)(x)
        return jax.vmap(self.norms[1])(x + self.dropout(forward))


class Encoder(eqx.Module):
    embedding: eqx.nn.Embedding
    layers: list[EncoderLayer]
    classifier: eqx.nn.Linear

    def __init__(self, depth: int, *, key: jax.Array):
        key_embedding, key_classifier, *keys = jr.split(key, 2 + depth)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=key_embedding)
        self.layers = [EncoderLayer(WIDTH, HEADS, 0.1, key=key) for key in keys]
        self.classifier = eqx.nn.Linear(WIDTH, 2, key=key_classifier)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        present = tokens != 0
        mask = present[:, None] & present[None, :]
        x = jax.vmap(self.embedding)(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(jnp.mean(x, axis=0, where=present[:, None]))


def encoder() -> Makers:
    def classify(model: Encoder, tokens: jax.Array) -> jax.Array:
        return jax.nn.softmax(jax.vmap(model)(tokens))

    model = eqx.nn.inference_mode(filled(lambda: Encoder(8, key=jr.key(0))))
    return of_function(classify, model, _tokens(1, LENGTH) + 1)


class DecoderLayer(eqx.Module):
    query: eqx.nn.Linear
    key_value: eqx.nn.Linear
    out: eqx.nn.Linear
    norm: eqx.nn.RMSNorm

    def __init__(self, *, key: jax.Array):
        key_query, key_kv, key_out = jr.split(key, 3)
        self.query = eqx.nn.Linear(WIDTH, WIDTH, key=key_query)
        self.key_value = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=key_kv)
        self.out = eqx.nn.Linear(WIDTH, WIDTH, key=key_out)
        self.norm = eqx.nn.RMSNorm(WIDTH)

    def __call__(self, x: jax.Array, cache: dict, position: jax.Array):
        y = self.norm(x)
        k, v = jnp.split(self.key_value(y), 2)
        cache = {
            "keys": cache["keys"].at[position].set(k),
            "values": cache["values"].at[position].set(v),
        }
        scores = cache["keys"] @ self.query(y) / jnp.sqrt(WIDTH)
        scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
        return x + self.out(jax.nn.softmax(scores) @ cache["values"]), cache


class Decoder(eqx.Module):
    embedding: eqx.nn.Embedding
    layers: list[DecoderLayer]

    def __init__(self, depth: int, *, key: jax.Array):
        key_embedding, *keys = jr.split(key, 1 + depth)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=key_embedding)
        self.layers = [DecoderLayer(key=key) for key in keys]


def decode() -> Makers:
    def next_token(model: Decoder, state: dict):
        x, position = model.embedding(state["token"]), state["position"]
        caches = []
        for layer, cache in zip(model.layers, state["caches"], strict=True):
            x, cache = layer(x, cache, position)
            caches.append(cache)
        token = jnp.argmax(model.embedding.weight @ x)
        position = (position + 1) % LENGTH
        return model, {"token": token, "position": position, "caches": caches}

    model = filled(lambda: Decoder(6, key=jr.key(0)))
    empty = jnp.zeros((LENGTH, WIDTH))
    state = {
        "token": jnp.array(1),
        "position": jnp.array(0),
        "caches": [{"keys": empty, "values": empty} for _ in model.layers],
    }
    return of_loop(next_token, (model, state))


class LoRA(eqx.Module):
    """A layer that stays as it is, and a small one beside it that learns."""

    base: eqx.nn.Linear
    down: jax.Array
    up: jax.Array
    scale: float

    def __init__(self, base: eqx.nn.Linear, rank: int, alpha: float, *, key: jax.Array):
        self.base = base
        self.down = jr.normal(key, (rank, WIDTH)) / rank
        self.up = jnp.zeros((WIDTH, rank))
        self.scale = alpha / rank

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.base(x) + self.scale * (self.up @ (self.down @ x))


def _lora_layers(depth: int) -> list[LoRA]:
    return [
        LoRA(eqx.nn.Linear(WIDTH, WIDTH, key=key), 2, alpha=1.0 + i / 8, key=key)
        for i, key in enumerate(jr.split(jr.key(0), depth))
    ]


def lora() -> Makers:
    def apply(layers: list[LoRA], x: jax.Array) -> jax.Array:
        for layer in layers:
            x = jax.nn.relu(layer(x))
        return x

    return of_function(apply, filled(lambda: _lora_layers(12)), jnp.ones(WIDTH))


def lora_step() -> Makers:
    model = filled(lambda: _lora_layers(6))

    nothing = jax.tree.map(lambda _: False, model)
    learns = [eqx.tree_at(lambda x: (x.down, x.up), m, (True, True)) for m in nothing]
    optimiser = optax.adam(1e-3)
    opt_state = optimiser.init(eqx.filter(model, learns))

    def loss(trained: list[LoRA], frozen: list[LoRA], x: jax.Array) -> jax.Array:
        for layer in eqx.combine(trained, frozen):
            x = jax.nn.relu(layer(x))
        return jnp.mean(x**2)

    def step(model: list[LoRA], opt_state: optax.OptState, x: jax.Array):
        trained, frozen = eqx.partition(model, learns)
        value, grads = jax.value_and_grad(loss)(trained, frozen, x)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    return of_loop(step, (model, opt_state), (jnp.ones(WIDTH),))
