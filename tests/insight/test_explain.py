"""`explain`: each reason with its leaf, call, count and seconds, in a few lines.

Promise 36 of docs/reliability.md.
"""

import dataclasses
import functools
import os
import sysconfig
import time
import types
import warnings
import zlib

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import eqx_fastjit
from eqx_fastjit.insight import _events, explain


@pytest.fixture
def events():
    """Each event, as it ends."""
    found = []
    _events.watch(found.append)
    yield found
    _events.unwatch(found.append)


def only(explanation):
    (finding,) = explanation.findings
    return finding


def test_lengths_of_several_axes_of_an_array_are_one_cause():
    f = eqx_fastjit.filter_jit(lambda x: x * 2)
    for shape in ((4, 4), (3, 4), (4, 3), (5, 6)):
        f(jnp.ones(shape))
    (finding,) = explain(f).findings
    assert finding.what == "`x` has 4 shapes" and finding.parts == ()


def test_nothing_was_traced_again():
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    f(np.ones(2))
    f(np.zeros(2))
    found = explain(f)
    assert (found.traces, found.compiles, found.findings) == (1, 1, ())
    assert str(found).endswith("nothing was traced again")


def test_a_function_that_calls_itself_is_compiled_once():
    """Of its inner calls, one that JAX has traced already ends no event."""

    @eqx_fastjit.filter_jit
    def total(x):
        half = x.shape[0] // 2
        return total(x[:half]) + total(x[half:]) if half else x.sum()

    assert total(np.ones(4, np.float32)) == 4
    (event,) = [e for e in _events.history() if not e.is_part]
    assert event.traced and event.compile > 0
    assert [x.shape for x in event.signature if x.kind == "array"] == [(4,)]


def test_a_method_is_that_of_all_instances():
    class Scale(eqx.Module):
        by: int

        @eqx_fastjit.filter_jit
        def apply(self, x):
            return x * self.by

    for by in (1, 2):
        Scale(by).apply(np.ones(2))
    assert only(explain(Scale(3).apply)).leaf == "self.by"


def test_a_function_that_is_not_jitted_is_refused():
    with pytest.raises(TypeError):
        explain(lambda x: x)


def test_twenty_lengths_are_one_reason_in_twenty_lines():
    f = eqx_fastjit.filter_jit(lambda x: x.sum())
    for n in range(1, 21):
        f(np.ones(n, np.float32))
    found = explain(f)
    assert only(found).count == 19
    assert only(found).attribute == "buffer"
    assert len(str(found).splitlines()) <= 20
    assert found.traces == found.compiles == 20


def test_many_reasons_are_cut_unless_verbose():
    @eqx_fastjit.filter_jit
    def f(**kwargs):
        return kwargs["x"] + 1

    x = np.ones(2, np.float32)
    for name in "abcdefgh":
        f(x=x, **{name: 1})
        f(x=x, **{name: 2})
    short, long = str(explain(f)), str(explain(f, verbose=True))
    assert len(short.splitlines()) <= 20 < len(long.splitlines())
    assert "more reason" in short and "more reason" not in long


def test_the_script_that_started_a_command_is_not_told():
    f = eqx_fastjit.filter_jit(lambda x, n: x * n)
    launcher = os.path.join(sysconfig.get_path("scripts"), "some-command")
    code = compile("for n in (1, 2): main(n)", launcher, "exec")
    exec(code, {"main": lambda n: f(np.ones(2), n)})
    assert "some-command" not in str(explain(f))
    assert "test_explain.py" in str(explain(f))


def test_a_call_line_and_those_that_led_to_it():
    f = eqx_fastjit.filter_jit(lambda x, n: x * n)

    def helper(n):
        return f(np.ones(2), n)

    helper(1)
    helper(2)
    (call,) = only(explain(f)).calls
    assert call.count("test_explain.py:") >= 2 and ", from " in call


