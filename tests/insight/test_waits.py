"""Waits for the device are found by line, with what waited."""

import dataclasses
import types

import equinox as eqx
import equinox.internal
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _private, filter_jit, insight
from eqx_fastjit._facts import Place
from eqx_fastjit.insight.record import _calls, _waits
from eqx_fastjit.insight.record._calls import Calls
from eqx_fastjit.insight.record._waits import Wait
from eqx_fastjit.insight.rules import each_call
from tests.support.threads import in_threads


@pytest.fixture(autouse=True)
def _each_counts(monkeypatch):
    """However short it is."""
    monkeypatch.setattr(_calls, "_SHORTEST", 0.0)


def rows_of(waits, saves):
    """The rows of a run with these waits; running ahead saves so many seconds."""
    device = types.SimpleNamespace(ahead=saves)
    fields = {"waits": waits, "device": device, "busy": ""}
    run = types.SimpleNamespace(**fields, timed=(), activities=())
    return [*each_call.rows(types.SimpleNamespace(run=run))]


def waits_in(f, *args):
    """What waited while a function was called, by line and count."""
    with Calls() as calls:
        f(*args)
    assert calls.notes == []
    return [*calls.waits.values()]


@dataclasses.dataclass
class Metric:
    loss: jax.Array
    norm: int = 0


# With whether the value may decide what follows: a number with a fraction does not.
READS = {
    "float(x)": (lambda x: float(x), False),
    "float(x.astype(jnp.bfloat16))": (lambda x: float(x.astype(jnp.bfloat16)), False),
    "int(x.astype(jnp.int32))": (lambda x: int(x.astype(jnp.int32)), True),
    "bool(x > 0)": (lambda x: bool(x > 0), True),
    "print(x)": (lambda x: print(x), False),
    "x.item()": (lambda x: x.item(), False),
    "x[None].tolist()": (lambda x: x[None].tolist(), False),
    "np.asarray(jnp.stack([x, x]))": (lambda x: np.asarray(jnp.stack([x, x])), True),
    "np.array(x)": (lambda x: np.array(x), False),
    "jnp.nonzero(x[None])": (lambda x: jnp.nonzero(x[None]), True),
    "jax.device_get(x)": (lambda x: jax.device_get(x), False),
    "(x + 1).block_until_ready()": (lambda x: (x + 1).block_until_ready(), False),
    "jax.block_until_ready([x])": (lambda x: jax.block_until_ready([x]), False),
    "x > 1": (lambda x: "yes" if x > 1 else "no", True),
    # In generated code, at the line that calls it.
    "Metric(x) == Metric(+x)": (lambda x: Metric(x) == Metric(+x), True),
}


@pytest.mark.parametrize("what", READS)
def test_what_reads_a_value_is_named(what):
    read, decides = READS[what]
    (wait,) = waits_in(read, jnp.ones(()))
    assert (wait.what, wait.count, wait.decides) == (what, 1, decides)


def test_an_expression_is_one_short_line():
    """Of an f-string as much as this Python knows."""
    (wait,) = waits_in(lambda x: f"{x:.2f}", jnp.ones(()))
    assert "{x:.2f}" in wait.what and wait.count == 1
    (wait,) = waits_in(
        lambda x: float(
            x + 11111111.0 + 22222222.0 + 33333333.0 + 44444444.0 + 55555555.0
        ),
        jnp.ones(()),
    )
    assert wait.what.startswith("float(x + 11111111.0") and len(wait.what) == 60


def test_waits_of_a_line_are_one_with_their_number():
    def train(x):
        for _ in range(3):
            float(x)
        x.item()

    here, there = waits_in(train, jnp.ones(()))
    first = train.__code__.co_firstlineno
    assert here.place == (__file__, first + 2, train.__qualname__)
    assert (here.what, here.count, here.seconds > 0) == ("float(x)", 3, True)
    assert there.place.line == first + 3


def test_only_what_waits_is_noted():
    jitted = filter_jit(lambda x: x + 1)
    jitted(jnp.ones(3))

    def f(x):
        y = jitted(x + 1)
        np.asarray([1, 2])
        np.array(2.0)
        return y.shape, y.dtype, jnp.asarray(y)

    assert waits_in(f, jnp.ones(3)) == []


def _checked(x):
    return eqx.error_if(x, jnp.sum(x) < 0, "negative") + 1


def _printed(x):
    jax.debug.callback(lambda x: None, x)
    return x + 1


def _on_two_devices():
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    return jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P("d")))


BLOCKING = {
    "equinox": (eqx.filter_jit, lambda x: x + 1, jnp.ones, False),
    "synchronous": (filter_jit(asynchronous=False), lambda x: x + 1, jnp.ones, False),
    "error_if": (filter_jit, _checked, jnp.ones, True),
    "callback": (filter_jit, _printed, jnp.ones, True),
    "both": (filter_jit(asynchronous=False), _printed, jnp.ones, True),
    "NumPy": (filter_jit, lambda x: x + 1, lambda _: np.ones(1 << 18), True),
    "two devices": (filter_jit, lambda x: x + 1, lambda _: _on_two_devices(), True),
}


