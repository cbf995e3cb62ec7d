"""JAX's configuration contexts have the same effect as under `equinox.filter_jit`."""

import logging
import os
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

from eqx_fastjit import filter_jit


def test_disable_jit():
    seen = []

    @filter_jit
    def f(x, n=2):
        seen.append(isinstance(x, jax.core.Tracer))
        return x * n, n

    for _ in range(2):
        f(jnp.ones(2))
        with jax.disable_jit():
            out, n = f(jnp.ones(2))
            assert out.tolist() == [2, 2]
            assert n == 2
    f(jnp.ones(2))
    assert seen == [True, False, False]


def test_debug_nans():
    f = filter_jit(lambda m, x: jnp.log(m(x)))
    m = eqx.nn.Identity()
    for _ in range(3):
        f(m, jnp.array(1.0))
    with jax.debug_nans(True):
        for _ in range(3):
            assert f(m, jnp.array(1.0)) == 0
            with pytest.raises(FloatingPointError, match="nan"):
                f(m, jnp.array(-1.0))
    assert jnp.isnan(f(m, jnp.array(-1.0)))


def test_checking_leaks():
    leaked = []

    @filter_jit
    def f(x, leak):
        if leak:
            leaked.append(x)
        return x + 1

    with jax.checking_leaks():
        assert f(jnp.array(1.0), False) == 2
        with pytest.raises(Exception, match=r"[Ll]eaked"):
            f(jnp.array(1.0), True)


def test_no_tracing():
    f = filter_jit(lambda x: x + 1)
    f(jnp.ones(2))
    f(jnp.ones(2))
    with jax.no_tracing(), pytest.raises(RuntimeError, match="re-tracing function"):
        f(jnp.ones(3))
    f(jnp.ones(3))


def _enable_x64(value):
    try:
        return jax.enable_x64(value)
    except AttributeError:  # before JAX 0.8
        from jax.experimental import enable_x64

        return enable_x64(value)


def test_enable_x64():
    f = filter_jit(lambda x, n: x * n)
    assert f(jnp.ones(2), 2).dtype == jnp.float32
    with _enable_x64(True):
        x = jnp.ones(2)
        assert f(x, 2).dtype == jnp.float64
        assert f(x, 2).dtype == jnp.float64
    assert f(jnp.ones(2), 2).dtype == jnp.float32


def test_default_device():
    f = filter_jit(lambda n: jnp.full((2,), n))
    g = filter_jit(lambda x: x + 1)
    x = jnp.ones(2)
    for device in (*jax.devices()[:3], jax.devices()[0]):
        with jax.default_device(device):
            for _ in range(2):
                assert f(1).devices() == {device}
                assert g(jnp.ones(2)).devices() == {device}
    assert g(x).devices() == {jax.devices()[0]}


def test_default_matmul_precision():
    traces = 0

    @filter_jit
    def f(x):
        nonlocal traces
        traces += 1
        return x @ x

    x = jnp.ones((2, 2))
    f(x)
    with jax.default_matmul_precision("highest"):
        f(x)
        f(x)
    f(x)
    assert traces == 2


def test_log_compiles(caplog):
    def a_function_of_mine(x):
        return x * 3

    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        filter_jit(a_function_of_mine)(jnp.ones(2))
    assert "a_function_of_mine" in caplog.text


def test_checkify():
    f = filter_jit(lambda x: checkify.check(x > 0, "not positive"))
    checked = checkify.checkify(lambda x: (f(x), x)[1])
    error, _ = checked(jnp.array(1.0))
    assert error.get() is None
    error, _ = checked(jnp.array(-1.0))
    assert "not positive" in error.get()
    inside = filter_jit(checkify.checkify(lambda x: (checkify.check(x > 0, "no"), x)))
    assert "no" in inside(jnp.array(-1.0))[0].get()


def test_failing_callback_of_the_user_is_raised_and_logged(caplog):
    def fails(x):
        raise ZeroDivisionError("mine")

    f = filter_jit(lambda x: jax.pure_callback(fails, x, x))
    with pytest.raises(Exception, match="ZeroDivisionError: mine"):
        f(jnp.ones(2))
    assert "pure_callback failed" in caplog.text


def test_equinox_errors_are_not_logged(caplog):
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
    for _ in range(3):
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(jnp.array(-1.0))
    assert "pure_callback failed" not in caplog.text


_ON_ERROR = """
import equinox as eqx, jax.numpy as jnp, eqx_fastjit
f = eqx_fastjit.filter_jit(lambda x: eqx.error_if(x, x < 0, "negative") * 2)
print(f(jnp.array(1.0)), f(jnp.array(1.0)))
try:
    print(f(jnp.array(-1.0)))
except RuntimeError as e:
    print(type(e).__name__)
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [("raise", "EquinoxRuntimeError"), ("nan", "nan"), ("off", "-2.0")],
)
def test_eqx_on_error(value, expected, engine):
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", _ON_ERROR],
        env=dict(os.environ, EQX_ON_ERROR=value),
        capture_output=True,
        text=True,
    )
    if value == "off" and "Unrecognised value for `EQX_ON_ERROR`" in out.stderr:
        pytest.skip("not in this Equinox")
    assert out.stdout.split() == ["2.0", "2.0", expected]
    assert out.stderr == ""


def test_eqx_on_error_breakpoint(engine):
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_ON_ERROR)],
        env=dict(os.environ, EQX_ON_ERROR="breakpoint"),
        input="c\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.startswith("2.0 2.0")
    assert "Opening a breakpoint" in out.stdout
    assert "negative" in out.stdout
    assert "nan" in out.stdout
