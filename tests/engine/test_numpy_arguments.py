"""NumPy arguments: traced like JAX arrays, and safe to refill after the call.

Calls return before the device has finished, except in the three cases that
`docs/drop-in.md` names. An unedited program that refills its buffers is right.
"""

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

from eqx_fastjit import filter_jit
from tests.support.device import late
from tests.support.modules import Holder, Inner, Node
from tests.support.traces import count_traces


# Up to 1 MiB is copied, so that the call need not block.
SMALL, LARGE = (64,), (600, 600)


# --- traced ---


@pytest.mark.parametrize("static", [None, (1, (2,)), jnp.float32, np.dtype("f4")])
@pytest.mark.parametrize("around", [lambda x: x, lambda x: [x], Inner])
def test_numpy_and_jax_arrays_share_a_trace(static, around):
    """Arrays of one dtype and shape are one signature, whoever made them."""
    f, traces = count_traces(lambda a, b: b.x)
    jaxs, numpys = jnp.ones(2), np.ones(2, np.float32)
    for a in (jaxs, numpys):
        for b in (jaxs, numpys):
            assert f(around(a), Holder(b, static)).tolist() == [1, 1]
    assert len(traces) == 1


@pytest.mark.parametrize(
    "x",
    [
        np.arange(3),
        np.arange(3.0),
        np.float32(1),
        np.int64(1),
        np.bool_(True),
        np.zeros((0, 2), np.float32),
        np.array(1.0, np.float32),
        np.ones(2, np.float16),
        np.ones(2, jnp.bfloat16),
        np.arange(6.0).reshape(2, 3)[::-1, ::-1],
        np.arange(6.0).reshape(2, 3).T,
        np.broadcast_to(np.float32(1), 3),  # cannot be written to
        np.zeros(2, jax.dtypes.float0),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.dtype}-{x.shape}",
)
def test_arrays_and_scalars_of_numpy_are_traced(x):
    """Every array of NumPy, and every scalar, is an argument as under Equinox."""
    expected = eqx.filter_jit(lambda x: x)(x)
    f, traces = count_traces(lambda x: x)
    for _ in range(2):
        out = f(x)
        assert (type(out), out.dtype) == (type(expected), expected.dtype)
        np.testing.assert_array_equal(out, expected)
    assert len(traces) == 1


def test_values_of_numpy_scalars_are_traced():
    """Another value of a NumPy scalar is the same call."""
    f, traces = count_traces(lambda x: x)
    assert [float(f(np.float32(i))) for i in range(3)] == [0, 1, 2]
    assert len(traces) == 1


def test_a_list_that_grows_while_its_arrays_are_copied():
    """Another thread may append to a list, as copying an array lets it run."""

    class Growing(np.ndarray):
        def copy(self, order="C"):
            items.append(items[0])
            return super().copy(order)

    f, traces = count_traces(lambda xs: len(xs))
    assert f([np.ones(2)] * 2) == 2
    items = [np.ones(2).view(Growing)] * 2
    assert (f(items), len(items), len(traces)) == (2, 4, 1)


def test_an_enormous_array_that_is_not_used():
    """A broadcast array of many bytes is counted and not copied."""
    huge = np.broadcast_to(np.zeros((), np.int8), (1 << 40,))
    f = filter_jit(lambda *arrays: len(arrays))
    assert f(np.ones(3, np.int8), huge) == 2


# --- refilled ---


def aligned(shape):
    """A NumPy array of zeros that JAX uses without a copy on the CPU."""
    memory = np.zeros(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + memory.size - 64].view(np.float32).reshape(shape)


def check_refilled(call, shape):
    """Results of calls are of what a buffer held then, although it is refilled."""
    batch, results = aligned(shape), []
    for i in range(4):
        batch[...] = i
        results.append(call(batch))
        batch[...] = -1
    assert [float(x) for x in results] == [0, 1, 2, 3]


CALLS = {
    "call": lambda f, w, x: f(w, x),
    "keyword": lambda f, w, x: f(batch=x, w=w),
    "compiled": lambda f, w, x: f.lower(w, x).compile()(w, x),
    "nested": lambda f, w, x: filter_jit(lambda w, x: f(w, x))(w, x),
    "value_and_grad": lambda f, w, x: jax.value_and_grad(f)(w, x)[0],
    "filter_value_and_grad": lambda f, w, x: eqx.filter_value_and_grad(f)(w, x)[0],
    "jvp": lambda f, w, x: jax.jvp(lambda w: f(w, x), (w,), (w,))[0],
    "vmap": lambda f, w, x: jax.vmap(lambda w: f(w, x))(w[None])[0],
    "linearize": lambda f, w, x: jax.linearize(lambda w: f(w, x), w)[0],
    "vjp": lambda f, w, x: jax.vjp(lambda w: f(w, x), w)[0],
    "vmap of the batch": lambda f, w, x: jax.vmap(f, (None, 0))(w, x[None])[0],
    "vmap of grad": lambda f, w, x: jax.vmap(jax.value_and_grad(f), (0, None))(
        w[None], x
    )[0][0],
}


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_buffer_that_is_refilled_after_the_call(call, shape):
    """Results are of what the buffer held at the call, also under eager transforms."""
    f = filter_jit(lambda w, batch: late(w) + batch.mean())
    check_refilled(lambda batch: call(f, jnp.zeros(()), batch), shape)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "around", [Inner, lambda x: [x], lambda x: {"k": (x,)}, lambda x: Node((x,))]
)
def test_a_buffer_within_a_pytree(around, shape):
    """Buffers in Modules, containers and registered nodes may be refilled, too."""
    f = filter_jit(lambda t: late(jax.tree_util.tree_leaves(t)[0].mean()))
    check_refilled(lambda batch: f(around(batch)), shape)


