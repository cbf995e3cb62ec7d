"""`insight.inspect` says which lines the equations of a function come from."""

import itertools
import linecache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import _private, filter_jit, insight
from tests.support.traces import count_traces


KEY = jax.random.key(0)


def line_of(text):
    """The line of this file that ends with a comment."""
    lines = linecache.getlines(__file__)
    (line,) = [i for i, x in enumerate(lines, 1) if x.endswith(f"# {text}\n")]
    return line


# --- lines ---


def two_lines(x):
    x = jnp.sin(x) + jnp.cos(x)  # three
    return -x  # one


def test_equations_are_counted_by_line():
    found = insight.inspect(two_lines, jnp.ones(3))
    assert (found.name, found.equations) == ("two_lines", 4)
    assert [(x.place, x.equations) for x in found.lines] == [
        ((__file__, line_of("three"), "two_lines"), 3),
        ((__file__, line_of("one"), "two_lines"), 1),
    ]
    assert dict(found.lines[0].primitives) == {"sin": 1, "cos": 1, "add": 1}
    assert f"test_inspect.py:{line_of('three')}" in str(found)


def twice(model, x):
    x = model(x)  # first
    return model(x)  # second


def test_equations_of_libraries_count_for_the_line_that_calls_them():
    """Also those of a function that JAX traces once, as `jax.nn.relu`."""
    found = insight.inspect(twice, eqx.nn.MLP(2, 2, 4, 1, key=KEY), jnp.ones(2))
    half = found.equations / 2
    assert [(x.place.line, x.equations) for x in found.lines] == [
        (line_of("first"), half),
        (line_of("second"), half),
    ]


def deep(n, x):
    return deep(n - 1, x) if n else jnp.sin(x)  # deep


def test_equations_that_a_function_inside_makes_count_for_its_own_lines():
    inner = jax.jit(lambda x: deep(3, x))
    found = insight.inspect(lambda x: inner(x) + inner(x), jnp.ones(3))
    assert {x.place.line: x.equations for x in found.lines}[line_of("deep")] == 2
    assert found.equations == 3


# --- loops ---


def unrolled(x):
    for _ in range(5):  # for
        x = jnp.tanh(x) * 2
    return x


@pytest.mark.parametrize(
    "jit", [lambda f: f, filter_jit, eqx.filter_jit, jax.jit, eqx.Partial]
)
def test_an_unrolled_loop_is_found_in_a_function_of_any_jit(jit):
    found = insight.inspect(jit(unrolled), jnp.ones(2))
    (loop,) = found.loops
    assert loop.place == (__file__, line_of("for"), "unrolled")
    assert (loop.iterations, loop.uniform) == (5, True)
    assert (loop.equations, loop.scan_equations) == (10, 3)
    assert "Unrolled Python loops (`jax.lax.scan` compiles" in str(found)
    assert "~3" in str(found)


def test_a_loop_counts_in_each_call_of_its_function():
    inner = jax.jit(unrolled)
    (loop,) = insight.inspect(lambda x: inner(x) + inner(x), jnp.ones(2)).loops
    assert (loop.iterations, loop.equations) == (5, 20)


def nested(x):
    model = eqx.nn.MLP(2, 2, 4, 6, key=KEY)  # whose own loops are none of the user's
    for _ in range(5):  # 5 times
        x = model(x)
    for _ in range(3):  # 3 times
        x = jnp.sin(x)
        for _ in range(4):  # 12 times
            x = x + 1.0
    return sum([jnp.cos(x) for _ in range(4)])  # 4 times


def growing(x):
    while x.ndim < 6:  # 5 times
        x = jnp.stack([x, x])
    return x


def without_loops(x):
    for _ in range(2):  # too few
        x = jnp.sin(x)
    x = jnp.stack([x] * 8).sum(0) + jnp.concatenate([x] * 8)[:2]
    x = jtu.tree_map(lambda x: x + 1, [x] * 6)[0]
    functions = []
    for _ in range(4):  # made in a loop, and called outside of it
        functions.append(lambda x: jnp.sin(x))  # noqa: PERF401
    return jax.lax.fori_loop(0, 10, lambda _, x: jnp.sin(x), functions[0](x))


def recurrent(weight, xs):
    """What is carried begins as a constant, and so is not batched at first."""
    cell = eqx.tree_at(lambda c: c.weight_hh, eqx.nn.GRUCell(1, 3, key=KEY), weight)

    def last(xs):
        h = jnp.zeros(3)
        for x in xs:  # 6 times
            h = cell(x, h)
        return h.sum()

    return jax.vmap(last)(xs).sum()


def dilated(by, x, w):
    """No `scan` does it, although the shapes are the same."""
    for i in range(4):  # 4 times
        x = jax.lax.conv_general_dilated(x, w, (1,), "SAME", rhs_dilation=(by**i,))
        x = x + w[i, 0, 0]
    return x


