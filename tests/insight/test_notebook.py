"""The doctor in a notebook: cells, magics, pages; each in a real kernel.

Promise 39 of docs/reliability.md.
"""

import nbclient
import nbformat
import pytest


@pytest.fixture(scope="module")
def run():
    """Runs cells in a kernel; gives the outputs of each."""

    def run(*cells, allow_errors=False):
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        client = nbclient.NotebookClient(
            notebook, timeout=240, allow_errors=allow_errors
        )
        client.execute()
        return [cell.outputs for cell in notebook.cells]

    return run


def texts(outputs):
    return "".join(
        x.get("text", "") or x.get("data", {}).get("text/plain", "") for x in outputs
    )


IMPORTS = """
import jax.numpy as jnp, eqx_fastjit
from eqx_fastjit import insight
%load_ext eqx_fastjit
"""
LOOP = """
for i in range(3):
    eqx_fastjit.filter_jit(lambda x: x + i)(jnp.ones(2))
"""


def test_cells(run):
    """Lines are those of cells. One that is run again is no loop, but may have one."""
    step = "step = eqx_fastjit.filter_jit(lambda x, n: x * n)"
    calls = "for n in range(4):\n    _ = step(jnp.ones(2), n)"
    again = "f = eqx_fastjit.filter_jit(lambda x: x * 3)\n_ = f(jnp.ones(2))"
    cells = [IMPORTS, step, calls, again, again, "print(insight.explain())"]
    cells += [LOOP, LOOP, "print(insight.explain())"]
    outputs = run(*cells)
    assert "In[3]:2\n" in texts(outputs[5])
    assert "made again" not in texts(outputs[5])
    assert "made again" in texts(outputs[-1])


def test_the_doctor_of_a_cell(run):
    outputs = run(
        IMPORTS,
        "import time\n"  # what takes less than 0.1 s has no row
        "step = eqx_fastjit.filter_jit(lambda x, n: time.sleep(0.1) or x * n)",
        "%%doctor\nfor n in range(4):\n    result = step(jnp.ones(2), n)",
        "%doctor other = step(jnp.ones(2), 9)",
        "print(result, other)",
        "insight.explain(step)",
    )
    _, _, (cell,), (statement,), printed, (explained,) = outputs
    assert "In[3]:3" in cell["data"]["text/plain"]
    assert "n 0, 1, 2, ... [number]" in cell["data"]["text/plain"]
    assert "1 compilation" in statement["data"]["text/plain"]
    assert texts(printed) == "[3. 3.] [9. 9.]\n"
    assert explained["data"].keys() == {"text/plain"}
    for output in (cell, statement):
        html = output["data"]["text/html"]
        assert html.startswith("<iframe") and len(html) < 200_000
        assert "http:" not in html and "https:" not in html


def test_an_exception_in_a_cell(run):
    """It is the cell's own, shown once; the report is there, and the next one, too."""
    outputs = run(
        IMPORTS,
        "%%doctor\nraise ValueError('mine')",
        "%%doctor\nprint(1)",
        allow_errors=True,
    )
    errors = [x for x in outputs[1] if x["output_type"] == "error"]
    assert [x["evalue"] for x in errors] == ["mine"]
    assert any("doctor: In[2]" in texts([x]) for x in outputs[1])
    assert "1\n" in texts(outputs[2])
