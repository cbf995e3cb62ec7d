"""The doctor of a block of code, and reports up to now."""

import os
import signal
import sys
import weakref

import jax.numpy as jnp
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
    assert len(as_dict["run"]["events"]) == 3 and "<html" in report.to_html()
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
    # Less than any array: a bounded number of samples is kept, by the seconds.
    assert each < 40 and resident < 10e6


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


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_the_program_with_a_report(tmp_path):
    """The report does not take the place of the program's own exception."""
    page = tmp_path / "page.html"
    words = ("-m", "eqx_fastjit", "doctor", "--html", page, PROGRAMS / "steps.py", "3")
    process = start_python(*words)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate("")
    assert process.returncode != 0
    assert errors.index("KeyboardInterrupt") < errors.index("eqx-fastjit doctor:")
    assert errors.count("Traceback") == 1
    assert "<html" in page.read_text()


def test_a_block_leaves_calls_as_they_were():
    """What was compiled before it or within it keeps no result alive, also after it."""
    before, within, x = make(), make(), jnp.ones(2)
    before(x, 2)
    with insight.doctor():
        results = [before(x, 2), within(x, 3)]
    results += [before(x, 2), within(x, 3)]
    died = [weakref.ref(result) for result in results]
    del results
    assert [one() for one in died] == [None] * 4
