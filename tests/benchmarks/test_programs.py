"""Whole programs, in this process and in pairs of fresh ones; what exporting saves.

Promise 42 of docs/reliability.md.
"""

import json

import pytest

import eqx_fastjit
from benchmarks import whole
from benchmarks.programs import PROGRAMS
from scripts import startup


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same_with_eqx_fastjit(name, as_users_have_it):
    expected = PROGRAMS[name](5)
    eqx_fastjit.install()
    assert PROGRAMS[name](5) == pytest.approx(expected, rel=1e-4)
    assert PROGRAMS[name].__doc__


def test_pairs_in_fresh_processes(run, tmp_path):
    file = tmp_path / "r.json"
    words = ("--programs", "kalman", "--pairs", "1", "--steps", "20", "--json", file)
    out = run("benchmarks.whole", *words)
    assert out.returncode == 0, out.stderr
    assert "| an online Kalman filter, called for each observation | 20 |" in out.stdout
    results = json.loads(file.read_text())
    (entry,) = results["programs"]
    assert entry["overhead"] > 0 and set(entry["seconds"]) == {"eqx", "ours"}
    assert results["command"].startswith("python -m benchmarks.whole --programs kalman")


@pytest.mark.parametrize(
    ("ours", "most", "pairs"),
    [
        ([0.5] * 30, 30, 8),  # clearly faster
        ([2.0] * 30, 30, 8),  # clearly slower
        ([0.5, 2.0] * 15, 30, 30),
        # Seven of eight are not enough.
        ([2.0] + [0.5] * 29, 30, 12),
        ([0.5] * 30, 5, 5),
    ],
)
def test_pairs_are_run_until_the_interval_excludes_1(ours, most, pairs, monkeypatch):
    order, times = [], iter(ours)

    def process(name, what, steps):
        order.append(what)
        if what == "calls":
            return 0.0, '{"calls": 1, "overhead": 0.0}'
        return (1.0 if what == "eqx" else next(times)), ""

    monkeypatch.setattr(whole, "_process", process)
    found = whole.compare("x", most)
    assert len(found["seconds"]["ours"]) == pairs
    # Neither is always first.
    assert order[:4] == ["eqx", "ours", "ours", "eqx"]


def test_a_program_that_fails_is_named(monkeypatch, capsys, tmp_path):
    def process(name, what, steps):
        raise RuntimeError(f"{name} with {what}: why")

    monkeypatch.setattr(whole, "_process", process)
    assert whole.main(["--programs", "gan"]) == 1
    assert "gan with eqx: why" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["benchmarks.whole", "scripts.startup"])
def test_an_unknown_name_is_refused(module, run):
    option = "--programs" if module.endswith("whole") else "--cases"
    out = run(module, option, "nonsense")
    assert out.returncode == 2 and "'nonsense'" in out.stderr


def test_the_table_of_programs(results):
    seconds = {"eqx": [4.0] * 8, "ours": [2.0] * 8}
    entry = {"title": "a program", "calls": 1000, "overhead": 1.0, "seconds": seconds}
    text = whole.markdown({**results, "programs": [entry]})
    row = "| a program | 1,000 | 4.00 | 2.00 | 25% | **0.50"
    assert row in text and "commit 000000000000" in text


def test_ways_to_a_first_result(run, tmp_path):
    file = tmp_path / "r.json"
    words = ("--cases", "nested_parameters", "--rounds", "1", "--json", file)
    out = run("scripts.startup", *words)
    assert out.returncode == 0, out.stderr
    (entry,) = json.loads(file.read_text())["programs"]
    assert list(entry["seconds"]) == list(startup.WAYS)
    assert all(seconds[0] > 0 for seconds in entry["seconds"].values())
    assert all(ratio > 0 for ratio in entry["calls"])
    assert "| `nested_parameters` | " in out.stdout


def test_a_function_that_cannot_be_measured_is_named(monkeypatch, capsys):
    def measure(name, rounds):
        raise RuntimeError("why")

    monkeypatch.setattr(startup, "measure", measure)
    assert startup.main(["--cases", "gan"]) == 1
    assert "gan: why" in capsys.readouterr().err


def test_the_table_of_ways(results):
    seconds = {"anew": [2.0], "cached": [1.0], "portable": [0.5], "compiled": [0.1]}
    entry = {"name": "f", "seconds": seconds, "calls": [0.9, 1.0, 3.0]}
    text = startup.markdown({**results, "programs": [entry]})
    assert "| `f` | 2.00 | 0.50 | 0.25 | 0.05 | 1.00 |" in text
    assert "Medians: cached 0.50, portable 0.25, compiled 0.05, calls 1.00." in text
