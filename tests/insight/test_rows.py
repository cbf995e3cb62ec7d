"""Rows: what a function compiled for nothing, by which rule, and what to edit.

docs/rules.md has a program for each rule; here stand those that are near to another
rule, or to none.
"""

import dataclasses
import enum
import functools
import sys

import equinox as eqx
import equinox.internal
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import doctor
from tests.support import event_file


X = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def _a_second_each(monkeypatch):
    """Each compilation takes a second, so seconds count compilations."""
    seconds = "eqx_fastjit.insight.record._events.Event.seconds"
    monkeypatch.setattr(seconds, property(lambda event: 1.0))


_BESIDE = ("eager", "run-cache", "unrolled-loop")


def report_on(program):
    # Types are promoted as users have it.
    with jax.numpy_dtype_promotion("standard"), doctor(least=0.0) as report:
        program()
    return report


def rows_of(program):
    """The rows of functions that a program calls, whatever they cost.

    One without parts is only a price, and is left out.
    """
    rows = [x for x in report_on(program).rows if x.parts]
    rows = [x for x in rows if not x.function.startswith("operations outside of jit")]
    return [x for x in rows if x.parts[0].rule not in _BESIDE]


def parts_of(program, rule):
    """The parts of all rows that are of a rule."""
    rows = report_on(program).rows
    return [part for row in rows for part in row.parts if part.rule == rule]


def eager_rows(program):
    """The rows of operations outside of jit."""
    jax.clear_caches()
    rows = report_on(program).rows
    return [x for x in rows if x.parts and x.parts[0].rule.startswith("eager")]


def shown(row):
    """`4 of 1: number n 3`; what saves only with the part before it has an `and`."""
    parts = [
        f"{x.rule} {x.path} {x.gain:g}" if x.gain else f"and {x.rule} {x.path}"
        for x in row.parts
        if x.edit
    ]
    needed = [x.path for x in row.parts if not x.edit]
    text = f"{row.compilations} of {row.programs}: {', '.join(parts)}"
    if needed:
        text += f" ({row.wanted:g} for {', '.join(needed)})"
    return text


def line_below(function, n):
    """The number of a line of a function."""
    return function.__code__.co_firstlineno + n


def called(fun, *calls):
    """A program that calls a function with each of these arguments, at one line."""

    def program():
        f = filter_jit(fun)
        for args in calls:
            f(*args)

    return program


def carried(fun, first, x=None):
    """A program that passes a function's result to its next call, beside `x`."""

    def program():
        f, state = filter_jit(fun), first
        for _ in range(4):
            state = f(state, x)

    return program


# --- what programs are made of ---


@dataclasses.dataclass(frozen=True)
class Config:
    name: str = "a"
    rate: float = 1.0
    data: object = None


class Scale:
    def __init__(self, rate):
        self.rate = rate


class Kind(enum.Enum):
    A = 1
    B = 2


class Counted(eqx.Module):
    w: jax.Array
    step: int


class Params(eqx.Module):
    w: jax.Array


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def linear(n, m):
    return eqx.nn.Linear(n, m, key=jax.random.key(0))


def mlp(depth):
    return eqx.nn.MLP(3, 3, 4, depth, key=jax.random.key(0))


class Named:
    def __init__(self, name):
        self.name = name


FACTORS = {"V": 1.0, "mV": 1e-3, "uV": 1e-6}
TABLES = {name: jnp.full(3, x) for name, x in FACTORS.items()}


class Tolerance(eqx.Module):
    tol: float

    def __call__(self, x):
        return x * self.tol


class Damped(eqx.Module):
    tol: float
    scale: float = 2.0

    def __call__(self, x):
        return self.scale * x - self.tol


class Likelihood:
    def __call__(self, w, x):
        return jnp.mean((w * x - 1) ** 2)


class Contrastive:
    def __init__(self, n):
        self.n = n

    def __call__(self, w, x):
        return jnp.mean(jnp.exp(jnp.outer(w * x, jnp.ones(self.n))))


