"""`python -m benchmarks`. `.ci/run` has a dry run of `gpu.sh`."""

import json
import sys

import pytest

from benchmarks import __main__ as command, instructions
from tests.support.programs import ROOT


pytestmark = pytest.mark.one_engine


def test_it_prints_a_table_and_writes_files(capsys, monkeypatch, tmp_path):
    file = tmp_path / "r.json"
    words = ["--cases", "identity,policy_on_host", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    assert command.main(words) == 0

    out, err = capsys.readouterr()
    assert "timing identity (1 of 2)" in err
    assert "engine; commit" in out and "Until the result is ready" in out

    results = json.loads(file.read_text())
    assert results["command"] == f"python -m benchmarks {' '.join(words)}"
    assert [case["name"] for case in results["cases"]] == ["identity", "policy_on_host"]
    call, loop = (case["times"] for case in results["cases"])
    assert [*call["dispatch"]] == ["jit", "flat", "eqx", "ours"]
    assert all(len(times) == 2 for times in call["dispatch"].values())
    assert [*loop] == ["iteration"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cases nonsense", "--cases: no case or group 'nonsense'"),
        ("--device gpu", "--device gpu: JAX finds no GPU here"),
        ("--instructions nonsense", "no case or group 'nonsense'"),
        ("--instructions strategy_none", "eqx_fastjit is no contender there"),
        ("--instructions --dispatch", "--dispatch is for times"),
        ("--instructions --against benchmarks/results/cpu.json", "no instructions"),
        ("--instructions --against benchmarks/results/upstream.json", "none of these"),
        ("--against r.json", "--against is for --instructions"),
        ("--rounds 0", "--rounds 0: expected at least 1"),
        ("--json /no/such/r.json", "cannot write to /no/such/r.json"),
    ],
)
def test_bad_input_is_refused(words, message, capsys, monkeypatch):
    """Before anything is measured."""
    monkeypatch.chdir(ROOT)
    try:
        code = command.main(words.split())
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert code == 2 and message in err and out == ""


def test_a_case_with_more_instructions_than_before_is_named():
    def results(ours):
        counts = {"flat": 100, "ours": ours}
        return {"cases": [{"name": "a", "instructions": counts}]}

    assert instructions.slower_cases(results(111), results(110)) == []
    assert instructions.slower_cases(results(113), results(110)) == [
        "a: 1.130 of flat, and was 1.100"
    ]
    assert instructions.slower_cases(results(113), {"cases": []}) == []
