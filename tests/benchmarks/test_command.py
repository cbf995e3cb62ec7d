"""`python -m benchmarks`, in real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import __main__ as command
from benchmarks.case import Case, CASES
from tests.benchmarks.conftest import ROOT


pytestmark = pytest.mark.one_engine


def test_it_prints_a_table_and_writes_files(run, tmp_path):
    file, folder = tmp_path / "r.json", tmp_path / "new" / "plots"
    out = run(
        *("benchmarks", "--cases", "identity,mlp_8,mlp_16", "--rounds", "2"),
        *("--device", "cpu", "--json", file, "--plot", folder),
    )
    assert out.returncode == 0, out.stderr
    for shown in ("engine; commit", "timing identity", "Until the result is ready"):
        assert shown in out.stdout
    results = json.loads(file.read_text())
    command = "python -m benchmarks --cases identity,mlp_8,mlp_16 --rounds 2"
    assert results["command"].startswith(command)
    assert [case["name"] for case in results["cases"]] == [
        "identity",
        "mlp_8",
        "mlp_16",
    ]
    times = results["cases"][0]["times"]["dispatch"]
    assert {name: len(x) for name, x in times.items()} == dict.fromkeys(
        ("jit", "flat", "eqx", "ours"), 2
    )
    assert {path.name for path in folder.iterdir()} >= {"width.png", "ratios.svg"}


def test_a_case_that_needs_virtual_devices_has_a_process_of_its_own(run, tmp_path):
    file = tmp_path / "r.json"
    words = ("--cases", "error_if,sharded", "--rounds", "1", "--json", file)
    out = run("benchmarks", *words)
    assert out.returncode == 0, out.stdout + out.stderr
    names = [case["name"] for case in json.loads(file.read_text())["cases"]]
    assert names == ["error_if", "sharded"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cases", "nonsense"], "--cases: no case or group 'nonsense'"),
        (["--device", "gpu"], "--device gpu: JAX finds no GPU here"),
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (
            ["--json", "/no/such/folder/r.json"],
            "cannot write to /no/such/folder/r.json",
        ),
        (["--json", "/"], "cannot write to /: Is a directory"),
        (["--plot", "/dev/null/plots"], "cannot write to /dev/null/plots: Not a"),
    ],
)
def test_bad_input_is_refused_in_a_line(words, message, run):
    out = run("benchmarks", *words)
    assert out.returncode == 2 and out.stdout == ""
    assert message in out.stderr and out.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGINT to send")
def test_ctrl_c_keeps_what_was_measured(tmp_path):
    file = tmp_path / "r.json"
    words = ("--cases", "identity,statics_1000", "--rounds", "2", "--json", str(file))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "benchmarks", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    for line in process.stdout:
        if "timing statics_1000" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Interrupted: these are the results so far." in out
    results = json.loads(file.read_text())
    assert results["interrupted"]
    assert results["cases"][0]["name"] == "identity"
    assert results["problems"] == []


def test_ctrl_c_that_jax_makes_another_error_of(monkeypatch, capsys):
    def makers():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("while checking equality") from None

    monkeypatch.setitem(CASES, "faulty", Case("faulty", "table", "", makers))
    before = signal.getsignal(signal.SIGINT)
    assert command.main(["--cases", "faulty", "--rounds", "1"]) == 130
    assert "Not timed" not in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_a_case_that_fails_is_named(monkeypatch, capsys):
    def makers():
        raise ValueError("why\nand more")

    monkeypatch.setitem(CASES, "faulty", Case("faulty", "table", "", makers))
    assert command.main(["--cases", "faulty", "--rounds", "1"]) == 1
    assert "Not timed: faulty: ValueError: why\n" in capsys.readouterr().out


def test_what_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert command.main([]) == 2
    assert 'run pip install ".[bench]"' in capsys.readouterr().err


def test_the_installed_package_is_preferred(run, tmp_path):
    """The source in a checkout has no extension, unless it was built in place."""
    package = tmp_path / "eqx_fastjit"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the installed one')")
    out = run("benchmarks", "--cases", "identity", PYTHONPATH=str(tmp_path))
    assert out.returncode == 1 and "the installed one" in out.stderr
