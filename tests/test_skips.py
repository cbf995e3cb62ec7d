"""A session fails if a test is skipped where it should run."""

import ast
import re
from pathlib import Path

import pytest

from tests import skips


pytest_plugins = ["pytester"]
_ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.one_engine


_TESTS = """
    import pytest

    def test_design():
        pytest.skip("tried on one engine, for time")

    @pytest.mark.skipif(True, reason="no Chromium")
    def test_browser():
        pass

    def test_package():
        pytest.importorskip("no_such_package")

    @pytest.mark.xfail
    def test_fails_as_expected():
        assert False

    def test_passes():
        pass
"""


@pytest.mark.parametrize(
    ("workers", "allowed", "unexpected"),
    [
        ("0", None, []),
        ("0", "", ["test_browser: no Chromium", "test_package: could not import"]),
        ("0", "no Chromium; nothing of the kind", ["test_package: could not import"]),
        ("1", "no Chromium", ["test_package: could not import"]),
        ("0", "no Chromium;no_such_package", []),
    ],
)
def test_what_may_be_skipped(workers, allowed, unexpected, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.delenv("EQX_FASTJIT_SKIPS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("EQX_FASTJIT_SKIPS", allowed)
    pytester.makeconftest("from tests.skips import pytest_configure")
    pytester.makepyfile(_TESTS)
    result = pytester.runpytest_subprocess("-n", workers, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)
    assert result.ret == (1 if unexpected else 0)
    output = result.stdout.str()
    assert ("skipped in spite of" in output) == bool(unexpected)
    for line in unexpected:
        assert f"test_what_may_be_skipped.py::{line}" in output


def test_a_module_that_is_skipped_as_a_whole(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.setenv("EQX_FASTJIT_SKIPS", "")
    pytester.makeconftest("from tests.skips import pytest_configure")
    pytester.makepyfile("import pytest\npytest.importorskip('no_such_package')")
    result = pytester.runpytest_subprocess("-n", "0", "-p", "no:cacheprovider")
    assert result.ret == 1 and "could not import" in result.stdout.str()


def _reasons():
    """The reasons in the source of the tests."""
    for path in sorted((_ROOT / "tests").glob("*.py")):
        if path.name == Path(__file__).name:
            continue  # these are made-up examples
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if ast.unparse(node.func) in ("pytest.skip", "pytest.importorskip"):
                yield ast.unparse(node)


def test_every_reason_by_design_is_given_by_some_test():
    given = " ".join(_reasons())
    assert [part for part in skips.BY_DESIGN if part not in given] == []


def test_ci_says_what_may_be_missing():
    text = (_ROOT / ".ci" / "run").read_text(encoding="utf-8")
    runs = re.findall(r"in_venv \w+ .*(?:pytest|commands\[1\])", text)
    assert len(runs) == 3
    assert all("EQX_FASTJIT_SKIPS=" in line for line in runs)
