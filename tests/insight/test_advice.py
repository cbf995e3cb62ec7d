"""Each advice is applied: the results are the same, and the function is traced once.

Promise 37 of docs/reliability.md.

A case has the faulty calls and the mended ones. `test_causes.py` has those that are
programs of their own.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import eqx_fastjit
from eqx_fastjit import _facts
from eqx_fastjit.insight import explain


X = np.linspace(0, 1, 6, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    mode: str = "a"


class Plain:
    """Compared by identity."""

    scale = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


CASES = {}


def case(*name):
    """By cause and attribute, and what is special about the case."""

    def add(make):
        CASES[", ".join(name)] = make
        return make

    return add


@case("static", "number of a configuration")
def configuration(jit):
    f = jit(lambda c, x: x * c.rate)
    g = jit(lambda c, rate, x: x * rate)
    kept = Config(0.0)
    rates = (0.1, 0.2, 0.3)
    return (
        [f(Config(r), X) for r in rates],
        [g(kept, jnp.asarray(r), X) for r in rates],
        (f, g),
    )


@case("static", "number and array")
def number_and_array(jit):
    f = jit(lambda x, r: x * r)
    g = jit(lambda x, r: x * r)
    array = jnp.asarray(0.5, jnp.float32)
    return (
        [f(X, array), f(X, 0.25)],
        [g(X, array), g(X, jnp.asarray(0.25, dtype=jnp.float32))],
        (f, g),
    )


@case("static", "type")
def type_of_a_number(jit):
    f = jit(lambda x, n: x * n)
    g = jit(lambda x, n: x * n)
    return [f(X, 3), f(X, 3.0)], [g(X, 3.0), g(X, 3.0)], (f, g)


@case("static", "created again")
def function_made_anew(jit):
    f = jit(lambda act, x: act(x))
    g = jit(lambda act, x, scale: act(x, scale))
    scales = (0.5, 2.0)
    once = lambda x, scale: jnp.sin(x) * scale  # noqa: E731
    return (
        [f(lambda x: jnp.sin(x) * s, X) for s in scales],  # noqa: B023
        [g(once, X, jnp.asarray(s)) for s in scales],
        (f, g),
    )


@case("static", "created again", "an object")
def object_made_anew(jit):
    f = jit(lambda c, x: x * c.scale)
    g = jit(lambda c, x: x * c.scale)
    return [f(Plain(), X) for _ in "ab"], [g(Frozen(), X) for _ in "ab"], (f, g)


@case("static", "container")
def container(jit):
    class Model(eqx.Module):
        scales: object = eqx.field(static=True)

    f = jit(lambda m, x: x * sum(m.scales))
    g = jit(lambda scales, x: x * scales.sum())
    values = ([0.5], [0.5, 1.5])
    mended = [np.array([0.5, 0.0], np.float32), np.array([0.5, 1.5], np.float32)]
    return [f(Model(v), X) for v in values], [g(v, X) for v in mended], (f, g)


@case("structure", "grows")
def grows(jit):
    f = jit(lambda history: sum(history) / len(history))
    g = jit(lambda total, count: total / count)
    history, total, out, mended = [], np.zeros(6, np.float32), [], []
    for i in range(1, 4):
        history.append(X * i)
        total = total + X * i
        out.append(f(list(history)))
        mended.append(g(total, np.float32(i)))
    return out, mended, (f, g)


@case("structure", "structure", "absent")
def absent(jit):
    f = jit(lambda batch: batch["x"] * 2)
    g = jit(lambda batch: batch["x"] * 2)
    batches = [{"x": X, "a": X}, {"x": X, "b": X}]
    return list(map(f, batches)), [g({"x": b["x"]}) for b in batches], (f, g)


@case("structure", "structure")
def keys_of_a_dictionary(jit):
    f = jit(lambda batch: batch["x"] * 2)
    g = jit(lambda batch: batch["x"] * 2)
    batches = [{"x": X}, {"x": X, "b": X}]
    return list(map(f, batches)), [g({"x": b["x"]}) for b in batches], (f, g)


@case("dtype", "keys")
def random_keys(jit):
    f = jit(lambda key: jax.random.normal(key, (3,)))
    g = jit(lambda key: jax.random.normal(key, (3,)))
    old = jax.random.PRNGKey(0)
    return (
        [f(jax.random.key(0)), f(old)],
        [g(jax.random.key(0)), g(jax.random.wrap_key_data(old))],
        (f, g),
    )


@case("static", "number")
def a_static_field(jit):
    class Faulty(eqx.Module):
        rate: float = eqx.field(static=True)

    class Mended(eqx.Module):
        rate: jax.Array

    f = jit(lambda model, x: x * model.rate)
    g = jit(lambda model, x: x * model.rate)
    rates = (0.1, 0.2, 0.3)
    return (
        [f(Faulty(rate), X) for rate in rates],
        [g(Mended(jnp.asarray(rate)), X) for rate in rates],
        (f, g),
    )


@case("placement", "placement", "committed")
def committed(jit):
    f = jit(lambda x: x * 2)
    g = jit(lambda x: x * 2)
    device = jax.devices()[0]
    x, y = jnp.asarray(X), jax.device_put(X, device)
    return [f(x), f(y)], [g(jax.device_put(x, device)), g(y)], (f, g)


@case("placement", "placement")
def a_model_that_follows_its_data(jit):
    f = jit(lambda model, x: jax.tree.map(lambda w: w * x.mean(), model))
    g = jit(lambda model, x: jax.tree.map(lambda w: w * x.mean(), model))
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    rows, whole = (NamedSharding(mesh, P(axis)) for axis in ("data", None))
    x = jax.device_put(X, rows)
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    placed = eqx.filter_shard(model, whole)
    out, mended = [], []
    for _ in range(3):
        model, placed = f(model, x), g(placed, x)
        out.append(model.weight)
        mended.append(placed.weight)
    return out, mended, (f, g)


@case("dtype", "dtype")
def one_dtype(jit):
    f = jit(lambda x: x * 2)
    g = jit(lambda x: x * 2)
    half = X.astype(np.float16)
    return [f(half), f(X)], [g(half.astype(np.float32)), g(X)], (f, g)


@case("static", "static")
def one_value(jit):
    f = jit(lambda x, flag: x + 1)
    g = jit(lambda x, flag: x + 1)
    return [f(X, True), f(X, False)], [g(X, True), g(X, True)], (f, g)


@pytest.mark.parametrize("name", CASES)
def test_the_advice_keeps_the_results(name):
    _facts.history.clear()
    faulty, mended, (f, g) = CASES[name](functools.partial(eqx_fastjit.filter_jit))
    cause, attribute, *_ = name.split(", ")
    found = {(x.cause, x.attribute) for x in explain(f).findings}
    assert (cause, attribute) in found
    assert explain(g).compiles == 1
    for a, b in zip(faulty, mended, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_a_model_is_placed_by_what_takes_all_of_its_leaves():
    _facts.history.clear()
    _, _, (f, _) = CASES["placement, placement"](eqx_fastjit.filter_jit)
    (finding,) = explain(f).findings
    assert "`eqx.filter_shard(model, sharding)`" in finding.fix


@pytest.mark.parametrize(
    "attribute", ["ragged batch", "lengths"], ids=["a ragged batch", "lengths"]
)
def test_padding_is_never_advised_without_a_mask(attribute):
    """Zeros as data, or the end of the padding, would be read in silence."""
    _facts.history.clear()
    f = eqx_fastjit.filter_jit(lambda x: x.mean())
    lengths = (8, 4) if attribute == "ragged batch" else (4, 8, 12)
    for n in lengths:
        f(np.ones(n, np.float32))
    (finding,) = explain(f).findings
    assert finding.attribute == attribute
    text = f"{finding.fix} {finding.note}".lower()
    before_padding, _, after = text.partition("pad")
    assert "cache" in before_padding and "mask" in after
    assert "vmap" not in finding.fix
