"""`python -m benchmarks`. `.ci/run` has a dry run of `gpu.sh`."""

import json
import signal
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks.case import Case, CASES


pytestmark = pytest.mark.one_engine


def test_it_prints_a_table_and_writes_files(capsys, monkeypatch, tmp_path):
    file = tmp_path / "r.json"
    words = ["--cases", "identity,policy_on_host", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    assert command.main(words) == 0
    out = capsys.readouterr().out
    for shown in ("engine; commit", "timing identity", "Until the result is ready"):
        assert shown in out
    results = json.loads(file.read_text())
    assert results["command"] == f"python -m benchmarks {' '.join(words)}"
    assert [case["name"] for case in results["cases"]] == ["identity", "policy_on_host"]
    call, loop = (case["times"] for case in results["cases"])
    assert {name: len(x) for name, x in call["dispatch"].items()} == dict.fromkeys(
        ("jit", "flat", "eqx", "ours"), 2
    )
    assert [*loop["iteration"]] == ["jit", "eqx", "trick", "ours", "install"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cases", "nonsense"], "--cases: no case or group 'nonsense'"),
        (["--device", "gpu"], "--device gpu: JAX finds no GPU here"),
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--json", "/no/such/r.json"], "cannot write to /no/such/r.json"),
    ],
)
def test_bad_input_is_refused_in_a_line(words, message, capsys):
    assert command.main(words) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and out == ""


@pytest.fixture
def faulty(monkeypatch):
    """A case whose contenders are what a function makes."""

    def faulty(makers):
        monkeypatch.setitem(CASES, "faulty", Case("faulty", "table", "", makers))

    return faulty


def test_ctrl_c_keeps_what_was_measured(faulty, capsys, tmp_path):
    """Also where JAX makes another error of it."""

    def makers():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("while checking equality") from None

    faulty(makers)
    before, file = signal.getsignal(signal.SIGINT), tmp_path / "r.json"
    words = ["--cases", "identity,faulty", "--rounds", "1", "--json", str(file)]
    assert command.main(words) == 130
    out, results = capsys.readouterr().out, json.loads(file.read_text())
    assert "Not timed" not in out and "Interrupted: these are" in out
    assert [case["name"] for case in results["cases"]] == ["identity"]
    assert results["interrupted"] and results["problems"] == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_case_that_fails_is_named(faulty, capsys):
    def makers():
        raise ValueError("why\nand more")

    faulty(makers)
    assert command.main(["--cases", "faulty", "--rounds", "1"]) == 1
    assert "Not timed: faulty: ValueError: why\n" in capsys.readouterr().out


def test_what_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert command.main([]) == 2
    assert 'run pip install ".[bench]"' in capsys.readouterr().err
