"""Each compilation as it happens: `EQX_FASTJIT_LOG`, as lines or an event file."""

import json
import signal
import socket

import pytest

from eqx_fastjit import cli
from tests.support.commands import command
from tests.support.event_file import report_on, VERSION
from tests.support.programs import PROGRAMS, start_python


PROGRAM = """
import logging
import eqx_fastjit, jax.numpy as jnp, numpy as np

@eqx_fastjit.filter_jit
def inner(x):
    return jnp.sin(x)

@eqx_fastjit.filter_jit
def step(x, n):
    return inner(x) * n

step(np.ones(4, np.float32), 1)
step(np.ones(4, np.float32), 2)
step(np.ones(3, np.float32), 2)
step(np.ones(2, np.float32), 2)
jnp.ones(3) + 1
"""


def lines(**environment):
    ended = command(python=("-c", PROGRAM), **environment)
    return [x for x in ended.stderr.splitlines() if "eqx_fastjit]" in x]


def test_a_line_for_each_compilation():
    found = lines(EQX_FASTJIT_LOG="compiles")
    assert len(found) == len(set(found)) > 4
    assert "compiled step (<string>:9) in " in found[0]
    assert found[0].endswith("called at <string>:13: first call")
    assert "compiled the same program of step (<string>:9) again in " in found[1]
    assert found[1].endswith("<string>:14: n 1, 2 [number]")
    assert "compiled step (<string>:9) again in " in found[2]
    assert found[2].endswith("<string>:15: x float32[4], float32[3]")
    assert "float32[2]" in found[3]
    for line in found[4:]:  # operations, however short they are
        assert line.endswith("called at <string>:17: outside of filter_jit")


HANDLER = """
class Raising(logging.Handler):
    def emit(self, record):
        raise ValueError("wrong")

logging.getLogger("eqx_fastjit").addHandler(Raising())
"""


def test_a_handler_that_raises_ends_no_call():
    """It is told of nothing any more."""
    ended = command(
        python=("-c", PROGRAM + HANDLER + PROGRAM), EQX_FASTJIT_LOG="compiles"
    )
    assert ended.stderr.count("ends here: ValueError('wrong')") == 1


SLOW = """
import time
import equinox as eqx, numpy as np
from eqx_fastjit.insight.show import _log
_log._LATE, _log._INTERVAL = 0.2, 0.01

@eqx.filter_jit
def slow(x):
    time.sleep(1)
    return x + 1

slow(np.ones(3))
"""


@pytest.mark.parametrize("tool", ["run", "doctor"])
def test_what_takes_long_is_said_while_it_does(tool, tmp_path):
    """Both by the log and by the doctor, and nothing once it has ended."""
    (tmp_path / "slow.py").write_text(SLOW)
    log = {"EQX_FASTJIT_LOG": "compiles"} if tool == "run" else {}
    ended = command(tool, "slow.py", cwd=tmp_path, **log)
    said = ended.stderr.rpartition("still compiling slow (slow.py:7)")
    assert all(said) and "slow" in said[-1]  # of what was compiled then
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("loud", "EQX_FASTJIT_LOG='loud': expected compiles, off"),
        (
            "/missing/run.jsonl",
            "EQX_FASTJIT_LOG='/missing/run.jsonl' cannot be written",
        ),
    ],
)
def test_what_it_cannot_be(value, message):
    ended = command(python=("-c", PROGRAM), code=1, EQX_FASTJIT_LOG=value)
    assert message in ended.stderr


def test_it_can_be_off():
    assert lines(EQX_FASTJIT_LOG="off") == []


# --- the event file ---


STEPS = PROGRAMS / "steps.py"


