"""The doctor tells a dtype that changes by mistake from one that is meant."""

import textwrap

import pytest

from tests.doctor_reports import reports_of


pytestmark = pytest.mark.one_engine

START = """
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def loss(w, x):
    return jnp.mean((x @ w) ** 2)


@eqx.filter_jit
def step(state, x):
    return jax.tree.map(lambda s: s + x.sum(), state)


@eqx.filter_jit
def norm(x):
    return jnp.sqrt(jnp.sum(x**2))


w = jnp.ones(3)
x32 = jnp.ones((2, 3))
x16 = x32.astype(jnp.bfloat16)
i32 = x32.astype(jnp.int32)
"""

# Leaf and line of each finding.
FAULTS = {
    "last_shard": (
        "x",
        "loss(w, x)",
        """
        def shards():
            for i in range(4):
                yield np.asarray(x32 if i < 3 else x16)

        for x in shards():
            loss(w, x)
        """,
    ),
    "first_batch": (
        "batch['x']",
        "return norms(model",
        """
        @eqx.filter_jit
        def norms(model, batch):
            return jax.vmap(model)(batch["x"]).sum()

        def evaluate(model, batch):
            return norms(model, batch)

        model = eqx.nn.Linear(3, 3, key=jax.random.key(0))
        data = iter([x16] + [x32] * 3)
        while (x := next(data, None)) is not None:
            evaluate(model, {"x": x})
        """,
    ),
    "first_batch_by_index": (
        "x",
        "loss(w, data[i])",
        """
        data = [x16] + [x32] * 3
        for i in range(4):
            loss(w, data[i])
        """,
    ),
    "name_of_the_loop": (
        "x",
        "loss(w, x)",
        """
        for flow in range(4):
            x = [x32, x16][flow // 3]
            loss(w, x)
        """,
    ),
    "carry": (
        "state['total']",
        "state = step(state, x32)",
        """
        state = {"total": jnp.zeros((), jnp.bfloat16)}
        for _ in range(3):
            state = step(state, x32)
        """,
    ),
    "carry_after_a_first_call": (
        "state",
        "state = step(state, x32)  # again",
        """
        state = step(jnp.zeros((), jnp.bfloat16), x32)  # to compile it
        state = step(state, x32)  # again
        """,
    ),
    "carry_in_attributes": (
        "state",
        "self._step = lambda",
        """
        class Trainer:
            def __init__(self):
                self._step = lambda state, x: (step(state, x), None)
                self.state = jnp.zeros((), jnp.bfloat16)

            def fit(self, x):
                self.state, _ = self._step(self.state, x)

        trainer = Trainer()
        for _ in range(3):
            trainer.fit(x32)
        """,
    ),
    "weight_that_sets_in": (
        "beta",
        "elbo(w, x32, beta)",
        """
        @eqx.filter_jit
        def elbo(w, x, beta):
            return jnp.mean(x @ w) * beta

        beta = jnp.asarray(0)
        for epoch in range(4):
            elbo(w, x32, beta)
            beta = jnp.minimum(1.0, epoch / 3)
        """,
    ),
    "both_in_one_of_several_runs": (
        "x",
        "loss(w, x)",
        """
        def load(seed, split):
            yield from 2 * [x16 if (seed, split) == (2, "test") else x32]

        for seed in (0, 1, 2):
            for split in ("train", "test"):
                for x in load(seed, split):
                    loss(w, x)
        """,
    ),
}

CLEAN = {
    "dtypes": """
        for dtype in (jnp.float32, jnp.bfloat16):
            for _ in range(3):
                loss(w, x32.astype(dtype))
        """,
    "whole_numbers": """
        for dtype in ("float32", "int32"):
            loss(w, x32.astype(dtype))
        for dtype in ("int32", "float32"):
            norm(x32.astype(dtype))
        """,
    "many_dtypes": """
        DTYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8, jnp.int16]

        def run(kind):
            return norm(x32.astype(kind))

        print([run(kind) for kind in DTYPES])
        """,
    "flags": """
        for flag in [False, True]:
            loss(w, x16 if flag else x32)
        """,
    "widths": """
        for n in (32, 16):
            for _ in range(2):
                loss(w, x32.astype(f"float{n}"))
        """,
    "arrays": """
        inputs = [x32, x16]
        for x in inputs:
            loss(w, x)
        """,
    "functions": """
        def half(x):
            return x.astype(jnp.float16)

        for name, prepare in {"as it is": lambda x: x, "less": half}.items():
            for batch in range(3):
                loss(w, prepare(x32))
        """,
    "lines": """
        def run(x):
            for _ in range(3):
                loss(w, x)

        run(x32)
        run(x16)
        run(i32)
        norm(i32)
        norm(x32)
        """,
    "in_turn": """
        for i in range(8):
            x = x32 if i % 4 == 0 else x32.astype(jnp.bfloat16)
            loss(w, x)
        """,
    "in_turn_by_branches": """
        for i in range(8):
            if i % 4:
                x = x32.astype(jnp.bfloat16)
            else:
                x = x32
            loss(w, x)
        """,
    "real_and_generated": """
        for epoch in range(3):
            for x in (x16, x32):
                loss(w, x)
        """,
    "models": """
        def load():
            yield {"w": w, "b": w}
            yield {"w": w.astype(jnp.bfloat16), "b": w.astype(jnp.bfloat16)}

        for model in load():
            for _ in range(3):
                model = step(model, x16)
        """,
    "leaves": """
        tree = {"a": x32, "b": i32, "c": x16}
        for leaf in jax.tree.leaves(tree):
            norm(leaf.ravel()[: leaf.dtype.itemsize])
        """,
    "steps_of_a_comparison": """
        for dtype in (jnp.float32, jnp.bfloat16):
            state = jnp.zeros((), dtype)
            for _ in range(3):
                state = step(state, x32.astype(dtype))
        """,
    "plain": """
        total = jax.jit(lambda x: jnp.sum(x))
        for dtype in (jnp.int32, jnp.float32):
            total(x32.astype(dtype))
        double = jax.jit(lambda x: x + x)
        double(i32)
        double(x32)
        """,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    programs = {name: text for name, (*_, text) in FAULTS.items()} | CLEAN
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(START + textwrap.dedent(text))
    scripts = sorted(map(str, folder.iterdir()))
    return reports_of(scripts, {"_ONCE": 0.0}, JAX_NUMPY_DTYPE_PROMOTION="standard")


@pytest.mark.parametrize("name", FAULTS)
def test_by_mistake(name, reports):
    leaf, line, text = FAULTS[name]
    report = reports[name]
    assert report["exit_code"] == 0
    (finding,) = report["findings"]
    assert (finding["kind"], finding["leaf"]) == ("dtype-churn", leaf)
    lines = (START + textwrap.dedent(text)).splitlines()
    assert line in lines[finding["line"] - 1]


@pytest.mark.parametrize("name", CLEAN)
def test_on_purpose(name, reports):
    report = reports[name]
    assert report["exit_code"] == 0 and report["findings"] == []
    # The program did compile for several dtypes.
    assert any("dtype-churn" in row["causes"] for row in report["functions"])