def two_losses():
    """A fit by one loss, then two by another one, which each fit makes again."""

    @filter_jit
    def step(w, x, *, loss_fn, optimizer):
        grads = jax.grad(loss_fn)(w, x)
        return w + optimizer.update(grads, optimizer.init(w))[0]

    for i in range(3):
        step(
            X, X, loss_fn=Contrastive(9) if i else Likelihood(), optimizer=optax.sgd(1)
        )


def closures_that_select():
    f = filter_jit(lambda g, x: g(x))
    for name in FACTORS:
        f(lambda x: x * TABLES[name], X)  # noqa: B023


def sweep():
    """Eight runs with a name and an optimiser each, and two activations."""

    @filter_jit
    def step(config, opt, model, x):
        act = jnp.tanh if config.data == "tanh" else jax.nn.relu
        grads = eqx.filter_grad(lambda m: act(m(x)).sum())(model)
        return opt.update(grads, opt.init(eqx.filter(model, eqx.is_array)))[0]

    model = linear(3, 3)
    for i in range(8):
        config = Config(f"run{i}", data="tanh" if i % 2 else "relu")
        step(config, optax.adam(1e-3 * (i + 1)), model, X)


def other_names():
    """A call passes expressions that are called otherwise in the function."""

    @filter_jit
    def step(x, rate, *, n):
        return x * rate * n

    for i in range(3):
        step(X, i / 2, n=i)


def optimiser_in_a_closure():
    for rate in (0.1, 0.2, 0.3):
        opt = optax.sgd(rate)
        filter_jit(lambda w: opt.update(w, opt.init(w))[0])(X)  # noqa: B023


def data_in_a_closure():
    for n in (2, 3, 4):
        data = ones(n), ones(n)

        @filter_jit
        def fit(w):
            return sum(jnp.sum(x * w) for x in data)  # noqa: B023

        fit(2.0 * jnp.ones(()))


def model_in_a_closure():
    f = filter_jit(lambda g, x: g(x))
    for n in range(3):
        model = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(n))
        f(lambda x: model(x), X)  # noqa: B023


def at_two_lines():
    f = filter_jit(lambda x: x.sum())
    f(ones(8, 3))
    f(ones(4, 3))


def state_of_an_optimiser():
    """The state has copies of the parameters, which become larger after a call."""
    opt, w = optax.adam(1e-3), jnp.zeros(())
    state = opt.init(w)

    @filter_jit
    def step(w, state, x):
        updates, state = opt.update(w * x, state)
        return w + updates, state

    for _ in range(3):
        w, state = step(w, state, jnp.ones(5))


def module_in_a_closure():
    def make(m):
        return lambda x: m.w @ x * m.step

    f = filter_jit(lambda g, x: g(x))
    for n in (1, 2, 3):
        f(make(Counted(n * jnp.eye(3), n)), jnp.ones(3))


