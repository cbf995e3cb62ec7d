"""Key paths of jitted functions, which are those of Equinox's wrapper."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

import eqx_fastjit


def _shift(a, x):
    return a + x


class Step(eqx.Module):
    w: jax.Array
    theirs = eqx.filter_jit(lambda self, x: self.w * x)
    ours = eqx_fastjit.filter_jit(lambda self, x: self.w * x)


CALLABLES = {
    "layer": lambda: eqx.nn.Linear(2, 3, key=jax.random.key(0)),
    "arrays after statics": lambda: eqx.Partial(_shift, jnp.ones(2)),
    "nested": lambda: eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0)),
    "no array": lambda: _shift,
}


def paths_of_arrays(tree):
    """The path of each array. (Equinox's wrapper has its name as one more leaf.)"""
    leaves, _ = jtu.tree_flatten_with_path(tree)
    return [(path, x.shape) for path, x in leaves if eqx.is_array(x)]


@pytest.mark.parametrize("name", CALLABLES)
def test_arrays_have_the_paths_that_they_have_in_equinox(name):
    fun = CALLABLES[name]()
    theirs = {"jitted": [eqx.filter_jit(fun)]}
    ours = {"jitted": [eqx_fastjit.filter_jit(fun)]}
    assert paths_of_arrays(ours) == paths_of_arrays(theirs)


def test_so_have_those_of_a_bound_method():
    step = Step(jnp.ones(2))
    assert paths_of_arrays(step.ours) == paths_of_arrays(step.theirs) != []


def test_a_tree_function_may_put_anything_in_place_of_its_leaves():
    """A tuple may be taken for a leaf: those of a jitted Module are in one."""
    jitted = eqx_fastjit.filter_jit(CALLABLES["layer"]())
    found = []
    mapped = jax.tree.map(
        lambda x: found.append(x) or x,
        jitted,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    assert [type(x) for x in found] == [tuple]
    x = jnp.ones(2)
    assert jnp.array_equal(mapped(x), jitted(x))
    # As `eqx.partition`, `jax.vmap` and others do.
    placeholder = jax.tree.map(
        lambda _: None, jitted, is_leaf=lambda x: isinstance(x, tuple)
    )
    assert jtu.tree_leaves(placeholder) == []
    arrays, rest = eqx.partition(jitted, eqx.is_array)
    assert jnp.array_equal(eqx.combine(arrays, rest)(x), jitted(x))
    assert eqx.tree_equal(jax.tree.map(lambda x: x, jitted), jitted)
