"""Regression tests: faults found in a fifth adversarial review of the engine."""

import numpy as np
import pytest

from tests.processes import run_code


_STATICS = """
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_fastjit
from tests.traces import count_traces


X = jnp.ones(())


class Holder(eqx.Module):
    x: jax.Array
    static: Any = eqx.field(static=True)
"""


def _check(code, engine):
    out = run_code(code, common=_STATICS, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_masks_of_arrays_in_static_fields(engine):
    _check(
        """
        f, traces = count_traces(lambda h: h.x * float(h.static.sum() or 0))

        def masked(mask):
            return Holder(X, np.ma.array([1.0], mask=[mask]))

        assert f(masked(False)) == 1 and f(masked(True)) == 0
        assert f(masked(False)) == 1 and f(masked(True)) == 0
        assert len(traces) == 2

        array = np.ma.array([1.0, 2.0], mask=[False, True])
        assert f(Holder(X, array)) == 1
        array.mask = [False, False]
        assert f(Holder(X, array)) == 3
        array[0] = np.ma.masked
        assert f(Holder(X, array)) == 2
        """,
        engine,
    )


def test_arrays_in_static_fields_that_were_donated(engine):
    """Deleted arrays are compared by identity first, as in Equinox, since they cannot
    be read.
    """
    _check(
        """
        f, traces = count_traces(lambda h: h.x * 2)
        keys = jax.random.key(0)
        for array in (jnp.ones(()), jnp.ones((2,)), keys, jnp.ones(())):
            before = len(traces)
            array.delete()
            for _ in range(2):
                assert f(Holder(X, array)) == 2
            assert len(traces) == before + 1
            f.clear_cache()
        # Used as a static before it was donated.
        array = jnp.ones(())
        f(Holder(X, array))
        before = len(traces)
        array.delete()
        assert f(Holder(X, array)) == 2
        assert len(traces) == before
        """,
        engine,
    )


@pytest.mark.skipif(
    np.finfo(np.longdouble).nmant != 63, reason="a `longdouble` without such bytes"
)
def test_static_numbers_with_bytes_that_mean_nothing(engine):
    """Only ten bytes of a `longdouble` are its value; the other six are garbage."""
    _check(
        """
        f, traces = count_traces(lambda h: h.x * 2)
        number = np.frombuffer(np.longdouble(0.1).tobytes(), np.uint8)
        padded = np.dtype([("a", np.int8), ("b", np.int64)], align=True)
        for garbage in range(4):
            data = np.full(16, garbage, np.uint8)
            data[:10] = number[:10]
            record = np.full(16, garbage, np.uint8).view(padded)
            record["a"], record["b"] = 1, 2
            array = data.view(np.longdouble)
            for static in (array[0], array, record):
                f(Holder(X, static))
        assert len(traces) == 3
        for value in (0.0, -0.0, 0.0):
            f(Holder(X, np.longdouble(value)))
        assert len(traces) == 5
        """,
        engine,
    )


def test_static_records_that_hold_objects(engine):
    """They are not compared by the address of an object, which another one may get."""
    _check(
        """
        f, traces = count_traces(lambda h: h.x * h.static["a"][0])
        for value in (1, 2, 1, 2):
            record = np.empty(1, [("a", object)])
            record["a"][0] = (value, 0)
            assert f(Holder(X, record[0])) == value
        assert len(traces) == 2
        """,
        engine,
    )


def test_static_sets_of_several_nans(engine):
    _check(
        """
        f, traces = count_traces(lambda h: h.x * len(h.static))
        one, two = float("nan"), float("nan")
        for _ in range(2):
            assert f(Holder(X, frozenset({one}))) == 1
            assert f(Holder(X, {one, two})) == 2
            assert f(Holder(X, frozenset({one, two}))) == 2
        assert len(traces) == 3
        """,
        engine,
    )


def test_a_static_memoryview_that_was_released(engine):
    _check(
        """
        f, traces = count_traces(lambda h: h.x * 2)
        view = memoryview(b"abc")
        f(Holder(X, view))
        view.release()
        assert f(Holder(X, view)) == 2 and f(Holder(X, view)) == 2
        assert len(traces) == 2
        """,
        engine,
    )


def test_frozen_dataclasses_that_are_changed_all_the_same(engine):
    """The trace refers to the changed object, so an equal of the old one needs a new
    trace.
    """
    _check(
        """
        import dataclasses

        @dataclasses.dataclass(frozen=True)
        class Config:
            k: int

        class Slots(Config):
            pass

        for cls in (Config, dataclasses.dataclass(frozen=True, slots=True)(Slots)):
            f, traces = count_traces(lambda h: h.static)
            config = cls(1)
            assert f(Holder(X, config)).k == 1
            object.__setattr__(config, "k", 5)
            assert f(Holder(X, cls(1))).k == 1
            assert f(Holder(X, config)).k == 5
            assert f(Holder(X, cls(1))).k == 1
        """,
        engine,
    )
