"""Whole loops, as people write them: what an iteration takes, waits included.

Each loop is a generator: an iteration ends at its `yield`. A loop gets a function
`start(step, *trees)`, which returns the jitted step and, for each tree (a model, or the
state of its optimiser), what is passed to the step in its place. That depends on the
contender: the tree itself, its arrays, or its leaves.
"""

import functools as ft
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .case import Call, case, LOOPS, Makers
from .contenders import filled, our_filter_jit, training_step
from .zoo.networks import GPT, gpt_loss


Start = Callable[..., Any]


# --- contenders -----------------------------------------------------------------------


def _by_hand(step: Callable[..., Any], *trees: Any) -> Any:
    arrays, statics = eqx.partition(trees, eqx.is_array)
    n = len(trees)

    @jax.jit
    def jitted(*args: Any) -> Any:
        combined = eqx.combine(args[:n], statics)
        out = step(*combined, *args[n:])
        return eqx.filter(out, eqx.is_array)

    return jitted, *arrays


def _on_leaves(step: Callable[..., Any], *trees: Any) -> Any:
    """As in "Low-overhead training loops" of Equinox's documentation."""
    leaves, treedefs = zip(*map(jax.tree.flatten, trees), strict=True)

    @eqx.filter_jit
    def jitted(*args: Any) -> Any:
        unflattened = map(jax.tree.unflatten, treedefs, args)
        out = step(*unflattened, *args[len(trees) :])
        return [x if eqx.is_array(x) else jax.tree.leaves(x) for x in out]

    return jitted, *leaves


def plainly(step: Callable[..., Any], *trees: Any) -> Any:
    """Under the `equinox.filter_jit` of the moment."""
    return eqx.filter_jit(step), *trees


def _installed(step: Callable[..., Any], *trees: Any) -> Any:
    import eqx_fastjit  # late, as in `our_filter_jit`

    with eqx_fastjit.installed():
        return plainly(step, *trees)


_STARTS: dict[str, Start] = {
    "jit": _by_hand,
    "eqx": plainly,
    "trick": _on_leaves,
    "ours": lambda step, *trees: (our_filter_jit(step), *trees),
    "install": _installed,
}


Loop = Callable[[Start], Iterator[Any]]


def _loop(title: str) -> Callable[[Loop], Loop]:
    """Register a loop as a case."""

    def register(loop: Loop) -> Loop:
        def maker(start: Start) -> Call:
            return ft.partial(next, loop(start))

        def makers() -> Makers:
            return {name: ft.partial(maker, start) for name, start in _STARTS.items()}

        options = {"contenders": LOOPS, "loop": True, "rounds": 15}
        case("loops", title, name=loop.__name__, **options)(makers)
        return loop

    return register


# --- training -------------------------------------------------------------------------


def _regression() -> tuple[Any, Any, Any]:
    """A training step, a model, and the state of its optimiser."""

    def loss(
        model: eqx.nn.MLP,
        x: Float[Array, "batch features"],
        y: Float[Array, "batch features"],
    ) -> Float[Array, ""]:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    optimiser = optax.adam(1e-3)
    model = filled(lambda: eqx.nn.MLP(8, 8, 64, 2, key=jr.key(0)))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    return training_step(loss, optimiser), model, opt_state


@_loop("Adam steps of an MLP of width 64, a batch of 64 on the device")
def mlp_adam(start: Start) -> Iterator[Any]:
    step, model, opt_state = start(*_regression())
    x = jnp.linspace(-1, 1, 64 * 8).reshape(64, 8)
    y = jnp.sin(x)

    while True:
        model, opt_state, loss = step(model, opt_state, x, y)
        yield loss


@_loop("the same with NumPy batches, and the loss read in each step")
def mlp_adam_numpy_batch(start: Start) -> Iterator[Any]:
    step, model, opt_state = start(*_regression())
    rng = np.random.default_rng(0)

    while True:
        x = rng.normal(size=(64, 8)).astype(np.float32)
        model, opt_state, loss = step(model, opt_state, x, np.sin(x))
        yield float(loss)


def _gpt(width: int, length: int) -> GPT:
    return filled(lambda: GPT(6, width, 4, length, key=jr.key(0)))


def _gpt_steps(start: Start, width: int, length: int, batch: int) -> Iterator[Any]:
    def loss(model: GPT, tokens: Int[Array, "batch length"]) -> Float[Array, ""]:
        losses = jax.vmap(gpt_loss, (None, 0))(model, tokens)
        return jnp.mean(losses)

    model = _gpt(width, length)
    optimiser = optax.adamw(3e-4)
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    step, model, opt_state = start(training_step(loss, optimiser), model, opt_state)
    tokens = jr.randint(jr.key(1), (batch, length + 1), 0, 32)

    while True:
        model, opt_state, value = step(model, opt_state, tokens)
        yield value


