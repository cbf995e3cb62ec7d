"""Which parts a call is taken to consist of. No times are asserted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit.insight import Breakdown, breakdown, Part


OURS = ["bind", "flatten", "lookup", "execute", "unflatten", "wait"]
PARTS = {
    "eqx_fastjit": OURS,
    "plain": OURS,
    "equinox": ["partition", "lookup", "execute", "unflatten", "wait"],
    "jax": ["flatten", "lookup", "execute", "unflatten", "wait"],
}


@pytest.fixture
def mlp():
    return eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))


def check(out, kind):
    assert out.kind == kind
    assert [part.name for part in out.steady] == PARTS[kind]
    assert [p.name for p in out.steady if not p.measured] == ["lookup", "wait"]
    total = sum(part.seconds for part in out.steady)
    assert total == pytest.approx(out.blocked, rel=1e-6)
    assert [part.name for part in out.cold] == [
        "trace",
        "lower",
        "compile",
        "first run",
    ]
    assert all(part.seconds > 0 for part in out.cold)
    assert out.eager > 0
    text = str(out)
    for part in (*out.steady, *out.cold):
        assert part.name in text
    assert "difference" in text and "measured" in text
    assert "<table>" in out._repr_html_()


def test_ours(mlp, engine):
    def f(model, x, *, n=2):
        return model(x) * n, n

    jitted = eqx_fastjit.filter_jit(f)
    out = breakdown(jitted, mlp, jnp.ones(4), rounds=2)
    check(out, "eqx_fastjit")
    types = {node.type: node.number for node in out.nodes}
    assert types["MLP"] == 1
    # The user's function has the traces of the calls, and no more.
    assert jitted._function.n_specializations() == 1


@pytest.mark.parametrize("kind", ["plain", "equinox", "jax"])
def test_others(kind, mlp):
    wrap = {"plain": lambda f: f, "equinox": eqx.filter_jit, "jax": jax.jit}[kind]
    if kind == "jax":
        out = breakdown(wrap(lambda tree: tree["x"] * 2), {"x": jnp.ones(3)}, rounds=2)
        assert {n.type: n.number for n in out.nodes}["dict"] == 2  # and keywords
    else:
        out = breakdown(wrap(mlp), jnp.ones(4), rounds=2)
    check(out, kind)


def test_donation_and_methods():
    class Model(eqx.Module):
        w: jax.Array

        @eqx_fastjit.filter_jit(donate="all")
        def ours(self, x):
            return Model(self.w * x)

    m, x = Model(jnp.ones(3)), jnp.ones(3)
    out = breakdown(m.ours, x, rounds=1)
    assert "Timed without donation" in str(out)
    donating = jax.jit(lambda x, n: x * n, donate_argnums=0, static_argnums=1)
    out = breakdown(donating, x, 2, rounds=1)
    assert "Timed without donation" in str(out)
    out = breakdown(eqx.filter_jit(lambda x: x + 1, donate="all"), x, rounds=1)
    assert out.kind == "equinox"
    assert not x.is_deleted() and not m.w.is_deleted()


def test_keys_and_functions_that_need_jit():
    def f(key, x):
        assert isinstance(x, jax.core.Tracer)
        return jax.random.uniform(key, (2,)) + x

    out = breakdown(f, jax.random.key(0), jnp.ones(2), rounds=1)
    assert out.eager is None and out.break_even is None
    assert "no break-even" in str(out)


def test_break_even():
    cold = (Part("compile", 1.0, True),)
    out = Breakdown("f", "plain", 0.1, 0.1, (), (), cold, eager=0.5)
    assert out.break_even == 3
    assert "compiling pays after 3 calls" in str(out)
    out = Breakdown("f", "plain", 0.1, 0.1, (), (), cold, eager=0.1)
    assert out.break_even is None and "never pays" in str(out).replace("\n", " ")


def test_bad_input():
    with pytest.raises(ValueError, match="expected at least 1"):
        breakdown(lambda x: x, 1, rounds=0)
    with pytest.raises(TypeError, match="expected a function"):
        breakdown(3)
