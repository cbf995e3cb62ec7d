"""Regression tests: faults found by running researchers' programs under the doctor."""

import pytest

from eqx_fastjit.doctor import _machine
from tests.doctor_reports import (
    check_fault,
    reports_of_programs,
    reports_on_engines,
    START,
)


# Kind, leaf, line, message (a part) and fix (all of it, after the kind's own words) of
# the only finding; the program; and what its fix replaces.
FAULTS = {
    # It named `carry[1]`, which the caller does not have.
    "weak_element_of_a_tuple": (
        "weak-type",
        "carry[1]",
        "total, mean = add(jnp.ones(3), (total, mean))",
        "weak -> strong",
        "Write `mean = jnp.asarray(0.0, dtype=jnp.float32)` in line ",
        """
        @eqx.filter_jit
        def add(batch, carry):
            total, mean = carry
            return total + batch.sum(), 0.9 * mean + 0.1 * batch.mean()

        total = jnp.zeros(())
        mean = jnp.asarray(0.0)
        for _ in range(3):
            total, mean = add(jnp.ones(3), (total, mean))
        """,
        [("jnp.asarray(0.0)", "jnp.asarray(0.0, dtype=jnp.float32)")],
    ),
    "numbers_in_a_dictionary": (
        "static-churn",
        "batch['rate']",
        'step(x, {"x": x, "rate": 0.1 * i})',
        "0.1 (float) -> 0.2 (float)",
        "Replace `0.1 * i` by `jnp.asarray(0.1 * i)`. A number ",
        """
        @eqx.filter_jit
        def step(w, batch):
            return w - batch["rate"] * batch["x"]

        for i in range(1, 5):
            step(x, {"x": x, "rate": 0.1 * i})
        """,
        [("0.1 * i", "jnp.asarray(0.1 * i)")],
    ),
    "number_of_an_object_in_a_tuple": (
        "static-churn",
        "both[1].rate",
        "step((x, state.options))",
        "1 (int) -> 2 (int)",
        "Replace `state.options.rate` by `jnp.asarray(state.options.rate)`, where it "
        "is set. A number ",
        """
        class Options(eqx.Module):
            rate: int

        @eqx.filter_jit
        def step(both):
            w, options = both
            return w * options.rate

        class State:
            pass

        state = State()
        for i in range(1, 5):
            state.options = Options(i)
            step((x, state.options))
        """,
        [("Options(i)", "Options(jnp.asarray(i))")],
    ),
    # It was `stats['m2']`, but to JAX NumPy's float64 is float32.
    "float64_of_numpy_beside_an_integer": (
        "dtype-churn",
        "stats['mean']",
        "stats = welford(stats, np.ones(3))",
        "dtype int64 -> float32",
        "Write `'mean': jnp.asarray(np.zeros(3, int), dtype=jnp.float32)` in line ",
        """
        @eqx.filter_jit
        def welford(stats, x):
            d = x - stats["mean"]
            mean = stats["mean"] + d / 2
            return {"m2": stats["m2"] + d * (x - mean), "mean": mean}

        stats = {"mean": np.zeros(3, int), "m2": np.zeros(3)}
        for i in range(4):
            stats = welford(stats, np.ones(3))
        """,
        [("np.zeros(3, int)", "jnp.asarray(np.zeros(3, int), dtype=jnp.float32)")],
    ),
    # Only the first was named.
    "two_integers_that_become_floats": (
        "dtype-churn",
        "stats['a']",
        "stats = update(stats)",
        "dtype int32 -> float32",
        "Write `'a': jnp.asarray(jnp.arange(3), dtype=jnp.float32)` in line ",
        """
        @eqx.filter_jit
        def update(stats):
            return {k: 0.5 * v + x for k, v in stats.items()}

        stats = {"a": jnp.arange(3), "b": jnp.zeros(3, jnp.int8)}
        for i in range(4):
            stats = update(stats)
        """,
        [
            ("jnp.arange(3)", "jnp.asarray(jnp.arange(3), dtype=jnp.float32)"),
            (", jnp.int8", ", jnp.float32"),
        ],
    ),
    # The backward pass was a second finding, for a new function each time: the advice
    # was to create `jax.grad(apply)` once.
    "new_functions_under_an_eager_transformation": (
        "fresh-function",
        "f",
        "jax.grad(apply)(x, lambda x: jnp.sin(x).sum())",
        "`f` was another function each time",
        "Each new function object ",
        """
        @eqx.filter_jit
        def apply(x, f):
            return f(x)

        for _ in range(6):
            jax.grad(apply)(x, lambda x: jnp.sin(x).sum())
        """,
        [
            ("for _", "f = lambda x: jnp.sin(x).sum()\nfor _"),
            ("(x, lambda x: jnp.sin(x).sum())", "(x, f)"),
        ],
    ),
    # Also where no argument is traced, as with diffrax's vector fields.
    "closures_under_an_eager_transformation": (
        "fresh-function",
        "field",
        "return solve(lambda y: jnp.sin(w * y), x).sum()",
        "`field` was another function each time",
        "Each new function object ",
        """
        @eqx.filter_jit
        def solve(field, y):
            return y + field(y)

        def sine(w, y):
            return jnp.sin(w * y)

        def loss(w):
            return solve(lambda y: jnp.sin(w * y), x).sum()

        for _ in range(6):
            jax.grad(loss)(jnp.ones(()))
        """,
        [("lambda y: jnp.sin(w * y)", "eqx.Partial(sine, w)")],
    ),
    # So was that of each shape.
    "shapes_under_an_eager_transformation": (
        "shape-churn",
        "y",
        "jax.grad(energy)(jnp.ones(()), jnp.ones(n))",
        "`y` had the shapes (3,), (4,), (5,), (6,), (7,)",
        "Drop the ragged last batch, or fix the length.",
        """
        @eqx.filter_jit
        def energy(w, y):
            return jnp.sum(jnp.tanh(w * y))

        for n in range(3, 8):
            jax.grad(energy)(jnp.ones(()), jnp.ones(n))
        """,
        [("jnp.ones(n)", "jnp.pad(np.ones(n), (0, 7 - n))")],
    ),
}


