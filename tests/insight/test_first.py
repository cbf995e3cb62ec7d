"""Why a first compilation took long: captured constants, unrolled loops, callbacks.

Promise 37 of docs/reliability.md.
"""

import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import _first, _report, inspect
from eqx_fastjit.insight._constants import find_constants
from eqx_fastjit.insight._equations import read_jaxpr
from eqx_fastjit.insight._loops import find_loops, scannable
from eqx_fastjit.insight._outside import of_several_lines
from eqx_fastjit.insight._private import keeps_callbacks
from eqx_fastjit.insight._watch import Watch
from tests.support.programs import run_program


ARRAY = jnp.asarray(np.random.default_rng(0).normal(size=(60, 1000)), jnp.float32)
TABLE = {"of numpy": np.ones((3, 7))}
HOLDER = types.SimpleNamespace(inside=jnp.ones((5, 7)))


@pytest.fixture
def watched(monkeypatch):
    """The doctor's report on a function, however quickly it compiles."""
    monkeypatch.setattr(_first, "LEAST_SECONDS", 0.0)

    def report_on(program):
        watch = Watch()
        watch.jax_imported()
        try:
            program()
        finally:
            watch.stop()
        return watch.report("program.py", 0)

    return report_on


def of_cause(found, cause):
    return [x for x in (*found.findings, *found.helps) if x.cause == cause]


# --- constants ------------------------------------------------------------------------


def test_a_constant_that_xla_folds_is_a_finding_and_an_argument_is_none(watched):
    """Its seconds are those of the call, which no other row counts."""

    def scaled(array, i):
        return (array / jnp.max(jnp.abs(array)))[i]

    captured = filter_jit(lambda i: scaled(ARRAY, i))
    fault = watched(lambda: captured(jnp.asarray(3)))
    mended = watched(lambda: filter_jit(scaled)(ARRAY, jnp.asarray(3)))
    (finding,) = of_cause(fault, "captured constant")
    assert (finding.attribute, finding.leaf, finding.count) == ("folded", "ARRAY", 1)
    assert (
        finding.line.file == __file__ and "float32[60,1000], 234.4 KiB" in finding.says
    )
    assert "`reduce_max`, `abs`, `div`" in finding.says
    (compilation,) = [e for e in fault.run.events if e.function.name == "<lambda>"]
    assert 0.2 * compilation.compile < finding.saves < finding.seconds
    assert finding.seconds == compilation.seconds
    assert all("<lambda>" not in x.functions for x in fault.others)
    assert of_cause(mended, "captured constant") == []


def test_a_constant_has_the_name_of_its_variable():
    cell = jnp.ones((2, 7))
    called = filter_jit(lambda x: x + ARRAY[0, 0])

    def f(x):
        held = cell.sum() + TABLE["of numpy"].sum() + jnp.sum(HOLDER.inside)
        return x + held + called(x) + jnp.sum(jnp.asarray(np.eye(9)) * x)

    found = find_constants(read_jaxpr(jax.make_jaxpr(f)(1.0)), f)
    names = {x.type.partition("[")[2]: x.name for x in found}
    assert names["60,1000]"] == "ARRAY" and names["2,7]"] == "cell"
    assert names["5,7]"] == "HOLDER.inside" and names["9,9]"] == ""


# --- functions of plain jax.jit -------------------------------------------------------


def power(x, n):
    return (x**n).sum() * n


def made_again(x):
    for i in range(4):
        jax.jit(lambda x: power(x, i + 2.0))(x)  # noqa: B023


def partials(x):
    for i in range(4):
        jax.jit(functools.partial(power, n=i + 2.0))(x)


def static_argument(x):
    f = jax.jit(lambda x, n: power(x, n + 0.5), static_argnames="n")
    for n in range(2, 6):
        f(x, n=n)


def other_shapes(x):
    f = jax.jit(lambda x: power(x, 2.5))
    for n in (2, 7, 4, 5):
        f(x[:n])


