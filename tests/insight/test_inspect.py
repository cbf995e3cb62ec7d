"""`insight.inspect` says which lines the equations of a function come from."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import _private, filter_jit, insight
from tests.support.traces import count_traces


def line_of(text):
    """The line of this file that ends with a comment."""
    with open(__file__) as file:
        (line,) = [i for i, x in enumerate(file, 1) if x.rstrip().endswith(f"# {text}")]
    return line


def loops_of(f, *args):
    """By line: iterations, and whether the shapes are equal."""
    return {
        x.place.line: (x.iterations, x.uniform) for x in insight.inspect(f, *args).loops
    }


# --- lines ---


def two_lines(x):
    x = jnp.sin(x) + jnp.cos(x)  # three
    return -x  # one


def test_equations_are_counted_by_line():
    found = insight.inspect(two_lines, jnp.ones(3))
    assert found.name == "two_lines"
    assert found.equations == 4
    assert [(x.place.line, x.equations) for x in found.lines] == [
        (line_of("three"), 3),
        (line_of("one"), 1),
    ]
    assert found.lines[0].place.file == __file__
    assert found.lines[0].place.function == "two_lines"
    assert dict(found.lines[0].primitives) == {"sin": 1, "cos": 1, "add": 1}
    assert "Equations by source line" in str(found)
    assert f"test_inspect.py:{line_of('three')}" in str(found)


def test_equations_of_libraries_count_for_the_line_that_calls_them():
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))

    def call(model, x):
        return model(x)  # the model

    (line,) = insight.inspect(call, model, jnp.ones(2)).lines
    assert line.place.line == line_of("the model")


def deep(n, x):
    return deep(n - 1, x) if n else jnp.sin(x)  # deep


def test_equations_that_a_function_inside_makes_count_for_its_own_lines():
    inner = jax.jit(lambda x: deep(3, x))
    found = insight.inspect(lambda x: inner(x) + inner(x), jnp.ones(3))
    assert {x.place.line: x.equations for x in found.lines}[line_of("deep")] == 2
    assert found.equations == 3


# --- loops ---


def double(x):
    return jnp.tanh(x) * 2  # not a loop


def unrolled(x):
    for _ in range(5):  # for
        x = double(x)
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


def nested(x):
    model = eqx.nn.MLP(2, 2, 4, 6, key=jax.random.key(0))
    for _ in range(5):  # around a library, whose own loops are none of the user's
        x = model(x)
    for _ in range(3):  # outer
        x = jnp.sin(x)
        for _ in range(4):  # inner
            x = x + 1.0
    while x.ndim < 6:  # while
        x = jnp.stack([x, x])
    return sum([jnp.cos(x) for _ in range(4)])  # comprehension


def test_nested_loops_comprehensions_and_while():
    assert loops_of(nested, jnp.ones(2)) == {
        line_of("around a library, whose own loops are none of the user's"): (5, True),
        line_of("outer"): (3, True),
        line_of("inner"): (12, True),
        line_of("while"): (5, False),  # of growing shape
        line_of("comprehension"): (4, True),
    }


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad])
def test_a_loop_under_vmap_whose_first_iteration_is_not_batched(transform):
    """What is carried begins as a constant, as in a recurrent model."""
    cell = eqx.nn.GRUCell(1, 3, key=jax.random.key(0))

    def total(weight, xs):
        def last(xs):
            h = jnp.zeros(3)
            for x in xs:
                h = eqx.tree_at(lambda c: c.weight_hh, cell, weight)(x, h)
            return h.sum()

        return jax.vmap(last)(xs).sum()

    found = loops_of(transform(total), cell.weight_hh, jnp.ones((4, 6, 1)))
    assert list(found.values()) == [(6, True)]


@pytest.mark.parametrize(
    ("widths", "alike"), [([4] * 7, True), ([4, 5, 6, 7, 8, 9, 10], False)]
)
@pytest.mark.parametrize("transform", [eqx.filter_grad, lambda f: f])
def test_a_loop_over_layers_is_found_in_a_training_step(widths, alike, transform):
    def loss(layers, x):
        for norm, layer in layers:  # layers
            x = jax.nn.gelu(layer(norm(x)))
        return x.sum()

    key = jax.random.key(0)
    layers = [
        (eqx.nn.LayerNorm(n), eqx.nn.MLP(n, m, n, 2, key=key))
        for n, m in itertools.pairwise(widths)
    ]
    found = loops_of(transform(loss), layers, jnp.ones(widths[0]))
    assert found == {line_of("layers"): (6, alike)}


@pytest.mark.parametrize("alike", [True, False])
def test_iterations_with_other_options_are_not_alike(alike):
    """Such as dilations that grow: the shapes are the same, and no `scan` does it."""

    def f(x, w):
        for i in range(4):
            dilation = 1 if alike else 2**i
            x = jax.lax.conv_general_dilated(
                x, w, (1,), "SAME", rhs_dilation=(dilation,)
            )
            x = x + w[i, 0, 0]
        return x

    found = insight.inspect(f, jnp.ones((1, 4, 8)), jnp.ones((4, 4, 3)))
    assert [x.uniform for x in found.loops] == [alike]
    assert ("iterations differ" in str(found)) is not alike


def without_loops(x):
    for _ in range(2):  # too few
        x = jnp.sin(x)
    x = jnp.stack([x] * 8).sum(0) + jnp.concatenate([x] * 8)[:2]
    x = jtu.tree_map(lambda x: x + 1, [x] * 6)[0]
    functions = []
    for _ in range(4):  # made in a loop, and called outside of it
        functions.append(lambda x: jnp.sin(x))  # noqa: PERF401
    return jax.lax.fori_loop(0, 10, lambda _, x: jnp.sin(x), functions[0](x))


def test_no_false_alarm():
    assert loops_of(without_loops, jnp.ones(2)) == {}


@pytest.mark.parametrize("jit", [filter_jit, jax.jit])
def test_a_loop_around_the_call_is_none_of_the_function(jit):
    found = [loops_of(jit(lambda x: x + 1.0), jnp.ones(2)) for _ in range(4)]
    assert found == [{}] * 4


def test_code_without_source_has_lines_and_no_loops():
    scope = {}
    exec("def f(x):\n for _ in range(5): x = x + 1.0\n return x", scope)
    found = insight.inspect(scope["f"], jnp.ones(2))
    assert [(x.place.line, x.equations) for x in found.lines] == [(2, 5)]
    assert found.loops == ()


# --- constants ---


def test_captured_constants():
    small, large = jnp.arange(8.0), jnp.ones((1024, 300))

    def f(model, x):
        x = x + small  # small
        return model(x) @ large[:8]  # large

    model = eqx.nn.Linear(8, 8, key=jax.random.key(0))  # an argument
    found = insight.inspect(f, model, jnp.ones(8))
    assert [(x.type, x.bytes, x.place.line) for x in found.constants] == [
        ("float32[1024,300]", 4 * 1024 * 300, line_of("large")),
        ("float32[8]", 32, line_of("small")),
    ]
    assert "large arrays compile faster as arguments" in str(found)
    assert "calls back" not in str(found)
    checked = insight.inspect(lambda x: eqx.error_if(x, x < 0, "bad"), jnp.ones(()))
    assert "It calls back into Python: calls block" in str(checked)


# --- what may be given ---


def test_arrays_of_the_instance_are_arguments_of_a_method(named):
    name, method = named
    found = insight.inspect(method, jnp.ones(2))
    assert (found.name, found.equations, found.constants) == (name, 1, ())


def test_static_arguments_of_jax_jit_stay_static():
    f = jax.jit(lambda x, n: x if n == 0 else x * n, static_argnums=1)
    assert insight.inspect(f, jnp.ones(2), 0).equations == 0
    assert insight.inspect(f, jnp.ones(2), 3).equations == 1


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
    monkeypatch.setattr("eqx_fastjit.insight._equations.raw_frames", lambda _: [])

    def missing(path):
        raise AttributeError(path)

    monkeypatch.setattr(_private, "resolve", missing)
    found = insight.inspect(filter_jit(lambda x: unrolled(x)), jnp.ones(2))
    assert (found.equations, found.loops) == (10, ())
    assert [x.equations for x in found.lines] == [10]
