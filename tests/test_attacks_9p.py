"""Regression tests: faults found in a ninth adversarial review of the engine."""

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


def test_decimals_and_times_that_are_equal_and_differ(engine):
    """`==` compares neither the digits of a `Decimal` nor the zone of an instant."""
    _check(
        """
        import datetime
        from decimal import Decimal

        class Holder(eqx.Module):
            w: jax.Array
            value: object = eqx.field(static=True)

        @eqx_fastjit.filter_jit
        def of_leaf(x, value):
            traces.append(value)
            return x, repr(value)

        @eqx_fastjit.filter_jit
        def of_field(holder):
            traces.append(holder.value)
            return repr(holder.value)

        def make():
            timezone, hours = datetime.timezone, datetime.timedelta(hours=1)
            zones = [
                timezone.utc,
                timezone(datetime.timedelta(0), "Z"),
                timezone(hours),
                timezone(hours, "CET"),
            ]
            noon = datetime.datetime(2020, 1, 1, 12)
            return [
                *map(Decimal, ["1.0", "1.00", "1", "0", "-0", "0E5", "NaN"]),
                *zones,
                *[noon.replace(tzinfo=zone) for zone in (None, *zones)],
                noon.replace(tzinfo=timezone(hours), hour=13),
                noon.replace(fold=1),
                datetime.time(12),
                datetime.time(12, fold=1),
                datetime.time(12, tzinfo=timezone.utc),
                datetime.time(13, tzinfo=timezone(hours)),
            ]

        traces = []
        for _ in range(2):  # equal and not identical, the second time
            for value in make():
                assert of_leaf(X, value)[1] == repr(value)
                assert of_field(Holder(X, value)) == repr(value)
                assert of_field(Holder(X, (value,))) == repr((value,))
        assert len(traces) == 3 * len(make())

        # It has no hash.
        try:
            of_leaf(X, Decimal("sNaN"))
        except (TypeError, ValueError):
            pass
        else:
            assert False
        """,
        engine,
    )


def test_treedefs_whose_static_data_is_equal_and_differs(engine):
    """For their `==`, keys and static data 1, 1.0 and True are the same."""
    _check(
        """
        class Node(eqx.Module):
            w: object
            n: object = eqx.field(static=True)

        class Holder(eqx.Module):
            w: jax.Array
            value: object = eqx.field(static=True)

        @eqx_fastjit.filter_jit
        def of_leaf(x, value):
            traces.append(value)
            return x, repr(jax.tree.unflatten(value, [2]))

        @eqx_fastjit.filter_jit
        def of_field(holder):
            traces.append(holder.value)
            return repr(jax.tree.unflatten(holder.value, [2]))

        def make():
            numbers = (1, 1.0, True)
            nodes = [{n: 0} for n in numbers] + [Node(0, n) for n in numbers]
            return [0, *nodes, *[[x, None] for x in nodes], (0,), [0]]

        traces = []
        for _ in range(2):  # equal and not identical, the second time
            for tree in make():
                value = jax.tree.structure(tree)
                right = repr(jax.tree.unflatten(value, [2]))
                assert of_leaf(X, value)[1] == right
                assert of_field(Holder(X, value)) == right
        assert len(traces) == 2 * 15, len(traces)
        """,
        engine,
    )
