"""The doctor of a block of code or of a notebook's cell, and reports up to now.

Promises 36, 39 of docs/reliability.md.
"""

import signal
import sys

import jax.numpy as jnp
import nbclient
import nbformat
import pytest

import eqx_fastjit
from eqx_fastjit import insight
from tests.support.commands import command, doctor
from tests.support.memory import growth
from tests.support.programs import PROGRAMS, start_python


def make():
    return eqx_fastjit.filter_jit(lambda x, n: x * n)


def test_a_block(monkeypatch):
    """Compared with what was compiled before; as text, dictionary and page."""
    step = make()
    step(jnp.ones(2), 0)
    with insight.doctor("training", least=0.0) as report:
        for n in range(1, 4):
            step(jnp.ones(2), n)
    (found,) = [row for row in report.findings if row.function == "<lambda>"]
    assert found.saves == found.seconds and found.compilations == 3
    assert [(x.rule, x.path, x.count) for x in found.parts] == [("number", "n", 3)]
    assert {*report.findings} <= {*report.rows}
    text = str(report)
    assert "doctor: training" in text and "n 0, 1, 2, ... [number]" in text
    assert "Compilations" in report.text(verbose=True) and "Compilations" not in text
    as_dict = report.to_dict()
    assert as_dict["schema"] == 5 and len(as_dict["run"]["events"]) == 3
    assert "<html" in report.to_html() and report.to_html().count("http") <= 1
    monkeypatch.setitem(
        sys.modules, "eqx_fastjit.insight.show._page", None
    )  # no jinja2
    assert report._repr_html_() is None


def test_exceptions_pass_and_end_it():
    with pytest.raises(ZeroDivisionError), insight.doctor() as report:
        1 / 0  # noqa: B018
    assert report.findings == ()
    with insight.doctor() as other:
        with pytest.raises(RuntimeError, match="another one"):  # at a time
            insight.doctor().__enter__()
        assert str(other) == "the block has not ended"
        with pytest.raises(RuntimeError, match="once the block has ended"):
            other.to_dict()


def test_up_to_now():
    """Within a block of what it has seen, and elsewhere of what was compiled."""
    step = make()
    step(jnp.ones(3), 1)
    step(jnp.ones(3), 2)
    assert "up to now" in str(insight.report())
    assert insight.report().to_dict()["run"]["events"]
    with insight.doctor():
        assert insight.report().to_dict()["run"]["events"] == []


def test_under_the_command_a_block_reports_of_the_program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import equinox as eqx, jax.numpy as jnp\n"
        "from eqx_fastjit import insight\n"
        "f = eqx.filter_jit(lambda x, n: x * n)\n"
        "with insight.doctor() as report:\n"
        "    [f(jnp.ones(2), n) for n in range(3)]\n"
        "print(report.to_dict()['compilations'] > 2)\n"
    )
    ended = command("doctor", path)
    assert ended.stdout == "True\n" and ended.stderr.count("doctor:") == 1


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has none")
def test_a_signal_asks_for_a_report():
    """Of a program that goes on running."""
    process = start_python("-m", "eqx_fastjit", "doctor", PROGRAMS / "steps.py", "3")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    # Warnings of JAX may come before it.
    assert any("doctor: up to now ran" in line for line in process.stderr)
    assert process.poll() is None
    process.communicate("")


def test_many_calls_take_no_memory():
    """The doctor keeps nothing of a call that compiles nothing."""
    step, x = make(), jnp.ones(2)
    with insight.doctor():
        each, resident = growth(lambda _: step(x, 2), 20_000)
    assert each < 8 and resident < 10e6  # less than a reference


def test_values_that_a_call_did_not_see(tmp_path):
    """Globals, variables, entries and attributes; only of a trace that was called."""
    report, _ = doctor(PROGRAMS / "stale.py", tmp_path)
    found = {row["parts"][0]["path"]: row for row in report["rows"][:7]}
    assert {row["parts"][0]["rule"] for row in found.values()} == {"stale-value"}
    assert "stale-value" not in str(report["rows"][7:])  # they come first
    assert {path: row["function"] for path, row in found.items()} == {
        "SCALE": "step",
        "table['deep']['x']": "step",
        "config.rate": "step",
        "config.size": "step",
        "given.size": "step",
        "factor": "<lambda>",
        "self.size": "Config.scaled",
    }
    (part,) = found["SCALE"]["parts"]
    assert part["what"] == "SCALE is 5.0, and step uses 1.0"
    assert part["edit"] == "pass it as an argument"
    assert part["values"] == ["1.0", "5.0"]
    # Where it is read, and the call that was traced.
    lines = (PROGRAMS / "stale.py").read_text().splitlines()
    reads, calls = part["line"][1], found["SCALE"]["line"][1]
    assert "x * SCALE" in lines[reads - 1] and lines[calls - 1] == "step(two, passed)"


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


def test_cells(run):
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


def test_the_doctor_of_a_cell(run):
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
