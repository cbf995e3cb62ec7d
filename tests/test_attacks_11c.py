"""Regression tests: faults found in an eleventh adversarial review of the C files."""

import gc
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit._engine import native

from .traces import count_traces


# --- hashes ---


class Rate:
    """Its hash is that of a number: for 0.5 and 0.25, only high bits of it differ."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Rate and self.value == other.value

    def __hash__(self):
        return hash(self.value)


class Scaled(eqx.Module):
    rate: Rate = eqx.field(static=True)


def test_a_static_is_changed_so_that_only_high_bits_of_its_hash_differ():
    """The next call had the trace of before."""
    f, traces = count_traces(lambda x, y: x * y[0].value * y[1].rate.value)
    rate = Rate(0.5)
    for value in (0.5, 0.25, 0.75, -1.5, 1.0):
        rate.value = value
        for y in ((rate, Scaled(rate)), (Rate(value), Scaled(Rate(value)))):
            assert f(jnp.ones(()), y) == value**2
    assert len(traces) == 5


# --- compiled calls that have no end ---


class Node:
    """Calls something when it is flattened."""

    def __init__(self, x, call=None):
        self.x = x
        self.call = call


def _flatten(node):
    if node.call is not None:
        node.call(node)
    return (node.x,), None


jax.tree_util.register_pytree_node(Node, _flatten, lambda _, children: Node(*children))


def test_compiled_calls_within_calls_without_end():
    """Each of hundreds of levels tried the Python walk in turn: it hung."""
    x = jnp.ones(())
    compiled = filter_jit(lambda node: node.x + 1).lower(Node(x)).compile()
    assert compiled(Node(x)) == 2
    end = time.monotonic() + 60

    def call(node):
        if time.monotonic() > end:
            raise KeyboardInterrupt("it hangs")
        compiled(node)

    with pytest.raises(RecursionError):
        compiled(Node(x, call))
    assert compiled(Node(x)) == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_an_error_in_calls_within_calls(compiled):
    """Each level tried the Python walk in turn: 2 to the power of their number."""
    calls = []

    def call(node):
        calls.append(None)
        if len(calls) > 1000:
            raise KeyboardInterrupt("it does not end")
        if node.x == 0:
            raise ValueError("the innermost")
        f(Node(node.x - 1, call))

    f = filter_jit(lambda node: jnp.ones(()))
    f = f.lower(Node(0)).compile() if compiled else f
    f(Node(0))
    with pytest.raises(ValueError, match="the innermost"):
        f(Node(20, call))
    assert f(Node(0)) == 1


# --- what costs more the more there is of it ---


def _seconds_to_look_up(values):
    """The least of three times."""
    f = filter_jit(lambda x: x)
    table: Any = f._function.table
    for value in values:
        table.get(f._function, (value,))
    assert len(table) == len(values)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for value in values:
            table.get(f._function, (value,))
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.one_engine
def test_floats_are_looked_up_as_quickly_as_integers():
    """One at the end of a signature had its whole table to go through."""
    integers = _seconds_to_look_up(list(range(2000)))
    assert _seconds_to_look_up([float(i) for i in range(2000)]) < 5 * integers


@pytest.mark.one_engine
def test_many_classes_die():
    """The table of types was made anew for each: 3 s for 16,000."""

    def live_and_die(call):
        classes = [type(f"Class{i}", (), {}) for i in range(16_000)]
        call([cls() for cls in classes])
        del classes
        start = time.perf_counter()
        gc.collect()
        return time.perf_counter() - start

    filter_jit(lambda x: x)  # loads the engine
    alone = live_and_die(lambda instances: None)
    known = live_and_die(lambda instances: native().arrays_of((instances,)))
    assert known < 5 * alone + 0.2
