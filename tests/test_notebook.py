"""The notebook runs from top to bottom, and shows more than text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

_NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook" / "tour.ipynb"


pytestmark = pytest.mark.one_engine


def _shown_as_html(notebook) -> dict[str, str]:
    """The HTML output of each cell, by the last line of its source."""
    return {
        cell.source.splitlines()[-1]: output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    }


def _rows(html: str, title: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = html.partition(f"<h3>{title}</h3>")[2].partition("<h3>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows[1:]]


def _check_breakdown(html: str) -> None:
    """All stages of a warm and of a cold call are listed, with time and share."""
    warm, cold = _rows(html, "A warm call"), _rows(html, "A cold call")
    names = ["bind", "flatten", "lookup", "execute", "unflatten", "wait"]
    assert [name for name, *_ in warm] == names
    assert [name for name, *_ in cold] == ["trace", "lower", "compile", "first run"]
    for rows in (warm, cold):
        for _, time, *_ in rows:
            assert re.fullmatch(r"-?\d[\d.]* (us|ms|s)", time), time
        shares = [int(share.removesuffix("%")) for _, _, share, *_ in rows]
        assert abs(sum(shares) - 100) <= len(rows)  # shares are rounded
    nodes = {name: number for name, number, _ in _rows(html, "Flatten by node type")}
    assert nodes["MLP"] == "1"


def test_runs_from_top_to_bottom(tmp_path):
    ran = tmp_path / "ran.ipynb"
    # In a subprocess, because Jupyter causes warnings.
    command = [sys.executable, "-m", "jupyter", "execute", str(_NOTEBOOK)]
    out = subprocess.run([*command, f"--output={ran}"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    shown = _shown_as_html(nbformat.read(ran, as_version=4))
    assert "static-churn" in shown["explain(loss)"]
    assert "<table>" in shown["cache_info(loss)"]
    assert "<table>" in shown["ledger()"]
    _check_breakdown(shown["breakdown(loss, model, x, y, 1.0)"])


def test_is_kept_without_outputs():
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
