"""The report of `inspect_jaxpr` on functions with known content."""

import dataclasses
import functools as ft
import inspect
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit.insight import (
    _equations,
    _memory,
    _scan,
    _target,
    inspect_jaxpr,
)
from tests.clock import Clock


KINDS = {
    "ours": eqx_fastjit.filter_jit,
    "equinox": eqx.filter_jit,
    "jax": jax.jit,
    "plain": lambda f: f,
}
TABLE = np.ones((64, 64), np.float32)


def line_of(f, text):
    """The number of the first line of a function that contains this text."""
    lines, first = inspect.getsourcelines(f)
    return first + next(i for i, line in enumerate(lines) if text in line)


def helper(x):
    return jnp.sin(x) * 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_unrolled_loop(kind):
    def f(x):
        for _ in range(7):
            y = jnp.sin(x)
            x = y + 1
        return x

    report = inspect_jaxpr(KINDS[kind](f), jnp.ones(3), compile=False)
    (loop,) = report.loops
    assert (loop.file, loop.line) == (__file__, line_of(f, "for _"))
    assert (loop.iterations, loop.occurrences, loop.equations) == (7, 1, 14)
    assert loop.scan_equations == 3 and loop.uniform
    assert report.equations == 14
    counts = {(x.line, x.equations, x.primitives) for x in report.lines}
    assert counts == {
        (line_of(f, "y ="), 7, (("sin", 7),)),
        (line_of(f, "x = y"), 7, (("add", 7),)),
    }


def test_nested_loops_and_functions():
    def f(x):
        for _ in range(5):
            for _ in range(4):
                x = helper(x)
            x = x - 1
        i = 0
        while i < 6:
            x = jnp.cos(x)
            i += 1
        return jnp.stack([jnp.tan(x) for _ in range(8)])

    report = inspect_jaxpr(f, jnp.ones(3), compile=False)
    found = {(x.line, x.iterations, x.occurrences) for x in report.loops}
    assert (line_of(f, "range(5)"), 5, 1) in found
    assert (line_of(f, "range(4)"), 4, 5) in found
    assert (line_of(f, "while"), 6, 1) in found
    assert (line_of(f, "tan"), 8, 1) in found
    assert len(found) == 4
    (inlined,) = [x for x in report.inlined if x.name == "helper"]
    assert (inlined.kind, inlined.calls, inlined.call_sites) == ("python", 20, 1)
    assert inlined.equations == 40 and inlined.file == __file__


def test_no_false_alarms():
    @jax.jit
    def inner(x):
        return jnp.where(x > 0, x, 0.0)

    def f(tree, x):
        tree = jax.tree.map(lambda p: p * 2, tree)  # one operation per leaf
        x = jnp.sin(x)
        x = jnp.sin(x)
        x = jnp.sin(x)
        x = jax.lax.scan(lambda c, _: (jnp.cos(c), None), x, length=50)[0]
        for _ in range(2):
            x = inner(x)
        for key in ("a",):  # a loop of one iteration around a tree map
            tree = {key: jax.tree.map(lambda p: p + 1, tree)}
        return tree, jnp.concatenate([x, x, x, x]), jnp.stack([x, x, x, x])

    report = inspect_jaxpr(f, [jnp.ones(2)] * 9, jnp.ones(2), compile=False)
    assert report.loops == ()
    assert report.constants == ()


def test_loops_in_a_backward_pass():
    def loss(w, x):
        for _ in range(5):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    report = inspect_jaxpr(jax.grad(loss), jnp.ones((4, 4)), jnp.ones((4, 4)))
    (loop,) = report.loops
    assert loop.line == line_of(loss, "for _")
    # Once in the forward pass, and once in the backward pass.
    assert (loop.iterations, loop.occurrences) == (5, 2)


def test_a_loop_that_turns_once_is_none():
    """Under `grad`, one line becomes several equations that resemble iterations."""

    def loss(w, x):
        for _ in range(1):
            x = x * x * x * x * x * w
            x = jnp.stack([x, x, x, x, x]).sum(0) + jnp.var(x)
        for _ in range(2):
            x = jnp.tanh(x * x * w) * x
        return jnp.sum(x)

    arguments = jnp.ones((4, 4)), jnp.ones((4, 4))
    for f in (loss, jax.grad(loss), jax.hessian(loss), jax.vmap(jax.grad(loss))):
        assert inspect_jaxpr(f, *arguments, compile=False).loops == ()


