"""`eqx-fastjit gain`: intervals, recorded calls, costs, the report and the command."""

import json
import math
import random
import subprocess
import sys
import textwrap
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _jit, cli
from eqx_fastjit._options import Options
from eqx_fastjit.cli._gain import take_pairs
from eqx_fastjit.insight import _gain_costs
from eqx_fastjit.insight._gain import (
    ALIKE,
    FASTER,
    FunctionGain,
    Gain,
    Interval,
    interval,
    LOOKS,
    SLOWER,
    UNKNOWN,
)
from eqx_fastjit.insight._gain_costs import Costs, function_costs
from eqx_fastjit.insight._gain_page import page
from eqx_fastjit.insight._samples import alive, Called, Samples, Signature


# --- verdicts ------------------------------------------------------------------------


@pytest.mark.one_engine
def test_interval():
    found = interval([0.5, 0.52, 0.48, 0.51, 0.49], 2)
    assert found.verdict == FASTER and found.low < 0.5 < found.high < 0.6
    assert interval([1 / x for x in (0.5, 0.52, 0.48, 0.51, 0.49)], 2).verdict == SLOWER
    assert interval([1.0, 1.001, 0.999, 1.0, 1.002], 2).verdict == ALIKE
    assert interval([0.5, 1.1, 0.9], 1).verdict == UNKNOWN
    assert interval([0.5], 1) == (pytest.approx(0.5), 0, math.inf)
    # The more often the verdict is checked, the wider the interval has to be.
    ratios = [0.9, 0.95, 1.0, 0.97, 0.93]
    assert interval(ratios, 5).high > interval(ratios, 2).high


@pytest.mark.one_engine
def test_equal_times_are_seldom_told_apart():
    rng = random.Random(0)

    def seconds(_):
        return math.exp(rng.gauss(0, 0.2))

    wrong = 0
    for _ in range(400):
        pairs, _ = take_pairs(seconds, lambda n: None, math.inf)
        ratios = [b / a for a, b in pairs]
        look = LOOKS.index(len(pairs)) + 1
        wrong += interval(ratios, look).verdict in (FASTER, SLOWER)
    assert wrong <= 0.05 * 400


@pytest.mark.one_engine
def test_pairs_are_taken_until_they_can_be_told_apart():
    runs = []

    def seconds(how):
        runs.append(how)
        return 2.0 + 0.01 * len(runs) if how == "equinox" else 1.0

    told = []
    pairs, interrupted = take_pairs(seconds, told.append, math.inf)
    assert len(pairs) == LOOKS[0] and told == [1, 2, 3] and not interrupted
    assert runs == ["equinox", "ours", "ours", "equinox", "equinox", "ours"]
    assert all(a > b for a, b in pairs)


@pytest.mark.one_engine
def test_a_limit_of_time_and_of_pairs():
    now = [0.0]

    def seconds(how):
        now[0] += 100
        return random.Random(now[0]).uniform(1, 2)

    def clock():
        return now[0]

    pairs, _ = take_pairs(seconds, lambda n: None, 700, clock=clock)
    assert len(pairs) == 4  # a pair starts at 600 s and ends at 800 s, past the limit
    pairs, _ = take_pairs(seconds, lambda n: None, 0, clock=clock)
    assert len(pairs) == LOOKS[0]
    assert len(take_pairs(seconds, lambda n: None, math.inf, 2, clock)[0]) == 2


@pytest.mark.one_engine
def test_interrupted_while_pairs_are_taken():
    def seconds(how, runs=[]):  # noqa: B006
        runs.append(how)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return 1.0

    pairs, interrupted = take_pairs(seconds, lambda n: None, math.inf)
    assert pairs == [(1.0, 1.0)] and interrupted


# --- recorded calls ------------------------------------------------------------------


@pytest.fixture
def samples():
    samples = Samples()
    samples.start()
    yield samples
    samples.stop()
    assert "_prepare" not in vars(_jit.JitWrapped)


class Model(eqx.Module):
    weight: jax.Array
    inner: object = None

    @eqx_fastjit.filter_jit
    def unwatched(self, x):
        return self.weight * x