CASES = {
    # --- the same program again ---
    "an int and a float of one number": (
        called(lambda x, n: x * n, (X, 1), (X, 2.0)),
        "2 of 1: number n 1",
        "n 1 (int), 2.0 (float) [number]: jnp.asarray(float(n))",
    ),
    "numbers, by the function's parameters": (
        other_names,
        "3 of 1: number rate 2, and number n",
        "rate 0.0, 0.5, 1.0 [number]: jnp.asarray(rate)",
        "n 0, 1, 2 [number]: jnp.asarray(n)",
    ),
    "a number that the call returns": (
        carried(
            lambda s, x: Counted(jnp.linalg.inv(s.w), s.step + 1),
            Counted(jnp.eye(3), 0),
        ),
        "4 of 1: number s.step 3",
        "jnp.asarray(s.step)",
    ),
    "two fields that change together": (
        called(
            lambda c, x: x[c.data - 1] * c.rate,
            *((Config(rate=n / 2, data=n), X) for n in (1, 2, 3)),
        ),
        "3 of 1: configuration c 2",
        "c.rate 0.5, 1.0, 1.5; c.data 1, 2, 3 [configuration]",
        "jnp.asarray(c.rate), jnp.asarray(c.data) as an argument",
    ),
    "an object that is made again with another value": (
        called(lambda s, x: x * s.rate, *((Scale(n), X) for n in (1, 2, 2))),
        "3 of 1: object s 2",
        "s made again: s.rate 1, 2 [object]: make it once; pass jnp.asarray(s.rate",
    ),
    "a model that a function captures": (
        model_in_a_closure,
        "3 of 1: function g 2",
        "g made again: model <MLP> [function]: make it once; pass model",
    ),
    "a model with a number that a function captures": (
        module_in_a_closure,
        "3 of 1: function g 2",
        "make it once; pass m; with jnp.asarray(m.step) in it",
    ),
    "a number that a partial binds": (
        called(
            lambda g, x: g(x),
            *((functools.partial(lambda n, x: n * x, n), X) for n in (1.5, 2.5)),
        ),
        "2 of 1: function g 1",
        "g made again: args[0] 1.5, 2.5 [function]: make it once; pass jnp.asarray(a",
    ),
    "a label and an optimiser, which save together": (
        called(
            lambda c, opt, x: opt.update(x, opt.init(x))[0],
            *((Config(f"run{i}"), optax.adam(1e-3 * (i + 1)), X) for i in range(4)),
        ),
        "4 of 1: label c.name 3, and optimiser opt",
        "c.name 'run0', 'run1', 'run2', ... [label]: keep it out of the call",
    ),
    "a sweep of two programs": (
        sweep,
        "8 of 2: label config.name 6, and optimiser opt (1 for config.data)",
    ),
    # Of no arrays: an equation without operands.
    "a flag and a member, beside a complex number and a call of nothing": (
        called(
            lambda x, kind, flag: (eqx.internal.nondifferentiable(2), x + 1j)[1],
            *((X, kind, flag) for kind in Kind for flag in (True, False)),
        ),
        "4 of 1: label kind 2, label flag 1",
    ),
    "a closure with an optimiser": (
        optimiser_in_a_closure,
        "3 of 1: function <lambda> 2",
    ),
    "a weak type that the call returns otherwise": (
        carried(lambda s, x: s + x, jnp.asarray(0.0), jnp.float32(1.0)),
        "2 of 1: weak-type s 1",
    ),
    "a number, beside one call with another class": (
        called(
            lambda solver, x: solver(x),
            *((Tolerance(x), X) for x in (1.0, 0.1, 0.01)),
            (Damped(0.01), X),
        ),
        "4 of 2: number solver.tol 2 (1 for solver)",
        "solver.tol 1.0, 0.1, 0.01 [number]: jnp.asarray(solver.tol)",
    ),
    "an object and an optimiser that are made again, beside another class": (
        two_losses,
        "3 of 2: object loss_fn 1, and optimiser optimizer",
        "loss_fn <Contrastive> made again [object]: make it once",
    ),
    "a string that selects an array": (
        called(lambda x, unit: x * TABLES[unit], *((X, x) for x in FACTORS)),
        "3 of 1: selects unit 2",
        "unit 'V', 'mV', 'uV' [selects]: pass what it selects, as an array",
    ),
    "a member that selects a literal": (
        called(lambda x, k: x * (2.0 if k is Kind.A else 3.0), *((X, k) for k in Kind)),
        "2 of 1: selects k 1",
    ),
    "a flag that selects where is padded": (
        called(
            lambda x, flag: jnp.pad(x, (1, 0) if flag else (0, 1)),
            (X, True),
            (X, False),
        ),
        "2 of 1: selects flag 1",
    ),
    "a field that is absent first": (
        called(lambda x, o: x + 1, *((X, Named(x)) for x in (None, Named("V")))),
        "2 of 1: object o 1",
    ),
    "None, which selects a literal": (
        called(lambda x, unit: x * (1.0 if unit is None else 2.0), (X, None), (X, "V")),
        "2 of 1: selects unit 1",
    ),
    "an object that selects an array": (
        called(lambda x, o: x * TABLES[o.name], *((X, Named(x)) for x in FACTORS)),
        "3 of 1: selects o.name 2",
    ),
    "closures that select an array": (
        closures_that_select,
        "3 of 1: function g 2",
        "[function]: make it once; pass what name selects, as an array",
    ),
    # --- the same operations ---
    "a Module whose array gains an axis": (
        carried(lambda s, x: Params(s.w + x), Params(jnp.zeros(())), X),
        "2 of 2: begin-alike s.w 1",
        "s.w float32[] first, then float32[3] as returned [begin-alike]: begin with",
    ),
    "a number, then an array": (
        carried(lambda s, x: s + x, 0.0, jnp.float32(1)),
        "2 of 2: begin-alike s 1",
    ),
    "an array, then numbers": (
        called(lambda x, n: x * n, *((X, n) for n in (jnp.float32(1), 0.5, 0.25))),
        "3 of 2: number n 1, number n 1",
        "jnp.asarray(n, 'float32')",
    ),
    "None, for which the function does something else": (
        carried(lambda s, x: x if s is None else jnp.sin(s) + x, None, X),
        "2 of 2:  (1 for s)",
    ),
    "parameters with an optimiser's state": (
        state_of_an_optimiser,
        "2 of 2: begin-alike w 1",
    ),
    "a smaller batch": (
        called(
            lambda x, y: (x.sum(), y.sum()),
            (ones(8, 3), ones(8)),
            (ones(4, 3), ones(4)),
        ),
        "2 of 2: batch x 1",
        "a batch of 4 after 8: x, y [batch]: leave it out, or pad and weight it",
    ),
    "a smaller batch, of the shape of a weight that is returned": (
        called(
            lambda w, x: (w + 1, x.sum()), *((ones(4, 3), ones(n, 3)) for n in (8, 4))
        ),
        "2 of 2: batch x 1",
    ),
    "a smaller batch of another line": (at_two_lines, "2 of 2:  (1 for x)"),
    "two lengths of a second axis, at a line": (
        called(lambda x: x.sum(), (ones(4, 8),), (ones(4, 3),)),
        "2 of 2: lengths x 1",
    ),
    "lengths, and a label, which keeps the data and so is first": (
        called(lambda x, tag: +x, *((ones(n), t) for t in "ab" for n in (4, 3, 2))),
        "6 of 3: label tag 3, lengths x 2",
    ),
    "an array that grows": (
        carried(lambda s, x: jnp.concatenate([s, x]), jnp.zeros(3), X),
        "4 of 4: grows s 3",
        "s grows, 3 to 12 [grows]: begin with 15, fill it, mask the rest",
    ),
    "an array that grows from nothing": (
        carried(lambda s, x: x if s is None else jnp.concatenate([s, x]), None, X),
        "4 of 4: grows s 2 (1 for s)",
        "s grows, 3 to 9 [grows]",
    ),
    "data in a tuple that a function captures": (
        data_in_a_closure,
        "3 of 3: lengths fit<data> 2, and function fit",
        "fit<data>[0], fit<data>[1] float32[2], float32[3], float32[4] [lengths]",
        "make it once; pass data",
    ),
    "a list that grows": (
        called(lambda xs: sum(xs), *(([X] * n,) for n in range(1, 6))),
        "5 of 5: grows xs 4",
    ),
    "lengths that grow, but are not returned": (
        called(lambda x: x.sum(), *((ones(n),) for n in (16, 24, 32))),
        "3 of 3: lengths x 2",
        "float32[16], float32[24], float32[32] [lengths]: pad to 32, the longest here",
    ),
    "lengths of several axes and arrays": (
        called(
            lambda x, y: x.sum() + y.sum(),
            *((ones(*s), ones(s[0])) for s in ((4, 4), (3, 4), (4, 3), (5, 6))),
        ),
        "4 of 4: lengths x 3",
        "x float32[4,4], float32[3,4], float32[4,3], ...; y float32[4], float32[3], "
        "float32[5] [lengths]: pad each axis to its longest",
    ),
    "keys of two kinds": (
        called(
            jax.random.uniform, (jax.random.key(0),), (jax.random.key(0, impl="rbg"),)
        ),
        "2 of 2: dtype key 1",
        "make it key<rbg> in all calls",
    ),
}


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows(case):
    """What is compiled, for how many programs, by which rules, and what that saves."""
    program, expected, *texts = case
    (row,) = rows_of(program)
    assert shown(row) == expected
    for text in texts:
        shown_parts = [f"{x.what} [{x.rule}]: {x.edit}" for x in row.parts]
        assert any(text in x for x in shown_parts)
    # What parts save in turn adds up; alone, none saves more than all together.
    assert sum(x.gain or 0 for x in row.parts) == row.saves
    assert all(x.saves <= row.saves for x in row.parts)
    # What is left is one compilation, and those of other programs.
    assert row.seconds == row.compilations == row.saves + row.wanted + 1
    needs_other = {x.rule for x in row.parts if x.other_data}
    assert needs_other <= {"batch", "lengths", "dtype"}
    assert row.other_data == sum(x.gain or 0 for x in row.parts if x.other_data)


