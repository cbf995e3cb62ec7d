"""Waits for the device are found by line, with what waited."""

import dataclasses
import functools
import os
import time

import equinox as eqx
import equinox.internal
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import doctor
from tests.support.device import late
from tests.support.threads import in_threads


compute = jax.jit(late)


@pytest.fixture(autouse=True)
def _an_idle_machine(monkeypatch):
    """Of a busy one, waits say little."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0, 0, 0), raising=False)


def waits_in(f):
    """What waits while a function is called, in the report for other programs."""
    with doctor() as report:
        f()
    return report.to_dict()["run"]["waits"]


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
    "np.asarray(jnp.stack([x, x]))": (lambda x: np.asarray(jnp.stack([x, x])), True),
    "np.array(x)": (lambda x: np.array(x), False),
    "jnp.nonzero(x[None])": (lambda x: jnp.nonzero(x[None]), True),
    "x.block_until_ready()": (lambda x: x.block_until_ready(), False),
    "jax.block_until_ready([x])": (lambda x: jax.block_until_ready([x]), False),
    "x > 1": (lambda x: "yes" if x > 1 else "no", True),
    # In generated code, at the line that calls it.
    "Metric(x) == Metric(+x)": (lambda x: Metric(x) == Metric(+x), True),
}


@pytest.mark.parametrize("what", READS)
def test_what_reads_a_value_is_named(what):
    read, decides = READS[what]
    read(jnp.ones(()))
    (wait,) = waits_in(lambda: read(compute(jnp.ones(()))))
    found = wait["what"], wait["count"], wait["reads"], wait["decides"]
    assert found == (what, 1, 1, decides)


def stops(x):
    loss = float(compute(x))
    return 1 if loss else 2


def acts(x):
    action = np.array(compute(x))
    moved = late(action)
    return moved


def counts(x):
    n = 0
    n += int(compute(x))
    return n


def returns(x):
    loss = counts(x)
    return 1 if loss else 2


@pytest.mark.parametrize(
    ("read", "decides"),
    [(stops, True), (acts, True), (counts, False), (returns, True)],
)
def test_what_a_value_comes_to_decides(read, decides):
    """A condition, or a call with results; not a sum."""
    found = waits_in(functools.partial(read, jnp.ones(())))
    assert found[0]["decides"] == decides


def test_an_expression_is_one_short_line():
    """Of an f-string as much as this Python knows."""
    x = jnp.ones(())
    (wait,) = waits_in(lambda: f"{x:.2f}")
    assert "{x:.2f}" in wait["what"]
    (wait,) = waits_in(
        lambda: float(
            x + 11111111.0 + 22222222.0 + 33333333.0 + 44444444.0 + 55555555.0
        ),
    )
    assert wait["what"].startswith("float(x + 11111111.0") and len(wait["what"]) == 60


def test_waits_of_a_line_are_one_with_their_number():
    x = jnp.ones(())

    def train():
        for _ in range(3):
            float(compute(x))
        x.item()

    here, there = waits_in(train)
    first, name = train.__code__.co_firstlineno, train.__qualname__
    assert here["place"] == [__file__, first + 2, name]
    assert (here["what"], here["count"]) == ("float(compute(x))", 3)
    assert there["place"] == [__file__, first + 3, name]
    assert there["reads"] == 1


def test_only_what_waits_is_noted():
    jitted, x = filter_jit(late), jnp.ones(3)
    jitted(x)

    def f():
        y = jitted(x + 1)
        np.asarray([1, 2])
        np.array(2.0)
        return y.shape, y.dtype, jnp.asarray(y)

    assert waits_in(f) == []


def _checked(x):
    return eqx.error_if(late(x), jnp.sum(x) < 0, "negative")


def _printed(x):
    jax.debug.callback(lambda x: None, x)
    return late(x)


def _on_two_devices():
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    return jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P("d")))


synchronous = filter_jit(asynchronous=False)
BLOCKING = {
    "equinox": (eqx.filter_jit, late, jnp.ones(()), False),
    "synchronous": (synchronous, late, jnp.ones(()), False),
    "error_if": (filter_jit, _checked, jnp.ones(()), True),
    "callback": (filter_jit, _printed, jnp.ones(()), True),
    "both": (synchronous, _printed, jnp.ones(()), True),
    "NumPy": (filter_jit, late, np.ones(1 << 18), True),
    "two devices": (filter_jit, late, _on_two_devices(), True),
}


@pytest.mark.parametrize("case", BLOCKING)
def test_a_jitted_call_that_blocks(case, monkeypatch):
    """One that has to is no finding: `--async` would not change it."""
    # On a CPU, what has callbacks computes before it returns, and then waits shortly.
    monkeypatch.setattr("eqx_fastjit.insight.record._calls._SHORTEST", 0.0)
    jit, fun, x, has_to = BLOCKING[case]
    f = jit(lambda x: fun(x))
    found = waits_in(lambda: [f(x) for _ in range(8)])
    waits = [x for x in found if x["what"] == "a jitted call that blocks"]
    assert {x["decides"] for x in waits} == {has_to}


def test_looking_for_callbacks_disturbs_no_event():
    """Of a foreign primitive the lowered program is looked at."""
    noinline = eqx.internal.noinline(lambda x: x + 1)
    inner = filter_jit(lambda x: noinline(x))
    outer = filter_jit(lambda x: inner(x) * 2)
    with doctor() as report:
        outer(jnp.ones(3))
    events = report.to_dict()["run"]["events"]
    first, last = [x for x in events if x["function"]["number"] > 0]
    assert first["traced"] and not first["compile"] and last["compile"]
    assert first["inside"] == last["number"]


@pytest.mark.parametrize("read", [float, lambda x: x.block_until_ready()])
def test_exceptions_come_through(read):
    x = jnp.ones(())
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"), doctor():
        read(x)


@pytest.mark.parametrize("blocks", [False, True])
def test_waits_of_other_threads_are_not_the_programs(blocks):
    """While others wait, the program may compute; and they hide no wait of its own."""
    f = synchronous(late)
    x = f(jnp.ones(()))

    def run():
        in_threads(2, lambda _: f(x) if blocks else float(x))
        return float(x)

    assert [wait["what"] for wait in waits_in(run)] == ["float(x)"]
    assert waits_in(lambda: in_threads(2, lambda _: float(f(x)))) == []


def test_a_name_of_jax_that_is_gone_is_said(monkeypatch):
    monkeypatch.delattr(jax, "block_until_ready")
    with doctor() as report:
        float(jnp.ones(()))
    run = report.to_dict()["run"]
    assert "Waits in block_until_ready are not seen." in run["notes"]
    assert [wait["what"] for wait in run["waits"]] == ["float(jnp.ones(()))"]


# --- the row ---

STEPS = 20
NEVER = STEPS + 1
step = filter_jit(lambda x: late(x, 2))
blocking = synchronous(lambda x: late(x, 2))


def train(x, f=step, every=NEVER, test=lambda x: None):
    """Reads a number in each step, and an integer in some of them."""
    for i in range(1, STEPS + 1):
        x = f(x)
        if i % every == 0:
            int(x.astype(int))
        float(x)
        test(x)
        time.sleep(1e-2)  # work of Python's: of less than 0.1 s, nothing is said


def decide(x):
    return int(x.astype(int))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("waits", {}),
        ("blocking-call", {"f": blocking}),
        # What is read in each step decides what comes next; not what another one reads.
        (None, {"every": 1, "f": blocking}),
        ("waits", {"every": 10}),
        ("waits", {"test": decide}),
    ],
)
def test_what_waits_has_a_row(rule, options):
    """Of what takes longest; it saves what running ahead does, not what is waited."""
    whats = {"waits": "float(x)", "blocking-call": "calls that block"}
    x = jnp.ones(())
    step(x), blocking(x), decide(x)
    with doctor(least=0.0) as report:
        train(x, **options)
    rows = [row for row in report.rows if row.parts[0].rule in whats]
    assert len(rows) == (rule is not None)
    for row in rows:
        part, *reads = row.parts
        # What is read in each step would wait instead of the call.
        reading = ["float(x)"] if rule == "blocking-call" else []
        assert [(x.path, x.gain) for x in reads] == [(x, None) for x in reading]
        assert (part.rule, row.function, row.about) == (rule, "train", True)
        assert part.what.startswith(f"{whats[rule]} {part.count} x ")
        assert STEPS / 2 < part.count <= STEPS and row.line == part.line
        assert 0 < row.saves <= row.seconds