@pytest.mark.parametrize(
    ("program", "attribute", "spared"),
    [
        (made_again, "closure", 3),
        (partials, "wrapper", 3),
        (static_argument, "number under jax.jit", 3),
        (other_shapes, "lengths", 3),
    ],
)
def test_a_function_of_plain_jit_that_could_be_spared(
    watched, program, attribute, spared
):
    x = np.ones(7, np.float32)
    found = watched(lambda: program(x))
    rows = (*found.findings, *found.prices, *found.others)
    (finding,) = [x for x in rows if x.attribute == attribute and x.count == 3]
    assert finding.spares == spared and bool(finding.edit) == (finding.saves > 0)


# --- unrolled loops -------------------------------------------------------------------


def looped(n):
    def body(x, factor):
        return x * factor + 1.0

    def f(x, scale):
        for i in range(n):
            x = body(x, scale * (0.5 if i == n - 1 else 1.0))
        return x

    return f


def test_operations_for_the_same_lengths_are_told_with_the_function(watched):
    f = filter_jit(lambda x: jnp.linalg.svd(x)[1].sum())

    def program():
        for n in (3, 5, 7):
            f(jax.random.normal(jax.random.key(0), (n, n)))

    found = watched(program)
    (finding,) = of_cause(found, "shape")
    assert "compile for the same lengths" in finding.says
    assert "`_normal` at" in finding.says
    assert finding.functions == {"<lambda>": 2, "_normal": 2}
    assert 0 < finding.otherwise == finding.saves <= finding.seconds


def test_functions_that_follow_both_lengths_of_an_array_are_one_finding(watched):
    f, g = filter_jit(lambda x: x * 2), filter_jit(lambda y: y + 1)
    shapes = ((2, 3), (3, 5), (4, 4), (5, 7))
    found = watched(lambda: [(f(x), g(x)) for x in map(np.zeros, shapes)])
    assert [x.count for x in of_cause(found, "shape")] == [6]


