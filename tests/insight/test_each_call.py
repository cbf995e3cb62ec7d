"""What each call costs: where the seconds went, donation, and that nothing is left."""

import json
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit, insight
from tests.support.commands import command
from tests.support.device import late
from tests.support.modules import Pair


def shares(report):
    """The parts of the time, largest first, without what happens but once."""
    once = ("compile", "lower", "trace", "doctor", "imports")
    times = report.to_dict()["time"]
    return [x["name"] for x in times if x["name"] not in once]


# --- every second has a name ---


@pytest.mark.parametrize("results", [1, 2, 3])
def test_a_call_that_blocks_is_the_devices(results):
    """However many arrays it returns."""
    x = jnp.ones((700, 700))
    step = filter_jit(lambda x: [x @ x / 700] * results, asynchronous=False)
    step(x)
    with insight.doctor() as report:
        for _ in range(30):
            step(x)
    assert shares(report)[0] == "device"


def test_operations_outside_of_jit_are_no_other_python():
    x = jnp.arange(8.0)
    with insight.doctor() as report:
        for _ in range(20000):
            (x - jnp.mean(x)) / (jnp.std(x) + 1.0)
    assert shares(report)[0] == "operations"
    (row,) = [x for x in report.findings if x.parts[0].rule == "eager-calls"]
    assert row.parts[0].what.startswith("(x - jnp.mean(x)) / ")


def test_what_statements_of_a_loop_compile_is_in_their_row():
    """A lambda is in the statement that has it; to read a value is no operation.

    What compiles in call after call, as it grows, is not to be moved into jit.
    """
    step = filter_jit(lambda total, x: total + jnp.sum(x))

    def program():
        total, x, kept = jnp.zeros(()), jnp.arange(7.0), jnp.zeros(0)
        for _ in range(24000):
            if kept.size < 9:
                kept = jnp.append(kept, total)
            scaled = jax.tree.map(lambda x: (x - jnp.mean(x)) * 2.0, x)
            total = step(total, scaled)
            float(total)

    jax.clear_caches()
    with insight.doctor() as report:
        program()
    (row,) = [x for x in report.rows if x.parts[0].rule == "eager-calls"]
    (part,) = row.parts
    assert (row.function, part.count) == ("program", 23999)
    assert part.what.startswith("scaled = jax.tree.map")
    assert (
        part.edit == "in one jitted function with `<lambda>`" and row.compilations >= 3
    )


@pytest.mark.parametrize("is_refilled", [False, True])
def test_only_what_is_the_same_is_moved_before_a_loop(is_refilled):
    step, data = filter_jit(lambda x: x + 1), np.ones(3)
    with insight.doctor(least=0.0) as report:
        if is_refilled:
            for i in range(30000):
                data[0] = i
                step(jnp.asarray(data))
        else:
            for _ in range(30000):
                step(jnp.asarray(data))
                assert len(data)
    (row,) = [x for x in report.rows if x.parts[0].rule == "transfers"]
    edits = ["before the loop, if", "np.array of its dtype"]
    assert row.parts[0].edit.startswith(edits[is_refilled])


@pytest.mark.parametrize("is_carried", [False, True])
def test_calls_that_could_be_one(is_carried):
    """At once, if none needs what another one returns."""
    step, x = filter_jit(lambda x: x @ x / 4), jnp.eye(4)
    with insight.doctor(least=0.0) as report:
        if is_carried:
            for _ in range(40000):
                x = step(x)
        else:
            for _ in range(40000):
                float(step(x)[0, 0])
    (row,) = [x for x in report.rows if x.parts[0].rule == "short-calls"]
    assert row.parts[0].edit.startswith(["jax.vmap", "jax.lax.scan"][is_carried])


def test_other_python_is_at_its_line():
    with insight.doctor() as report:
        total = sum(i * i for i in range(4_000_000))
    assert total > 0
    (part,) = [x for x in report.to_dict()["time"] if x["name"] == "python"]
    file, line, _ = part["line"]
    here = test_other_python_is_at_its_line.__code__.co_firstlineno
    assert (file, line) == (__file__, here + 2)


