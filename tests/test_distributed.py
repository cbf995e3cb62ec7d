"""Two processes that run one sharded train step get the results of one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import eqx_fastjit
from eqx_fastjit import _engine


N_DEVICES = 4


def train():
    """Losses, final weights and number of traces of a few steps on all devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:N_DEVICES]), ("data",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def place(tree, sharding):
        def one(x):
            x = np.asarray(x)
            return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i])

        return jax.tree_util.tree_map(lambda x: one(x) if eqx.is_array(x) else x, tree)

    model = eqx.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))
    optim = optax.sgd(1e-1, momentum=0.5)
    state = optim.init(eqx.filter(model, eqx.is_array))
    traces = []

    @eqx_fastjit.filter_jit(donate="all-except-first")
    def step(batch, model, state, scale):
        traces.append(1)

        def loss(model):
            x, y = batch
            return scale * jnp.mean((jax.vmap(model)(x) - y) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optim.update(grads, state)
        return value, eqx.apply_updates(model, updates), state

    model, state = place(model, everywhere), place(state, everywhere)
    x = np.linspace(0, 1, 64, dtype=np.float32).reshape(16, 4)
    batch = place((x, np.sin(x.sum(1, keepdims=True))), split)
    losses = []
    for _ in range(6):
        before = model.layers[0].weight
        value, model, state = step(batch, model, state, 2.0)
        assert before.is_deleted()
        losses.append(float(value))
    arrays = jax.tree_util.tree_leaves(eqx.filter(model, eqx.is_array))
    weights = [np.asarray(x).tolist() for x in arrays]
    return losses, weights, len(traces)


def main(port, n_processes, index):
    jax.config.update("jax_num_cpu_devices", N_DEVICES // n_processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, n_processes, index, initialization_timeout=60)
    assert jax.process_count() == n_processes
    assert len(jax.devices()) == N_DEVICES
    for engine in ("native", "python"):
        os.environ["EQX_FASTJIT_ENGINE"] = engine
        _engine._state.clear()
        print(json.dumps([eqx_fastjit.engine(), *train()]), flush=True)


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _in_two_processes():
    """What the first of two processes prints, by engine."""
    root = Path(__file__).parent.parent
    # The processes talk to each other directly, not through a proxy.
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env["PYTHONPATH"] = str(root)
    port = _free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(port), "2", str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for index in range(2)
    ]
    try:
        # Neither process can finish alone, so a hang is noticed here.
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, stderr) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, stderr
    # Skip what the collectives print.
    lines = [x for x in outputs[0][0].splitlines() if x.startswith('["')]
    return {engine: rest for engine, *rest in map(json.loads, lines)}


@pytest.mark.one_engine
def test_two_processes_train_as_one():
    losses, weights, traces = train()
    assert losses[-1] < losses[0]
    together = _in_two_processes()
    assert together.keys() == {"native", "python"}
    for losses_2, weights_2, traces_2 in together.values():
        assert traces == traces_2 == 1
        # Not exact: the sum over devices is computed in another order.
        np.testing.assert_allclose(losses, losses_2, rtol=1e-5)
        for a, b in zip(weights, weights_2, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
