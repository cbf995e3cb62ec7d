"""Cells of a notebook, run in a kernel: magics, and results as Jupyter shows them."""

import nbclient
import nbformat

from tests.support.commands import command
from tests.support.programs import PROGRAMS


def run(*cells, allow_errors=False):
    """Run cells in a kernel; returns the outputs of each."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    client = nbclient.NotebookClient(notebook, timeout=240, allow_errors=allow_errors)
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def texts(outputs):
    return "".join(
        x.get("text", "") or x.get("data", {}).get("text/plain", "") for x in outputs
    )


IMPORTS = """
import jax.numpy as jnp, eqx_fastjit
from eqx_fastjit import insight
%load_ext eqx_fastjit
"""


def test_cells():
    """Lines are those of cells. One that is run again is no loop, but may have one."""
    step = "step = eqx_fastjit.filter_jit(lambda x, n: x * n)"
    calls = "for n in range(4):\n    _ = step(jnp.ones(2), n)"
    again = "f = eqx_fastjit.filter_jit(lambda x: x * 3)\n_ = f(jnp.ones(2))"
    cells = [IMPORTS, step, calls, again, again, "print(insight.explain())"]
    loop = "for i in range(3):\n  eqx_fastjit.filter_jit(lambda x: x + i)(jnp.ones(2))"
    outputs = run(*cells, loop, loop, cells[-1])
    assert "In[3]:2\n" in texts(outputs[5])
    assert "made again" not in texts(outputs[5])
    assert "made again" in texts(outputs[-1])


def test_the_doctor_of_a_cell():
    outputs = run(
        IMPORTS,
        "import time\n"  # what takes less than 0.1 s has no row
        "step = eqx_fastjit.filter_jit(lambda x, n: time.sleep(0.1) or x * n)",
        "%%doctor\nfor n in range(4):\n    result = step(jnp.ones(2), n)",
        "%doctor other = step(jnp.ones(2), 9)",
        "print(result, other)",
    )
    _, _, (cell,), (statement,), printed = outputs
    assert "In[3]:3" in cell["data"]["text/plain"]
    assert "n 0, 1, 2, ... [number]" in cell["data"]["text/plain"]
    assert "1 compilation" in " ".join(statement["data"]["text/plain"].split())
    assert texts(printed) == "[3. 3.] [9. 9.]\n"
    for output in (cell, statement):
        html = output["data"]["text/html"]
        assert html.startswith("<iframe") and len(html) < 200_000
        assert "http:" not in html and "https:" not in html


def test_other_results_are_pages_too():
    """`explain` and `inspect`, with the lines of the cells that they are about."""
    outputs = run(
        IMPORTS,
        "step = eqx_fastjit.filter_jit(lambda x, n: jnp.sin(x) * n)\n"
        "for n in range(3):\n    _ = step(jnp.ones(2), n)",
        "insight.explain(step)",
        "insight.inspect(step, jnp.ones(2), 1)",
    )
    *_, (explained,), (inspected,) = (
        [x["data"] for x in cell if "data" in x] for cell in outputs
    )
    for data, line in ((explained, "In[2]:3"), (inspected, "In[2]:1")):
        assert line in data["text/plain"]
        assert line in data["text/html"]
        assert data["text/html"].startswith("<iframe")
    assert "What can be saved" in explained["text/html"]
    assert "Equations by source line" in inspected["text/html"]


def test_a_doctor_within_a_doctor():
    """It is refused, once, as the exception of its cell, whose report is there.

    The next cell has its tracebacks and its doctor.
    """
    outputs = run(
        IMPORTS,
        "%%doctor\nprint('outer')\n%doctor print('inner')",
        "%doctor print(1)",
        "1 / 0",
        allow_errors=True,
    )
    (error,) = [x for x in outputs[1] if x["output_type"] == "error"]
    assert error["ename"] == "RuntimeError" and "another one" in error["evalue"]
    assert "outer" in texts(outputs[1]) and "doctor: In[2]" in texts(outputs[1])
    assert "doctor: In[3]" in texts(outputs[2])
    assert [x["ename"] for x in outputs[3]] == ["ZeroDivisionError"]


def test_a_cell_within_a_cell_under_the_command():
    """There, each reports on the program so far; tracebacks are shown afterwards."""
    ended = command("doctor", PROGRAMS / "nested_cells.py")
    assert "outer\n" in ended.stdout and "inner\n" in ended.stdout
    assert "succeeded\n" in ended.stdout
    assert ended.stdout.count("division by zero") == 1
