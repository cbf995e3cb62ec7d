"""The table of whole programs: measured by a command, and put into a page."""

import json
import textwrap

import pytest

from benchmarks import gains
from scripts import generate_docs, tables


pytestmark = pytest.mark.one_engine


PROGRAM = """
    import equinox as eqx, jax.numpy as jnp, made_up

    @eqx.filter_jit
    def double(x):
        return 2 * x

    for _ in range(made_up.n):
        double(jnp.ones(3))
"""


def test_from_programs_to_the_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "stand_ins").mkdir()
    (tmp_path / "stand_ins" / "made_up.py").write_text("n = 7")
    (tmp_path / "good.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "broken.py").write_text("import equinox; 1 / 0")
    out = tmp_path / "gain.json"
    assert gains.main([str(tmp_path), "--json", str(out), "--pairs", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == "good: unknown\n" and said.err.startswith("broken: ")
    results = json.loads(out.read_text())
    (report,) = results["programs"]
    assert report["program"] == "good" and str(tmp_path) not in out.read_text()
    assert report["functions"][0]["calls"] == 7
    assert results["command"] == "python -m benchmarks.gains FOLDER --pairs 1"
    monkeypatch.setattr(generate_docs, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- generated:gain-programs -->\n<!-- /generated:gain-programs -->"
    )
    text, differing = generate_docs.generated(page, ["gain-*"])
    assert differing == ["gain-programs"]
    assert "| `good` |" in text and "`double` | 7 |" in text
    assert "one pair" in text and "Made by `python -m benchmarks.gains" in text


def report(name, ratio, low, high, verdict, costs):
    function = {"name": "f", "calls": 3, "seconds": costs, "not_timed": None}
    return {
        "program": name,
        "verdict": verdict,
        "wall": {
            "equinox": [2.0, 2.2, 1.8],
            "ours": [2 * ratio] * 3,
            "ratio": {"ratio": ratio, "low": low, "high": high},
        },
        "functions": [{**function, "saved": 0.1, "overhead_share": 0.25}],
    }


def test_rows(tmp_path):
    costs = {"equinox": 1e-4, "ours": 2e-5, "floor": 1e-5, "device": 3e-5}
    results = {
        "command": "c",
        "date": "2026-01-01",
        "machine": {"cpu": "cpu", "cores": 2, "system": "Linux"},
        "versions": {"jax": "1"},
        "programs": [
            report("alike", 1.0, 0.99, 1.01, "alike", costs),
            report("unknown", 0.9, 0.7, 1.2, "unknown", None),
            report("faster", 0.5, 0.4, 0.6, "faster", costs),
        ],
    }
    (tmp_path / "gain.json").write_text(json.dumps(results))
    rows = tables.gain(tmp_path).splitlines()[2:5]
    assert [row.split("`")[1] for row in rows] == ["faster", "unknown", "alike"]
    assert "**0.50 (0.40\u00a0to\u00a00.60)**" in rows[0] and "25.0%" in rows[0]
    assert "~0.90" in rows[1] and "| - | - |" in rows[1]
    assert "| 1.00 (0.99\u00a0to\u00a01.01) |" in rows[2]


def test_no_programs(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        gains.main([str(tmp_path), "--json", "x"])
    assert f"no program in {tmp_path}" in capsys.readouterr().err
