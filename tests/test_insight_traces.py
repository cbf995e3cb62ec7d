"""Equations, loops, buffers and arguments of small traces, to the number."""

import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit._place import Place
from eqx_fastjit.insight import (
    _equations,
    _functions,
    _jaxpr,
    _loops,
    _memory,
    _places,
    _scan,
    _target,
    inspect_jaxpr,
)
from eqx_fastjit.insight._loops import Run
from eqx_fastjit.insight._target import target


pytestmark = pytest.mark.one_engine


def read(f, *args):
    return _equations.read_jaxpr(jax.make_jaxpr(f)(*args))


def line_of(f, offset):
    return f.__code__.co_firstlineno + offset


# --- equations -----------------------------------------------------------------------


@jax.jit
def inner(x):
    return jnp.sin(x) + 1


def program(x):
    x = inner(inner(x))
    x = jax.lax.scan(lambda c, _: (inner(c) * 2, None), x, None, length=5)[0]
    jax.debug.callback(print, x)
    return jax.lax.cond(x.sum() > 0, jnp.cos, lambda y: y * 3 - 1, x)


def test_equations_are_counted():
    scope = read(program, jnp.ones(2))
    by_name = {e.name: e for e in scope.equations}
    # The calls are none; the scan and the branches count with what is in them.
    assert by_name["scan"].size == 1 + 3 and not by_name["scan"].is_call
    assert by_name["cond"].size == 1 + 1 + 2
    calls = [e for e in scope.equations if e.is_call]
    assert [e.size for e in calls] == [2, 2]
    others = [e for e in scope.equations if not e.inner]
    assert scope.size == 2 + 2 + 4 + 4 + len(others)
    visits = [(e.name, [p.line for p in callers]) for e, callers in scope.walk()]
    assert visits.count(("sin", [line_of(program, 1)])) == 2
    assert visits.count(("sin", [line_of(program, 2)] * 2)) == 1
    assert len(visits) == scope.size + 3
    distinct = [s.size for s in scope.distinct()]
    # `inner` is there once; the branches of the `cond` come last.
    assert distinct == [scope.size, 2, 3, 2, 1]


def test_lines_and_functions_of_a_trace():
    report = inspect_jaxpr(program, jnp.ones(2), compile=False)
    assert report.lines[0].primitives == (("sin", 3), ("add", 3))
    found = [(x.line, x.equations) for x in report.lines]
    first = line_of(inner.__wrapped__, 2)
    lines = [line_of(program, n) for n in (4, 4, 2, 2, 3)]
    assert found == [(first, 6), *zip(lines, (5, 2, 1, 1, 1), strict=True)]
    (found,) = [x for x in report.inlined if x.name == "inner"]
    assert (found.calls, found.call_sites, found.equations) == (3, 2, 6)
    scope = read(program, jnp.ones(2))
    inspection = _jaxpr.inspect_scope(scope)
    assert inspection.equations == scope.size
    places = list(_functions.Counts(scope).callbacks)
    assert places == [Place(__file__, line_of(program, 3), "program")]
    assert inspection.callbacks == tuple(places)


@jax.jit
def checked(x):
    return eqx.error_if(x, x.sum() < 0, "negative")


def calls_checked(x):
    return checked(x)


def test_a_callback_of_a_library_is_where_the_user_calls_it():
    (place,) = _functions.Counts(read(calls_checked, jnp.ones(2))).callbacks
    assert place == Place(__file__, line_of(checked.__wrapped__, 2), "checked")


def plain(x):
    y = jnp.sin(x)
    return (jnp.cos(y) + jnp.tan(y)) * jnp.exp(y) - jnp.tanh(y)


def test_plain_functions_and_the_most_frequent_equations():
    def f(x):
        x = plain(plain(x))
        return [plain(x) for _ in range(2)]

    report = inspect_jaxpr(f, jnp.ones(2), compile=False)
    (found,) = [x for x in report.inlined if x.kind == "python"]
    assert (found.name, found.line) == ("plain", line_of(plain, 1))
    assert (found.calls, found.call_sites, found.equations) == (4, 2, 32)
    first, second = report.lines
    assert (first.line, first.equations) == (line_of(plain, 2), 28)
    assert len(first.primitives) == 3
    assert (second.equations, second.primitives) == (4, (("sin", 4),))


