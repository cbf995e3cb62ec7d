"""`EQX_FASTJIT_LOG` and the logger "eqx_fastjit": each compilation as it happens."""

import logging
import os
import re
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit.doctor import _live


PROGRAM = """
    import logging, sys
    import equinox as eqx
    import jax, jax.numpy as jnp
    if "basic" in sys.argv:
        logging.basicConfig()

    @eqx.filter_jit
    def scale(batch, rate):
        return batch["x"] * rate

    @eqx.filter_jit
    def outer(x):
        return scale({"x": x}, 1.0)

    total = jax.jit(lambda x: x.sum())

    for rate in (0.5, 0.25):
        scale({"x": jnp.ones(2)}, rate)
    total(jnp.ones(2))
    total(jnp.ones(3))
    outer(jnp.ones(5))
"""


def run(tmp_path, *command, **env):
    path = tmp_path / "prog.py"
    path.write_text(textwrap.dedent(PROGRAM))
    out = subprocess.run(
        [sys.executable, "-m", "eqx_fastjit.cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    return out


def events(err):
    """The log's lines without time of day and durations."""
    lines = [x for x in err.splitlines() if " eqx_fastjit] " in x or "INFO:" in x]
    lines = [re.sub(r"^.*?(\] |eqx_fastjit:)", "", line) for line in lines]
    return [re.sub(r" in [\d.]+ [mu]?s \(.*?\)", "", line) for line in lines]


def compilations(stderr):
    """Lines on functions. On a slow machine there are also operations and
    announcements.
    """
    return [
        line
        for line in events(stderr)
        if not line.endswith("an operation outside of jit")
        if not line.startswith("still compiling")
    ]


EXPECTED = [
    "compiled scale (prog.py:8), called at prog.py:19: first call",
    "compiled scale (prog.py:8) again, called at prog.py:19: static-churn: `rate`: "
    "static 0.5 (float) -> 0.25 (float)",
    "compiled <lambda> (prog.py:16), called at prog.py:20, under jax.jit: first call",
    "compiled <lambda> (prog.py:16) again, called at prog.py:21, under jax.jit: "
    "shape-churn: `x`: [2] -> [3]",
    "compiled outer (prog.py:12), called at prog.py:22: first call",
]


@pytest.mark.one_engine
@pytest.mark.parametrize("args", [[], ["basic"]])
def test_a_program_that_knows_nothing_of_it(args, tmp_path):
    out = run(tmp_path, "run", "prog.py", *args, EQX_FASTJIT_LOG="compiles")
    assert compilations(out.stderr) == EXPECTED, out.stderr


@pytest.mark.one_engine
def test_everything(tmp_path):
    out = run(tmp_path, "run", "prog.py", EQX_FASTJIT_LOG="all")
    found = events(out.stderr)
    assert [x for x in found if x in EXPECTED] == EXPECTED
    assert "tracing scale (prog.py:8), called at prog.py:19" in found
    assert any(x.endswith("prog.py:19: an operation outside of jit") for x in found)
    assert any("inside of another jitted function" in x for x in found)


@pytest.mark.one_engine
def test_beside_the_doctor(tmp_path):
    out = run(
        tmp_path, "doctor", "--json", "a.json", "prog.py", EQX_FASTJIT_LOG="compiles"
    )
    assert compilations(out.stderr) == EXPECTED, out.stderr
    # The doctor's tables are the same as without the log.
    assert "1 static-churn" in out.stderr and "1 shape-churn" in out.stderr


@pytest.mark.one_engine
@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_jax_keeps_its_own_cache_to_itself(seconds, tmp_path):
    """Messages on JAX's persistent cache, logged because of our setting, are not
    printed.
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": seconds,
    }
    out = run(tmp_path, "run", "prog.py", EQX_FASTJIT_LOG="compiles", **cache)
    assert compilations(out.stderr) == EXPECTED, out.stderr


@pytest.mark.one_engine
def test_off(tmp_path):
    assert run(tmp_path, "run", "prog.py", EQX_FASTJIT_LOG="off").stderr == ""
    assert run(tmp_path, "run", "prog.py").stderr == ""


def test_a_value_that_means_nothing(monkeypatch):
    monkeypatch.setenv("EQX_FASTJIT_LOG", "loud")
    with pytest.raises(ValueError, match="'loud': expected one of compiles, all, off"):
        _live.log_from_environment()


def test_by_the_logger_alone(caplog):
    @eqx_fastjit.filter_jit
    def f(x, n):
        if n == 3:
            raise KeyError(n)
        return x * n

    x = jnp.ones(3)
    f(x, 1)
    with caplog.at_level(logging.INFO, "eqx_fastjit"):
        f(x, 1)
        assert caplog.records == []
        f(x, 2)
        with pytest.raises(KeyError, match="3"):
            f(x, 3)
        f.lower(x, 4).compile()
    again, failed, ahead = [r.compilation for r in caplog.records]
    seconds = again.pop("seconds")
    assert seconds > 0
    assert again.pop("site").partition(":")[0].endswith("test_live_log.py")
    assert again.pop("name").startswith("test_by_the_logger_alone.<locals>.f (")
    assert again == {"cause": "static-churn", "leaf": "n"}
    assert (failed["cause"], ahead["cause"]) == ("failed", "first-call")
    assert "ahead of time" in caplog.messages[2]


def test_a_warm_call_runs_nothing_more(caplog, python_events):
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    x = jnp.ones(2)
    for _ in range(30):
        f(x)

    without = python_events(lambda: f(x))
    with caplog.at_level(logging.DEBUG, "eqx_fastjit"):
        assert python_events(lambda: f(x)) == without


def test_a_log_that_fails_does_not_fail_the_call(monkeypatch, caplog):
    monkeypatch.setattr(_live, "_why", lambda trace: 1 / 0)
    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    with caplog.at_level(logging.DEBUG, "eqx_fastjit"):
        assert f(jnp.ones(2))[0] == 2
    assert "could not describe a compilation" in caplog.text


def test_a_compilation_that_takes_long_is_announced(monkeypatch, caplog):
    """The announcements stop when the compilation ends."""
    timers = []

    class Timer:
        def __init__(self, seconds, announce):
            self.seconds, self.announce, self.cancelled = seconds, announce, False
            timers.append(self)

        def start(self):
            pass

        def cancel(self):
            self.cancelled = True

    monkeypatch.setattr(_live.threading, "Timer", Timer)
    monkeypatch.setattr(_live._record, "before", [_live._on_begin])
    monkeypatch.setattr(_live._record, "after", [_live._on_end])

    def slow(x):
        timers[0].announce()
        timers[1].announce()
        return x

    with caplog.at_level(logging.INFO, "eqx_fastjit"):
        eqx_fastjit.filter_jit(slow)(jnp.ones(2))
    assert [t.seconds for t in timers] == [10, 10, 20]
    assert timers[-1].cancelled and not _live._timers
    first, second, _ = caplog.messages
    assert "still compiling" in first and "after 10 s" in first
    assert "after 20 s" in second and "test_live_log.py" in second


INSPECTED = """
    import jax.numpy as jnp
    import eqx_fastjit
    from eqx_fastjit import insight

    @eqx_fastjit.filter_jit
    def f(x):
        return x + 1

    f(jnp.ones(2))
    insight.inspect_jaxpr(f, jnp.ones(3))
    insight.breakdown(f, jnp.ones(2), rounds=1)
"""


@pytest.mark.one_engine
def test_what_insight_compiles_is_not_the_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", INSPECTED)
    out = run(tmp_path, "run", "prog.py", EQX_FASTJIT_LOG="all")
    found = [line for line in events(out.stderr) if line.startswith("compiled")]
    assert "compiled f (prog.py:6), called at prog.py:10: first call" in found
    # Only the program's own operation is listed besides.
    others = [line for line in found if "prog.py:10" not in line]
    own = "an operation outside of jit"
    assert all(line.endswith(own) and "prog.py:8" not in line for line in others)
