"""Regression tests: faults found in an eleventh adversarial review of the C files."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit

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
