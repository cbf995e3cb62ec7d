"""Regression tests: faults found by running researchers' programs under the doctor."""

import pytest

from tests.doctor_reports import reports_of_programs


# Kind, leaf, line, and how the fix of the only finding begins and ends; and the same
# program with that fix.
FAULTS = {
    # It was an edit of `states[0][0]` alone: four more runs would have told the rest.
    "several_weak_leaves_of_an_argument": (
        "weak-type",
        "states[0][0]",
        "y, states = stream(x, states)",
        "Write `states = jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype) if "
        "eqx.is_array(x) else x, initial((3, 2)))` in line ",
        "and is weakly typed.",
        """
        def initial(sizes):
            return [(jnp.full(n, 0.0), jnp.full(n, 1.0)) for n in sizes]

        @eqx.filter_jit
        def stream(x, states):
            return x, [(jnp.tanh(a + x[0]), b * x[1]) for a, b in states]

        states = initial((3, 2))
        for _ in range(3):
            y, states = stream(x, states)
        """,
        [
            (
                "states = initial((3, 2))",
                "states = jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype) if "
                "eqx.is_array(x) else x, initial((3, 2)))",
            )
        ],
    ),
    "two_weak_arguments": (
        "weak-type",
        "loss",
        "loss, norm = step(loss, norm)",
        "Write `loss = jnp.asarray(0.0, dtype=jnp.float32)` in line ",
        "and is weakly typed. The same goes for `norm`.",
        """
        @eqx.filter_jit
        def step(loss, norm):
            return loss + x.sum(), norm * x.max()

        loss = jnp.asarray(0.0)
        norm = jnp.asarray(1.0)
        for _ in range(3):
            loss, norm = step(loss, norm)
        """,
        [
            ("jnp.asarray(0.0)", "jnp.asarray(0.0, dtype=jnp.float32)"),
            ("jnp.asarray(1.0)", "jnp.asarray(1.0, dtype=jnp.float32)"),
        ],
    ),
    # It was an edit of `rate` alone.
    "two_numbers": (
        "static-churn",
        "rate",
        "step(x, beta=1 / i, rate=0.1 * i)",
        "Write `step(x, beta=1 / i, rate=jnp.asarray(0.1 * i))`.",
        "it has to stay static.) The same goes for `beta`.",
        """
        @eqx.filter_jit
        def step(x, *, rate, beta):
            return x - rate * beta * x

        for i in range(1, 5):
            step(x, beta=1 / i, rate=0.1 * i)
        """,
        [("1 / i", "jnp.asarray(1 / i)"), ("0.1 * i", "jnp.asarray(0.1 * i)")],
    ),
    # It was `jnp.asarray(rate)`, which is weakly typed: another finding.
    "number_in_place_of_an_array": (
        "static-churn",
        "state['rate']",
        "x, state = step(x, state)",
        "Replace `state['rate']` by `jnp.asarray(state['rate'], dtype=jnp.float32)`, "
        "where it is set.",
        "it has to stay static.)",
        """
        @eqx.filter_jit
        def step(x, state):
            return x - state["rate"] * x, state

        state = {"rate": jnp.ones((), jnp.float32)}
        for i in range(2, 7):
            x, state = step(x, state)
            state["rate"] = 1 / i
        """,
        [("= 1 / i", "= jnp.asarray(1 / i, dtype=jnp.float32)")],
    ),
    # A float is no reason to make it an integer.
    "number_in_place_of_an_integer": (
        "static-churn",
        "state['rate']",
        "x, state = step(x, state)",
        "Replace `state['rate']` by `jnp.asarray(state['rate'])`, where it is set.",
        "it has to stay static.)",
        """
        @eqx.filter_jit
        def step(x, state):
            return x - state["rate"] * x, state

        state = {"rate": jnp.ones((), jnp.int32)}
        for i in range(2, 7):
            x, state = step(x, state)
            state["rate"] = 1 / i
        """,
        [
            ("= 1 / i", "= jnp.asarray(1 / i)"),
            ("jnp.ones((), jnp.int32)", "jnp.asarray(1.0)"),
        ],
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    others = {"shapes": _SHAPES, "functions": _FUNCTIONS}
    return reports_of_programs(folder, FAULTS, others, {"_NUMBERS": 3})


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_and_its_fix(name, engine, reports):
    kind, leaf, line, start, end, *_ = FAULTS[name]
    (finding,) = reports[engine][name]["findings"]
    assert (finding["kind"], finding["leaf"]) == (kind, leaf)
    assert finding["fix"].startswith(start), finding["fix"]
    assert finding["fix"].endswith(end), finding["fix"]
    with open(finding["file"]) as f:
        assert line in f.read().splitlines()[finding["line"] - 1]
    assert reports[engine][f"{name}_fixed"]["findings"] == []
    assert reports[engine][f"{name}_fixed"]["exit_code"] == 0


# Graphs: in some calls only the edges differ, in others the nodes do as well.
_SHAPES = """
@eqx.filter_jit
def readout(graph):
    return graph["atoms"].sum() + graph["edges"].sum()

for atoms, edges in ((9, 30), (9, 36), (5, 14), (9, 22), (4, 2)):
    readout({"atoms": jnp.ones(atoms), "edges": jnp.ones(edges)})
"""


def test_all_shapes_of_a_leaf_are_named(engine, reports):
    """It was those of calls in which no other leaf came first: 30, 36, 22."""
    (finding,) = reports[engine]["shapes"]["findings"]
    assert finding["count"] == 4
    shapes = "`graph['edges']` had the shapes (30,), (36,), (14,), (22,), (2,)"
    assert finding["message"].endswith(shapes)


_FUNCTIONS = """
def plus(a, x):
    return a + x

def times(a, x):
    return a * x

@eqx.filter_jit
def run(f, x):
    return f(x)

for f in (plus, times):
    for _ in range(3):
        run(functools.partial(f, 2.0), x)
"""


def test_new_functions_of_two_kinds(engine, reports):
    """It was "changed, partial of plus -> partial of times": once, so it seemed."""
    (finding,) = reports[engine]["functions"]["findings"]
    message = finding["message"]
    assert "`f` was another function each time, partial of plus (" in message
    assert "), partial of times (" in message
