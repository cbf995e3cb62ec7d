"""`guard`, its pytest plugin, and `warmup`."""

import os
import subprocess
import sys
import textwrap
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _record, filter_jit
from eqx_fastjit.insight import (
    cache_info,
    explain,
    guard,
    ledger,
    RetraceError,
    RetraceWarning,
    warmup,
    warmup_all,
)


pytest_plugins = ["pytester"]
x = jnp.ones(3)


@pytest.fixture
def f():
    @filter_jit
    def f(x, n):
        return x * n

    return f


def test_raises_at_the_call_that_retraces(f):
    callbacks = [*_record.before], [*_record.after]
    with guard(max_traces=1):
        f(x, 1)
        f(x, 1)
        with pytest.raises(RetraceError, match=r"`n`: static 1 \(int\) -> 2 \(int\)"):
            f(x, 2)
    assert cache_info(f).traces == 1
    assert f(x, 2)[0] == 2  # the guard has no effect after it has ended
    assert callbacks == (_record.before, _record.after)


def test_names_the_first_call(f):
    with guard(max_traces=0), pytest.raises(RetraceError, match="for the first time"):
        f(x, 1)


def test_as_a_decorator(f):
    @guard(max_traces=1)
    def epoch(*ns):
        for n in ns:
            f(x, n)

    epoch(1)
    epoch(2)
    with pytest.raises(RetraceError, match=r"`n`: static 3 \(int\) -> 4 \(int\)"):
        epoch(3, 4)


def test_functions_made_by_one_line_count_as_one():
    def make():
        return filter_jit(lambda x: x)

    with guard(max_traces=1):
        make()(x)
        with pytest.raises(RetraceError, match="fresh-function"):
            make()(x)


def test_partials_of_two_functions_are_two():
    """Although `filter_jit` treats them as one function: a Module that is called."""

    def double(x, n):
        return x * n * 2

    def negate(x, n):
        return -x * n

    with guard(max_traces=1):
        for fun in (double, negate):
            partial = filter_jit(eqx.Partial(fun, x))
            partial(3)
            assert not explain(partial)
        with pytest.raises(RetraceError, match=r"Partial of .*negate"):
            partial(4)
    names = [row.function for row in ledger().rows]
    assert sum("Partial of " in name for name in names) == 2


def test_seconds(f):
    with guard(max_seconds=100):
        f(x, 1)
    with guard(max_seconds=0), pytest.raises(RetraceError, match="at most 0 us here"):
        f(x, 2)
    with guard(max_seconds=0):
        f(x, 2)


def test_nested_and_other_threads(f):
    with guard(max_traces=1), guard(max_traces=2):
        f(x, 1)
        with pytest.raises(RetraceError, match="at most 1 time here"):
            f(x, 2)
        thread = threading.Thread(target=lambda: [f(x, n) for n in (3, 4, 5)])
        thread.start()
        thread.join()
    assert cache_info(f).traces == 4


def test_of_one_function(f):
    g = filter_jit(lambda x: x)
    with guard(f, max_traces=1, max_seconds=100):
        f(x, 1)
        g(x)
        g(x[1:])
        with pytest.raises(RetraceError, match=r"f .* at most 1 time here"):
            f(x, 2)

    @guard(f, max_traces=0)
    def epoch(n):
        g(x[2:])
        f(x, n)

    epoch(1)
    with pytest.raises(RetraceError, match=r"f .* at most 0 times here"):
        epoch(5)
    with pytest.raises(TypeError, match="wrapped by"):
        guard(lambda x: x, max_traces=1)


def test_of_one_function_made_anew_and_of_a_method():
    def make():
        return filter_jit(lambda x: x)

    first = make()
    with guard(first, max_traces=1):
        first(x)
        with pytest.raises(RetraceError, match="fresh-function"):
            make()(x)

    class Model(eqx.Module):
        w: jax.Array

        @filter_jit
        def __call__(self, x, n):
            return self.w * x * n

    with guard(Model(x).__call__, max_traces=1):
        Model(x)(x, 1)
        with pytest.raises(RetraceError, match=r"`n`: static 1 \(int\) -> 2 \(int\)"):
            Model(x + 1)(x, 2)


