"""The results file, and the tables and figures that are made of it."""

import io
import json
import sys

import pytest
from rich.console import Console

from benchmarks import plot, results_file, table
from benchmarks.results_file import dumps, new_results


pytestmark = pytest.mark.one_engine


def test_a_results_file_is_read_as_it_was_written(results, tmp_path):
    file = tmp_path / "r.json"
    results["cases"][0]["times"]["dispatch"]["ours"] = [1.23456]
    file.write_text(dumps(results))
    read = json.loads(file.read_text())
    assert read["cases"][0]["times"]["dispatch"]["ours"] == [1.235]
    results["cases"][0] = read["cases"][0]
    assert read == results
    # A line for each case.
    assert file.read_text().count('\n  {"name"') == 4


def test_results_say_where_they_come_from(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--cases", "a b"])
    results = new_results("benchmarks")
    assert results["command"] == "python -m benchmarks --cases 'a b'"
    assert {"python", "jax", "equinox", "eqx_fastjit"} <= results["versions"].keys()
    text = results_file.describe(results)
    for part in (results["machine"]["cpu"], "jax ", "engine", "commit "):
        assert part in text
    monkeypatch.setenv("EQX_FASTJIT_COMMIT", "1" * 40)
    assert results_file.commit() == "1" * 40


def test_a_commit_that_git_does_not_know(monkeypatch, tmp_path):
    monkeypatch.delenv("EQX_FASTJIT_COMMIT", raising=False)
    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert results_file.commit() == "unknown"


def _printed(results, width):
    out = io.StringIO()
    table.print_results(Console(file=out, width=width), results)
    return out.getvalue()


def test_tables_on_a_terminal(results):
    text = _printed(results, 80)
    for shown in (
        "Until the call returns, microseconds",
        "5.00 ±0%",
        "0.50 (0.50",
        "first_call, trace",
        "Not timed: mlp_4: ValueError: why",
        "ours: `eqx_fastjit.filter_jit`",
    ):
        assert shown in text
    assert text.count("The same, as ratios") == 2


def test_tables_in_markdown(results):
    text = table.markdown(results, "table")
    assert "| mlp\\_8 | 10.0\u00a0±0% |" in text
    assert "**0.50\u00a0(0.50" in text  # faster, in the whole interval
    assert "| 2.00\u00a0(2.00" in text
    assert "gan" not in text and "first" not in text
    made = table.made_by(results)
    assert "Made by `python -m benchmarks` on 2026-01-02. A\\|CPU, 2 cores" in made
    assert text.count("| case |") == 4
    assert "first\\_call,\u00a0trace" in table.markdown(results, "first")


def test_a_summary_has_the_median_and_the_worst(results):
    assert table.summary(results, "table")["jit"] == (1.25, 2.0, "mlp_16")
    assert table.summary(results, "zoo")["eqx"] == (0.08, 0.08, "gan")
    assert table.summary(results, "steps") == {}


def test_figures(results, tmp_path):
    paths = plot.save_figures(results, tmp_path, ["png", "svg"])
    names = {path.name for path in paths}
    assert names == {"width.png", "width.svg", "ratios.png", "ratios.svg"}
    assert (tmp_path / "width.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "width.svg").read_text()
    # Matplotlib puts each text into a comment.
    for text in ("eqx_fastjit.filter_jit", "equinox.filter_jit", "width of an MLP"):
        assert f"<!-- {text}" in svg
    svg = (tmp_path / "ratios.svg").read_text()
    for text in ("mlp_8", "gan", "over jax.jit", "0.50"):
        assert f"<!-- {text} -->" in svg


def test_figures_of_too_few_results(results):
    results["cases"] = results["cases"][2:]
    assert set(plot.render(results, "svg")) == {"ratios"}
    results["cases"] = results["cases"][1:]
    assert plot.render(results, "svg") == {}