@pytest.mark.parametrize("start", [0, 10], ids=["a length of the cache", "none"])
def test_a_cache_and_an_index_save_together(start):
    """Neither saves anything alone, and the row says so."""

    def program():
        step = filter_jit(lambda s, i, x: jnp.concatenate([s, i * x]))
        cache = jnp.zeros((0, 3))
        for i in range(start, start + 4):
            cache = step(cache, i, X[None])

    (row,) = rows_of(program)
    rule = "number" if start else "length-number"
    assert shown(row) == f"4 of 4: grows s 3, and {rule} i"


def under_grad():
    f = filter_jit(lambda x: jnp.sin(x).sum())
    f(X)
    jax.grad(f)(X)


def inside_first():
    inner = filter_jit(lambda x, n: x * n)
    filter_jit(lambda x: inner(x, 1) + 1)(X)
    inner(X, 2)


NOTHING = {
    "a call under jax.grad": under_grad,
    "a function that was a part of another one": inside_first,
}


@pytest.mark.parametrize("program", NOTHING.values(), ids=NOTHING)
def test_no_rows(program):
    """What had to be compiled has none."""
    assert rows_of(program) == []


def test_what_was_compiled_before_the_run_spares_all():
    f = filter_jit(lambda x, n: x * n)
    with jax.numpy_dtype_promotion("standard"):  # as in the run
        f(X, 1)
    (row,) = rows_of(lambda: [f(X, n) for n in (1, 2, 3)])
    assert shown(row) == "2 of 1: number n 2"