def test_calls_by_function_and_signature(samples):
    class Watched(Model):
        @eqx_fastjit.filter_jit
        def method(self, x, *, n=2):
            return self.weight * x * n

    @eqx_fastjit.filter_jit
    def inner(x):
        return x + 1

    @eqx_fastjit.filter_jit
    def outer(x, n=1):
        return inner(x) * n

    model = Watched(jnp.ones(3))
    for i in range(5):
        assert outer(jnp.ones(2)).tolist() == [2, 2]
        model.method(jnp.ones(3), n=3)
        outer(np.ones(i % 2 + 1), n=2)
    outer.__wrapped__.__defaults__ = (4,)  # binds the arguments again
    assert outer(jnp.ones(2)).tolist() == [8, 8]
    jax.vmap(outer)(jnp.ones((3, 2)))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        outer()
    samples.stop()
    outer(jnp.ones(2))
    called = {c.name.rpartition(".")[2]: c for c in samples.ranked()}
    assert {name: c.calls for name, c in called.items()} == {"outer": 12, "method": 5}
    assert called["outer"].transformed == 1
    calls = sorted(s.calls for s in called["outer"].ranked())
    assert calls == [1, 2, 3, 5]


def test_a_jitted_function_in_a_module_is_counted_after_unflattening(samples):
    model = Model(jnp.ones(2), eqx_fastjit.filter_jit(lambda x: 2 * x))
    copy = jax.tree.map(lambda x: x, model)
    assert copy.inner(jnp.ones(2)).tolist() == [2, 2]
    assert [c.calls for c in samples.ranked()] == [1]


def test_arguments_are_kept_as_they_were(samples):
    @eqx_fastjit.filter_jit(donate="all")
    def donating(x):
        return x + 1

    @eqx_fastjit.filter_jit
    def reading(buffer):
        return buffer.sum()

    x, buffer = jnp.zeros(4), np.zeros(4)
    for i in range(5):
        buffer[:] = i
        x = donating(x)
        reading(buffer)
    by_name = {c.name.rpartition(".")[2]: c.ranked()[0] for c in samples.ranked()}
    # An immutable argument is kept as it is, not copied.
    kept = jnp.ones(3)
    eqx_fastjit.filter_jit(lambda kept: kept)(kept)
    (only,) = [c.ranked()[0] for c in samples.ranked() if "<lambda>" in c.name]
    assert only.args[0] is kept
    # The arguments of the fourth call.
    assert alive(by_name["donating"])[1][0].tolist() == [3, 3, 3, 3]
    assert alive(by_name["reading"])[1][0].tolist() == [3, 3, 3, 3]


def test_arguments_are_let_go_and_errors_are_the_programs_own(samples):
    class Big:
        pass

    @eqx_fastjit.filter_jit
    def f(x, big):
        if big is None:
            raise ValueError("planted")
        return x

    big = Big()
    gone = weakref.ref(big)
    f(jnp.ones(1), big)
    with pytest.raises(ValueError, match="planted"):
        f(jnp.ones(1), None)
    samples.called.clear()
    f.clear_cache()
    del big
    assert gone() is None


# --- costs of a call -----------------------------------------------------------------


def test_costs_of_a_call(samples, monkeypatch):
    monkeypatch.setattr(_gain_costs, "_ROUNDS", 3)
    monkeypatch.setattr(_gain_costs, "_WARM_CALLS", 2)
    traces = []

    @eqx_fastjit.filter_jit(donate="all")
    def f(x, unused, n):
        traces.append(n)
        return x * n, "static"

    for _ in range(3):
        f(jnp.ones(4), jnp.ones(2), 2)
    jax.vmap(lambda x: f(x, jnp.ones(2), 3)[0])(jnp.ones((2, 4)))
    samples.stop()
    (called,) = samples.ranked()
    costs, reason = function_costs(called, until=math.inf)
    assert reason == "" and costs is not None
    assert min(vars(costs).values()) >= 0 and costs.equinox
    assert "--replay" in function_costs(called, until=-1.0)[1]
    monkeypatch.setattr(_gain_costs, "_TOO_LONG", 0.0)
    costs, reason = function_costs(called, until=math.inf)
    assert costs is None and reason.endswith("its overhead does not matter")


