"""The engine is chosen by `EQX_FASTJIT_ENGINE`, for the whole session."""

import os
import signal

import jax
import pytest


# Must precede the first use of a device.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs run a few times only: what XLA would optimize takes longer than they do.
jax.config.update("jax_disable_most_optimizations", True)

import eqx_fastjit  # noqa: E402
from tests.skips import pytest_configure  # noqa: E402, F401


# A shell starts background processes with Ctrl-C ignored, which child processes
# inherit, and then the tests that send it would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Under the reference, leave out the tests for which the engine does not matter."""
    if os.environ.get("EQX_FASTJIT_ENGINE") == "python":
        left_out = [x for x in items if x.get_closest_marker("one_engine")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [x for x in items if x not in left_out]


@pytest.fixture(autouse=True)
def _uninstalled():
    """A test, or a program that it ran, may have installed this library.

    It would then be compared with itself instead of Equinox.
    """
    eqx_fastjit.uninstall()
    yield
    eqx_fastjit.uninstall()


@pytest.fixture
def waited(monkeypatch):
    """The shape of each array that is blocked on."""
    shapes = []
    array = type(jax.numpy.ones(()))
    block = array.block_until_ready
    monkeypatch.setattr(
        array, "block_until_ready", lambda x: shapes.append(x.shape) or block(x)
    )
    # Of several arrays, JAX's own does not come by here.
    monkeypatch.setattr(
        jax, "block_until_ready", lambda xs: [x.block_until_ready() for x in xs]
    )
    return shapes
