"""The pytest plugin: a marker and a fixture, with `explain`'s text as the failure.

Promise 38 of docs/reliability.md.
"""

from tests.support.commands import command


TESTS = """
import numpy as np, pytest
import eqx_fastjit

@eqx_fastjit.filter_jit
def f(x):
    return x + 1

@pytest.mark.retrace_guard(max_traces=1)
def test_fails():
    f(np.ones(2))
    f(np.ones(3))

@pytest.mark.retrace_guard(max_traces=1)
def test_passes():
    f(np.ones(4))

def test_fixture(retrace_guard):
    f(np.ones(5))
    with retrace_guard(max_traces=0):
        f(np.ones(5))

@pytest.mark.retrace_guard(1)
def test_positional():
    pass

@pytest.mark.retrace_guard(max_traces="a")
def test_bad_limit():
    pass
"""


def test_marker_and_fixture(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    run = ("-m", "pytest", "-p", "eqx_fastjit.pytest_plugin", "-p", "no:cacheprovider")
    options = ("--strict-markers", "-q", "-c", "/dev/null", "--rootdir", tmp_path)
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = command(*options, "test_it.py", python=run, cwd=tmp_path, code=1, **alone)
    assert "2 passed" in ended.stdout and "3 failed" in ended.stdout
    assert "x: float64[2] -> float64[3]" in ended.stdout
    assert "test_positional - TypeError: " in ended.stdout
    assert "test_bad_limit - ValueError: guard(max_traces='a')" in ended.stdout


def test_it_does_not_import_jax():
    code = "import sys, eqx_fastjit.pytest_plugin; print('jax' in sys.modules)"
    assert command(python=("-c", code)).stdout == "False\n"


def test_a_run_of_pytest_has_no_warning(tmp_path):
    """The package is imported before pytest, which rewrites those of its plugins."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\npytest.register_assert_rewrite('eqx_fastjit')\n"
    )
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    options = ("-W", "error", "-q", "-c", "/dev/null", "--rootdir", tmp_path)
    assert "1 passed" in command("run", "-m", "pytest", *options, cwd=tmp_path).stdout