def test_an_array_in_an_object_that_is_static(events):
    """A dataclass that is no pytree is static as a whole."""

    @dataclasses.dataclass
    class Trainer:
        weight: jax.Array

        @eqx_fastjit.filter_jit
        def step(self, x):
            return self.weight - x

    trainer = Trainer(jnp.ones(2))
    for _ in range(3):
        trainer.weight = trainer.step(jnp.ones(2))
    finding = only(explain(Trainer.step))
    assert (finding.leaf, finding.count) == ("self.weight", 2)
    assert "`self.weight` is an array in an object that is static" in finding.says
    assert "an `eqx.Module`" in finding.fix and "hash" not in finding.fix


def _changed_in_place(f):
    config = types.SimpleNamespace(rate=1)
    for _ in range(2):
        f(config, np.ones(2))
        config.rate += 1


def _dropped(f):
    for rate in (1, 2):
        f({"rate": rate}, np.ones(2))
        f.clear_cache()


def _unstable(f):
    """A flatten function makes other aux data each time."""
    for _ in range(2):
        f(Unstable(), np.ones(2))


@jax.tree_util.register_pytree_node_class
class Unstable:
    def tree_flatten(self):
        return (), object()

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls()


@pytest.mark.parametrize("program", [_changed_in_place, _dropped, _unstable])
def test_what_is_gone_is_said_and_described_from_then_on(program):
    """Nothing of the arguments is kept alive for those who may ask later."""
    f = eqx_fastjit.filter_jit(lambda config, x: x + 1)
    program(f)
    found = explain(f)
    assert found.gone > 0 and found.findings == ()
    assert (found.traces, found.compiles) == (2, 2)
    assert "not explained" in str(found)
    program(f)
    assert only(explain(f)).cause in ("static", "structure", "configuration")


def test_a_static_that_was_changed_since_the_trace():
    """It is not shown as it was not."""
    f = eqx_fastjit.filter_jit(lambda config, x: x + 1)
    first, second = (types.SimpleNamespace(rate=rate) for rate in (1, 2))
    f(first, np.ones(2))
    f(second, np.ones(2))
    first.rate = 3
    assert explain(f).gone == 1


def test_an_observer_that_raises_ends_no_call(capsys):
    """It is told of nothing any more, and others are."""
    told = []

    def wrong(event):
        raise ValueError("wrong")

    _events.watch(wrong)
    _events.watch(told.append)
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    assert f(np.ones(2)).tolist() == f(np.ones(3)).tolist()[:2]
    _events.unwatch(told.append)
    assert len([e for e in told if not e.is_outside]) == 2
    assert capsys.readouterr().err.count("ends here: ValueError('wrong')") == 1


def test_an_observer_that_computes():
    """What it calls is no part of the call that it is told of."""
    g = eqx_fastjit.filter_jit(lambda x: x * 2)
    told = []

    def observer(event):
        told.append(event)
        if not event.is_outside and event.function.key() != g._function.info.key():
            g(np.ones(event.signature[0].shape))
            jax.jit(lambda x: x - 1).lower(np.ones(2)).compile()

    _events.watch(observer)
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    for n in (2, 3):
        f(np.ones(n))
    _events.unwatch(observer)
    found = [e for e in told if not e.is_outside]
    assert len(found) == 4 and all(e.traced and e.compile for e in found)
    assert all(e.inside is None for e in told)


def test_which_call_is_the_odd_one_of_a_weak_type():
    x = np.ones(2, np.float32)
    early = eqx_fastjit.filter_jit(lambda loss, x: x.sum() + loss)
    early(jnp.asarray(0.0), x)
    early(jnp.asarray(0.0, jnp.float32), x)
    late = eqx_fastjit.filter_jit(lambda loss, x: x.sum() + loss)
    late(jnp.asarray(0.0, jnp.float32), x)
    late(jnp.asarray(0.0), x)
    for f, which in ((early, "earlier"), (late, "later")):
        finding = only(explain(f))
        assert finding.attribute == "weak type"
        assert f"from a Python number in the {which} call" in finding.says