def test_a_row_of_a_function_that_is_made_again_has_its_line():
    """The call's line is that of the row, and the edit's that of the part."""

    def make(n):
        return filter_jit(lambda x: x * n)

    (row,) = rows_of(lambda: [make(n)(X) for n in (1, 2)])
    (part,) = row.parts
    lines = line_below(make, 1), line_below(make, 3)
    assert (part.line.line, row.line.line) == lines
    assert (part.values, part.count) == ((), 1)


@pytest.mark.parametrize("n", [1, 2])
def test_a_row_of_a_function_that_is_passed_has_its_lines(n):
    def passed():
        f = filter_jit(lambda g, x: g(x))
        for _ in range(2):
            add = lambda x: x + 1  # noqa: E731
            double = lambda x: x * 2  # noqa: E731
            for g in (add, double)[:n]:
                f(g, X)

    (row,) = rows_of(passed)
    (part,) = row.parts
    lines = [line_below(passed, 3 + i) for i in range(n)]
    assert part.rule == "function"
    assert (part.line and part.line.line) == (lines[0] if n == 1 else None)
    assert n == 1 or all(f"test_rows.py:{line}" in part.what for line in lines)


def test_a_file_has_programs(tmp_path):
    """The report on its event file has the same rows."""
    report = report_on(sweep).to_dict()
    events = [{"type": "compile", **event} for event in report["run"]["events"]]
    file = event_file.write(tmp_path / "run.jsonl", events, cache=None)
    read, _ = event_file.report_on(file)
    assert report["rows"][0] == read["rows"][0]


# --- within a program ---


class Agent(eqx.Module):
    critic: eqx.nn.MLP
    target: eqx.nn.MLP


class Chunk(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self, key):
        self.layer = eqx.nn.Linear(3, 3, key=key)