def start(file, *words, **environment):
    return start_python(*words, EQX_FASTJIT_LOG=str(file), **environment)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Of a run with two compilations that was killed, and of one with four."""
    folder = tmp_path_factory.mktemp("files")
    old, new = folder / "old.jsonl", folder / "new.jsonl"
    processes = [start(old, STEPS, 2), start(new, STEPS, 4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    growing, _ = report_on(new)
    assert growing["run"]["exit_code"] is None and len(ours(growing["run"])) == 4
    processes[0].send_signal(signal.SIGKILL)
    processes[0].communicate()
    processes[1].communicate("")
    return old, new


def ours(run):
    """The compilations of jitted functions."""
    return [x for x in run["events"] if x["function"]["number"] > 0]


def test_what_is_read_is_what_was_written(files, capsys):
    report, _ = report_on(files[1], "--verbose")
    run = report["run"]
    assert run["exit_code"] == 0 and run["program"].endswith("steps.py 4")
    *_, before, last = ours(run)
    assert last["function"]["place"] == [str(STEPS), 11, "step"]
    assert last["frames"][0][1] == 17
    assert last["program"]["same"] == before["program"]["same"]
    assert last["program"]["values"] == ["3"]
    arguments = [x for x in last["signature"] if x["kind"] in ("array", "static")]
    assert [x["text"] for x in arguments] == ["float32[4]", "3"]
    assert "n 2, 3 [number]" in capsys.readouterr().err


def test_lines_are_documented_json(files):
    first, *lines, last = map(json.loads, files[1].read_text().splitlines())
    assert (first["type"], first["version"], last["type"]) == ("run", VERSION, "end")
    assert first["packages"]["jax"]
    assert {line["type"] for line in lines} == {"start", "compile"}


def test_what_was_being_compiled_is_named(files, tmp_path):
    """A program may be killed, or be read, while something hangs, or writes a line."""
    text = files[0].read_text()
    file = tmp_path / "hanging.jsonl"
    file.write_text(text[: text.rindex('"type": "compile"') + 40])
    report, _ = report_on(file)
    notes = " ".join(report["run"]["notes"])
    assert "Compiling `step`, called at " in notes and "has not ended" in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing has been compiled"),
        ("nonsense\n", "no event file"),
        ('{"type": "run", "version": 999}\n', "version 999"),
        (f'{{"type": "run", "version": {VERSION}}}\n', "or a damaged one"),
    ],
)
def test_a_file_that_is_none(text, message, tmp_path, capsys):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    assert cli.main(["doctor", str(file)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and str(file) in shown


def test_a_report_on_a_run_that_was_killed(files, capsys):
    report, _ = report_on(files[0])
    shown = " ".join(capsys.readouterr().err.split())
    assert "has not ended, or it was killed" in shown and "Compiling" not in shown
    assert "2 compilations of 1 program" in shown
    assert report["run"]["exit_code"] is None


def names(file):
    report, _ = report_on(file)
    return [x["function"]["name"] for x in ours(report["run"])]


def test_a_child_process_has_a_file_of_its_own(tmp_path):
    file = tmp_path / "run.jsonl"
    parent = f"""
import eqx_fastjit, numpy as np, subprocess, sys
eqx_fastjit.engine()  # begins the file, before the child does
subprocess.run([sys.executable, {str(STEPS)!r}, "1"], input="", text=True, check=True)
eqx_fastjit.filter_jit(lambda x: x + 1)(np.ones(2))
"""
    command(python=("-c", parent), EQX_FASTJIT_LOG=str(file))
    (other,) = tmp_path.glob("run.*.jsonl")
    assert (names(file), names(other)) == (["<lambda>"], ["step"])


def test_each_process_of_a_job_has_a_rank_and_a_file(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    file, program = tmp_path / "run.jsonl", PROGRAMS / "process_of_a_job.py"
    ranks = 0, 1
    processes = [start(file, program, address, rank, XLA_FLAGS="") for rank in ranks]
    for process in processes:
        process.communicate(timeout=200)
    assert [process.returncode for process in processes] == [0, 0]
    for rank, name in enumerate(("run.jsonl", "run.1.jsonl")):
        lines = map(json.loads, (tmp_path / name).read_text().splitlines())
        assert {line["rank"] for line in lines} == {rank}
        report, _ = report_on(tmp_path / name)
        (event,) = ours(report["run"])
        assert ("x", "float32[2]") in [
            (x["path"], x["text"]) for x in event["signature"]
        ]