def test_a_number_in_one_call_and_an_array_in_another():
    f = eqx_fastjit.filter_jit(lambda x, rate: x * rate)
    f(np.ones(2, np.float32), np.float32(1e-4))
    f(np.ones(2, np.float32), 1e-4)
    finding = only(explain(f))
    assert (finding.attribute, finding.leaf) == ("number and array", "rate")
    assert "float32[], 0.0001" in finding.says
    assert "a number in the later call" in finding.says


def test_a_number_first_and_then_an_array_that_was_made_of_one():
    """Whether the array is weakly typed does not matter."""
    f = eqx_fastjit.filter_jit(lambda args: args[0] + args[1])
    f((np.ones(2, np.float32), 1.0))  # the number
    f((np.ones(2, np.float32), jnp.asarray(1.0)))
    finding = only(explain(f))
    assert (finding.attribute, finding.leaf) == ("number and array", "args[1]")
    assert "a number in the earlier call" in finding.says
    with open(__file__) as file:
        (line,) = [i for i, x in enumerate(file, 1) if x.endswith("# the number\n")]
    assert "where `args[1]` is set" in finding.fix
    assert f"test_explain.py:{line}" in finding.says.partition("earlier")[2]


def test_partials_of_different_functions_are_different_functions():
    funs = [
        lambda x, n: x + n,
        lambda x, n: x * n,
    ]
    for fun in funs:
        f = eqx_fastjit.filter_jit(eqx.Partial(fun, n=2))
        f(np.ones(2))
    assert explain().findings == ()


def test_the_first_call_that_is_compiled():
    """A trace that was a part of another function could not have spared it."""
    inner = eqx_fastjit.filter_jit(lambda x, scale: x * scale)
    outer = eqx_fastjit.filter_jit(lambda x, scale: inner(x, scale) + 1)
    outer(np.ones(2), np.ones(()))
    inner(np.ones(2), 2.0)
    assert explain(inner).findings == ()
    inner(np.ones(2), 3.0)
    assert only(explain(inner)).attribute == "number"


@pytest.mark.parametrize(
    ("values", "attribute"),
    [
        ((1, 2), "number of a model"),
        ((3, 3.0), "type"),
        (("a", "b"), "static"),
        ((lambda: 1, None), "static"),
        (((1, 2), (1, 3)), "container"),
        (({"a": 1, "b": 2}, {"b": 2, "a": 1}), "container"),
        ((True, False), "static"),
    ],
)
def test_attributes_of_statics(values, attribute):
    class Holder(eqx.Module):
        value: object = eqx.field(static=True)

    f = eqx_fastjit.filter_jit(lambda h, x: x + zlib.crc32(str(h.value).encode()) % 999)
    for value in values:
        f(Holder(value), np.ones(2))
    finding = only(explain(f))
    assert (finding.cause, finding.attribute) == ("static", attribute)
    assert finding.leaf == "h.value"


@pytest.mark.parametrize(
    ("old", "new", "attribute"),
    [
        (None, np.ones(2), "optional"),
        (np.ones(2), None, "optional"),
        ([np.ones(2)], [np.ones(2)] * 2, "grows"),
        ({"a": np.ones(2)}, {"b": np.ones(2)}, "structure"),
        ({"a": np.ones(2)}, {}, "structure"),
        ({"a": np.ones(2)}, (np.ones(2),), "structure"),
        ([np.ones(2)], (np.ones(2),), "structure"),
    ],
)
def test_attributes_of_structures(old, new, attribute):
    f = eqx_fastjit.filter_jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))
    f(old)
    f(new)
    finding = only(explain(f))
    assert (finding.cause, finding.attribute) == ("structure", attribute)