@pytest.mark.one_engine
def test_costs_are_a_mean_over_the_calls(monkeypatch):
    """Not timed: signatures with few of the calls, or past the time limit."""
    timed, known = [], {}

    def costs(signature, options):
        timed.append(signature.calls)
        found = Costs(*[float(signature.calls)] * 7) if signature.calls != 4 else None
        return found, "" if found else "too long"

    monkeypatch.setattr(_gain_costs, "_costs", costs)
    for calls in (10, 30, 4, 5):
        known[calls] = Signature(calls=calls)
    called = Called("f", None, Options(), 49, signatures=known)
    found, reason = function_costs(called, until=math.inf)
    # The signature with 4 of the 49 calls has less than a tenth of them.
    assert timed == [30, 10, 5] and reason == ""
    assert found.equinox == found.floor_overhead == (30 * 30 + 10 * 10 + 5 * 5) / 45
    times = iter([0.0, 1.0, 2.0])
    found, reason = function_costs(called, until=1.0, clock=lambda: next(times))
    assert found.ours == (30 * 30 + 10 * 10) / 40 and reason == ""
    called = Called("f", None, Options(), 4, signatures={4: Signature(calls=4)})
    assert function_costs(called, until=math.inf) == (None, "too long")
    called = Called("f", None, Options(), 4, transformed=4)
    assert function_costs(called, until=math.inf) == (
        None,
        "called only under eager transformations",
    )


# --- the report ----------------------------------------------------------------------


COSTS = vars(Costs(1e-4, 2e-5, 1e-5, 3e-5, 8e-5, 1e-5, 5e-6))


def report(**changes):
    functions = (
        FunctionGain("<step>", "a.py:3", "a.py", 3, 10_000, COSTS, ""),
        FunctionGain("once", "", None, None, 1, None, "no time left"),
    )
    given = {
        "program": "<a.py>",
        "equinox": (4.0, 4.1, 3.9),
        "ours": (3.0, 3.1, 2.9),
        "ratio": interval([3 / 4, 3.1 / 4.1, 2.9 / 3.9], 1),
        "functions": functions,
        "compiling": 1.0,
        "engine": "native",
    }
    return Gain(**{**given, **changes})


@pytest.mark.one_engine
def test_report():
    gain = report()
    assert gain.parts() == pytest.approx(
        {"compiling": 1, "device": 0.3, "overhead": 0.8, "rest": 1.9}
    )
    assert sum(gain.parts("ours").values()) == pytest.approx(3)
    assert gain.functions[0].saved == pytest.approx(0.7)
    text = str(gain)
    for part in (
        "faster: the wall time is",
        "20.00%",
        "700 ms",
        "no time left",
        "3 pairs",
    ):
        assert part in text
    found = json.loads(json.dumps(gain.as_json(), allow_nan=False))
    assert found["verdict"] == "faster" and found["wall"]["equinox"] == [4.0, 4.1, 3.9]
    assert found["functions"][0]["overhead_share"] == pytest.approx(0.2)
    assert found["functions"][1]["not_timed"] == "no time left"


def _rows(*functions):
    return report(functions=functions)._functions().rows


@pytest.mark.one_engine
def test_a_row_of_all_functions_where_there_are_several():
    step = FunctionGain("step", "a.py:3", "a.py", 3, 10_000, COSTS, "")
    small = FunctionGain("small", "", None, None, 5_000, COSTS, "")
    untimed = FunctionGain("once", "", None, None, 1, None, "no time left")
    assert [row[:2] for row in _rows(step)] == [("step (a.py:3)", 10_000)]
    assert [row[0] for row in _rows(step, untimed)] == ["step (a.py:3)", "once"]
    rows = _rows(step, small, untimed)
    assert rows[0][2:] == (
        *("100 us", "20 us", "10 us", "30 us"),
        *("80 us", "20.00%", "700 ms", ""),
    )
    assert rows[2] == ("once", 1, *["-"] * 7, "no time left")
    assert rows[3] == ("all", 15_001, *["-"] * 5, "30.00%", "1.05 s", "")
    # The column of reasons is left out if there is none.
    assert [len(row) for row in _rows(step, small)] == [9, 9, 9]


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((0.9, 0.8, 0.999), "faster"),
        ((0.9, 0.8, 1.0), "unknown"),
        ((1.1, 1.001, 1.2), "slower"),
        ((1.1, 1.0, 1.2), "unknown"),
        ((1.0, 0.981, 1.019), "alike"),
        ((1.0, 0.979, 1.019), "unknown"),
        ((1.0, 0.981, 1.021), "unknown"),
    ],
)
def test_edges_of_the_verdict(ratio, verdict):
    assert Interval(*ratio).verdict == verdict


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((2.0, 2.1, 1.9), "slower: the wall time is"),
        ((1.0, 1.0, 1.0), "no difference of more than 2%"),
        ((0.5, 1.5, 1.0), "inconclusive: the wall time is"),
        ((0.5,), "one pair of runs is not enough"),
    ],
)
def test_verdicts(ratios, said):
    gain = report(equinox=(1.0,) * len(ratios), ours=ratios, ratio=interval(ratios, 1))
    assert said in gain.title()
    json.dumps(gain.as_json(), allow_nan=False)
    assert said in page(gain)


