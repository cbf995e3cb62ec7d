"""The pytest plugin: a marker and a fixture, with `explain`'s text as the failure."""

from tests.support.commands import command


TESTS = """
import numpy as np, pytest
import eqx_fastjit

@eqx_fastjit.filter_jit
def f(x):
    return x + 1

@eqx_fastjit.filter_jit
def g(x, n):
    return x * n

@pytest.mark.retrace_guard(max_traces=1)
def test_fails():
    f(np.ones(2))
    f(np.ones(3))

def test_fixture(retrace_guard):
    f(np.ones(5))
    with retrace_guard(max_traces=0):
        f(np.ones(5))

@pytest.mark.retrace_guard
def test_programs():
    f(np.ones(6))
    f(np.ones(7))
    g(np.ones(6), 1)
    g(np.ones(6), 2)
"""


RUN = ("-m", "pytest", "-p", "eqx_fastjit.pytest_plugin", "-p", "no:cacheprovider")
OPTIONS = ("--strict-markers", "-q", "-c", "/dev/null")


def outcomes(folder, tests, *options, code=1):
    """What pytest prints of these tests."""
    (folder / "test_it.py").write_text(tests)
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = (*OPTIONS, "--rootdir", folder, *options, "test_it.py")
    return command(*words, python=RUN, cwd=folder, code=code, **alone).stdout


def test_marker_and_fixture(tmp_path):
    text = outcomes(tmp_path, TESTS)
    assert "1 passed" in text and "2 failed" in text
    assert "x float32[2], float32[3]" in text
    assert "n 1, 2 [number]: jnp.asarray(n)" in text


def test_all_tests_by_an_option(tmp_path):
    """`--retrace-guard` is the marker of each test that has none."""
    tests = TESTS.replace("@pytest.mark.retrace_guard\n", "")
    assert "2 passed" in outcomes(tmp_path, tests)
    assert "[number]" in outcomes(tmp_path, tests, "--retrace-guard")


def test_a_run_of_pytest_has_no_warning(tmp_path):
    """The package is imported before pytest, which rewrites those of its plugins."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\npytest.register_assert_rewrite('eqx_fastjit')\n"
    )
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    options = ("-W", "error", "-q", "-c", "/dev/null", "--rootdir", tmp_path)
    assert "1 passed" in command("run", "-m", "pytest", *options, cwd=tmp_path).stdout