def test_loops_around_what_makes_many_equations():
    def loss(x):
        for i in range(6):
            x = jnp.stack([x, x, x, x, x]).sum(0) * (0.5 if i else 1)
        return jnp.sum(x)

    for f in (loss, jax.grad(loss)):
        (loop,) = inspect_jaxpr(f, jnp.ones(3), compile=False).loops
        assert loop.line == line_of(loss, "for i") and loop.iterations == 6


def test_turns_that_differ_in_shape():
    def f(x):
        for _ in range(5):
            x = jnp.concatenate([x, x])
        return x

    report = inspect_jaxpr(f, jnp.ones(2), compile=False, measure=True)
    (loop,) = report.loops
    assert loop.iterations == 5 and not loop.uniform
    assert loop.seconds is None and "differ in their shapes" in loop.not_measured
    assert "shapes differ" in str(report)


def test_compile_time_both_ways():
    table = jnp.arange(12.0).reshape(6, 2)

    def f(x, w):
        for i in range(6):
            x = jnp.tanh(x * w + table[i])
        return x

    report = inspect_jaxpr(f, jnp.ones(2), jnp.ones(2), measure=True)
    (loop,) = report.loops
    assert loop.iterations == 6 and loop.uniform, loop
    assert loop.seconds is not None, loop.not_measured
    assert "measured for one occurrence of the loop" in str(report)


def test_seconds_are_of_the_loop_as_it_is_and_of_a_scan(monkeypatch):
    """Each duration is in its own column, also where `scan` compiles more slowly."""
    compiled = {}

    def seconds(fun, *structs):
        jaxpr = jax.make_jaxpr(fun)(*structs).jaxpr
        names = [equation.primitive.name for equation in jaxpr.eqns]
        compiled[fun.__name__] = names
        return 2.5 if "scan" in names else 0.125

    monkeypatch.setattr(_scan, "_compile_seconds", seconds)

    def f(x):
        for _ in range(6):
            x = jnp.tanh(x)
        return x

    report = inspect_jaxpr(f, jnp.ones(2), compile=False, measure=True)
    (loop,) = report.loops
    assert compiled == {"unrolled": ["tanh"] * 6, "scan": ["scan"]}
    assert (loop.seconds.unrolled, loop.seconds.scan) == (0.125, 2.5)
    (table,) = [t for t in report.tables() if "Unrolled" in t.title]
    at = [table.header.index(name) for name in ("compile unrolled", "compile scan")]
    assert [table.rows[0][i] for i in at] == ["125 ms", "2.5 s"]


def test_seconds_of_each_stage(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_target, "time", clock)

    class Slow:
        """A stage of JAX, which takes some time to make the next one."""

        def __init__(self, stage, seconds):
            self._stage, self._seconds = stage, seconds

        def __getattr__(self, name):
            return getattr(self._stage, name)

        def lower(self):
            clock.sleep(self._seconds)
            return Slow(self._stage.lower(), 4.0)

        def compile(self):
            clock.sleep(self._seconds)
            return self._stage.compile()

    trace = _target.Target.trace

    def slow(*args, **kwargs):
        traced = trace(*args, **kwargs)
        return traced._replace(seconds=1.0, stage=Slow(traced.stage, 2.0))

    monkeypatch.setattr(_target.Target, "trace", slow)
    report = inspect_jaxpr(helper, jnp.ones(2))
    assert (report.trace_seconds, report.lower_seconds, report.compile_seconds) == (
        1,
        2,
        4,
    )
    assert "traced in 1 s, lowered in 2 s, compiled in 4 s" in str(report)


@pytest.mark.parametrize(("times", "loops"), [(2, []), (3, [3]), (4, [4])])
def test_how_many_iterations_are_a_loop(times, loops):
    def f(x):
        for _ in range(times):
            x = jnp.tanh(jnp.sin(x))
        return x

    report = inspect_jaxpr(f, jnp.ones(3), compile=False)
    assert [loop.iterations for loop in report.loops] == loops


