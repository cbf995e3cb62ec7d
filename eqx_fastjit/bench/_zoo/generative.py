"""Models that make things up: a GAN, a VAE, a diffusion model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax

from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._contenders import filled, of_loop, of_step


def _data(*shape: int) -> jax.Array:
    return jnp.cos(jnp.arange(jnp.zeros(shape).size) / 5).reshape(shape)


def gan() -> Makers:
    """Two networks, each with its own state of the optimiser, in one step."""
    key_generator, key_discriminator = jr.split(jr.key(0))
    generator = filled(
        lambda: eqx.nn.MLP(4, 8, 16, 3, jax.nn.relu, jnp.tanh, key=key_generator)
    )
    discriminator = filled(
        lambda: eqx.nn.MLP(8, "scalar", 16, 3, jax.nn.leaky_relu, key=key_discriminator)
    )
    optimiser = optax.adam(2e-4, b1=0.5, b2=0.999)

    def bce(logits: jax.Array, label: float) -> jax.Array:
        labels = jnp.full_like(logits, label)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels))

    def discriminator_loss(discriminator, generator, real, noise):
        fake = jax.vmap(generator)(noise)
        on_real, on_fake = jax.vmap(discriminator)(real), jax.vmap(discriminator)(fake)
        return bce(on_real, 1.0) + bce(on_fake, 0.0)

    def generator_loss(generator, discriminator, noise):
        return bce(jax.vmap(discriminator)(jax.vmap(generator)(noise)), 1.0)

    def step(models: dict, opt_states: dict, key: jax.Array, real: jax.Array):
        key, subkey = jr.split(key)
        noise = jr.normal(subkey, (real.shape[0], 4))
        g, d = models["generator"], models["discriminator"]

        d_loss, grads = eqx.filter_value_and_grad(discriminator_loss)(d, g, real, noise)
        updates, d_state = optimiser.update(grads, opt_states["discriminator"])
        d = eqx.apply_updates(d, updates)

        g_loss, grads = eqx.filter_value_and_grad(generator_loss)(g, d, noise)
        updates, g_state = optimiser.update(grads, opt_states["generator"])
        g = eqx.apply_updates(g, updates)

        models = {"generator": g, "discriminator": d}
        opt_states = {"generator": g_state, "discriminator": d_state}
        return models, opt_states, key, {"g_loss": g_loss, "d_loss": d_loss}

    models = {"generator": generator, "discriminator": discriminator}
    opt_states = {
        name: optimiser.init(eqx.filter(model, eqx.is_array))
        for name, model in models.items()
    }
    return of_loop(step, (models, opt_states, jr.PRNGKey(1)), (_data(4, 8),))


class VAE(eqx.Module):
    encoder: eqx.nn.MLP
    to_mean: eqx.nn.Linear
    to_log_variance: eqx.nn.Linear
    decoder: eqx.nn.MLP
    latent: int = eqx.field(static=True)

    def __init__(self, size: int, hidden: int, latent: int, *, key: jax.Array):
        keys = jr.split(key, 4)
        self.encoder = eqx.nn.MLP(size, hidden, hidden, 2, jax.nn.silu, key=keys[0])
        self.to_mean = eqx.nn.Linear(hidden, latent, key=keys[1])
        self.to_log_variance = eqx.nn.Linear(hidden, latent, key=keys[2])
        self.decoder = eqx.nn.MLP(latent, size, hidden, 2, jax.nn.silu, key=keys[3])
        self.latent = latent

    def __call__(self, x: jax.Array, key: jax.Array):
        hidden = self.encoder(x)
        mean, log_variance = self.to_mean(hidden), self.to_log_variance(hidden)
        z = mean + jnp.exp(log_variance / 2) * jr.normal(key, (self.latent,))
        return self.decoder(z), mean, log_variance


def vae() -> Makers:
    model = filled(lambda: VAE(8, 16, 2, key=jr.key(0)))
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model: VAE, xs: jax.Array, key: jax.Array, beta: float):
        keys = jr.split(key, xs.shape[0])
        decoded, mean, log_variance = jax.vmap(model)(xs, keys)
        reconstruction = jnp.mean(jnp.sum((decoded - xs) ** 2, axis=1))
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - log_variance - 1)
        value = reconstruction + beta * divergence / xs.shape[0]
        return value, (reconstruction, divergence)

    def step(model, opt_state, key, xs, beta):
        key, subkey = jr.split(key)
        grad = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, parts), grads = grad(model, xs, subkey, beta)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, key, value, parts

    return of_loop(step, (model, opt_state, jr.key(1)), (_data(4, 8), 0.5))


class Denoiser(eqx.Module):
    time: eqx.nn.MLP
    layers: list[eqx.nn.Linear]
    norms: list[eqx.nn.LayerNorm]
    out: eqx.nn.Linear

    def __init__(self, size: int, hidden: int, depth: int, *, key: jax.Array):
        key_time, key_out, *keys = jr.split(key, 2 + depth)
        self.time = eqx.nn.MLP(4, hidden, hidden, 1, jax.nn.silu, key=key_time)
        sizes = [size] + [hidden] * (depth - 1)
        self.layers = [
            eqx.nn.Linear(n, hidden, key=key)
            for n, key in zip(sizes, keys, strict=True)
        ]
        self.norms = [eqx.nn.LayerNorm(hidden) for _ in keys]
        self.out = eqx.nn.Linear(hidden, size, key=key_out)

    def __call__(self, x: jax.Array, t: jax.Array) -> jax.Array:
        angles = t * jnp.array([1.0, 10.0])
        time = self.time(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)]))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = jax.nn.silu(norm(layer(x) + time))
        return self.out(x)


def diffusion() -> Makers:
    """Its averaged weights are what samples are drawn with."""
    model = filled(lambda: Denoiser(8, 16, 4, key=jr.key(0)))
    optimiser = optax.adamw(optax.cosine_decay_schedule(1e-3, 10_000))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model: Denoiser, xs: jax.Array, key: jax.Array) -> jax.Array:
        key_time, key_noise = jr.split(key)
        ts = jr.uniform(key_time, (xs.shape[0],))
        noise = jr.normal(key_noise, xs.shape)
        signal = jnp.cos(ts * jnp.pi / 2)[:, None]
        noisy = signal * xs + jnp.sqrt(1 - signal**2) * noise
        return jnp.mean((jax.vmap(model)(noisy, ts) - noise) ** 2)

    def average(old: jax.Array, new: jax.Array) -> jax.Array:
        return 0.999 * old + 0.001 * new if eqx.is_inexact_array(old) else old

    def step(xs: jax.Array, state: tuple):
        model, averaged, opt_state, key = state
        key, subkey = jr.split(key)
        value, grads = eqx.filter_value_and_grad(loss)(model, xs, subkey)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        model = eqx.apply_updates(model, updates)
        averaged = jax.tree.map(average, averaged, model)
        return (model, averaged, opt_state, key), value

    # A copy: no array may be donated twice.
    averaged = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, model)
    state = model, averaged, opt_state, jr.key(1)
    return of_step(step, _data(4, 8), state, donate=True)
