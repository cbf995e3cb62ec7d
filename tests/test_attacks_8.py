"""Regression tests: faults found in an eighth adversarial review of the engine."""

from tests.processes import run_code


_COMMON = """
import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


X = jnp.arange(1.0, 4.0)
"""


def _check(code, engine):
    out = run_code(code, common=_COMMON, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_proxies_of_functions(engine):
    """They claim to be functions, as those of `wrapt.decorator` do."""
    _check(
        """
        class Proxy:
            def __init__(self, inner, **shown):
                vars(self).update(inner=inner, **shown)

            @property
            def __class__(self):
                return type(self.inner)

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def __get__(self, instance, owner=None):
                return Proxy(self.inner.__get__(instance, owner))

            def __call__(self, *args, **kwargs):
                return self.inner(*args, **kwargs)

        def double(x, n=2):
            traces.append(n)
            return x * n

        class Model(eqx.Module):
            w: jax.Array

            def call(self, x, n=2):
                traces.append(n)
                return self.w * x * n

            __call__ = Proxy(call)

        for proxy in (
            Proxy(double),
            Proxy(double, __wrapped__=double),
            Model(jnp.ones(3)),
        ):
            traces = []
            f = eqx_fastjit.filter_jit(proxy)
            assert (f(X) == 2 * X).all() and (f(X) == 2 * X).all()
            assert (f(X, 3) == 3 * X).all() and (f(X, n=3) == 3 * X).all()
            assert traces == [2, 3]
            assert (f(X, 2) == 2 * X).all()
            assert (f.lower(X).compile()(X) == 2 * X).all()
        """,
        engine,
    )