def test_warns_at_the_line_of_the_call(f):
    with guard(f, max_traces=1, warn=True):
        f(x, 1)
        with pytest.warns(RetraceWarning, match="at most 1 time") as seen:
            assert f(x, 2)[0] == 2
            f(x, 3)
    assert [w.filename for w in seen] == [__file__] * 2
    assert seen[1].lineno == seen[0].lineno + 1
    with (
        pytest.warns(RetraceWarning, match="at most 0 us here"),
        guard(max_seconds=0, warn=True),
    ):
        f(x, 4)


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (
            "2",
            1,
            "RetraceError: f (limited.py:4) may be traced at most 2 times "
            "(EQX_FASTJIT_MAX_TRACES=2).",
        ),
        ("2,warn", 0, "limited.py:9: RetraceWarning: f (limited.py:4) may be"),
        ("3", 0, ""),
        ("some", 1, "EQX_FASTJIT_MAX_TRACES='some': expected a number of traces"),
        ("2,raise", 1, "expected a number of traces, such as 8, or 8,warn"),
    ],
)
def test_a_limit_for_the_process(value, code, message, tmp_path):
    program = """
        import threading
        import eqx_fastjit, jax.numpy as jnp

        @eqx_fastjit.filter_jit
        def f(x, n):
            return x * n

        f(jnp.ones(2), 1), f(jnp.ones(2), 2)
        f(jnp.ones(2), 3)
    """
    path = tmp_path / "limited.py"
    path.write_text(textwrap.dedent(program).lstrip())
    out = subprocess.run(
        [sys.executable, path.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "EQX_FASTJIT_MAX_TRACES": value},
        timeout=100,
    )
    assert out.returncode == code, out.stderr
    assert message in out.stderr.replace(f"{tmp_path}{os.sep}", "")
    assert (out.stderr == "") == (message == "")


@pytest.mark.parametrize("limits", [{}, {"max_traces": -1}, {"max_seconds": "soon"}])
def test_bad_limits(limits):
    with pytest.raises(ValueError, match="guard\\("):
        guard(**limits)


def test_warmup_leaves_nothing_to_do(f):
    struct = jax.ShapeDtypeStruct((3,), jnp.float32)
    warmup(f, struct, 1)
    warmup(f, x, n=2)
    assert (cache_info(f).traces, cache_info(f).compiles) == (2, 2)
    with guard(max_traces=0, max_seconds=0):
        assert f(x, 1)[0] == 1
        assert f(x, 2)[0] == 2
    assert (cache_info(f).traces, cache_info(f).compiles) == (2, 2)


def test_warmup_neither_runs_nor_donates():
    ran = []

    @filter_jit(donate="all")
    def f(x):
        jax.debug.callback(lambda: ran.append(1))
        return x + 1

    y = jnp.ones(3)
    warmup(f, y)
    assert not ran
    assert not y.is_deleted()


def test_warmup_all(f, capsys):
    warmup_all([(f, (x, 1)), (f, (x,), {"n": 2})], progress=True)
    assert cache_info(f).compiles == 2
    assert "Compiling" in capsys.readouterr().err
    with pytest.raises(ValueError, match="entry 1 is a tuple; expected"):
        warmup_all([(f, (x, 1)), (f, 1)])
    with pytest.raises(TypeError, match="wrapped by"):
        warmup(lambda x: x, x)


@pytest.mark.one_engine
def test_plugin(pytester, monkeypatch):
    # If eqx_fastjit is installed, pytest would also load the plugin by itself.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("pytest_plugins = ['eqx_fastjit.pytest_plugin']")
    pytester.makepyfile(
        """
        import sys
        import pytest

        def test_loads_nothing():
            assert "jax" not in sys.modules

        def train(sizes):
            import jax.numpy as jnp
            from eqx_fastjit import filter_jit
            f = filter_jit(lambda x: x)
            for size in sizes:
                f(jnp.ones(size))

        @pytest.mark.retrace_guard(max_traces=1)
        def test_good():
            train([1, 1])

        @pytest.mark.retrace_guard(max_traces=1)
        def test_bad():
            train([1, 2])

        def test_fixture(retrace_guard):
            train([3])
            with retrace_guard(max_traces=0):
                train([4])

        @pytest.mark.retrace_guard(1)
        def test_misspelt():
            pass

        @pytest.mark.retrace_guard(traces=1)
        def test_unknown():
            pass
        """
    )
    arguments = ["-p", "no:cacheprovider", "--strict-markers"]
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=2, failed=4)
    output = result.stdout.str()
    assert "shape (1,) -> (2,)" in output
    assert "by name only" in output


def test_a_call_that_is_not_traced_costs_nothing_more(f, python_events):
    for _ in range(30):
        f(x, 1)
    without = python_events(lambda: f(x, 1))
    with guard(max_traces=0, max_seconds=0):
        assert python_events(lambda: f(x, 1)) == without