def test_a_buffer_in_a_wrapped_module():
    """NumPy arrays of the callable itself may be refilled."""

    class Model(eqx.Module):
        w: object

        def __call__(self, x):
            return late(x) + self.w.mean()

    for shape in (SMALL, LARGE):
        check_refilled(lambda w: filter_jit(Model(w))(jnp.zeros(())), shape)


def test_a_buffer_that_is_a_constant_of_another_trace():
    """Within a trace, a NumPy array is a constant as it is at the call."""
    f, x = filter_jit(lambda x: late(x)), aligned((3,))

    def outer(y):
        outs = []
        for i in range(1, 4):
            x[:] = i
            outs.append(f(x))
        x[:] = -1
        return y * (outs[0] + 10 * outs[1] + 100 * outs[2])

    for transform in (jax.jit, filter_jit, lambda g: jax.jit(jax.checkpoint(g))):
        assert transform(outer)(1.0).tolist() == [321.0] * 3


# --- blocking ---


def test_what_a_call_blocks_for(waited):
    """It blocks for more than 1 MiB in NumPy arrays, and for nothing less."""
    f = filter_jit(lambda *xs: sum(x.mean() for x in xs))
    mebibyte = np.ones(1 << 18, np.float32)
    calls = [
        (False, [jnp.ones(1 << 19)]),
        (False, [np.ones(3, np.float32), jnp.ones(1 << 19)]),
        (False, [mebibyte]),
        (True, [mebibyte, np.ones(1, np.float32)]),
    ]
    for blocks, xs in calls:
        f(*xs)
        waited.clear()
        f(*xs)
        assert bool(waited) is blocks


def test_a_call_in_a_trace_blocks_for_nothing(waited):
    """Tracers of `jax.jit` have no memory to protect."""
    f = filter_jit(lambda x, y: x + y.mean())
    y = np.ones(1 << 19, np.float32)
    jax.jit(lambda x: f(x, y))(jnp.ones(()))
    assert waited == []


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_calls_that_are_not_asynchronous_block(waited, asynchronous, ahead):
    """`asynchronous=False` blocks as Equinox does; the default returns early."""
    f = filter_jit(lambda x: x + 1, asynchronous=asynchronous)
    f = f.lower(jnp.ones(3)).compile() if ahead else f
    for _ in range(3):
        waited.clear()
        f(jnp.ones(3))
        assert bool(waited) is not asynchronous


def test_calls_with_host_callbacks_block(waited):
    """Functions with `error_if`, callbacks or prints block; those named so do not."""

    def blocks(f):
        jitted = filter_jit(f)
        jitted(jnp.ones(3))
        waited.clear()
        jitted(jnp.ones(3))
        return bool(waited)

    def callback(x):
        return jnp.tanh(x)

    foreign = jax.extend.core.Primitive("foreign")
    foreign.def_abstract_eval(lambda x: x)
    mlir.register_lowering(foreign, mlir.lower_fun(callback, multiple_results=False))
    checked = eqx.internal.noinline(lambda x: eqx.error_if(x, x < 0, "negative"))
    assert blocks(lambda x: eqx.error_if(x, x < 0, "negative"))
    assert blocks(lambda x: jax.pure_callback(lambda x: x, x, x))
    assert blocks(lambda x: checked(x))  # of which the jaxpr shows nothing
    assert blocks(lambda x: (jax.debug.callback(lambda x: None, x), x)[1])
    assert not blocks(callback)
    assert not blocks(lambda x: jax.jit(callback)(x))
    assert not blocks(lambda x: foreign.bind(x))
    assert not blocks(lambda x: jnp.linalg.inv(jnp.eye(3)) @ x)  # a custom call


def test_a_callback_has_run_when_the_call_returns():
    """Effects without a result are waited for."""
    seen = []

    @filter_jit
    def f(x):
        jax.debug.callback(lambda y: seen.append(float(y)), late(x))

    for i in range(4):
        f(jnp.asarray(float(i)))
        assert seen == [float(j) for j in range(i + 1)]