@pytest.mark.parametrize(
    ("load", "share", "is_busy"), [(1e3, 0.1, True), (1e3, 0.9, False), (0, 0.1, False)]
)
def test_a_busy_machine_is_said_to_be(load, share, is_busy, monkeypatch):
    """If the program has had the CPU for less than its time."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0), raising=False)
    monkeypatch.setattr(time, "process_time", lambda: share * time.time())
    with insight.doctor() as report:
        time.sleep(0.1)
    text = " ".join(report.text().split())
    assert ("a load of 1000.0" in text) == is_busy


# --- donation ---


def replaced(step, model):
    for _ in range(12):
        model = step(jnp.ones(()), model)


def replaced_by_a_function(step, model):
    """The call is all of a function that is called in the statement.

    A call with a small array has come before.
    """

    def update(x, model):
        return step(x, model)

    update(0.0, model[:8])
    for _ in range(12):
        model = update(jnp.ones(()), model)


def kept_in_a_list(step, model):
    kept = []
    for _ in range(12):
        kept.append(model)
        model = step(jnp.ones(()), model)


def read_after_the_call(step, model):
    for _ in range(12):
        new = step(jnp.ones(()), model)
        model.sum()
        model = new


def read_in_the_statement(step, model):
    for _ in range(12):
        model, _ = step(jnp.ones(()), model), model.sum()


def read_in_place(step, model):
    for _ in range(12):
        model -= step(jnp.ones(()), model)


def read_in_the_return(step, model):
    def update(model):
        return step(jnp.ones(()), model), model.sum()

    for _ in range(12):
        model, _ = update(model)


def read_after_the_return(step, model):
    def update(model):
        try:
            return step(jnp.ones(()), model)
        finally:
            model.sum()

    for _ in range(12):
        model = update(model)


def kept_of_another_specialization(step, model):
    replaced(step, step(jnp.ones(1), model))
    model.sum()


def kept_once(step, model):
    """As the best one, say."""
    best = None
    for i in range(300):
        if i == 250:
            best = model
        model = step(jnp.ones(()), model)
    return best


def read_after_the_loop(step, model):
    """By a caller that has what the loop replaces."""
    replaced(step, model)
    model.sum()


@pytest.mark.parametrize(
    ("loop", "has_row"),
    [
        (replaced_by_a_function, True),
        (kept_in_a_list, False),
        (read_after_the_call, False),
        (read_in_the_statement, False),
        (read_in_place, False),
        (read_in_the_return, False),
        (read_after_the_return, False),
        (kept_of_another_specialization, False),
        (kept_once, False),
        (read_after_the_loop, False),
    ],
)
def test_only_what_nobody_has_any_more_is_to_be_donated(loop, has_row):
    step = filter_jit(lambda x, model: model * 0.5 + x)
    with insight.doctor() as report:
        loop(step, jnp.ones(1_500_000) + 1)
    rows = [x for x in report.rows if x.parts[0].rule == "donate"]
    assert bool(rows) == has_row


@pytest.mark.parametrize(
    ("step", "batch", "mode"),
    [
        (lambda x, model: model + x, None, 'donate="all-except-first"'),
        (lambda model, x: model + x, None, "with x in the first argument"),
        (
            lambda x, model: model + x[0],
            np.ones(2, np.float32),
            'donate="all-except-first"',
        ),
        (lambda model: model + 1, None, 'donate="all"'),
    ],
)
def test_which_mode_donates(step, batch, mode):
    """A batch that is kept, or is of NumPy, has to be the first argument."""
    jitted = filter_jit(step)
    names = step.__code__.co_varnames[: step.__code__.co_argcount]
    x = jnp.ones(()) if batch is None else batch
    with insight.doctor() as report:
        model = jnp.ones(1_500_000)
        for _ in range(12):
            model = jitted(**{n: model if n == "model" else x for n in names})
    (row,) = [x for x in report.rows if x.parts[0].rule == "donate"]
    assert row.bytes == 6_000_000 and row.parts[0].edit.endswith(mode)


# --- nothing is left, and nothing hidden ---


def test_after_the_block_the_process_is_as_before():
    """JAX, NumPy and Python's signals and threads, though not meanwhile."""

    def state():
        owners = type(jnp.ones(())), np, jax
        names = [x for owner in owners for x in vars(owner).values()]
        return [*names, signal.getsignal(signal.SIGURG), threading.active_count()]

    before = state()
    with insight.doctor():
        assert sum(x is not y for x, y in zip(before, state(), strict=True)) > 5
    assert [*map(id, state())] == [*map(id, before)]


def test_a_program_that_handles_the_signal_keeps_its_handler():
    def handle(number, frame):
        pass

    before = signal.signal(signal.SIGURG, handle)
    try:
        with insight.doctor() as report:
            jnp.ones(3) + 1
        assert signal.getsignal(signal.SIGURG) is handle
    finally:
        signal.signal(signal.SIGURG, before)
    assert "the program handles SIGURG" in report.text()


@pytest.mark.parametrize("fails", [False, True])
def test_the_exception_of_the_block_is_never_replaced(monkeypatch, capsys, fails):
    """Nor is one raised if the report fails: one line says so."""
    if fails:
        monkeypatch.setattr(os, "getloadavg", lambda: 1 / 0)
    step = filter_jit(lambda x: (x + 1, x.sum()), asynchronous=False)
    with pytest.raises(KeyboardInterrupt), insight.doctor():
        step(jnp.ones(3))  # which compiles, and is not timed
        os.kill(os.getpid(), signal.SIGINT)
    assert capsys.readouterr().err.count("no report on this block") == fails


USES_EQUINOX = """
import equinox as eqx
import jax.numpy as jnp

@eqx.filter_jit
def first(x):
    return x + 1

@eqx.filter_jit
def second(x):
    return x * 2

x = jnp.ones(3)
for i in range(10000):
    if i >= 0:  # or a scan would save more
        first(x)
        second(x)
"""


@pytest.mark.parametrize("option", ["--verbose", "--async"])
def test_what_the_import_saves_is_one_row(option, tmp_path):
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(USES_EQUINOX)
    command("doctor", option, "--json", report, program)
    rows = json.loads(report.read_text())["rows"]
    (row,) = [x for x in rows if x["parts"][0]["rule"] == "equinox-jit"]
    (part,) = row["parts"]
    assert {*row["function"].split(", ")} == {"first", "second"}
    assert (part["count"], row["cost"]) == (2 * 9999, "19,998 calls")
    assert part["edit"] == "from eqx_fastjit import filter_jit" and row["saves"] > 0


def test_a_function_of_jax_jit_that_returns_a_named_tuple():
    """Samples in the `__new__` of a named tuple, which has no file, are of its call."""
    step = jax.jit(lambda x: Pair(late(x, 2), x))
    with insight.doctor() as report:
        for _ in range(300):
            step(jnp.ones(()))
    assert shares(report)[0] != "python"