# --- loops ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbols", "period", "found"),
    [
        ([1, 1, 1], 1, [(0, 3)]),
        ([1, 1], 1, []),
        ([0, 1, 1, 1, 1, 2], 1, [(1, 4)]),
        ([1, 2] * 3, 2, [(0, 3)]),
        ([1, 2] * 3 + [1], 2, [(0, 3)]),
        ([1, 2] * 2 + [1], 2, []),
        ([0, *[1, 2] * 4, 0], 2, [(1, 4)]),
        ([1, 1, 1, 2, 2, 2, 2], 1, [(0, 3), (3, 4)]),
        # The second run would begin with what belongs to the first.
        ([1, 2] * 3 + [1, 3] * 3, 2, [(0, 3), (6, 3)]),
        ([1, 2, 1, 2, 1, 2, 3, 2, 3, 2, 3], 2, [(0, 3)]),
        ([1, 2, 1, 2, 1, 2, 3, 2, 3, 2, 3, 2], 2, [(0, 3)]),
        ([*[5, 6] * 3, *[1, 2] * 3, *[3, 2] * 3], 2, [(0, 3), (6, 3)]),
    ],
)
def test_blocks_that_are_repeated(symbols, period, found):
    assert _loops._repeats(symbols, period) == found


def unrolled(x, table, w):
    for i in range(4):
        x = x * table[i] + w
    for _ in range(3):
        for _ in range(5):
            x = jnp.sin(x)
        x = x - 1
    return x


def test_runs_of_a_trace():
    arguments = jnp.float32(1), jnp.ones(4), jnp.float32(2)
    runs = _loops.find_runs(read(unrolled, *arguments))
    first, around, inside = (line_of(unrolled, n) for n in (1, 3, 4))
    found = [(r.place.line, r.iterations, len(r.equations)) for r in runs]
    assert found == [*[(inside, 5, 5)] * 3, (around, 3, 18), (first, 4, 16)]
    outer = runs[3]
    assert outer.bounds == [0, 6, 12, 18]
    assert [e.name for e in outer.iteration(2)] == ["sin"] * 5 + ["sub"]
    loops = inspect_jaxpr(unrolled, *arguments, compile=False).loops
    assert [
        (x.line, x.iterations, x.occurrences, x.equations, x.scan_equations)
        for x in loops
    ] == [(around, 3, 1, 18, 7), (first, 4, 1, 16, 5), (inside, 5, 3, 15, 6)]


def test_the_inputs_of_an_iteration():
    def f(x, y, table, w):
        for i in range(4):
            x, y = x * w + y, jnp.sin(x) * table[i]
        return x, y

    table = [jnp.float32(i) for i in range(4)]
    scope = read(f, jnp.float32(1), jnp.float32(1), table, jnp.float32(2))
    (run,) = _loops.find_runs(scope)
    inputs = _scan._inputs(run)
    invars = scope.jax.invars
    assert inputs.constant == [invars[-1]]
    assert inputs.each == [invars[4]]  # of the third iteration
    assert len(inputs.carried) == len(inputs.carried_out) == 2
    names = [e.name for e in run.iteration(1)]
    made = [v for e in run.iteration(1) for v in e.jax.outvars]
    assert [names[made.index(v)] for v in inputs.carried] == ["add", "mul"]
    made = [v for e in run.iteration(2) for v in e.jax.outvars]
    assert [names[made.index(v)] for v in inputs.carried_out] == ["add", "mul"]
    one, scan = (jax.make_jaxpr(g) for g in _scan._loops(run, inputs))
    scalar = jax.ShapeDtypeStruct((), "float32")
    stacked = jax.ShapeDtypeStruct((4,), "float32")
    out = scan([scalar], [scalar] * 2, [stacked])
    (equation,) = out.jaxpr.eqns
    assert equation.params["length"] == 4
    assert len(one([scalar], [scalar] * 2, [[scalar]] * 4).jaxpr.eqns) == 16
    assert _scan._struct(invars[0]) == scalar
    assert _scan._struct(invars[0], (4,)) == stacked