def test_jitted_functions_inside():
    @jax.jit
    def inner(x):
        return jnp.sin(x) + jnp.cos(x)

    def f(x):
        return inner(inner(x)) * inner(x + 1)

    report = inspect_jaxpr(f, jnp.ones(2), compile=False)
    (found,) = [x for x in report.inlined if x.kind in ("jit", "pjit")]
    assert (found.name, found.calls, found.call_sites) == ("inner", 3, 1)
    assert found.equations == 9 and found.file == __file__
    assert report.equations == 11


def test_constants():
    table = jnp.ones((8, 8))

    @jax.jit
    def inner(x):
        return x @ table

    def f(x):
        y = TABLE @ x
        return inner(x[:8]), y

    report = inspect_jaxpr(f, jnp.ones(64))
    large, small = report.constants
    assert (large.shape, large.dtype, large.bytes) == ((64, 64), "float32", 16384)
    assert (large.file, large.line) == (__file__, line_of(f, "TABLE"))
    assert (small.bytes, small.line) == (256, line_of(inner, "@ table"))
    assert "16.0 KiB" in str(report)


def test_the_line_that_uses_a_constant():
    """The line is the user's: in a loop body, or in a function that is passed the
    constant.
    """
    table = jnp.arange(8.0)

    def in_a_loop(x):
        def body(carry, _):
            return carry * table, None

        return jax.lax.scan(body, x, None, length=3)[0]

    @jax.jit
    def scaled(x, given):
        x = x * 2
        return x + given

    def passed(x):
        return scaled(x, table)

    def by_jax(x):
        return jnp.clip(x, table)

    for f, inside, text in (
        (in_a_loop, in_a_loop, "carry * table"),
        (passed, scaled, "x + given"),
        (by_jax, by_jax, "jnp.clip"),
    ):
        (found,) = inspect_jaxpr(f, jnp.ones(8), compile=False).constants
        assert found.line == line_of(inside, text)


def test_a_model_is_no_constant():
    model = eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))
    for f in (model, eqx_fastjit.filter_jit(model), eqx.filter_jit(model)):
        report = inspect_jaxpr(f, jnp.ones(4), compile=False)
        assert report.constants == ()
        names = {b.name for b in report.memory.largest_arguments}
        assert "MLP.layers[0].weight" in names


def test_memory_and_donation():
    def step(state, x):
        return {"w": state["w"] + x.sum(), "n": state["n"] + 1}, x[:3]

    state = {"w": jnp.ones((100, 10)), "n": jnp.zeros((), "int32")}
    report = inspect_jaxpr(step, state, jnp.ones(5))
    memory = report.memory
    assert memory.arguments == 4000 + 4 + 20
    assert memory.results >= 4004 + 12  # plus the tuple that holds the results
    first = memory.largest_arguments[0]
    assert (first.name, first.bytes) == ("state['w']", 4000)
    assert memory.largest_results[0].name == "result[0]['w']"
    made = memory.largest_intermediates[0]
    assert made.where == f"{__file__}:{line_of(step, 'return')}"
    assert [(d.argument, d.result) for d in report.donations] == [
        ("state['w']", "result[0]['w']"),
        ("state['n']", "result[0]['n']"),
    ]
    assert "donate" in str(report)
    donating = [
        eqx_fastjit.filter_jit(step, donate="all"),
        eqx.filter_jit(step, donate="all"),
        jax.jit(step, donate_argnums=0),
    ]
    for f in donating:
        report = inspect_jaxpr(f, state, jnp.ones(5))
        assert report.donations == ()
        assert report.memory.aliased == 4004


def test_checkpoint():
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    w = jax.ShapeDtypeStruct((256, 256), "float32")
    report = inspect_jaxpr(jax.value_and_grad(loss), w, w)
    kept = report.residuals
    assert kept.number >= 6 and kept.bytes == kept.number * 256 * 256 * 4
    assert kept.checkpoint and "is worth trying" in str(report)
    assert kept.largest[0].where == f"{__file__}:{line_of(loss, 'tanh')}"
    with_checkpoint = inspect_jaxpr(jax.grad(jax.checkpoint(loss)), w, w).residuals
    # With a checkpoint no residual is left, or none of any size.
    assert not (with_checkpoint and with_checkpoint.bytes)
    small = jax.ShapeDtypeStruct((2, 2), "float32")
    assert not inspect_jaxpr(jax.grad(loss), small, small).residuals.checkpoint
    assert inspect_jaxpr(loss, small, small, compile=False).residuals is None


