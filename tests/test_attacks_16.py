"""Regression tests: faults found in a sixteenth adversarial review: semantics."""

import collections
import dataclasses
import sys
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

from eqx_fastjit import filter_jit
from tests.traces import count_traces


X = np.arange(3.0, dtype=np.float32)


class Holder(eqx.Module):
    """A static field."""

    x: typing.Any
    value: typing.Any = eqx.field(static=True)


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int


Point = collections.namedtuple("Point", ["x", "y"])
Pair = collections.namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize(
    "trees",
    [
        [Point(1, 2), Pair(1, 2), (1, 2)],
        [[Point(1, None)], [Point(1, 2)], [Pair(1, (2,))]],
        [{"a": Point(1, {})}, {"a": Pair(1, {})}, {"b": Point(1, {})}],
        [optax.adam(1e-3).init(X), optax.sgd(1e-3).init(X)],
    ],
)
def test_treedefs_of_named_tuples(trees):
    f, traces = count_traces(lambda h, treedef: (str(h.value), str(treedef)))
    for _ in range(2):
        for tree in trees:
            treedef = jtu.tree_structure(tree)
            for _ in range(2):
                assert f(Holder(X, treedef), treedef) == (str(treedef),) * 2
    assert len(traces) == len(trees)


def test_a_compiled_call_whose_result_would_show_a_change():
    factors = [2]
    compiled = filter_jit(lambda h: h).lower(Holder(X, factors)).compile()
    assert compiled(Holder(X, [2])).value == [2]
    factors.append(3)
    with pytest.raises(TypeError, match="lowered for: a static list was changed since"):
        compiled(Holder(X, [2]))
    factors.pop()
    assert compiled(Holder(X, [2])).value == [2]


def test_a_compiled_call_does_not_keep_its_arguments():
    compiled = filter_jit(lambda h: h.x).lower(Holder(jnp.ones(3), [2])).compile()
    assert compiled._call.expected.found.arrays == []


def test_a_change_that_the_structure_shows_on_both_sides():
    factors = [2]
    compiled = filter_jit(lambda h: h.x).lower(Holder(X, factors)).compile()
    factors.append(3)
    message = r"static data in the pytree structure changed:(?s:.*)\[2, 3\]"
    with pytest.raises(TypeError, match=message):
        compiled(Holder(X, factors))


def test_options_that_are_refused_are_not_suggested():
    with pytest.raises(TypeError, match="inline") as info:
        filter_jit(lambda x: x, inlined=True)
    assert "argnums" not in str(info.value)


def test_results_without_jit_are_copies_in_the_same_order():
    kept = {"b": [1], "a": 2}
    for jit in (eqx.filter_jit, filter_jit):
        f = jit(lambda x: (x, kept))
        for _ in range(2):  # the second time, it has been traced before
            with jax.disable_jit():
                _, out = f(X)
                _, again = jax.vmap(f, out_axes=(0, None))(X)
            assert list(out) == list(again) == ["a", "b"]
            out["b"].append(2)
            assert kept == {"b": [1], "a": 2}
            f(X)


def _dataclass():
    @dataclasses.dataclass(frozen=True)
    class Scale:
        n: typing.Any

    return Scale


def test_a_static_dataclass_that_becomes_a_node():
    cls = _dataclass()
    f, traces = count_traces(lambda scale: scale)
    before = [f(cls(2)) for _ in range(2)]
    jtu.register_dataclass(cls, ["n"], [])
    after = [f(cls(2)) for _ in range(2)]
    assert before + after == [cls(2)] * 4
    assert f(cls(X)).n.tolist() == X.tolist()
    assert len(traces) == 3


def test_a_dataclass_below_a_static_module_that_becomes_a_node():
    cls = _dataclass()
    f, _ = count_traces(lambda h: jtu.tree_leaves(h.value))
    held = Holder(X, Holder(cls(2), None))
    assert f(held) == [cls(2)]
    jtu.register_dataclass(cls, ["n"], [])
    assert f(held) == [2]


def test_equal_slices_as_leaves_share_a_trace():
    """The native engine read the one that was traced as if it was in a static field."""
    f, traces = count_traces(lambda x, s: x)
    if sys.version_info < (3, 12):  # where a slice has no hash
        with pytest.raises(TypeError, match="cannot be hashed"):
            f(X, slice(0, Frozen(1)))
        return
    for n in (1, 1, 1, 2):
        f(X, slice(0, Frozen(n)))
    assert len(traces) == 2


def test_errors_about_the_structure_of_jitted_functions_say_which():
    f, g = filter_jit(eqx.nn.Lambda(jnp.sin)), filter_jit(eqx.nn.Lambda(jnp.cos))
    with pytest.raises(ValueError, match=r"fn='Lambda', .*function sin ") as info:
        jax.tree.map(lambda *x: x, f, g)
    assert "function cos " in str(info.value)
    assert " object at " not in str(jtu.tree_structure(filter_jit(len)))
