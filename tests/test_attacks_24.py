"""Regression tests: faults found in a twenty-fourth adversarial review.

What a call holds while Python compares its statics.
"""

import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit


class Leaf(eqx.Module):
    w: jax.Array
    n: object = eqx.field(static=True)


def _text(i):
    return "".join(["a text that nothing else holds ", str(i)])


@pytest.mark.parametrize(
    "make",
    [lambda: pathlib.PurePosixPath("a/b"), lambda: jtu.DictKey(pathlib.PurePath("a"))],
)
def test_a_tree_that_is_not_read_again_is_compared_by_python(make, engine):
    # The walk held none of its statics meanwhile, and others were freed.
    @filter_jit
    def f(tree, texts, n):
        return tree.w * n

    x = jnp.arange(3.0)
    tree = Leaf(x, make())
    f(Leaf(x, make()), list(map(_text, range(20))), 2)
    texts = list(map(_text, range(20)))
    for _ in range(40):
        f(tree, texts, 1)  # learnt
    texts = list(map(_text, range(20)))
    counts = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_name == "__eq__" and texts:
            counts.append(sys.getrefcount(texts[-1]))
            texts.clear()

    sys.setprofile(profile)
    try:
        out = f(tree, texts, 2)
    finally:
        sys.setprofile(None)
    assert out.tolist() == [0, 2, 4]
    # Those of the list, of this function's argument, and of the walk.
    assert counts and counts[0] >= 3
