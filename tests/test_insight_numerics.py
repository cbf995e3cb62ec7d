"""Jitted against eager results: planted differences, and programs without any."""

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit.insight import compare_eager
from eqx_fastjit.insight._numerics import _ulps, compare


KINDS = {
    "ours": eqx_fastjit.filter_jit,
    "equinox": eqx.filter_jit,
    "jax": jax.jit,
    "plain": lambda f: f,
}


def traced(x):
    return isinstance(x, jax.core.Tracer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_difference(kind):
    def f(x):
        shift = 2.0**-20 if traced(x) else 0.0
        return {"same": x * 2, "other": (x + shift, jnp.int32(4 if traced(x) else 3))}

    out = compare_eager(KINDS[kind](f), jnp.array([1.0, 2.0]))
    leaves = {leaf.path: leaf for leaf in out.leaves}
    assert set(leaves) == {"result['same']", "result['other'][0]", "result['other'][1]"}
    assert not out.same and leaves["result['same']"].same
    other = leaves["result['other'][0]"]
    assert other.absolute == 2.0**-20 and other.relative == 2.0**-20
    assert other.ulps == 8 and other.different == 2  # 2^-20 / 2^-23 at 1
    assert leaves["result['other'][1]"].absolute == 1
    assert "different" in str(out) and "result['other'][0]" in str(out)


def test_nothing_to_find():
    out = compare_eager(lambda x, n: {"x": x * n, "n": n, "s": "a"}, jnp.ones(3), 2)
    assert out.same and "the same, bit for bit" in str(out)


@pytest.mark.parametrize("kind", ["ours", "equinox", "jax"])
def test_what_is_donated_is_copied(kind):
    options = {"donate_argnums": 0} if kind == "jax" else {"donate": "all"}
    x = jnp.ones(3)
    assert compare_eager(KINDS[kind](lambda x: x + 1, **options), x).same
    assert not x.is_deleted()


def test_methods_and_modules():
    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x

        @eqx_fastjit.filter_jit
        def ours(self, x, *, n):
            return Model(self.w * x * n)

        @eqx.filter_jit
        def theirs(self, x, *, n):
            return Model(self.w * x * n)

    m = Model(jnp.ones(2))
    assert compare_eager(m, jnp.ones(2)).same
    for method in (m.ours, m.theirs):
        (leaf,) = compare_eager(method, jnp.ones(2), n=2).leaves
        assert leaf.path == "result.w" and leaf.same


def test_disable_jit():
    seen = []

    @jax.jit
    def inner(x):
        seen.append(traced(x))
        return x * 2

    assert compare_eager(lambda x: inner(x), jnp.ones(2), disable_jit=True).same
    assert False in seen


@pytest.mark.parametrize(
    ("jitted", "eager", "expected"),
    [
        (np.float32([1, np.nan]), np.float32([1, 2]), {"nan_mismatches": 1}),
        (np.float32([np.nan]), np.float32([np.nan]), {"different": 0}),
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), {"inf_mismatches": 1}),
        (np.float32([np.inf]), np.float32([np.inf]), {"different": 0, "ulps": 0}),
        (np.float32([0.0]), np.float32([-0.0]), {"ulps": 1, "absolute": 0.0}),
        (np.float64([1 + 2**-52]), np.float64([1]), {"ulps": 1}),
        (np.float16([2]), np.float16([1]), {"ulps": 1024, "relative": 1.0}),
        (np.float64([-1e308]), np.float64([1e308]), {"different": 1, "relative": 2.0}),
        (
            np.array([257, 2], ml_dtypes.bfloat16),
            np.array([256, 2], ml_dtypes.bfloat16),
            {"ulps": 0},
        ),
        (
            np.array([258], ml_dtypes.bfloat16),
            np.array([256], ml_dtypes.bfloat16),
            {"ulps": 1, "absolute": 2.0},
        ),
        (np.complex64([1 + 2j]), np.complex64([1 + 4j]), {"absolute": 2.0}),
        (np.int64([2**62]), np.int64([-(2**62)]), {"absolute": 2.0**63}),
        (np.array([True, False]), np.array([True, True]), {"different": 1}),
        (np.float32([1]), np.float32([1, 2]), {"different": 2}),
        (np.float32([1]), np.float16([1]), {"jitted": "float32[1]", "same": False}),
        (3, 3.0, {"jitted": "int", "eager": "float", "same": False}),
        (True, 1, {"same": False}),
        ("a", "b", {"jitted": "'a'", "eager": "'b'", "same": False}),
        (0.0, -0.0, {"same": False}),
        (np.float32([]), np.float32([]), {"same": True}),
    ],
)
def test_leaves(jitted, eager, expected):
    (leaf,) = compare("f", [jitted], [eager]).leaves
    for name, value in expected.items():
        assert getattr(leaf, name) == value, name


