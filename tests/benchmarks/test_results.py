"""The results file, and the tables and figures that are made of it."""

import json
import sys

import pytest

from benchmarks import pages, plot, results_file, table, whole
from benchmarks.results_file import dumps, new_results
from benchmarks.timing import Interval
from scripts import startup


pytestmark = pytest.mark.one_engine


def squeezed(text):
    """Text without the spaces that align a table."""
    return " ".join(text.split())


def test_a_results_file_is_read_as_it_was_written(results):
    results["cases"][0]["times"]["dispatch"]["ours"] = [1.23456]
    text = dumps(results)
    read = json.loads(text)
    assert read["cases"][0]["times"]["dispatch"]["ours"] == [1.235]
    results["cases"][0] = read["cases"][0]
    assert read == results
    assert text.count('\n  {"name"') == 5  # a line for each case


def test_results_say_where_they_come_from(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--cases", "a b"])
    results = new_results("benchmarks")
    assert results["command"] == "python -m benchmarks --cases 'a b'"
    text = results_file.describe(results)
    for part in (results["machine"]["cpu"], "jax ", "engine", "commit "):
        assert part in text
    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert results_file.commit() == "unknown"
    monkeypatch.setenv("EQX_FASTJIT_COMMIT", "1" * 40)
    assert results_file.commit() == "1" * 40


def test_what_the_command_prints(results):
    text = squeezed(pages.report(results, dispatch=True))
    ready, returns = text.split("until the call returns")
    returns, others = returns.split("an iteration of a loop")
    # What a newcomer asks for is first.
    assert ready.startswith("**eqx_fastjit over each: until the result is ready")
    assert "0.05 (0.05" in ready and "5.00 ±0%" in ready
    assert "5.00 ±0%" in returns and "0.50 (0.50" in returns
    assert "equinox" not in returns.partition("case")[2]  # its calls block
    for shown in ("First calls, milliseconds", "Not timed: mlp_4: ValueError: why"):
        assert shown in others
    text = pages.report({**results, "busy": "This machine is busy"}, dispatch=False)
    assert "until the call returns" not in text.lower()
    assert "This machine is busy" in text


@pytest.mark.parametrize(("load", "shown"), [(3.0, False), (3.2, True)])
def test_a_busy_machine_is_named(load, shown, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert ("busy (load 3, 2 cores)" in results_file.busy()) == shown


def test_a_median_whose_interval_is_wider_than_itself_is_not_shown():
    noise = [1.0, 3.0, 9.0]
    assert table.median_cell(noise) == table.ratio(
        {"ours": noise, "jit": [1.0] * 3}, "jit"
    )
    assert table.median_cell(noise).text == "–"  # noqa: RUF001
    # No ratio is shown of what was not measured, though they agree in each round.
    assert table.ratio({"ours": noise, "jit": noise}, "jit").text == "–"  # noqa: RUF001


@pytest.mark.parametrize(("high", "is_faster"), [(0.994, True), (0.996, False)])
def test_a_ratio_is_below_1_if_its_interval_is_as_printed(high, is_faster):
    assert table.ratio_cell(Interval(0.9, 0.95, high)).is_faster == is_faster


def test_tables_in_markdown(results):
    by_device = {"cpu": results, "gpu": {**results, "cases": []}}
    text = squeezed(pages.side_by_side(by_device, "table"))
    assert "| mlp_8 | 5.00 | **0.05** | **0.50** |" in text
    assert "| mlp_16 | 20.0 | **0.20** | 2.00 |" in text
    text = squeezed(pages.whole_functions({"cpu": results, "gpu": results}))
    assert text.count("0.08 (0.08") == 2 and "blocks | blocks" in text
    text = squeezed(pages.loops(results))
    assert "| a decode | 10.0 | **0.40** | **0.44** | **0.80** |" in text
    text = pages.everything(results, ["table", "first", "steps"])
    assert "### Table" in text and "### First" in text and "Steps" not in text
    assert "A\\|CPU, 2 cores" in text


def test_tables_of_whole_programs(results):
    seconds = {"eqx": [4.0] * 8, "ours": [2.0] * 8}
    entry = {"title": "a program", "seconds": seconds}
    more = {"title": "more", "seconds": {x: y * 2 for x, y in seconds.items()}}
    text = squeezed(whole.markdown({**results, "programs": [entry, more]}))
    assert "| a program | 4.00 | 2.00 | **0.50" in text
    assert "8 pairs of each program. Made by" in text
    seconds = {"anew": [2.0], "cached": [1.0], "portable": [0.5], "compiled": [0.1]}
    entry = {"name": "f", "seconds": seconds, "calls": [0.9, 1.0, 3.0]}
    text = squeezed(startup.markdown({**results, "programs": [entry]}))
    assert "| `f` | 2.00 | 0.50 | 0.25 | 0.05 | 1.00 |" in text


def test_figures(results, tmp_path):
    plot.save_figures({"cpu": results}, tmp_path)
    assert {x.name for x in tmp_path.iterdir()} == {"calls.svg", "calls-dark.svg"}
    # Matplotlib puts each text into a comment.
    for text in ("equinox, CPU", "1.00", "jax.jit, CPU", "0.10", "0.08"):
        assert f"<!-- {text} -->" in (tmp_path / "calls.svg").read_text()