class Net(eqx.Module):
    w: float

    @eqx_fastjit.filter_jit
    def loss(self, x, rate):
        return self.w * x * rate

    @classmethod
    @eqx_fastjit.filter_jit
    def made(cls, x, rate):
        return x * rate

    @eqx_fastjit.filter_jit
    def __call__(self, x, rate=1.0):
        return self.w * x * rate


def test_the_edit_names_what_is_passed_if_there_is_no_doubt():
    """Nothing in the text of a call says what the function was bound to."""

    @eqx_fastjit.filter_jit
    def plain(x, rate):
        return x * rate

    def bound(config, x, rate):
        return x * rate

    bound_outside = bound = eqx_fastjit.filter_jit(functools.partial(bound, 1.0))
    net, x = Net(1.0), jnp.ones(2)
    calls = {
        plain: (lambda k: plain(x, 0.5 / k), "jnp.asarray(0.5 / k)"),
        Net.loss: (lambda k: net.loss(x, rate=0.5 / k), "jnp.asarray(0.5 / k)"),
        Net.made: (lambda k: Net.made(x, 0.5 / k), "jnp.asarray(0.5 / k)"),
        Net.__call__: (lambda k: net(x, 0.5 / k), "jnp.asarray(...)"),
        bound_outside: (lambda k: bound(x, 0.5 / k), "jnp.asarray(...)"),
    }
    for f, (call, expected) in calls.items():
        call(1)
        call(2)
        fix = only(explain(f)).fix
        assert f"Write `{expected}`" in fix and "for `rate` in the call" in fix


def test_a_smaller_array_that_is_no_batch():
    """Where other things differ too, nothing is left out."""
    f = eqx_fastjit.filter_jit(lambda layer, x: layer(x))
    for n in (4, 2):
        f(eqx.nn.Linear(3, n, key=jax.random.key(0)), jnp.ones(3))
    assert only(explain(f)).attribute != "ragged batch"


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=5))
def test_no_shapes_are_an_error_of_a_tool(shapes):
    """Axes come and go, and are of length zero: the call returns, with a reason."""
    f = eqx_fastjit.filter_jit(lambda tree: jax.tree.map(jnp.sum, tree))
    before = explain(f).traces  # of other functions of this line
    with warnings.catch_warnings(), eqx_fastjit.insight.guard(max_traces=1, warn=True):
        warnings.simplefilter("ignore", eqx_fastjit.insight.RetraceWarning)
        for i, shape in enumerate(shapes):
            f({"x": jnp.ones(shape), **{str(j): jnp.ones(j) for j in range(i % 3)}})
    distinct = {(i % 3, tuple(shape)) for i, shape in enumerate(shapes)}
    assert explain(f).traces - before == len(distinct)
    assert str(explain(f, verbose=True))


def test_a_length_that_is_a_symbol_is_no_smaller_batch():
    f = eqx_fastjit.filter_jit(lambda x: x.sum())
    (n,) = jax.export.symbolic_shape("n")
    f.trace(jax.ShapeDtypeStruct((n, 4), jnp.float32))
    f.trace(jax.ShapeDtypeStruct((8, 4), jnp.float32))
    assert only(explain(f)).attribute == "two lengths"


def test_equal_numbers_of_another_loop():
    """They are no lengths of the arrays in the first one, and no part of its group."""
    encode = eqx_fastjit.filter_jit(lambda x: x.sum())
    decay = eqx_fastjit.filter_jit(lambda x, k: x / k)
    for n in range(1, 5):
        encode(np.ones(n))
    for k in range(1, 5):
        decay(np.ones(2), k)
    found = [(x.cause, x.count) for x in explain().findings]
    assert sorted(found) == [("shape", 3), ("static", 3)]


def test_all_leaves_that_differ_are_named():
    """To mend one of them alone saves nothing."""
    f = eqx_fastjit.filter_jit(lambda x, tag, mode: x)
    for k in range(2):
        f(np.ones(2), f"tag {k}", f"mode {k}")
    assert [x.leaf for x in only(explain(f)).parts] == ["tag", "mode"]


