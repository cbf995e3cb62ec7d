"""JAX's transforms and contexts, around jitted functions and inside of them.

They work around calls and inside of them as they do without `filter_jit`.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from eqx_fastjit import filter_jit
from tests.support.modules import Holder
from tests.support.traces import count_traces


X = jnp.arange(1.0, 4.0)


def f(x, n=2):
    """A function with a static argument."""
    return jnp.sin(x) * n


def _scan(g):
    return lambda x: jax.lax.scan(lambda c, _: (g(c), g(x)), x, length=3)


def _while(g):
    return lambda x: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, g(c[1])), (0, x)
    )


TRANSFORMS = {
    "jit": jax.jit,
    "grad": lambda g: jax.grad(lambda x: g(x).sum()),
    "value_and_grad": lambda g: jax.value_and_grad(lambda x: g(x).sum()),
    "vmap": jax.vmap,
    "vmap of vmap": lambda g: lambda x: jax.vmap(jax.vmap(g))(x[:, None]),
    "jvp": lambda g: lambda x: jax.jvp(g, (x,), (x,)),
    "vjp": lambda g: lambda x: jax.vjp(g, x)[1](x),
    "linearize": lambda g: lambda x: jax.linearize(g, x)[1](x),
    "hessian": lambda g: jax.hessian(lambda x: g(x).sum()),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "checkpoint": lambda g: jax.grad(lambda x: jax.checkpoint(g)(x).sum()),
    "scan": _scan,
    "while_loop": _while,
    "fori_loop": lambda g: lambda x: jax.lax.fori_loop(0, 3, lambda _, c: g(c), x),
    "cond": lambda g: lambda x: jax.lax.cond(x[0] > 0, g, lambda x: x, x),
    "map": lambda g: lambda x: jax.lax.map(g, x),
    "eval_shape": lambda g: lambda x: jax.eval_shape(g, x),
    "custom_jvp": lambda g: _with_custom_jvp(g),
    "custom_vjp": lambda g: _with_custom_vjp(g),
    "filter_grad": lambda g: eqx.filter_grad(lambda x: g(x).sum()),
    "filter_vmap": eqx.filter_vmap,
    "filter_checkpoint": eqx.filter_checkpoint,
    "filter_closure_convert": lambda g: lambda x: eqx.filter_closure_convert(g, x)(x),
    "ensure_compile_time_eval": lambda g: _at_compile_time(g),
}


def _with_custom_jvp(g):
    h = jax.custom_jvp(g)
    h.defjvp(lambda xs, ts: (g(*xs), ts[0] * 5))
    return jax.grad(lambda x: h(x).sum())


def _with_custom_vjp(g):
    h = jax.custom_vjp(lambda x: g(x))
    h.defvjp(lambda x: (g(x), x), lambda x, t: (t * x,))
    return jax.grad(lambda x: h(x).sum())


def _at_compile_time(g):
    def at_compile_time(x):
        with jax.ensure_compile_time_eval():
            return x * float(g(X)[0])

    return jax.jit(at_compile_time)


def _assert_close(a, b):
    def close(x, y):
        if isinstance(x, jax.ShapeDtypeStruct):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)

    jax.tree.map(close, a, b)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_around_a_jitted_function(name):
    """A transform of a jitted function is that of the function."""
    transform, jitted = TRANSFORMS[name], filter_jit(f)
    for _ in range(2):
        _assert_close(transform(jitted)(X), transform(f)(X))
    _assert_close(jitted(X), f(X))


@pytest.mark.parametrize("name", sorted(TRANSFORMS.keys() - {"eval_shape"}))
def test_inside_of_a_jitted_function(name):
    """A jitted transform is the transform; also of a jitted function."""
    transform = TRANSFORMS[name]
    for g in (f, filter_jit(f)):
        outer = filter_jit(transform(g))
        for _ in range(2):
            _assert_close(outer(X), transform(f)(X))


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_a_call_in_a_trace_is_one_equation():
    """Comparing statics and flattening leave nothing in the jaxpr around a call."""
    static = np.arange(3)
    jitted = filter_jit(lambda m: m.x * 2)
    jaxpr = jax.make_jaxpr(lambda x: jitted(Holder(x, static)))(X)
    assert len(jaxpr.eqns) == 1


def test_tracers_in_modules_and_closures():
    """Tracers are traced wherever they are: in arguments, and closed over."""
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    apply = filter_jit(lambda m, x: m(x))

    def loss(model, x):
        @filter_jit
        def closed(y):
            return apply(model, y).sum()

        return closed(x)

    grads = eqx.filter_grad(loss)(model, X)
    expected = eqx.filter_grad(lambda m, x: m(x).sum())(model, X)
    assert eqx.tree_equal(grads, expected, rtol=1e-6)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no references")
@pytest.mark.parametrize("jit", [jax.jit, lambda outer: outer], ids=["jit", "eager"])
def test_references(jit):
    """A function writes to a reference that was made outside of it."""

    @filter_jit
    def write(ref, x):
        ref[...] = ref[...] + x

    @jit
    def outer(x):
        ref = jax.new_ref(jnp.zeros(3))
        write(ref, x)
        write(ref, x)
        return ref[...]

    np.testing.assert_array_equal(outer(X), 2 * X)


def test_traces_are_shared_between_transforms():
    """The same signature is traced once, in whatever trace it is called."""
    g, traces = count_traces(lambda x, n: x * n)
    g(X, 2)
    jax.jit(lambda x: g(x, 2) + g(x, 2))(X)
    jax.lax.scan(lambda c, _: (g(c, 2), None), X, length=2)
    assert len(traces) == 1
    jax.vmap(lambda x: g(x, 2))(X[None])
    assert len(traces) == 1
    g(X, 3)
    assert len(traces) == 2


def test_integers_under_grad():
    """Integers have no gradient, and `float0` cotangents are let through."""
    g = filter_jit(lambda x, n: x * n.astype(x.dtype))
    n = jnp.arange(3)
    np.testing.assert_allclose(jax.grad(lambda x: g(x, n).sum())(X), n)
    _, dn = jax.grad(lambda x, n: g(x, n).sum(), (0, 1), allow_int=True)(X, n)
    assert dn.dtype == jax.dtypes.float0
    zero = np.zeros(3, jax.dtypes.float0)
    np.testing.assert_allclose(jax.jvp(g, (X, n), (X, zero))[1], [0, 2, 6])


def test_named_axes():
    """Collectives of an outer `vmap` can be used."""
    g, traces = count_traces(lambda x, n: x - jax.lax.pmean(x, "i") + n)
    for n in (1, 2, 1):
        out = jax.vmap(lambda x, n=n: g(x, n), axis_name="i")(X)
        np.testing.assert_allclose(out, X - 2 + n)
    assert len(traces) == 2


def test_checkify():
    """`checkify` around and inside of a jitted function."""

    def checks(x, n):
        checkify.check(x.sum() > 0, "not positive")
        return x * n

    g = filter_jit(checks)
    checked = checkify.checkify(lambda x: g(x, 2))
    for call in (checked, filter_jit(checked)):
        assert call(X)[0].get() is None
        assert "not positive" in call(-X)[0].get()


# --- contexts ---


def test_disable_jit():
    """Under `jax.disable_jit()` the function runs eagerly, with any arguments."""
    seen = []

    @filter_jit
    def g(x, n=2):
        seen.append(isinstance(x, jax.core.Tracer))
        return x * len(n) if isinstance(n, set) else x * n, n

    for _ in range(2):
        g(X)
        with jax.disable_jit():
            assert g(X)[0].tolist() == (2 * X).tolist()
            n = {1, 2}
            assert g(X, n)[1] == n
    assert seen == [True, False, False, False, False]


def test_results_without_jit_are_copies():
    """Containers of a result are then no more shared than otherwise."""
    kept = {"b": [1], "a": 2}
    g = filter_jit(lambda x: (x, kept))
    with jax.disable_jit():
        _, out = g(X)
        out["b"].append(2)
    assert kept == {"b": [1], "a": 2}


def test_debug_nans():
    """`jax.debug_nans` raises at the call, and leaves no filter of warnings."""
    g = filter_jit(lambda m, x: jnp.log(m(x)))
    m = eqx.nn.Identity()
    g(m, X)
    filters = [*warnings.filters]
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError):
            filter_jit(jnp.log, donate="all")(jnp.array(-1.0))
        assert warnings.filters == filters
        for _ in range(2):
            assert g(m, jnp.array(1.0)) == 0
            with pytest.raises(FloatingPointError, match="nan"):
                g(m, jnp.array(-1.0))
    assert jnp.isnan(g(m, jnp.array(-1.0)))


def test_checking_leaks():
    """`jax.checking_leaks` finds a leaked tracer, and nothing else."""
    leaked = []

    @filter_jit
    def g(x, leak):
        if leak:
            leaked.append(x)
        return x + 1

    with jax.checking_leaks():
        assert g(X, False).tolist() == [2, 3, 4]
        with pytest.raises(Exception, match=r"[Ll]eaked"):
            g(X, True)


def test_no_tracing():
    """`jax.no_tracing` refuses a new trace, and not a call that was traced."""
    g = filter_jit(lambda x: x + 1)
    g(X), g(X)
    with jax.no_tracing():
        assert g(X).shape == (3,)
        with pytest.raises(RuntimeError, match="re-tracing function"):
            g(jnp.ones(7))
    assert g(jnp.ones(7)).shape == (7,)


def test_enable_x64():
    """64-bit numbers are of the call's context."""
    enable_x64 = (
        jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    )
    g = filter_jit(lambda x, n: x * n)
    for _ in range(2):
        assert g(jnp.ones(2), 2).dtype == jnp.float32
        assert g(np.ones(2), 2).dtype == jnp.float32
        with enable_x64(True):
            assert g(jnp.ones(2), 2).dtype == jnp.float64
            assert g(np.ones(2), 2).dtype == jnp.float64