def test_no_more_is_saved_than_there_is():
    def loss(x):
        return jnp.sum(jnp.tanh(x @ x))

    x = jax.ShapeDtypeStruct((1024, 1024), "float32")
    report = inspect_jaxpr(jax.grad(loss), x)
    scope = _equations.read_jaxpr(jax.make_jaxpr(jax.grad(loss))(x))
    for temporaries, checkpoint, shown in (
        (None, True, "MiB are kept"),
        (2**30, False, "% of the temporaries) are kept"),
        (2**23, True, "% of the temporaries) are kept"),
        (2**21, True, "(2.0 MiB of temporaries after it) are kept"),
        (68, False, "(68 B of temporaries after it) are kept"),
    ):
        kept = _memory.residuals(scope, temporaries)
        assert kept.bytes >= 2**22 and kept.checkpoint == checkpoint
        assert kept.share is None or kept.share <= 1
        memory = dataclasses.replace(report.memory, temporaries=temporaries)
        new = dataclasses.replace(report, residuals=kept, memory=memory)
        assert shown in " ".join(str(new).split())


def test_the_users_function_is_left_alone():
    traces = []

    @eqx_fastjit.filter_jit
    def f(x):
        traces.append(x)
        return x + 1

    f(jnp.ones(2))
    inspect_jaxpr(f, jnp.ones(2))
    assert len(traces) == 2
    f(jnp.ones(2))
    assert len(traces) == 2 and f._function.n_specializations() == 1


def test_static_arguments_of_jax_jit():
    @jax.jit
    def g(x, n):
        return x * n

    f = jax.jit(lambda x, n, *, m: x * n * m, static_argnums=1, static_argnames="m")
    report = inspect_jaxpr(f, jnp.ones(2), 3, m=2, compile=False)
    assert report.equations == 2
    assert len(report.memory.largest_arguments) == 1
    names = {b.name for b in inspect_jaxpr(g, jnp.ones(2), 3).memory.largest_arguments}
    assert names == {"x", "n"}


def test_without_jaxs_private_parts(monkeypatch):
    """If tracebacks of JAX have no frames, lines are still found, but no call paths."""
    from jax.extend import source_info_util

    from eqx_fastjit import _compat
    from eqx_fastjit.insight import _places

    equation = jax.make_jaxpr(helper)(1.0).eqns[0]
    summary = source_info_util.summarize(equation.source_info)
    monkeypatch.setattr(source_info_util, "summarize", lambda _: summary)
    without = types.SimpleNamespace(source_info=types.SimpleNamespace())
    (frame,) = _compat.equation_frames(without)
    assert (frame.file, frame.line) == (__file__, line_of(helper, "sin"))
    assert _places.path_of(equation)[-1].line == frame.line


@pytest.mark.parametrize("text", ["x = 1\n", "x = = 1\n", "x = '\0'\n", ""])
def test_source_that_is_no_python(text, tmp_path):
    """As where a file was changed after its import."""
    from eqx_fastjit.insight import _places

    path = tmp_path / "source.py"
    path.write_text(text)
    assert (_places._source(str(path)) is not None) is (text == "x = 1\n")


def test_html_and_failures():
    report = inspect_jaxpr(lambda x: x + 1, jnp.ones(2), compile=False)
    html = report._repr_html_()
    assert "<lambda>" not in html and "&lt;lambda&gt;" in html

    def f(x):
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        inspect_jaxpr(f, jnp.ones(2))


@ft.partial(jax.jit, inline=True)
def halved(tree):
    return jax.tree.map(lambda x: x / 2, tree)


def test_an_inlined_function_leaves_no_frames():
    """Its operations on each leaf, as in a chain of optax, are not a loop of its
    caller.
    """

    def first(tree):
        tree = halved(tree)
        tree = [jnp.sin(x) for x in tree]
        return jax.tree.map(jnp.cos, tree)

    def f(tree):
        for function in (first, halved):
            tree = function(tree)
        return tree

    lines = {x.line for x in inspect_jaxpr(f, [jnp.ones(2)] * 6, compile=False).loops}
    assert lines == {line_of(first, "jnp.sin")}