def test_an_unrolled_loop_is_told_once_for_the_compilations_that_remain(
    watched, monkeypatch
):
    monkeypatch.setattr(_first, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(_first, "_AROUND", 0)
    f = filter_jit(looped(600))

    def program():
        for x in (jnp.ones(2), jnp.ones(3), jnp.ones(4)):
            f(x, jnp.asarray(2.0))
        for scale in (1.0, 3.0):
            f(jnp.ones(2), scale)

    found = watched(program)
    (help_,) = of_cause(found, "scan")
    counted = sum(x.functions.get("f", 0) for x in found.findings)
    assert help_.count + counted == 5 and help_.line.function.endswith("f")
    assert "600 iterations have the same operations and shapes" in help_.says
    assert 0 < help_.saves == help_.seconds
    assert found.saves + found.saves_later == sum(x.saves for x in found.rows)


def test_layers_that_are_scanned_as_advised_give_the_same_results():
    keys = jax.random.split(jax.random.key(0), 4)
    layers = [eqx.nn.Linear(3, 3, key=key) for key in keys]

    @filter_jit
    def looped(layers, x):
        for layer in layers:
            x = jnp.tanh(layer(x))
        return x

    @filter_jit
    def scanned(layers, x):
        def body(x, arrays):
            return jnp.tanh(eqx.combine(arrays, rest[0])(x)), None

        parts = [eqx.partition(x, eqx.is_array) for x in layers]
        arrays, rest = zip(*parts, strict=True)
        xs = jax.tree.map(lambda *x: jnp.stack(x), *arrays)
        x, _ = jax.lax.scan(body, x, xs)
        return x

    for f in (looped, scanned):
        assert f(layers, jnp.ones(3)).tolist() == looped(layers, jnp.ones(3)).tolist()
    sizes = [inspect(f, layers, jnp.ones(3)).loops for f in (looped, scanned)]
    assert [len(x) for x in sizes] == [1, 0]


def test_iterations_that_need_nothing_of_each_other_are_for_vmap(watched, monkeypatch):
    monkeypatch.setattr(_first, "LEAST_SECONDS", 0.0)
    ws = [jnp.ones(2) * i for i in range(300)]
    xs = jnp.stack(ws)
    unrolled = filter_jit(lambda ws: [jnp.sin(w) * w + 1.0 for w in ws])
    found = watched(lambda: unrolled(ws))
    (help_,) = of_cause(found, "scan")
    assert help_.edit == "jax.vmap" and "stacked, as `xs`" in help_.fix
    mapped = filter_jit(jax.vmap(lambda w: jnp.sin(w) * w + 1.0))
    assert jnp.allclose(mapped(xs), jnp.stack(unrolled(ws)))


def test_a_function_that_compiles_quickly_is_not_looked_through(watched, monkeypatch):
    monkeypatch.setattr(_first, "LEAST_SECONDS", 1e6)
    f = filter_jit(looped(20))
    found = watched(lambda: f(jnp.ones(2), jnp.asarray(2.0)))
    assert of_cause(found, "scan") == []


def index(x, w, ws):
    for i in range(4):
        x = x + ws[i]
    return x


def number(x, w, ws):
    for rate in (0.1, 0.1, 0.1, 0.2):
        x = x * rate + w
    return x


def same(x, w, ws):
    for _ in range(4):
        x = jnp.sin(x) * w
    return x


def layer(x, w, ws):
    for v in [w, x, w * 1, x * 1]:
        x = x + v
    return x


def layers(x, w, ws):
    for v in ws:
        x = x + v
    return x


def gates(x, w, ws):
    for v in ws:
        for i in range(3):
            x = jnp.roll(x, i) * v
    return x


def each(x, w, ws):
    return jnp.stack([jnp.sin(v) * w for v in ws])


@pytest.mark.parametrize(
    ("f", "ws", "advice"),
    [
        (same, 0, "`xs=None, length=n`"),
        (number, 0, "an array of the numbers that differ as `xs`"),
        (index, jnp.ones((4, 2)), "the array that it takes parts of as `xs`"),
        (layers, jnp.ones((4, 2)), "the array that it takes parts of as `xs`"),
        (layers, [jnp.ones(2)] * 4, "the arrays that the iterations take of a list"),
        (gates, jnp.ones((4, 2)), "the array that it takes parts of as `xs`"),
        (each, [jnp.ones(2)] * 4, "the arrays that the iterations take of a list"),
    ],
)
def test_what_the_iterations_do_not_share_becomes_xs(f, ws, advice):
    trace = jax.make_jaxpr(f)(jnp.ones(2), jnp.ones(2), ws)
    loop, *_ = find_loops(read_jaxpr(trace))
    assert loop.uniform and advice in _first._scanned(loop)
    assert loop.independent == (f is each)  # so that it can be mapped over
    assert loop.numbers == (("0.1", "0.2") if f is number else loop.numbers)


def test_a_loop_that_makes_a_list_of_layers_is_not_told():
    def make(key):
        keys = jax.random.split(key, 4)
        return [eqx.nn.Linear(2, 2, key=k).weight for k in keys]

    trace = jax.make_jaxpr(make)(jax.random.key(0))
    assert not find_loops(read_jaxpr(trace))


def test_of_loops_in_each_other_the_outer_one_is_scanned_and_others_are_too():
    def f(x, w, ws):
        return number(gates(x, w, ws), w, ws)

    trace = jax.make_jaxpr(f)(jnp.ones(2), jnp.ones(2), jnp.ones((4, 2)))
    found = [x.place.function for x in scannable(read_jaxpr(trace))]
    assert found == ["gates", "number"]


def test_a_function_that_is_made_again_is_one_program_for_each_of_its_shapes(watched):
    def make(n):
        return filter_jit(lambda x: jnp.linalg.inv(jnp.eye(n) + x))

    def program():
        for n in (2, 3, 2, 3, 2):
            make(n)(jnp.ones(()))

    (finding,) = watched(program).findings
    assert (finding.cause, finding.count, finding.spares) == ("new function", 4, 3)


# --- operations outside of jit --------------------------------------------------------


def scale_again(x):
    for i in range(5):
        x = jax.lax.scan(lambda c, _: (c * (i + 2.0), None), x, length=2)[0]  # noqa: B023


def grow(x):
    buffer = x[None]
    for _ in range(6):
        buffer = jnp.concatenate([buffer, x[None]])


def stacks(x):
    for n in range(10, 16):
        jnp.concatenate([x] * n)


def slices(x):
    for i in range(1, 7):
        x[:i].block_until_ready()


def models(x):
    net = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    for n in range(1, 7):
        jax.vmap(net)(np.ones((n, 3), np.float32))


class Recurrent(eqx.Module):
    def __call__(self, xs):
        return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]


