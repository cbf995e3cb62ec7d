"""Regression tests: faults found in a seventh adversarial review of the engine."""

from tests.processes import run_code


_COMMON = """
import gc
import threading

import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


X = jnp.ones(())


class Holder(eqx.Module):
    x: jax.Array
    static: object = eqx.field(static=True)
"""


def _check(code, engine):
    out = run_code(code, common=_COMMON, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_a_static_that_cannot_be_copied(engine):
    """It has an `==` of its own and no hash, and so is compared with a copy."""
    _check(
        """
        class Config:
            def __init__(self, scale, other):
                self.scales = [scale]
                self.other = other

            def __eq__(self, other):
                ours = self.scales, type(self.other)
                return ours == (other.scales, type(other.other))

        class Strict(Config):
            def __eq__(self, other):
                return vars(self) == vars(other)

        class Reads(Config):
            def __getattr__(self, name):
                return self.__dict__["missing"][name]

        class Activation:
            pass

        activation = Activation()

        @eqx_fastjit.filter_jit
        def f(holder):
            traces.append(holder.static.scales)
            return holder.x * holder.static.scales[0]

        # A lock cannot be copied. A copy of an `Activation` is another one. And an
        # empty object that is copied has no `missing`, though it is asked for one.
        cases = [
            (Config, threading.Lock),
            (Strict, lambda: activation),
            (Reads, lambda: None),
        ]
        for cls, make_other in cases:
            traces = []
            static = cls(2, make_other())
            assert f(Holder(X, static)) == 2
            assert f(Holder(X, static)) == 2
            assert f(Holder(X, cls(2, make_other()))) == 2
            assert len(traces) == 1
            static.scales[0] = 3
            assert f(Holder(X, static)) == 3
            static.scales = [4]
            assert f(Holder(X, static)) == 4
            assert len(traces) == 3
            # The trace for 2 may refer to what was changed.
            assert f(Holder(X, cls(2, make_other()))) == 2
        """,
        engine,
    )


def test_a_static_that_releases_what_it_holds(engine):
    """A copy of it that shares what it holds would release that, too."""
    _check(
        """
        class Config:
            def __init__(self):
                self.n = 0
                self.lock = threading.Lock()
                self.lock.acquire()

            def __eq__(self, other):
                return self.n == other.n

            def __del__(self):
                self.lock.release()

        @eqx_fastjit.filter_jit
        def f(holder):
            return holder.x

        static = Config()
        for n in range(3):
            static.n = n
            f(Holder(X, static))
            f.clear_cache()
        jax.clear_caches()
        gc.collect()
        assert static.lock.locked()
        """,
        engine,
    )