def test_loops_that_are_no_scan():
    def f(x):
        for dtype in ("float32", "float16", "float32", "float16"):
            x = jax.lax.convert_element_type(x, dtype)
        return x

    (run,) = _loops.find_runs(read(f, jnp.ones(2)))
    assert not _loops.is_uniform(run)
    with pytest.raises(_scan.NotScannable, match="its iterations differ in their sh"):
        _scan.measure_run(run)


def test_a_scan_that_cannot_be_compiled(monkeypatch):
    def f(x):
        for _ in range(3):
            x = jnp.sin(x)
        return x

    def fail(fun, *structs):
        raise ValueError("why\nnot")

    monkeypatch.setattr(_scan, "_compile_seconds", fail)
    (run,) = _loops.find_runs(read(f, jnp.ones(2)))
    with pytest.raises(_scan.NotScannable) as caught:
        _scan.measure_run(run)
    assert str(caught.value) == "ValueError: why"


def test_how_often_an_instruction_ran():
    """The first and the last equation that a line makes are there once each time."""

    def equation(name, stack, users, backward=False):
        instruction = stack and _places.Instruction(stack, users)
        return types.SimpleNamespace(
            name=name, instruction=instruction, is_backward=backward
        )

    made = [equation("a", "1", "u"), *[equation("b", "2", "u")] * 4]
    made += [equation("c", "3", "u")] * 2
    made += [equation("d", "4", "v")] * 3 + [equation("e", None, "w")]
    made += [equation("a", "1", "u", backward=True)] * 5
    executions = _loops.Executions()
    for e in made:
        executions.note(e)

    def most(*equations):
        run = Run(None, None, [*equations, *equations], 9, [0, len(equations)])
        return executions.most_iterations(run)

    # One `a` was first; two `c` were last.
    assert most(made[1]) == most(made[0]) == most(made[-1]) == 1
    assert most(made[7]) == 3
    assert most(made[1], made[7]) == 1 and most(made[7], made[7], made[0]) == 3
    assert most(made[10]) == 9  # nothing is known


# --- memory --------------------------------------------------------------------------


def test_what_could_be_donated():
    def step(a, b, c, d):
        return {"b": b + 1, "a": a * 2, "same": d}, c[:2], jnp.float32(1)

    x, y = jnp.ones(4), jnp.ones((8, 2))
    traced = target(step).trace((x, x, jnp.ones(3), y), {})
    found = _memory.donations(traced)
    assert [(d.argument, d.result, d.type, d.bytes) for d in found] == [
        ("a", "result[0]['a']", "float32[4]", 16),
        ("b", "result[0]['b']", "float32[4]", 16),
    ]
    only = target(lambda a, b: b + 1).trace((x, x), {})
    assert [d.argument for d in _memory.donations(only)] == ["a"]
    # One that is donated takes its result first.
    first = target(jax.jit(lambda a, b: b + 1, donate_argnums=1)).trace((x, x), {})
    assert _memory.donations(first) == ()
    sizes = target(lambda a, b: (a + 1, b + 1)).trace((x, y), {})
    assert [d.bytes for d in _memory.donations(sizes)] == [64, 16]


def test_buffers_of_a_trace():
    def f(a, b):
        y = inner(a @ b)
        return y.sum(), y

    a, b = jnp.ones((2, 8)), jnp.ones((8, 4))
    traced = target(f).trace((a, b), {})
    scope = _equations.read_jaxpr(traced.stage.jaxpr)
    stats = types.SimpleNamespace(
        argument_size_in_bytes=1,
        output_size_in_bytes=2,
        temp_size_in_bytes=3,
        alias_size_in_bytes=4,
    )
    found = _memory.memory(traced, scope, stats)
    assert (found.arguments, found.results, found.temporaries) == (1, 2, 3)
    assert (found.aliased, found.code) == (4, None)
    assert [(x.name, x.bytes) for x in found.largest_arguments] == [
        ("b", 128),
        ("a", 64),
    ]
    assert [(x.name, x.bytes, x.type) for x in found.largest_results] == [
        ("result[1]", 32, "float32[2,4]"),
        ("result[0]", 4, "float32[]"),
    ]
    made = {(x.name, x.bytes) for x in found.largest_intermediates}
    assert made >= {("dot_general", 32), ("sin", 32), ("add", 32)}
    assert "jit" not in {x.name for x in found.largest_intermediates}


