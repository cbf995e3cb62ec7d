"""The notebook runs from top to bottom, and shows more than text."""

import subprocess
import sys
from pathlib import Path

import pytest


nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

_NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook" / "tour.ipynb"


@pytest.fixture(autouse=True)
def once(route):
    if route != "cpp":
        pytest.skip("the same on both routes")


def _shown_as_html(notebook) -> dict[str, str]:
    """What cells show as HTML, by their last line."""
    return {
        cell.source.splitlines()[-1]: output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    }


def test_runs_from_top_to_bottom(tmp_path):
    ran = tmp_path / "ran.ipynb"
    # In a process of its own: Jupyter's warnings are not ours.
    command = [sys.executable, "-m", "jupyter", "execute", str(_NOTEBOOK)]
    out = subprocess.run([*command, f"--output={ran}"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    shown = _shown_as_html(nbformat.read(ran, as_version=4))
    assert "static-churn" in shown["explain(loss)"]
    assert "<table>" in shown["cache_info(loss)"]
    assert "<table>" in shown["ledger()"]
    assert "trace" in shown["breakdown(loss, model, x, y, 1.0)"]
    assert "<td" in shown["Tables(load(results))"]


def test_is_kept_without_outputs():
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