@pytest.mark.parametrize(
    ("error", "cause"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_trace_that_ended_early_is_no_compilation(error, cause):
    @eqx_fastjit.filter_jit
    def f(x):
        raise error

    with pytest.raises(error):
        f(np.ones(2))
    found = explain(f)
    assert found.traces == 0
    assert (only(found).cause, only(found).count) == (cause, 0)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_call_under_a_transformation(is_first):
    """It makes another program, and nothing was dropped."""
    f = eqx_fastjit.filter_jit(lambda x: x.sum())
    for call in (f, jax.grad(f)) if is_first else (jax.grad(f), f):
        call(jnp.ones(2))
    finding = only(explain(f))
    assert finding.attribute == "transformed" and "such as `jax.grad`" in finding.says


def test_caches_that_were_cleared():
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    f(np.ones(2))
    jax.clear_caches()
    f(np.ones(2))
    finding = only(explain(f))
    assert (finding.cause, finding.attribute) == ("configuration", "nothing differs")


def test_seconds_are_those_that_jax_tells(events):
    """Of functions of this library, and of others."""
    told = {}
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: told.update({name.rpartition("/")[2]: seconds})
    )
    for jit in (
        eqx_fastjit.filter_jit,
        lambda f: eqx_fastjit.filter_jit(f).lower(np.ones(2)).compile(),
        jax.jit,
    ):
        events.clear()
        begun = time.perf_counter()
        jit(lambda x: jax.lax.neg(x))(np.ones(2))
        assert sum(e.seconds for e in events) <= time.perf_counter() - begun
        assert all(e.started + e.seconds <= time.time() for e in events)
        lower, compile, trace = np.sum(
            [(e.lower, e.compile, e.trace) for e in events], axis=0
        )
        assert lower == told["jaxpr_to_mlir_module_duration"]
        assert compile == told["backend_compile_duration"]
        assert trace > 0 and any(e.traced for e in events)
        assert {e.is_outside for e in events} == {jit is jax.jit}
        assert {e.function.place.file for e in events} == {__file__}


def test_what_is_compiled_while_a_function_is_traced_is_inside(events):
    """Its seconds are its own, whether it is a jitted function or an operation."""
    inner = eqx_fastjit.filter_jit(lambda x: x * 2)

    @eqx_fastjit.filter_jit
    def f(x):
        with jax.ensure_compile_time_eval():
            return inner(x) * jax.jit(lambda y: y + 1)(np.ones(2))

    f(np.ones(2))
    outer = events.pop()
    assert {e.is_outside for e in events} == {True, False}
    assert {e.inside for e in events} == {outer.number}
    assert outer.nested == pytest.approx(sum(e.seconds for e in events))


def test_a_default_is_called_so():
    two = np.float32(2)
    f = eqx_fastjit.filter_jit(lambda x, scale=two: x * scale)
    f(np.ones(2))
    f(np.ones(2), 3.0)
    assert only(explain(f)).says.endswith(": <default>, 3.0 (float).")


def test_no_values_of_arrays_and_no_repr_of_the_users():
    class Secret:
        def __repr__(self):
            raise AssertionError("called")

    f = eqx_fastjit.filter_jit(lambda s, x: x + 1)
    f(Secret(), np.full(2, 12345.0))
    f(Secret(), np.full(3, 12345.0))
    assert "12345" not in str(explain(f, verbose=True))


def test_what_is_compiled_ahead_of_time_is_one_compilation():
    """The stages before are a part of it."""
    f = eqx_fastjit.filter_jit(lambda x, n: x * n)
    for n in (1, 2):
        f.lower(np.ones(2), n).compile()
    found = explain(f)
    assert (found.traces, found.compiles, only(found).count) == (2, 2, 1)
