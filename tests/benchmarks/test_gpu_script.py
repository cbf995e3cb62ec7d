"""`benchmarks/gpu.sh`, on the CPU and with as few rounds as possible."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.conftest import ROOT


_SCRIPT = ROOT / "benchmarks" / "gpu.sh"


pytestmark = pytest.mark.one_engine


def _run(*args, **env):
    return subprocess.run(
        ["bash", str(_SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, **env},
    )


# Takes over half a minute. `-m "not slow"` skips it.
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is for Linux")
def test_a_dry_run(tmp_path):
    out = _run(tmp_path, "--device", "cpu", "--quick", EQX_FASTJIT_COMMIT="0" * 40)
    log = (tmp_path / "log.txt").read_text()
    assert out.returncode == 0, out.stdout + out.stderr + log
    assert "tests: done" in out.stdout and "benchmarks: done" in out.stdout
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["commit"] == "0" * 40
    assert [case["name"] for case in results["cases"]] == ["identity"]
    tests = (tmp_path / "tests.txt").read_text()
    assert 'failures="0"' in tests and 'errors="0"' in tests


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected a folder"),
        (["a", "b"], "expected one folder"),
        (["a", "--device", "abacus"], "--device abacus: expected gpu or cpu"),
        (["a", "--device"], "expected gpu or cpu"),
        (["a", "--nonsense"], "no option --nonsense"),
    ],
)
def test_bad_input_is_refused(args, message):
    out = _run(*args)
    assert out.returncode == 2 and out.stdout == ""
    assert message in out.stderr and out.stderr.count("\n") == 1


def test_an_absent_gpu(tmp_path):
    out = _run(tmp_path, JAX_PLATFORMS="cpu")
    assert out.returncode == 2
    assert "runs on cpu here" in out.stderr


def test_wheels_that_cannot_be_installed(tmp_path):
    (tmp_path / "broken-1-py3-none-any.whl").write_text("")
    out = _run(tmp_path, "--device", "cpu", EQX_FASTJIT_WHEELS=str(tmp_path))
    assert out.returncode == 2
    assert f"the wheels in {tmp_path} cannot be installed" in out.stderr


def test_help_is_its_head():
    out = _run("--help")
    assert out.returncode == 0
    assert "benchmarks/gpu.sh FOLDER [--device gpu|cpu]" in out.stdout
    assert "pip download" in out.stdout and "set -uo" not in out.stdout