def test_default_device():
    """Results are on the default device of the call."""
    g = filter_jit(lambda n: jnp.full((2,), n))
    h = filter_jit(lambda x: x + 1)
    for device in (*jax.devices()[:3], jax.devices()[0]):
        with jax.default_device(device):
            assert g(1).devices() == h(jnp.ones(2)).devices() == {device}


def test_default_matmul_precision():
    """Options of a trace's context are part of its signature."""
    g, traces = count_traces(lambda x: x @ x)
    x = jnp.ones((2, 2))
    g(x)
    with jax.default_matmul_precision("highest"):
        g(x), g(x)
    g(x)
    assert len(traces) == 2


def test_options_of_jax_jit():
    """`inline`, `keep_unused` and `compiler_options` are those of `jax.jit`."""

    def steps(jit):
        g = jit(lambda x: x * 2, inline=True)
        jaxpr = jax.make_jaxpr(lambda x: g(x) + 1)(X)
        # From JAX 0.12 on, steps are inlined later, and `inline` is an option of each.
        return [(e.primitive.name, e.params.get("inline")) for e in jaxpr.eqns]

    assert steps(filter_jit) == steps(jax.jit)
    kept = filter_jit(lambda x, y: x, keep_unused=True)
    assert "%arg1" in kept.lower(X, X).as_text()
    refused = filter_jit(lambda x: x * 2, compiler_options={"no such option": "1"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such option"):
        refused(X)