def loss(layers, x):
    for norm, layer in layers:  # 6 times
        x = jax.nn.gelu(layer(norm(x)))
    return x.sum()


def layers(*widths):
    pairs = itertools.pairwise(widths)
    made = [(eqx.nn.LayerNorm(n), eqx.nn.MLP(n, m, n, 2, key=KEY)) for n, m in pairs]
    return made, jnp.ones(widths[0])


_SEQUENCES = jnp.ones((9, 3)), jnp.ones((4, 6, 1))
_SIGNALS = jnp.ones((1, 4, 8)), jnp.ones((4, 4, 3))


@pytest.mark.parametrize(
    ("f", "args", "number", "alike"),
    [
        (nested, (jnp.ones(2),), 4, True),
        (growing, (jnp.ones(2),), 1, False),
        (without_loops, (jnp.ones(2),), 0, True),
        (recurrent, _SEQUENCES, 1, True),
        (jax.grad(recurrent), _SEQUENCES, 1, True),
        (dilated, (1, *_SIGNALS), 1, True),
        (dilated, (2, *_SIGNALS), 1, False),
        (loss, layers(*range(4, 11)), 1, False),
        (eqx.filter_grad(loss), layers(*[4] * 7), 1, True),
        (eqx.filter_grad(loss), layers(*range(4, 11)), 1, False),
    ],
)
def test_how_often_loops_run_and_whether_iterations_are_alike(f, args, number, alike):
    found = insight.inspect(f, *args)
    assert len(found.loops) == number
    for loop in found.loops:
        line = linecache.getline(__file__, loop.place.line)
        assert line.endswith(f"  # {loop.iterations} times\n")
        assert loop.uniform is alike
    assert ("these differ" in str(found)) is not alike


def test_code_without_source_has_lines_and_no_loops():
    scope = {}
    exec("def f(x):\n for _ in range(5): x = x + 1.0\n return x", scope)
    found = insight.inspect(scope["f"], jnp.ones(2))
    assert [(x.place.line, x.equations) for x in found.lines] == [(2, 5)]
    assert found.loops == ()


# --- constants and host callbacks ---


def test_captured_constants_and_host_callbacks():
    small, large = jnp.arange(8.0), jnp.ones((1024, 300))

    def f(model, x):
        x = x + small  # small
        return model(x) @ large[:8]  # large

    model = eqx.nn.Linear(8, 8, key=KEY)  # an argument
    found = insight.inspect(f, model, jnp.ones(8))
    assert [(x.name, x.type, x.bytes, x.place.line) for x in found.constants] == [
        ("large", "float32[1024,300]", 4 * 1024 * 300, line_of("large")),
        ("small", "float32[8]", 32, line_of("small")),
    ]
    assert "large arrays compile faster as arguments" in str(found)
    assert "calls back" not in str(found)
    checked = insight.inspect(lambda x: eqx.error_if(x, x < 0, "bad"), jnp.ones(()))
    assert "It calls back into Python: calls block" in str(checked)


def test_a_captured_model_is_one():
    model = eqx.nn.MLP(2, 2, 4, 1, key=KEY)
    (found,) = insight.inspect(lambda x: model(x), jnp.ones(2)).constants
    assert (found.name, found.type) == ("model", "4 arrays")
    assert found.bytes == 4 * (2 * 4 + 4 + 4 * 2 + 2)


# --- what may be given ---


def test_arrays_of_the_instance_are_arguments_of_a_method(named):
    name, method = named
    found = insight.inspect(method, jnp.ones(2))
    assert (found.name, found.equations, found.constants) == (name, 1, ())


def test_what_was_traced_is_not_traced_again():
    """Shapes are enough to find it."""
    f, traces = count_traces(two_lines)
    f(jnp.ones(3))
    found = insight.inspect(f, jax.ShapeDtypeStruct((3,), "float32"))
    f(jnp.ones(3))
    assert (found.equations, len(traces)) == (4, 1)


@pytest.mark.parametrize("tool", [insight.inspect, insight.profile])
def test_bad_input_is_named(tool):
    with pytest.raises(TypeError, match=r"expected a function, .*; got a int"):
        tool(3)
    with pytest.raises(ZeroDivisionError):
        tool(lambda x: 1 / 0, jnp.ones(2))


def test_without_private_names_there_are_still_counts(monkeypatch):
    monkeypatch.setattr(
        "eqx_fastjit.insight.record._equations.raw_frames", lambda _: []
    )
    monkeypatch.setattr(_private, "resolve", lambda path: getattr(None, path))
    found = insight.inspect(filter_jit(lambda x: unrolled(x)), jnp.ones(2))
    assert (found.equations, found.loops) == (10, ())
    assert [x.equations for x in found.lines] == [10]
