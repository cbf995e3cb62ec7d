"""A training loop that refills its batch: `refilled_batch.py [MODE [STEPS [ROWS]]]`.

Prints losses, for each way to convert the batch. They are right only if each call has
read its batch when it returns. `MODE` is `equinox` or `install`; a row has 1 KiB.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


MODE, STEPS, ROWS = [*sys.argv[1:], *["equinox", "8", "512"][len(sys.argv) - 1 :]]

if MODE == "install":
    import eqx_fastjit

    eqx_fastjit.install()

CONVERT = {
    "asarray": jnp.asarray,
    "array": jnp.array,
    "device_put": jax.device_put,
    "buffer": lambda x: x,
}


@eqx.filter_jit
def step(model, x, y):
    @eqx.filter_value_and_grad
    def loss(model):
        return jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2)

    value, grads = loss(model)
    updates = jax.tree.map(lambda g: -1e-3 * g, grads)
    return value, eqx.apply_updates(model, updates)


def aligned(shape):
    size = 4 * int(np.prod(shape))
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def train(convert):
    model = eqx.nn.MLP(256, 1, 512, 2, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((int(ROWS), 256), dtype=np.float32)
    x = aligned(drawn.shape)
    y = aligned(drawn.shape[:1])

    losses = []
    for i in range(int(STEPS)):
        np.multiply(drawn, 1 + i % 3, out=x)
        x.sum(1, out=y)
        value, model = step(model, convert(x), convert(y))
        losses.append(value)
    return [f"{float(value):.4g}" for value in losses]


for name, convert in CONVERT.items():
    print(name, train(convert))