@_loop("AdamW steps of a GPT of 6 blocks of width 32, 4 sequences of 16 tokens")
def gpt_small_step(start: Start) -> Iterator[Any]:
    return _gpt_steps(start, 32, 16, 4)


@_loop("of width 512, 16 sequences of 256 tokens; on a CPU 128, 4 of 64")
def gpt_large_step(start: Start) -> Iterator[Any]:
    if jax.default_backend() == "cpu":
        return _gpt_steps(start, width=128, length=64, batch=4)
    return _gpt_steps(start, width=512, length=256, batch=16)


# --- inference ------------------------------------------------------------------------


@_loop("greedy decoding by the GPT of width 32, a call a token, tokens on the device")
def decode(start: Start) -> Iterator[Any]:
    def decode(
        model: GPT, tokens: Int[Array, " length"], i: Int[Array, ""]
    ) -> tuple[Int[Array, " length"], Int[Array, ""]]:
        following = jnp.argmax(model(tokens)[i])
        i = (i + 1) % tokens.size
        return tokens.at[i].set(following), i

    decode, model = start(decode, _gpt(32, 16))
    tokens, i = jnp.zeros(16, int), jnp.array(0)

    while True:
        tokens, i = decode(model, tokens, i)
        yield tokens


@_loop("a policy with observations from the host, and actions read there")
def policy_on_host(start: Start) -> Iterator[Any]:
    def act(
        policy: eqx.nn.MLP, observation: Float[np.ndarray, " 4"], key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], PRNGKeyArray]:
        key, subkey = jr.split(key)
        return jr.categorical(subkey, policy(observation)), key

    act, policy = start(act, filled(lambda: eqx.nn.MLP(4, 2, 32, 2, key=jr.key(0))))
    key, rng = jr.key(1), random.Random(0)
    angle, speed, place, drift = 0.05, 0.0, 0.0, 0.0

    while True:
        observation = np.array([angle, speed, place, drift], np.float32)
        action, key = act(policy, observation, key)
        push = 10.0 if int(action) else -10.0

        # A cart-pole, in the units of Barto, Sutton and Anderson (1983). `angle` and
        # `speed` are of the pole, `place` and `drift` of the cart, on which `turn` does
        # not act here.
        thrust = (push + 0.05 * speed**2 * math.sin(angle)) / 1.1
        torque = 9.8 * math.sin(angle) - math.cos(angle) * thrust
        turn = torque / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        place, drift = place + 0.02 * drift, drift + 0.02 * thrust
        angle, speed = angle + 0.02 * speed, speed + 0.02 * turn
        yield angle

        if abs(angle) > 0.2 or abs(place) > 2.4:
            angle, speed, place, drift = rng.uniform(-0.05, 0.05), 0.0, 0.0, 0.0


# --- two steps in turn ----------------------------------------------------------------


def _bce(logits: Float[Array, " batch"], label: float) -> Float[Array, ""]:
    labels = jnp.full_like(logits, label)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels))


def _discriminator_loss(discriminator, generator, real, noise):
    fake = jax.vmap(generator)(noise)
    on_real = jax.vmap(discriminator)(real)
    on_fake = jax.vmap(discriminator)(fake)
    return _bce(on_real, 1.0) + _bce(on_fake, 0.0)


def _generator_loss(generator, discriminator, noise):
    fake = jax.vmap(generator)(noise)
    return _bce(jax.vmap(discriminator)(fake), 1.0)


@_loop("a GAN, steps of the discriminator and of the generator in turn")
def gan_in_turn(start: Start) -> Iterator[Any]:
    def new() -> tuple[eqx.nn.MLP, eqx.nn.MLP]:
        g_key, d_key = jr.split(jr.key(0))
        relu, leaky_relu = jax.nn.relu, jax.nn.leaky_relu
        return (
            eqx.nn.MLP(4, 8, 16, 3, relu, jnp.tanh, key=g_key),
            eqx.nn.MLP(8, "scalar", 16, 3, leaky_relu, key=d_key),
        )

    g, d = filled(new)
    optimiser = optax.adam(2e-4, b1=0.5, b2=0.999)
    g_state = optimiser.init(eqx.filter(g, eqx.is_array))
    d_state = optimiser.init(eqx.filter(d, eqx.is_array))
    real = jnp.cos(jnp.arange(256.0) / 5).reshape(32, 8)
    noise = jnp.sin(jnp.arange(128.0)).reshape(32, 4)

    # Each step takes both networks. In which form is the same for both, so `d` and `g`
    # are each taken from one `start`.
    g_step = training_step(_generator_loss, optimiser)
    d_step = training_step(_discriminator_loss, optimiser)
    g_step, _, g_state, _ = start(g_step, g, g_state, d)
    d_step, d, d_state, g = start(d_step, d, d_state, g)

    while True:
        d, d_state, _ = d_step(d, d_state, g, real, noise)
        g, g_state, loss = g_step(g, g_state, d, noise)
        yield loss