def test_what_is_kept_for_the_backward_pass():
    def loss(w, x):
        y = inner(x @ w)  # keeps `x`, an argument, and the cosine
        return jnp.sum(jnp.sin(y))

    x = jnp.ones((4, 4))
    scope = read(jax.grad(loss), x, x)
    kept = _memory.residuals(scope, None)
    assert (kept.number, kept.bytes, kept.checkpoint) == (2, 128, False)
    # Forward: the matmul; sine, cosine and sum of `inner`; and sine, cosine and sum.
    assert (kept.share, kept.forward_equations) == (None, 7)
    where = [f"{__file__}:{line_of(loss, n)}" for n in (2, 1)]
    assert [(b.name, b.where) for b in kept.largest] == [
        ("cos", where[0]),
        ("jit", where[1]),
    ]
    assert _memory.residuals(scope, 512).share == 0.25
    assert _memory.residuals(scope, 128).share == 1
    assert _memory.residuals(scope, 127).share is None
    assert _memory.residuals(read(loss, x, x), None) is None


@pytest.mark.parametrize(
    ("size", "temporaries", "worth"),
    [
        *((2**20, None, True), (2**20 - 4, None, False), (2**20, 2**22, True)),
        *((2**20, 2**22 + 4, False), (2**24, 2**20, True), (2**24, 2**20 - 1, False)),
    ],
)
def test_when_a_checkpoint_is_worth_trying(size, temporaries, worth, monkeypatch):
    kept = {1: _memory.Buffer("x", "", size)}
    passes = types.SimpleNamespace(backward=True, kept=kept, forward=3)
    monkeypatch.setattr(_memory, "_Passes", lambda _: passes)
    found = _memory.residuals(None, temporaries)
    assert (found.checkpoint, found.forward_equations, found.number) == (worth, 3, 1)


def test_constants_and_their_first_use():
    table, small = np.ones((4, 4), np.float32), jnp.ones(4)

    def f(x):
        y = x + 1
        y = y @ table
        return jax.lax.cond(y.sum() > 0, lambda z: z * small, lambda z: z, y) + small

    found = inspect_jaxpr(f, jnp.ones(4), compile=False).constants
    assert [
        (c.shape, c.bytes, c.line, c.function.rpartition(".")[2]) for c in found
    ] == [
        ((4, 4), 64, line_of(f, 2), "f"),
        ((4,), 16, line_of(f, 3), "<lambda>"),
    ]


# --- targets -------------------------------------------------------------------------


def evaluated(traced):
    closed = traced.stage.jaxpr
    out = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *traced.arrays)
    return [float(x) for x in out]


def arguments(a, /, n, b, *rest, k, m=1):
    return {"r": a - 2 * b * n + sum(rest) * 16 + k * 64 + m * 256, "n": n}