def recurrent(x):
    for _ in range(6):
        Recurrent()(x)


@pytest.mark.parametrize(
    ("program", "attribute", "operation", "says"),
    [
        (grow, "shapes", "concatenate", "(float32[2,7], float32[1,7])"),
        (stacks, "shapes", "concatenate", "(10 x float32[7]), (11 x float32[7])"),
        (slices, "results", "dynamic_slice", "shapes: (float32[1]), (float32[2])"),
        (models, "model", "matmul", "runs a model outside of jit"),
        (recurrent, "model again", "scan", "`<lambda>` is created again"),
        (scale_again, "created again", "scan", "`<lambda>` is created again"),
    ],
)
def test_operations_that_compile_again_are_a_finding(
    watched, program, attribute, operation, says
):
    x = jnp.ones(7)
    found = watched(lambda: program(x))
    (finding,) = [x for x in found.findings if operation in x.functions]
    assert (finding.attribute, finding.line.function) == (attribute, program.__name__)
    assert says in finding.says and 0 < finding.saves < finding.seconds
    assert sum(finding.functions.values()) == finding.count


def test_lines_that_cost_little_each_are_a_row_together(watched):
    found = watched(lambda: [slices(jnp.ones(9)), grow(jnp.ones(9))]).findings
    row = of_several_lines(found)
    assert row.saves == pytest.approx(sum(x.saves for x in found))
    assert "`concatenate`, shapes change at" in row.says
    assert "`dynamic_slice`, makes several lengths at" in row.says


def test_models_and_states_outside_of_jit_are_no_finding(watched):
    """Nor are models of many widths, or a call of one: JAX's cache keeps them."""
    jax.clear_caches()
    widths = [[n, n + 1] for n in range(3, 9)]
    keys = jax.random.split(jax.random.key(0), 6)

    def program():
        for key, (m, n) in zip(keys, widths, strict=True):
            layers.append(eqx.nn.Linear(m, n, key=key))
        eqx.nn.Sequential(layers)(np.ones(3, np.float32))

    layers = []
    found = watched(program)
    assert found.findings == ()
    (once,) = [x for x in found.others if x.attribute == "once"]
    assert once.functions["_uniform"] >= 12 and once.saves == 0.0


# --- the persistent cache -------------------------------------------------------------


@pytest.mark.parametrize("jit", [filter_jit, jax.jit])
def test_the_cache_is_recommended_for_what_it_keeps(jit, watched, monkeypatch):
    monkeypatch.setattr(_report, "LIMIT_SHARE", 1e-9)  # whatever it saves
    checked = jit(lambda x: eqx.error_if(x, jnp.any(x < 0), "negative"))

    @jit
    def prints(x):
        jax.debug.print("{}", x)
        return x

    plain = jit(lambda x, y: jnp.linalg.svd(jnp.outer(x, x))[1] * y)

    def program():
        checked(jnp.ones(2))
        prints(jnp.ones(2))
        plain(jnp.ones(2), jnp.asarray(2.0))

    monkeypatch.setattr(_first, "keeps_callbacks", lambda: False)
    found = watched(program)
    (item,) = of_cause(found, "persistent cache")
    assert "That is without 1 of the 2 programs of `<lambda>`, `prints`" in item.says
    (item,) = of_cause(found, "host callbacks")
    assert "`EQX_ON_ERROR=nan`" in item.fix
    event, _ = [e for e in found.run.events if e.function.name == "<lambda>"]
    assert item.seconds == event.compile
    assert "do: `<lambda>`. That is without `prints`" in item.says
    monkeypatch.setattr(_first, "keeps_callbacks", lambda: True)
    jax.clear_caches()
    assert of_cause(watched(program), "host callbacks") == []


def test_what_the_cache_refuses_is_known_of_this_version_of_jax(tmp_path):
    """As JAX does: it writes an entry for a program with a callback, or it does not."""
    options = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run_program(
        "cached_callback.py", JAX_COMPILATION_CACHE_DIR=str(tmp_path), **options
    )
    written = [x.name for x in tmp_path.iterdir() if "calls_back" in x.name]
    assert bool(written) == keeps_callbacks()