@pytest.mark.one_engine
def test_page_is_escaped_and_needs_nothing_else():
    html = page(report())
    assert "&lt;a.py&gt;" in html and "<a.py>" not in html and "<step>" not in html
    assert 'src="' not in html and 'href="' not in html
    assert html.count('class="bar"') == 2
    assert html.index('class="bars"') < html.index("<table>")


# --- the command ---------------------------------------------------------------------

OVERHEAD = """
    import os, sys
    assert not any("eqx_fastjit" in path for path in sys.path[:1])
    import equinox as eqx, jax, jax.numpy as jnp

    with open("runs", "a") as file:
        print(eqx.filter_jit.__module__.partition(".")[0], file=file)

    @eqx.filter_jit
    def step(model, x):
        return jax.vmap(model)(x)

    model = eqx.nn.MLP(2, 2, 2, 20, key=jax.random.key(0))
    x = jnp.ones((2, 2))
    for _ in range(int(sys.argv[1])):
        x = step(model, x)
    print(x, sys.argv)
"""


def run(tmp_path, text, *args, options=()):
    script = tmp_path / "a.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "eqx_fastjit.cli", "gain", *options, "a.py", *args]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.one_engine
def test_the_command(tmp_path):
    options = ["--pairs", "1", "--json", "out.json", "--html", "out.html"]
    out = run(tmp_path, OVERHEAD, "50", "--pairs", options=options)
    assert out.returncode == 0, out.stderr
    assert "step (a.py:9)" in out.stdout and "Array" not in out.stdout
    runs = (tmp_path / "runs").read_text().split()
    assert runs == ["eqx_fastjit", "equinox", "eqx_fastjit"]
    found = json.loads((tmp_path / "out.json").read_text())
    (step,) = found["functions"]
    assert (step["name"], step["calls"], step["not_timed"]) == ("step", 50, None)
    # With twenty layers, the overhead of Equinox shows on any machine.
    assert step["saved"] > 0 and found["wall"]["ratio"] is None
    assert "<table>" in (tmp_path / "out.html").read_text()


@pytest.mark.one_engine
def test_a_program_without_overhead(tmp_path):
    text = """
        import equinox as eqx, jax, jax.numpy as jnp
        @eqx.filter_jit
        def all_of_it(x):
            return jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
        all_of_it(jnp.ones((50, 50)))
    """
    out = run(tmp_path, text, options=["--pairs", "1", "--json", "out.json"])
    assert out.returncode == 0, out.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["functions"]
    assert found["calls"] == 1 and found["overhead_share"] < 0.05


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; print('why', file=sys.stderr); sys.exit(3)", 3, "why"),
        ("import equinox; 1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os._exit(0)", 2, "ended with `os._exit`"),
        ("import equinox", 2, "called no function under equinox.filter_jit"),
        ("print(1)", 2, "called no function under equinox.filter_jit"),
    ],
)
def test_programs_that_fail_or_call_nothing(text, code, said, tmp_path):
    out = run(tmp_path, text)
    assert out.returncode == code and said in out.stderr, out.stderr
    assert out.stdout == "" and "eqx-fastjit: " in out.stderr
    assert "_gain_child.py" not in out.stderr and "_script.py" not in out.stderr


@pytest.mark.one_engine
def test_a_program_that_fails_under_equinox_alone(tmp_path):
    text = "import equinox as eqx, jax.numpy as jnp\n"
    text += "eqx.filter_jit(lambda x: x)(jnp.ones(1))\n"
    text += "assert eqx.filter_jit.__module__ != 'equinox._jit'"
    out = run(tmp_path, text)
    assert out.returncode == 1
    assert "under equinox.filter_jit the program ended with exit code 1" in out.stderr


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nosuch.py"], "cannot open 'nosuch.py': no such file"),
        (["--pairs", "0", "a.py"], "--pairs 0: expected at least 1"),
        (["--seconds", "-1", "a.py"], "--seconds -1.0: expected 0 or more"),
        (["--replay", "nan", "a.py"], "--replay nan: expected 0 or more"),
        (["--json", "none/out", "a.py"], "cannot write 'none/out': No such"),
        ([], "expected SCRIPT or -m MODULE"),
    ],
)
def test_bad_arguments(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print('ran')")
    try:
        code = cli.main(["gain", *argv])
    except SystemExit as e:
        code = e.code
    assert code == 2
    out, err = capsys.readouterr()
    assert message in err and "ran" not in out
