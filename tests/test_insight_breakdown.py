"""The parts that a call is split into. No durations are asserted."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit._progress import Progress
from eqx_fastjit.insight import _breakdown, _timing, Breakdown, breakdown, Part
from eqx_fastjit.insight._target import target
from eqx_fastjit.insight._timing import measure, nothing, Timed, Timer
from eqx_fastjit.insight._warm_call import split_call, waterfall
from tests.clock import Clock


OURS = ["bind", "flatten", "lookup", "execute", "unflatten", "wait"]
PARTS = {
    "eqx_fastjit": OURS,
    "plain": OURS,
    "equinox": ["partition", "lookup", "execute", "unflatten", "wait"],
    "jax": ["flatten", "lookup", "execute", "unflatten", "wait"],
}


@pytest.fixture
def mlp():
    return eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))


def check(out, kind):
    assert out.kind == kind
    assert [part.name for part in out.steady] == PARTS[kind]
    # On a busy machine, `execute` may be derived from the other parts, not measured.
    left = {p.name for p in out.steady if not p.measured}
    assert {"lookup", "wait"} <= left <= {"lookup", "execute", "wait"}
    check_sums(out)
    assert [part.name for part in out.cold] == [
        "trace",
        "lower",
        "compile",
        "first run",
    ]
    # Their durations are tested in tests/test_seconds.py.
    assert all(part.seconds for part in out.cold) and out.eager
    text = str(out)
    for part in (*out.steady, *out.cold):
        assert part.name in text
    assert "difference" in text and "measured" in text
    assert "<table>" in out._repr_html_()


def check_sums(out):
    assert all(part.seconds >= 0 for part in out.steady)
    total = sum(part.seconds for part in out.steady)
    assert total == pytest.approx(out.blocked, rel=1e-6)
    assert out.dispatch <= out.blocked * (1 + 1e-9)


def test_ours(mlp, engine):
    def f(model, x, *, n=2):
        return model(x) * n, n

    jitted = eqx_fastjit.filter_jit(f)
    out = breakdown(jitted, mlp, jnp.ones(4), rounds=2)
    check(out, "eqx_fastjit")
    types = {node.type: node.number for node in out.nodes}
    assert types["MLP"] == 1
    # The breakdown adds no trace to the user's function.
    assert jitted._function.n_specializations() == 1


@pytest.mark.parametrize("kind", ["plain", "equinox", "jax"])
def test_others(kind, mlp):
    wrap = {"plain": lambda f: f, "equinox": eqx.filter_jit, "jax": jax.jit}[kind]
    if kind == "jax":
        out = breakdown(wrap(lambda tree: tree["x"] * 2), {"x": jnp.ones(3)}, rounds=2)
        # one is for the keyword arguments
        assert {n.type: n.number for n in out.nodes}["dict"] == 2
    else:
        out = breakdown(wrap(mlp), jnp.ones(4), rounds=2)
    check(out, kind)


def test_donation_and_methods():
    class Model(eqx.Module):
        w: jax.Array

        @eqx_fastjit.filter_jit(donate="all")
        def ours(self, x):
            return Model(self.w * x)

    m, x = Model(jnp.ones(3)), jnp.ones(3)
    out = breakdown(m.ours, x, rounds=1)
    assert "Timed without donation" in str(out)
    donating = jax.jit(lambda x, n: x * n, donate_argnums=0, static_argnums=1)
    out = breakdown(donating, x, 2, rounds=1)
    assert "Timed without donation" in str(out)
    out = breakdown(eqx.filter_jit(lambda x: x + 1, donate="all"), x, rounds=1)
    assert out.kind == "equinox"
    assert not x.is_deleted() and not m.w.is_deleted()


def test_keys_and_functions_that_need_jit():
    def f(key, x):
        assert isinstance(x, jax.core.Tracer)
        return jax.random.uniform(key, (2,)) + x

    out = breakdown(f, jax.random.key(0), jnp.ones(2), rounds=1)
    assert out.eager is None and out.break_even is None
    assert "no break-even" in str(out)


def busy(x):
    return jax.lax.fori_loop(0, 30, lambda _, y: jnp.tanh(y @ x), x)


def checked(x):
    return busy(eqx.error_if(x, jnp.any(jnp.isnan(x)), "a NaN"))


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "jit", [eqx_fastjit.filter_jit, eqx.filter_jit, jax.jit], ids=["ours", "eqx", "jax"]
)
@pytest.mark.parametrize(
    "x",
    [np.eye(300, dtype="f"), np.eye(600, dtype="f"), jnp.eye(300)],
    ids=["small", "large", "jax"],
)
def test_the_device_is_no_part_of_the_lookup(jit, x):
    out = breakdown(jit(busy), x, rounds=3)
    check_sums(out)
    parts = {part.name: part.seconds for part in out.steady}
    # Milliseconds, compared with microseconds.
    assert parts["wait"] > 3 * parts["lookup"]
    assert ("transfer" in parts) == isinstance(x, np.ndarray)
    large = isinstance(x, np.ndarray) and x.nbytes > 2**20
    blocks = jit is eqx.filter_jit or (large and jit is eqx_fastjit.filter_jit)
    assert ("itself blocks" in str(out)) == blocks


def test_a_host_callback():
    check_sums(breakdown(eqx_fastjit.filter_jit(checked), jnp.eye(300), rounds=2))


def split(dispatch, blocking, blocked, spread=0.0, finished=100.0, **parts):
    times = {name.replace("_", " "): Timed(seconds) for name, seconds in parts.items()}
    times["dispatch"] = Timed(dispatch, blocking, spread)
    times["blocked"] = Timed(blocked)
    times["finished"] = Timed(finished)
    out = split_call(times)
    assert all(part.seconds >= 0 for part in out.parts)
    assert sum(p.seconds for p in out.parts) == pytest.approx(out.blocked)
    return out, [(p.name, p.seconds) for p in out.parts]


def test_noise_is_no_negative_time():
    """If the parts in Python take longer than the call, all are shortened to fit."""
    out, parts = split(4.0, 1.0, 4.5, flatten=4.0, execute=2.0, unflatten=2.0)
    assert (out.dispatch, out.blocked) == (5.0, 5.0)
    assert parts == [
        ("flatten", 2.0),
        ("lookup", 0.0),
        ("execute", 1.0),
        ("unflatten", 1.0),
        ("wait", 1.0),
    ]
    assert any("too noisy to tell the parts apart" in note for note in out.notes)


def test_a_program_that_computes_before_it_returns():
    """A program that takes longer than the whole call when it is started by itself is
    explained, not reported as noise.
    """
    out, parts = split(4.0, 0.0, 100.0, flatten=1.0, execute=90.0, unflatten=1.0)
    assert parts == [
        ("flatten", 1.0),
        ("lookup", 0.0),
        ("execute", 2.0),
        ("unflatten", 1.0),
        ("wait", 96.0),
    ]
    assert not {p.name: p.measured for p in out.parts}["execute"]
    (note,) = out.notes
    assert note.startswith("execute: ") and "1 min 30 s" in note

    # If it returns before it has finished, the measurement is noise.
    parts = {"flatten": 1.0, "execute": 6.0, "unflatten": 1.0}
    for spread in (0.0, 2.0):
        (note,) = split(4.0, 0.0, 100.0, spread, **parts)[0].notes
        assert "too noisy" in note
    out, _ = split(4.0, 0.0, 100.0, finished=7.0, **parts)
    assert out.notes[0].startswith("execute: ")
    # So it is if it takes longer by itself than the call takes to finish.
    (note,) = split(4.0, 0.0, 5.0, finished=7.0, **parts)[0].notes
    assert "too noisy" in note


@pytest.mark.parametrize(("spread", "said"), [(0.4, False), (0.6, True)])
def test_a_busy_machine_is_said_in_one_line(spread, said):
    out, _ = split(4.0, 0.0, 5.0, spread, flatten=1.0, execute=3.1, unflatten=0.1)
    # The difference is too small for a note on `execute`.
    assert [note for note in out.notes if "execute" in note] == []
    assert [("too busy" in note) for note in out.notes] == [True] * said


def test_a_burst_of_load_does_not_count(monkeypatch):
    """Medians over interleaved rounds are compared, so up to a third may be slow."""
    clock = Clock()
    monkeypatch.setattr(_timing, "time", clock)
    begun = []

    def takes(seconds):
        def run():
            # Once calls are counted, every third round is slow.
            slow = len(begun) % 3 == 2
            clock.sleep(seconds * (100 if slow else 1))

        return run

    timers = {
        "flatten": Timer(takes(1.0)),
        "execute": Timer(takes(2.0), nothing),
        "unflatten": Timer(takes(1.0)),
        "finished": Timer(takes(5.0), nothing),
        "dispatch": Timer(takes(6.0), nothing),
        "blocked": Timer(takes(9.0), nothing),
    }
    times = measure(timers, 15, lambda *_: begun.append(None))
    out = split_call(times)
    seconds = {p.name: pytest.approx(p.seconds) for p in out.parts}
    assert seconds == {
        "flatten": 1.0,
        "lookup": 2.0,
        "execute": 2.0,
        "unflatten": 1.0,
        "wait": 3.0,
    }
    assert any("too busy" in note for note in out.notes)


def test_shares_are_shares():
    times = {"flatten": 1e-6, "execute": 1e-3, "unflatten": 0.0, "in_place": 2e-3}
    for dispatch in (0.0, 1e-9, 1e-6, 1e-3, 1.0):
        out, _ = split(dispatch, 0.0, 0.0, **times)
        for row in waterfall("A warm call", out.parts, out.notes).rows:
            assert 0 <= int(row[2].rstrip("%")) <= 100
            assert len(row[3]) <= 25  # the bar


def test_a_cold_call_is_cold():
    """Functions inside are traced again, and no cache of the process is cleared."""
    traces = []

    @jax.jit
    def inside(x):
        traces.append("inside")
        return x + 1

    @eqx_fastjit.filter_jit
    def outside(x):
        traces.append("outside")
        return inside(x)

    x = jnp.ones(2)
    outside(x)
    inside(x)
    traces.clear()
    breakdown(outside, x, rounds=1)
    assert "inside" in traces
    traces.clear()
    outside(x)
    inside(x)
    assert traces == []


_ALONE = """
import jax, jax.numpy as jnp, eqx_fastjit
from eqx_fastjit.insight import breakdown