def test_keys_and_structures():
    assert compare("f", jax.random.key(0), jax.random.key(0)).same
    assert not compare("f", jax.random.key(0), jax.random.key(1)).same
    out = compare("f", {"a": 1, "b": 2}, {"a": 1, "c": 2})
    assert not out.same
    assert out.structure == "result['b'] only jitted; result['c'] only eagerly"


def test_bad_input():
    with pytest.raises(TypeError, match="expected a function, jitted or not"):
        compare_eager(3)


def test_html_is_escaped():
    out = compare("<script>", {"<b>": "<i>"}, {"<b>": 1})
    html = out._repr_html_()
    assert "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert "&lt;b&gt;" in html


@pytest.mark.parametrize(
    ("jitted", "eager", "expected"),
    [
        ([1.0, 2.0], [1.0, 4.0], (2.0, 0.5, 2**23, 1)),
        ([3.0, 0.5], [0.0, 1.0], (3.0, 0.5, 0x40400000, 2)),
        ([-1.0], [1.0], (2.0, 2.0, 2 * 0x3F800000 + 1, 1)),
        ([np.nan, np.inf, 1.0], [np.nan, np.inf, 1.0], (0.0, 0.0, 0, 0)),
        (
            [np.nan, 1.0, np.inf, np.inf],
            [1.0, np.inf, -np.inf, np.nan],
            (0.0, 0.0, 0, 4),
        ),
        ([np.nan, 2.0], [1.0, 1.0], (1.0, 1.0, 2**23, 2)),
    ],
)
def test_floats(jitted, eager, expected):
    leaf = compare("f", np.float32(jitted), np.float32(eager)).leaves[0]
    assert (leaf.absolute, leaf.relative, leaf.ulps, leaf.different) == expected


def test_mismatches():
    a, b = [np.nan, 1.0, np.inf, 1.0, np.inf], [1.0, np.nan, 1.0, -np.inf, -np.inf]
    leaf = compare("f", np.float32(a), np.float32(b)).leaves[0]
    assert (leaf.nan_mismatches, leaf.inf_mismatches, leaf.different) == (2, 3, 5)
    assert leaf.path == "result"


@pytest.mark.parametrize(
    ("jitted", "eager", "absolute", "different"),
    [
        (np.int32([1, 5, 3]), np.int32([1, 2, 4]), 3.0, 2),
        (np.uint8([0]), np.uint8([255]), 255.0, 1),
        (np.uint8([7]), np.uint8([7]), 0.0, 0),
        (np.array([True]), np.array([False]), None, 1),
        (np.int32([1]), np.int64([2]), None, 1),
        (np.float32([1, 2]), np.float64([1, 3]), None, 1),
        (np.zeros((2, 2)), np.zeros(3), None, 4),
        (np.zeros(3), np.zeros((2, 2)), None, 4),
        (jnp.int32(3), 3, None, 0),
        ("a", np.zeros(1), None, 1),
        (3, 3, None, 0),
        ("a", "a", None, 0),
    ],
)
def test_what_is_compared_exactly(jitted, eager, absolute, different):
    (leaf,) = compare("f", jitted, eager).leaves
    assert (leaf.absolute, leaf.different) == (absolute, different)
    assert (leaf.relative, leaf.ulps) == (None, None)
    assert (leaf.nan_mismatches, leaf.inf_mismatches) == (0, 0)


def test_wide_floats():
    """Differences that would overflow, or vanish, in the type itself."""
    (leaf,) = compare("f", np.float64([1e308]), np.float64([-1e308])).leaves
    assert (leaf.absolute, leaf.relative) == (np.inf, 2.0)
    (leaf,) = compare("f", np.float16([60000]), np.float16([-60000])).leaves
    assert (leaf.absolute, leaf.relative) == (120_000.0, 2.0)
    (leaf,) = compare("f", np.complex64([1 + 1j]), np.complex64([1 + 3j])).leaves
    assert (leaf.absolute, leaf.relative, leaf.different) == (2.0, 2 / 3, 1)
    x = np.array([1, -1], ml_dtypes.bfloat16)
    assert _ulps(x, x[::-1].copy()).tolist() == [2 * 0x3F80 + 1] * 2


def test_text_of_a_comparison():
    (leaf,) = compare("f", (np.zeros(2, "f4"), 3)[:1], (np.zeros(2, "f4"),)).leaves
    assert (leaf.path, leaf.jitted, leaf.eager) == (
        "result[0]",
        "float32[2]",
        "float32[2]",
    )
    (leaf,) = compare("f", "a", np.zeros(2, "f4")).leaves
    assert (leaf.jitted, leaf.eager) == ("'a'", "float32[2]")
