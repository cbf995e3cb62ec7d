"""A training loop that refills the buffer of its batch in each step.

The arguments say how the buffer is handed to JAX. The losses are read at the end, so
only calls that block keep the device ahead of the refills.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


STEPS = 30
OPTIMIZER = optax.adam(1e-3)
SPELLINGS = {
    "numpy": lambda buffer: buffer,
    "asarray": jnp.asarray,
    "array": jnp.array,
    "device_put": jax.device_put,
    "copy": lambda buffer: jnp.asarray(buffer.copy()),
}


def loss_of(model, x, y):
    return jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2)


def step(model, state, x, y):
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, x, y)
    updates, state = OPTIMIZER.update(grads, state)
    return loss, eqx.apply_updates(model, updates), state


def train(step, spelling, steps=STEPS):
    """The losses of all steps."""
    rng = np.random.default_rng(0)
    model = eqx.nn.MLP(256, 1, 512, 2, key=jax.random.key(0))
    state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
    x = np.empty((512, 256), np.float32)
    losses = []
    for _ in range(steps):
        rng.standard_normal(out=x, dtype=np.float32)
        batch = SPELLINGS[spelling](x), x.sum(axis=1)
        loss, model, state = step(model, state, *batch)
        losses.append(loss)
    return [float(loss) for loss in losses]


def main():
    jitted = eqx.filter_jit(step)
    for spelling in sys.argv[1:]:
        losses = train(jitted, spelling)
        print(spelling, *[f"{loss:.3g}" for loss in losses[::3]])


if __name__ == "__main__":
    main()