@pytest.mark.parametrize("case", BLOCKING)
def test_a_jitted_call_that_blocks(case):
    """One that has to is no finding: `--async` would not change it."""
    jit, f, make, has_to = BLOCKING[case]
    f, x = jit(f), make(())
    found = waits_in(lambda: [f(x) for _ in range(3)])
    (wait,) = [x for x in found if x.what == _waits.JITTED_CALL]
    assert (wait.count, wait.decides) == (3, has_to)
    assert bool(rows_of([wait], 1.0)) != has_to


def test_looking_for_callbacks_disturbs_no_event():
    """Of a foreign primitive the lowered program is looked at."""
    noinline = eqx.internal.noinline(lambda x: x + 1)
    inner = filter_jit(lambda x: noinline(x))
    outer = filter_jit(lambda x: inner(x) * 2)
    with insight.doctor() as report:
        outer(jnp.ones(3))
    events = report.to_dict()["run"]["events"]
    first, last = [x for x in events if x["function"]["number"] > 0]
    assert first["traced"] and not first["compile"] and last["compile"]
    assert first["inside"] == last["number"]


def test_exceptions_come_through():
    with pytest.raises(TypeError), Calls():
        float(jnp.ones(2))
    with pytest.raises(RuntimeError, match="deleted"), Calls():
        x = jnp.ones(2)
        x.delete()
        x.block_until_ready()


def test_waits_of_other_threads_are_not_the_programs():
    """Meanwhile it computes."""
    x = jnp.ones(())
    with Calls() as calls:
        in_threads(4, lambda _: float(x))
        assert not calls.waits
        float(x)
    assert [x.what for x in calls.waits.values()] == ["float(x)"]


def test_what_other_threads_wait_for_hides_no_wait():
    """Calls that block in another thread, then a read in this one."""
    f = filter_jit(lambda x: (x + 1, x.sum()), asynchronous=False)
    f(jnp.ones(3))
    with Calls() as calls:
        in_threads(2, lambda _: f(jnp.ones(3)))
        assert not calls.waits
        float(jnp.ones(()))
    assert [x.what for x in calls.waits.values()] == ["float(jnp.ones(()))"]


def test_a_private_name_that_is_gone_is_said(monkeypatch):
    def missing(path):
        raise AttributeError(path)

    monkeypatch.setattr(_private, "resolve", missing)
    with Calls() as calls:
        float(jnp.ones(()))
        jax.block_until_ready(jnp.ones(()) + 1)
    assert calls.notes == [
        "Waits in _value are not seen.",
        "Waits in block_until_ready are not seen.",
    ]
    (wait,) = calls.waits.values()
    assert wait.what == "jax.block_until_ready(jnp.ones(()) + 1)"


# --- the row ---

LINE = Place("a.py", 12, "train")
CALLS = Wait(LINE, _waits.JITTED_CALL, 1500, 1.8, 1500)
LOSS = Wait(LINE, "float(loss)", 1500, 1.2, 1500)
DECIDES = Wait(LINE, "int(i)", 1500, 1.2, 1500, decides=True)
SELDOM = Wait(LINE, "int(i)", 15, 0.0, 15, decides=True)
ELSEWHERE = Wait(LINE._replace(function="test"), "int(i)", 1500, 0.0, 1500, True)


@pytest.mark.parametrize(
    ("waits", "saves", "rule", "what"),
    [
        ([LOSS], 0.15, "waits", "float(loss) 1500 x 800 us"),
        ([CALLS, LOSS], 0.15, "blocking-call", "calls that block 1500 x 1.2 ms"),
        # The device computes meanwhile.
        ([LOSS], 0.0, None, ""),
        # What is read in each step decides what comes next.
        ([DECIDES], 1.0, None, ""),
        ([DECIDES, LOSS], 1.0, None, ""),
        ([DECIDES, CALLS], 1.0, None, ""),
        ([SELDOM, ELSEWHERE, LOSS], 0.15, "waits", "float(loss) 1500 x 800 us"),
    ],
)
def test_what_waits_has_a_row(waits, saves, rule, what):
    """Of what takes longest; it saves what running ahead does, not what is waited."""
    rows = rows_of(waits, saves)
    assert len(rows) == (rule is not None)
    for row in rows:
        (part,) = row.parts
        assert (part.rule, part.what, part.count) == (rule, what, 1500)
        assert (row.function, row.line, row.saves) == ("train", LINE, saves)
        assert row.about and row.seconds == sum(x.seconds for x in waits)


def test_a_value_that_was_there_is_read_but_not_waited_for(monkeypatch):
    monkeypatch.setattr(_calls, "_SHORTEST", 10.0)
    (found,) = waits_in(lambda x: [float(x) for _ in range(3)], jnp.ones(()))
    assert (found.count, found.reads, found.seconds) == (0, 3, 0.0)