@filter_jit
def unused_field(agent, x):
    for _ in range(20):
        y = agent.target(x)
        grads = eqx.filter_grad(lambda a: jnp.mean((a.critic(x) - y) ** 2))(agent)  # noqa: B023
        agent = eqx.apply_updates(agent, jax.tree.map(lambda g: -0.1 * g, grads))
    return agent


@filter_jit
def constructors(key):
    chunks = [Chunk(jax.random.fold_in(key, i)) for i in range(24)]
    return jax.tree.map(
        lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *chunks
    )


LOOPS = {
    "a differentiated model has a field that is not used": (
        lambda: unused_field(Agent(mlp(1), mlp(1)), X),
        20,
    ),
    "modules are made of keys": (lambda: constructors(jax.random.key(0)), 24),
}


@pytest.mark.parametrize(("program", "iterations"), LOOPS.values(), ids=LOOPS)
def test_an_unrolled_loop_has_a_row(program, iterations):
    (part,) = parts_of(program, "unrolled-loop")
    assert part.what.startswith(f"a loop, {iterations} iterations in all, 100% of ")


TABLE = jnp.asarray(np.random.default_rng(0).normal(size=8_000), jnp.float32)


def in_while(x):
    body = lambda state: (state[0] + jnp.sort(TABLE), state[1] - x)  # noqa: E731
    return jax.lax.while_loop(lambda state: state[1] > 0, body, (TABLE, x))


WITHIN = {
    "fori_loop": lambda x: jax.lax.fori_loop(
        0, 3, lambda i, y: y + x * jnp.sort(TABLE), TABLE
    ),
    "scan": lambda x: jax.lax.scan(
        lambda y, i: (y + x * jnp.sort(TABLE), i), TABLE, jnp.arange(3)
    ),
    "while_loop": in_while,
    "cond": lambda x: jax.lax.cond(x > 0, lambda: x * jnp.sort(TABLE), lambda: TABLE),
}


@pytest.mark.parametrize("fun", WITHIN.values(), ids=WITHIN)
def test_a_constant_within_control_flow_is_found(fun):
    """XLA sorts it as it compiles, as it does without the loop."""
    program = called(fun, (jnp.float32(1),))
    (found,) = parts_of(program, "captured-constant")
    assert found.path == "TABLE"


# --- outside of jit ---


def loops():
    for n in range(10, 18):
        jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x), ones(n))


def models():
    for n in range(1, 9):
        linear(n, n)


def in_turns():
    for _ in range(8):
        for n in (2, 3):
            jnp.cumsum(ones(n))


def of_leaves():
    """Parameters have a shape each, which stays."""
    jax.tree.map(jnp.cumsum, [ones(n) for n in range(1, 8)])


def updates():
    """A library has many at one line, in a function that also calls what is jitted."""
    grad, opt = filter_jit(eqx.filter_grad(lambda m: m(X).sum())), optax.adam(1e-3)
    model = mlp(3)
    state = opt.init(eqx.filter(model, eqx.is_array))
    grads = grad(model)
    opt.update(grads, state)


EAGER = {
    "a library's, at a line": (updates, ["eager: "]),
    "new functions of other shapes": (loops, ["eager: 8 of 8, 8 values"]),
    "models that are made": (models, []),
    "a few shapes in turns": (in_turns, []),
    "each leaf of a tree": (of_leaves, []),
}


@pytest.mark.parametrize(("program", "expected"), EAGER.values(), ids=EAGER)
def test_operations_outside_of_jit(program, expected):
    """One row for a function, if one of its lines compiles again and again, or many."""
    found = [
        f"{part.rule}: {x.compilations} of {x.programs}, {len(part.values)} values"
        for x in eager_rows(program)
        for part in x.parts[:1]
    ]
    assert len(found) == len(expected) and all(map(str.startswith, found, expected))


def test_what_has_to_be_compiled_outside_of_jit_is_told_by_function():
    """By the user's lines, not by names of JAX's functions."""

    def build():
        return jax.random.split(jax.random.key(0))

    jax.clear_caches()
    found = {x.function: x for x in report_on(build).rows if x.wanted}
    row = found["operations outside of jit in build"]
    assert row.line.line == line_below(build, 1)
    assert [x.what for x in row.parts] == ["return jax.random.split(jax.random.key(0))"]