# A number changes in each call; a flag, which has two values, in some of them.
_FLAG = """
@eqx.filter_jit
def act(x, eps, greedy):
    return x if greedy else x * eps

for i in range(1, 7):
    act(x, 0.1 * i, i % 2 == 0)
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of_programs(
        tmp_path_factory.mktemp("programs"), FAULTS, {"flag": _FLAG}
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_and_its_fix(name, engine, reports):
    check_fault(reports[engine], name, *FAULTS[name][:5])


def test_each_array_that_becomes_another_dtype_is_named(engine, reports):
    (finding,) = reports[engine]["two_integers_that_become_floats"]["findings"]
    assert finding["fix"].endswith("The same goes for `stats['b']`.")


def test_a_flag_is_no_number_that_changes(engine, reports):
    (finding,) = reports[engine]["flag"]["findings"]
    assert finding["leaf"] == "eps"
    assert finding["fix"].startswith("Write `act(x, jnp.asarray(0.1 * i), i % 2 == 0)`")
    assert finding["fix"].endswith("it has to stay static.)")


# A program had XLA compile for 95 s, of which its threads ran for 3.
@pytest.mark.parametrize(
    ("compiling", "ran", "waited", "share"),
    [
        (100.0, 5.0, 96.0, 0.05),
        (100.0, 5.0, 90.0, 1.0),  # it may have read files, or had a process compile
        (100.0, 99.5, 400.0, 1.0),  # its own threads waited for one another
        (1000.0, 5.0, 120.0, 0.05),  # in several threads at once
        (0.0, 5.0, 96.0, 1.0),
    ],
)
def test_threads_of_the_compiler_wait(
    compiling, ran, waited, share, tmp_path, monkeypatch
):
    main, thread = tmp_path / "schedstat", tmp_path / "7" / "schedstat"
    thread.parent.mkdir()
    main.write_text("0 0 0")
    thread.write_text("0 0 0")
    clock = {"monotonic": 0.0, "process_time": 0.0}
    for name in clock:
        monkeypatch.setattr(_machine.time, name, lambda name=name: clock[name])
    monkeypatch.setattr(_machine, "_FILE", main)
    monkeypatch.setattr(_machine, "_THREADS", tmp_path)
    processor = _machine.Processor()
    clock.update(monotonic=100.0, process_time=ran)
    main.write_text("2000000000 0 0")
    thread.write_text(f"0 {waited * 1e9:.0f} 0")
    assert processor.share(compiling) == pytest.approx(share)


# --- what is compared on purpose -----------------------------------------------------

_TRAINING = """
@eqx.filter_jit
def step(model, count, x, y):
    def loss(model):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    return eqx.apply_updates(model, eqx.filter_grad(loss)(model)), count

def train(model, x=jnp.ones((5, 3))):
    count = jnp.zeros(3)
    for _ in range(3):
        model, count = step(model, count, x, x[:, :1])

def mlp(width, depth):
    return eqx.nn.MLP(3, 1, width, depth, key=jax.random.key(0))
"""
# What is trained, and what the finding is about, if there is one.
_COMPARED = {
    "widths": ("for n in (2, 4, 6, 8, 10, 12): train(mlp(n, 1))", None),
    "depths": ("for n in range(6): train(mlp(4, n))", None),
    # A few are compared, but nobody compares that many.
    "molecules": ("for n in range(3, 16): train(mlp(n, 1))", "model.layers[0].weight"),
    "data": ("for n in range(5, 11): train(mlp(4, 1), jnp.ones((n, 3)))", "x"),
    "both": (
        "for n in range(5, 11): train(mlp(n, 1), jnp.ones((n, 3)))",
        "model.layers[0].weight",
    ),
    "growing": (
        """
@eqx.filter_jit
def grow(cache, x):
    return {"k": jnp.concatenate([cache["k"], x]), "v": [*cache["v"], x]}

cache = {"k": x, "v": []}
for _ in range(6):
    cache = grow(cache, x)
""",
        "cache['v']",
    ),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    for name, (text, _) in _COMPARED.items():
        (folder / f"{name}.py").write_text(START + _TRAINING + text)
    return reports_on_engines(folder)


@pytest.mark.parametrize("name", _COMPARED)
def test_models_that_are_compared_are_no_fault(name, engine, compared):
    """It was advised to pad the weights of models of six widths."""
    findings = compared[engine][name]["findings"]
    found = [f["leaf"] for f in findings if f["kind"] != "outside-jit"]
    expected = _COMPARED[name][1]
    assert found == ([] if expected is None else [expected])