@pytest.mark.parametrize(
    ("options", "names", "donated"),
    [
        ({}, "a n b rest[0] rest[1] k m", ""),
        ({"static_argnums": 1}, "a b rest[0] rest[1] k m", ""),
        ({"static_argnums": (1, -1)}, "a b rest[0] k m", ""),
        ({"static_argnames": ("n", "m")}, "a b rest[0] rest[1] k", ""),
        # JAX then takes each literally, and `n` is given by position.
        (
            {"static_argnums": 0, "static_argnames": ("n", "m")},
            "n b rest[0] rest[1] k",
            "",
        ),
        (
            {"donate_argnums": 0, "donate_argnames": ("n", "m")},
            "a n b rest[0] rest[1] k m",
            "a m",
        ),
        ({"donate_argnums": (0, 2)}, "a n b rest[0] rest[1] k m", "a b"),
        ({"donate_argnames": "k"}, "a n b rest[0] rest[1] k m", "k"),
        (
            {"donate_argnames": ("b", "m"), "static_argnums": 1},
            "a b rest[0] rest[1] k m",
            "b m",
        ),
    ],
)
def test_arguments_of_jax_jit(options, names, donated):
    it = target(jax.jit(arguments, **options))
    values = (1.0, 2.0, 4.0, 3.0, 5.0), {"m": 7.0, "k": 6.0}
    traced = it.trace(*values)
    assert traced.names == names.split()
    assert [n for n, d in zip(traced.names, traced.donated, strict=True) if d] == (
        donated.split()
    )
    n = ["result['n']"] * ("n" in traced.names)
    assert traced.out_names == [*n, "result['r']"]
    assert evaluated(traced)[-1] == 1 - 16 + 128 + 384 + 1792
    assert it.donates is bool(donated)
    assert it.eager(*values[0], **values[1])["r"] == 1 - 16 + 128 + 384 + 1792


def test_donation_is_of_the_user():
    x = {"w": jnp.ones(2), "n": 1}
    ours = target(eqx_fastjit.filter_jit(lambda m, y: (m["w"] * y, y), donate="all"))
    traced = ours.trace((x, jnp.ones(2)), {})
    assert (traced.names, traced.donated) == (["m['w']", "y"], [True, True])
    both = [ours.trace((x, jnp.ones(2)), {}, donate=d) for d in (True, False)]
    texts = [t.stage.lower().as_text() for t in both]
    assert ["tf.aliasing_output" in t or "jax.buffer_donor" in t for t in texts] == [
        True,
        False,
    ]
    first = eqx_fastjit.filter_jit(lambda m, y: y, donate="all-except-first")
    assert target(first).trace((x, jnp.ones(2)), {}).donated == [False, True]
    assert [
        target(f).donates for f in (first, eqx_fastjit.filter_jit(plain), plain)
    ] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("fun", "n", "names"),
    [
        (arguments, 2, ["a", "n", "b"]),
        (arguments, 4, ["a", "n", "b", "rest[0]"]),
        (max, 2, ["args[0]", "args[1]"]),
        (lambda: 0, 1, ["args[0]"]),
    ],
)
def test_names_of_arguments(fun, n, names):
    assert _target._parameter_names(fun, (0,) * n) == names


@pytest.mark.parametrize(
    ("numbers", "n", "found"),
    [(None, 3, []), (-1, 3, [2]), ((0, -2), 3, [0, 1]), (1, 0, []), (4, 3, [1])],
)
def test_indices(numbers, n, found):
    assert _target._indices(numbers, n) == found


class Net(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return self.w * x

    @eqx_fastjit.filter_jit
    def ours(self, x):
        return self.w * x

    @eqx.filter_jit
    def theirs(self, x):
        return self.w * x


def test_kinds_of_targets():
    net = Net(jnp.ones(()) * 3)
    cases = [
        *((net.ours, "eqx_fastjit", "ours"), (net.theirs, "equinox", "theirs")),
        *((net, "plain", "Net"), (eqx_fastjit.filter_jit(net), "eqx_fastjit", "Net")),
        *((Net.ours, "eqx_fastjit", "ours"), (jax.jit(net), "jax", "Net")),
        (eqx.Partial(eqx.filter_jit(Net.__call__), net), "equinox", "__call__"),
        (eqx.Partial(jax.jit(lambda m, x: m(x)), net), "jax", "<lambda>"),
        (types.MethodType(jax.jit(plain), 1.0), "jax", "plain"),
    ]
    for f, kind, name in cases:
        it = target(f)
        assert (it.kind, it.name) == (kind, name)
        if kind != "jax" or name == "<lambda>":
            args = (net, 2.0) if f is Net.ours else (2.0,)
            assert float(it.eager(*args)) == 6
    for f in (plain, eqx_fastjit.filter_jit(plain), eqx.filter_jit(plain)):
        assert _target.unwrapped(f) is plain
    assert _target.unwrapped(net.ours) is Net.ours.__wrapped__