def test_a_heavy_operation_has_no_row():
    """One program with it takes as long as all do by themselves."""

    def body(x, _):
        return sum([jnp.sin(x)] * 25), None

    def density(x):
        run = lambda n: jax.lax.scan(body, x, None, length=n)[0]  # noqa: E731
        return jax.tree.map(run, [*range(2, 26)])

    assert not eager_rows(lambda: density(X))


def test_operations_are_told_apart_under_a_debugger():
    """Its trace function is called as before."""
    lines = []

    def traced(frame, event, argument):
        lines.append(frame.f_code.co_name)
        return traced

    def program():
        before = sys.gettrace()
        sys.settrace(traced)
        loops()
        sys.settrace(before)

    jax.clear_caches()
    assert parts_of(program, "eager")
    assert lines.count("loops") > 16  # a call, and two lines of each iteration


@pytest.mark.parametrize("lengths", [range(11, 18), [19]], ids=["a loop", "one call"])
def test_operations_of_a_function(lengths):
    """The row is of the function that jits nothing, at the line that calls it."""
    step = filter_jit(lambda x: x + 1)

    def score(x):
        exps = jnp.exp, jnp.exp2, jnp.expm1, jnp.log1p, jnp.sqrt, jnp.cbrt
        for fun in (jnp.sin, jnp.cos, jnp.tan, jnp.sinh, jnp.cosh, jnp.tanh, *exps):
            x = fun(x) * 0.1
        x = jnp.abs(jnp.sign(x) - jnp.floor(x) + jnp.ceil(x) / jnp.square(x))
        return jnp.max(x) + jnp.min(x) + jnp.prod(x)

    def program():
        for n in lengths:
            score(step(ones(n)))

    (row,) = eager_rows(program)
    assert (row.parts[0].rule, row.line.line) == ("eager", line_below(program, 2))
    assert (row.function, row.about) == ("score", True)
    assert 0.5 * row.seconds < row.saves < row.seconds
    assert (0 < row.other_data < row.saves) == (len(lengths) > 1)


# --- the line to edit -----------------------------------------------------------------


def test_one_edit_of_an_array_for_two_functions_is_one_row():
    """A weak type is fixed where the variable is assigned."""

    @filter_jit
    def scale(s, x):
        return s * x

    @filter_jit
    def move(s, x):
        return s + x

    def program():
        s = jnp.asarray(1.0)
        for _ in range(2):
            scale(s, X)
            move(s, X)
            s = s + X[0]

    (row,) = rows_of(program)
    (part,) = row.parts
    assert (part.rule, part.line.line) == ("weak-type", line_below(program, 1))
    assert (row.compilations, row.programs, row.saves, part.gain) == (4, 2, 2, 2)


def test_the_line_of_an_array_that_a_call_returns_with_a_weak_type():
    def step(s):
        chosen = jnp.where(s > 3, 1.0, 2.0)
        return chosen

    def program():
        s, jitted = jnp.float32(1), filter_jit(step)
        for _ in range(3):
            s = jitted(s)

    (row,) = rows_of(program)
    assert row.parts[0].line.line == line_below(step, 1)


MODULE = """
import optax
from eqx_fastjit import filter_jit

def fit(x, optimiser):
    return step(x, optimiser)

@filter_jit
def step(x, opt):
    return opt.init(x)

def make_loss(n):
    def loss(x):
        return n * x
    return loss

@filter_jit
def evaluate(x, loss):
    return loss(x)
"""


def test_the_line_of_what_is_made_is_found_through_another_file(tmp_path, monkeypatch):
    """Another file of the user's calls what is jitted, or defines what is passed."""
    (tmp_path / "some_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import some_models  # pyright: ignore

    def program():
        for i in range(2):
            optimiser = optax.adam(0.1)
            some_models.fit(X, optimiser)
            loss = some_models.make_loss(i)
            some_models.evaluate(X, loss)

    rows = rows_of(program)
    lines = {x.parts[0].rule: x.parts[0].line for x in rows}
    assert lines["optimiser"][:2] == (__file__, line_below(program, 2))
    assert lines["function"][:2] == (__file__, line_below(program, 4))