traces = []
@jax.jit
def other(x):
    traces.append("other")
    return x + 1

@eqx_fastjit.filter_jit
def timed(x):
    traces.append("timed")
    return x * 2

x = jnp.ones(2)
other(x), timed(x)
old = jax.config.jax_pgle_profiling_runs
breakdown(timed, x, rounds=1)
traces.clear()
other(x), timed(x)
assert traces == [], traces
assert jax.config.jax_pgle_profiling_runs == old
jax.config.update("jax_enable_pgle", True)
assert "inside that were traced before" in str(breakdown(timed, x, rounds=1))
"""


@pytest.mark.one_engine
def test_nothing_else_is_compiled_again():
    """In a subprocess, because only the first breakdown of a process shows it."""
    subprocess.run([sys.executable, "-c", _ALONE], check=True, timeout=300)


def test_what_exporting_saves():
    def shown(scale):
        names = ("trace", "lower", "compile", "first run")
        cold = tuple(Part(name, scale, True) for name in names)
        return Breakdown("f", "plain", 0.1, 0.1, (), (), cold, eager=0.5)

    assert shown(1.0).export_saves == pytest.approx(3 * 0.85)
    assert "would save about 2.55 s of this in each process" in " ".join(
        str(shown(1.0)).split()
    )
    # Too little to be worth an exported file.
    assert "in each process" not in " ".join(str(shown(0.01)).split())


def test_a_node_is_timed_without_those_below_it(monkeypatch):
    class OfLeaves:
        """Takes a millisecond for each leaf."""

        def __init__(self, run):
            self.run = run

        def time(self, n):
            return Timed(1e-3 * len(self.run()))

    monkeypatch.setattr(_breakdown, "Timer", OfLeaves)
    x = jnp.ones(2)
    args, kwargs = (((x, x), [x]),), {"y": x}
    f = target(jax.jit(lambda x, *, y: y))
    nodes = _breakdown._node_times(f, args, kwargs, Progress("nodes"))
    # The nodes are the arguments, the tuple, and a tuple inside it, the only one with
    # leaves of its own.
    assert {n.type: (n.number, round(n.seconds, 9)) for n in nodes} == {
        "tuple": (3, 2e-3),
        "list": (1, 1e-3),
        "dict": (1, 1e-3),
    }


def test_break_even():
    cold = (Part("compile", 1.0, True),)
    out = Breakdown("f", "plain", 0.1, 0.1, (), (), cold, eager=0.5)
    assert out.break_even == 3
    assert "compiling pays off after 3 calls" in str(out)
    out = Breakdown("f", "plain", 0.1, 0.1, (), (), cold, eager=0.1)
    assert out.break_even is None and "never pays" in str(out).replace("\n", " ")


def test_bad_input():
    with pytest.raises(ValueError, match="expected at least 1"):
        breakdown(lambda x: x, 1, rounds=0)
    with pytest.raises(TypeError, match="expected a function"):
        breakdown(3)
