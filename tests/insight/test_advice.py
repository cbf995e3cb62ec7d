"""Each advice is applied: the results are the same, and the function is traced once.

Promise 37 of docs/reliability.md.

A case has the faulty calls and the mended ones. `test_causes.py` has a few that are
programs of their own.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from beartype import beartype
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Float, jaxtyped

import eqx_fastjit
from eqx_fastjit import _facts
from eqx_fastjit.insight import explain
from eqx_fastjit.insight._events import unwatch, watch


X = np.linspace(0, 1, 6, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    mode: str = "a"
    shift: int = 0


class Plain:
    """Compared by identity."""

    scale = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


class Schedule:
    """Compared by identity, and made again for each value."""

    def __init__(self, beta):
        self.beta, self.name = beta, "linear"


CASES = {}
# So that what they were given can be described.
KEPT = []


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


@case("static", "number of a configuration", "a plain object")
def attribute_of_a_plain_object(jit):
    f = jit(lambda s, x: x * s.beta)
    g = jit(lambda s, beta, x: x * beta)
    betas = (0.1, 0.2, 0.3)
    kept = [Schedule(b) for b in betas]
    KEPT.append(kept)
    return (
        [f(s, X) for s in kept],
        [g(kept[0], jnp.asarray(b), X) for b in betas],
        (f, g),
    )


@case("static", "number of a configuration", "several fields")
def configuration_of_several_numbers(jit):
    f = jit(lambda c, x: x * c.rate + c.shift)
    g = jit(lambda c, rate, shift, x: x * rate + shift)
    kept = Config(0.0)
    pairs = [(0.1, 0), (0.2, 0), (0.3, 1)]
    return (
        [f(Config(rate, shift=shift), X) for rate, shift in pairs],
        [g(kept, jnp.asarray(rate), jnp.asarray(shift), X) for rate, shift in pairs],
        (f, g),
    )


@case("static", "optimiser")
def optimiser(jit):
    def step(params, state, opt):
        updates, state = opt.update(params, state)
        return optax.apply_updates(params, updates), state

    f = jit(lambda *args: step(*args))
    g = jit(lambda *args: step(*args))
    opt = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    out, mended = [], []
    for rate in (0.1, 0.2, 0.3):
        faulty = optax.sgd(rate)
        out.append(f(jnp.asarray(X), faulty.init(X), faulty)[0])
        state = opt.init(X)
        state.hyperparams["learning_rate"] = jnp.asarray(rate, jnp.float32)
        mended.append(g(jnp.asarray(X), state, opt)[0])
    return out, mended, (f, g)


@case("static", "wrapper")
def wrapper_made_again(jit):
    f = jit(lambda act, x: act(x))
    g = jit(lambda act, x: act(x))

    def act(x):
        return x * 2

    out = [f(functools.partial(act), X) for _ in range(3)]
    return out, [g(act, X) for _ in range(3)], (f, g)


@case("structure", "initial value")
def initial_value(jit):
    f = jit(lambda total, x: x if total is None else total + x)
    g = jit(lambda total, x: total + x)
    total, mended = None, np.zeros(6, np.float32)
    for _ in range(3):
        total, mended = f(total, X), g(mended, X)
    return [total], [mended], (f, g)


@case("structure", "initial model")
def target_network(jit):
    f = jit(lambda net, target: net if target is None else mixed(net, target))
    g = jit(lambda net, target: mixed(net, target))
    net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    target, mended = None, jax.tree.map(jnp.copy, net)
    for _ in range(3):
        target, mended = f(net, target), g(net, mended)
    return jax.tree.leaves(target), jax.tree.leaves(mended), (f, g)


def mixed(net, target):
    return jax.tree.map(lambda x, y: 0.1 * x + 0.9 * y, net, target)


@case("static", "number", "typed")
def typed_parameter(jit):
    @jit
    @jaxtyped(typechecker=beartype)
    def f(x, rate: float):
        return x * rate

    @jit
    @jaxtyped(typechecker=beartype)
    def g(x, rate: Float[jax.Array, ""]):
        return x * rate

    rates = (0.1, 0.2, 0.3)
    return [f(X, r) for r in rates], [g(X, jnp.asarray(r)) for r in rates], (f, g)


@case("new function", "wrapper", "vmap")
def vmap_made_again(jit):
    def row(x):
        return x * 2

    g = jit(jax.vmap(lambda x: x * 2))
    made = [jit(jax.vmap(row)) for _ in range(3)]
    KEPT.extend(made)
    return [f(X) for f in made], [g(X) for _ in range(3)], (made[0], g)


@case("shape", "buffer")
def buffer(jit):
    f = jit(lambda found, x: jnp.concatenate([found, x, x]))
    g = jit(lambda found, i, x: found.at[i].set(x).at[i + 1].set(x))
    found, mended = X[:1], np.zeros(7, np.float32)
    mended[0] = X[0]
    for i in range(3):
        found, mended = f(found, X[:1]), g(mended, np.int32(2 * i + 1), X[0])
    return [found], [mended], (f, g)


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


@case("static", "number of a model")
def a_field(jit):
    """It stays a number: as an array, the gradient would be one of its own."""

    class Model(eqx.Module):
        weight: jax.Array
        rate: float = 0.0

    def step(model, rate):
        grads = eqx.filter_grad(lambda m: jnp.sum(m.weight**2 * rate))(model)
        return eqx.apply_updates(model, grads)

    f = jit(lambda model: step(model, model.rate))
    g = jit(step)
    model, kept, out, mended = Model(X), Model(X), [], []
    for rate in (0.1, 0.2, 0.3):
        model = f(eqx.tree_at(lambda m: m.rate, model, rate))
        kept = g(kept, jnp.asarray(rate))
        out.append(model.weight)
        mended.append(kept.weight)
    return out, mended, (f, g)


def counted(jit, loop):
    f = jit(lambda x, n: loop(x, n))
    g = jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: jnp.sin(y), x))
    ns = (0, 3, 4, 6)
    return [f(X, n) for n in ns], [g(X, np.int32(n)) for n in ns], (f, g)


@case("static", "loop count")
def a_loop(jit):
    return counted(
        jit, lambda x, n: functools.reduce(lambda y, _: jnp.sin(y), range(n), x)
    )


@case("static", "loop count", "scan")
def a_scan(jit):
    return counted(
        jit, lambda x, n: jax.lax.scan(lambda y, _: (jnp.sin(y), None), x, length=n)[0]
    )


@case("static", "branches")
def a_name(jit):
    functions = {"sin": jnp.sin, "cos": jnp.cos, "none": lambda x: x}
    f = jit(lambda x, name: functions[name](x))
    g = jit(lambda x, i: jax.lax.switch(i, [*functions.values()], x))
    out = [f(X, name) for name in functions]
    return out, [g(X, jnp.asarray(i)) for i in range(3)], (f, g)


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


@case("new function", "closure")
def function_wrapped_again(jit):
    g = jit(lambda x, scale: x * scale)
    out, mended = [], []
    for scale in (0.5, 1.0, 1.5):
        f = jit(lambda x: x * scale)  # noqa: B023
        out.append(f(X))
        mended.append(g(X, jnp.asarray(scale)))
    return out, mended, (f, g)


@case("shape", "lengths")
def lengths_with_a_mask(jit):
    f = jit(lambda x: x.mean())
    g = jit(lambda x, n: jnp.where(jnp.arange(6.0) < n, x, 0).sum() / n)
    mended = [g(np.pad(X[:n], (0, 6 - n)), np.float32(n)) for n in (3, 4, 6)]
    return [f(X[:n]) for n in (3, 4, 6)], mended, (f, g)


@case("dtype", "weak type")
def weak_state(jit):
    f = jit(lambda loss, x: 0.9 * loss + x.sum())
    g = jit(lambda loss, x: 0.9 * loss + x.sum())
    loss, mended = jnp.asarray(0.0), jnp.asarray(0.0, dtype=jnp.float32)
    for _ in range(3):
        loss, mended = f(loss, X), g(mended, X)
    return [loss], [mended], (f, g)


@case("dtype", "becomes float")
def integers_that_become_floats(jit):
    f = jit(lambda state, x: state.astype(x.dtype) + x)
    g = jit(lambda state, x: state.astype(x.dtype) + x)
    state, mended = np.zeros(6, np.int32), np.zeros(6, np.float32)
    for _ in range(3):
        state, mended = f(state, X), g(mended, X)
    return [state], [mended], (f, g)


@case("configuration", "configuration")
def precision(jit):
    f = jit(lambda x: x[:, None] @ x[None])
    g = jit(lambda x: x[:, None] @ x[None])
    out, mended = [], []
    for name in ("highest", "float32", "default"):
        with jax.default_matmul_precision(name):
            out.append(f(X))
        with jax.default_matmul_precision("highest"):
            mended.append(g(X))
    return out, mended, (f, g)


@case("static", "unused")
def one_value(jit):
    f = jit(lambda x, flag: x + 1)
    g = jit(lambda x, flag: x + 1)
    return [f(X, True), f(X, False)], [g(X, True), g(X, True)], (f, g)


@pytest.mark.parametrize("name", CASES)
def test_the_advice_keeps_the_results(name):
    _facts.history.clear()
    faulty, mended, (f, g) = CASES[name](functools.partial(eqx_fastjit.filter_jit))
    cause, attribute, *_ = name.split(", ")
    (finding,) = explain(f).findings
    assert (finding.cause, finding.attribute) == (cause, attribute)
    assert explain(g).compiles == 1
    if finding.edit and attribute != "branches":  # which may be what is wanted
        assert explain(f).compiles - finding.spares == 1
        assert 0 < finding.saves <= finding.seconds
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


def test_what_is_saved_without_other_data():
    """Numbers can be arrays; whether lengths can be one, the program decides."""
    _facts.history.clear()
    f = eqx_fastjit.filter_jit(lambda x, n: x.mean() * n)
    for i, length in enumerate((4, 8, 4, 12)):
        f(np.ones(length, np.float32), 0.1 * i)
    (finding,) = explain(f).findings
    assert finding.spares == 3 and 0 < finding.otherwise < finding.saves
    assert "If `x` stays as it is, the rest saves" in finding.says


def test_what_a_function_refers_to_is_passed_or_created_once():
    """An optimiser that is made again compiles again as an argument, too."""
    _facts.history.clear()
    seen = []
    watch(seen.append)

    def make(scale, flag):
        opt = optax.sgd(0.1)
        return lambda x: opt.update(x, opt.init(x))[0] * scale * (2 if flag else 3)

    for made in [make(0.5, True), make(1.5, False)]:
        eqx_fastjit.filter_jit(made)(X)
    unwatch(seen.append)
    (finding,) = explain().findings
    passed, _, created = finding.fix.partition(" Create `opt` once as well")
    assert "Pass `flag`, `scale` as an argument (a number as an array, " in passed
    assert "`opt = optax.inject_hyperparams(optax.adam)(learning_rate=" in created


# --- several causes -------------------------------------------------------------------


class Net(eqx.Module):
    mlp: eqx.nn.MLP
    config: Config = eqx.field(static=True)


def sweep(jit):
    @jit
    def step(model, state, opt):
        grads = eqx.filter(model, eqx.is_array)
        return opt.update(grads, state)

    for i, width in enumerate((2, 2, 4)):
        mlp = eqx.nn.MLP(2, 2, width, 1, key=jax.random.key(0))
        model, opt = Net(mlp, Config(0.1 * i)), optax.sgd(0.1 * i, 0.9)
        step(model, opt.init(eqx.filter(model, eqx.is_array)), opt)


def cache(jit):
    @jit
    def decode(x, cache, i):
        return x[None] if cache is None else jnp.concatenate([cache, x[None] * i])

    found = None
    for i in range(5):
        found = decode(X, found, i)


def kinds_of_numbers(jit):
    f = jit(lambda x, beta: x * beta)
    for epoch in range(5):
        f(X, max(0, (epoch - 2) / 10))


def a_flag_of_a_configuration(jit):
    f = jit(lambda c, x: x * c.rate if c.mode == "a" else x - c.rate)
    for i in range(4):
        f(Config(0.1 * i, "ab"[i // 2]), X)


def an_optional_mask(jit):
    f = jit(lambda x, mask: x if mask is None else jnp.where(mask, x, 0))
    for mask in (None, X > 0):
        f(X, mask)


def batches_of_equal_steps(jit):
    f = jit(lambda x: x.sum())
    for n in (10, 20, 30, 40):
        f(np.ones(n))


def evaluation(jit):
    f = jit(lambda batch: batch["x"].mean())
    f({"x": np.ones((32, 4))})
    f({"x": np.ones((32, 4)), "id": np.arange(32)})
    f({"x": np.ones((5, 4))})


def weak_leaf(jit):
    class Scaled(eqx.Module):
        scale: jax.Array

    @jit
    def step(model, state):
        grads = jax.tree.map(lambda x: x * np.float32(2), model)
        return grads, OPT.update(grads, state)[1]

    model = Scaled(jnp.asarray(1.0))
    state = OPT.init(model)
    for _ in range(3):
        model, state = step(model, state)


def weak_in_two_functions(jit):
    f, g = jit(lambda y: (y * 2, y + y)), jit(lambda y, out: y + out)
    y = jnp.asarray(1.0)
    out = y * 1
    for _ in range(3):
        g(y, out)
        y, out = f(y)
        y, out = y * np.float32(1), out * np.float32(1)


def placed(jit):
    f = jit(
        lambda model, state, x: jax.tree.map(lambda w: w * x.mean(), (model, state))
    )
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    x = jax.device_put(X, NamedSharding(mesh, P("data")))
    model = state = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    for _ in range(3):
        model, state = f(model, state, x)


def wrapped(jit):
    f = jit(lambda act, x: act(x))
    for _ in range(3):
        f(jax.jit(jnp.sin.__wrapped__), X)


def a_partial(jit):
    def evaluate(model, x):
        return model * x

    for _ in range(3):
        jit(functools.partial(evaluate, jnp.ones(())))(X)


def two_sets_of_options(jit):
    def f(x):
        return x * 2

    for g in (jit(f), jit(f, donate="all"), *(jit(lambda x: x), jit(lambda x: -x))):
        g(jnp.ones(2))


def sizes_of_models(jit):
    f = jit(lambda model, x: model(x))
    for width in (2, 4):
        f(eqx.nn.MLP(2, 2, width, 1, key=jax.random.key(0)), jnp.ones(2))


def two_functions_made_again(jit):
    f = jit(lambda act, x: act(x))
    make = [
        lambda: lambda x: x + 1,
        lambda: lambda x: x - 1,
    ]
    for i in (0, 1, 0):
        f(make[i](), X)


def a_cell(jit):
    f = jit(lambda act, x: act(x))
    for scale in (0.5, 1.5):
        f(scaled_by(scale), X)


def scaled_by(scale):
    return lambda x: x * scale


OPT = optax.sgd(0.1, 0.9)
# By program: what makes it compile, with its counts; and the compilations that are
# spared if all is mended.
SEVERAL = {
    sweep: ({"`opt` made again": 2, "`model.config.rate`, static in a Config": 2}, 1),
    cache: ({"number `i`": 4, "`cache` grows, 1 to 4": 4}, 4),
    kinds_of_numbers: ({"number `beta`": 2}, 2),
    # Each mode has to be compiled.
    a_flag_of_a_configuration: ({"`c.rate`, static in a Config": 3}, 2),
    an_optional_mask: ({}, 0),
    batches_of_equal_steps: ({"`x` has 4 shapes": 3}, 3),
    evaluation: (
        {"a batch of 5 after those of 32": 1, "structure of `batch`": 1},
        2,
    ),
    weak_leaf: ({"`model.scale`, weakly typed": 1}, 1),
    weak_in_two_functions: ({"`y`, weakly typed": 2}, 2),
    placed: ({"placement of `model`, `state`": 1}, 1),
    wrapped: ({"`act`, jax.jit made again": 2}, 2),
    a_partial: ({"`partial` of `evaluate` made again": 2}, 2),
    two_sets_of_options: ({}, 0),
    sizes_of_models: ({}, 0),
    # One of each has to be compiled.
    two_functions_made_again: ({"`act` made again": 2}, 1),
    a_cell: ({"`act` made again": 1}, 1),
}


@pytest.mark.parametrize("program", SEVERAL, ids=lambda x: x.__name__)
def test_all_causes_and_what_mending_them_spares(program):
    _facts.history.clear()
    seen = []
    watch(seen.append)  # at once: statics may be gone later
    program(eqx_fastjit.filter_jit)
    unwatch(seen.append)
    found = explain().findings
    parts = [part for x in found for part in (x.parts or (x,)) if part.edit]
    causes, spared = SEVERAL[program]
    assert {x.what: x.count for x in parts} == causes
    assert sum(x.spares for x in found) == spared
    assert sum(x.saves for x in found) <= explain().seconds
    assert all(x.saves or x.gain for x in parts)
