"""Reports before SIGTERM ends a program, and while it runs; the timeline."""

import json
import os
import signal
import sys
import textwrap
import time

import pytest


pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
    pytest.mark.one_engine,
]
PROGRAM = """
    import os, signal, sys, time
    import equinox as eqx
    import jax, jax.numpy as jnp
    {before}

    @eqx.filter_jit
    def f(x, n):
        if n == 9:
            {inside}
        return x * n

    for n in range(4):
        f(jnp.ones(2), n)
    print("ready", flush=True)
    {then}
"""
SLEEP = "[time.sleep(0.1) for _ in range(600)]"


@pytest.fixture
def doctor(start, tmp_path):
    # What pytest's own parent ignores (`nohup`) its children would ignore as well.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def run(*options, before="", inside="pass", then=SLEEP):
        text = textwrap.dedent(PROGRAM).format(before=before, inside=inside, then=then)
        (tmp_path / "prog.py").write_text(text)
        command = [sys.executable, "-m", "eqx_fastjit.cli", "doctor", *options]
        process = start([*command, "--json", "a.json", "prog.py"], cwd=tmp_path)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    return run


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def is_complete(tmp_path):
    path = tmp_path / "a.json"
    return path.exists() and path.read_text().endswith("}\n")


def read(tmp_path):
    return json.loads((tmp_path / "a.json").read_text())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_report_before_the_end(name, doctor, tmp_path):
    process = doctor()
    number = getattr(signal, name)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -number
    assert "prog.py: 1 finding" in err
    report = read(tmp_path)
    assert report["exit_code"] == 128 + number
    assert [f["kind"] for f in report["findings"]] == ["static-churn"]


def test_while_it_traces(doctor, tmp_path):
    """Most programs that run out of time do so while tracing or compiling."""
    process = doctor(inside="print('in', flush=True); " + SLEEP, then="f(1.0, 9)")
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    (note,) = [x for x in read(tmp_path)["notes"] if "still being traced" in x]
    assert note.startswith("f was still being traced or compiled, for ")
    assert "prog.py:" in note


# Locking a mutex of C twice blocks forever, and no signal interrupts it.
STUCK = (
    "import ctypes; lock = ctypes.CDLL(None).pthread_mutex_lock; "
    "mutex = ctypes.create_string_buffer(64); lock(mutex); lock(mutex)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of all zeros")
def test_while_the_main_thread_runs_no_python(doctor, tmp_path):
    """As during a long compilation: the report does not wait for the main thread."""
    process = doctor(then=STUCK)
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: is_complete(tmp_path))
    assert read(tmp_path)["exit_code"] is None
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "prog.py: 1 finding" in err
    assert read(tmp_path)["exit_code"] == 128 + signal.SIGTERM


def test_interim_reports(doctor, tmp_path):
    process = doctor("--interim", "now")
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: is_complete(tmp_path))
    report = read(tmp_path)
    assert report["exit_code"] is None and len(report["findings"]) == 1
    (tmp_path / "a.json").unlink()
    (tmp_path / "now").touch()
    wait_for((tmp_path / "a.json").exists)
    assert not (tmp_path / "now").exists()
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert err.count("prog.py: so far, 1 finding") == 2
    assert err.count("prog.py: 1 finding") == 1


def test_a_handler_of_the_program(doctor, tmp_path):
    process = doctor(
        before="signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'own\\n'))"
    )
    process.send_signal(signal.SIGUSR1)
    # Not printed by the program: it may still be inside of the `print` of "ready".
    assert process.stdout.readline() == "own\n", process.stderr.read()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7 and read(tmp_path)["exit_code"] == 7
    assert err.count("1 finding") == 1 and "so far" not in err


def test_processes_that_it_forks(doctor, tmp_path):
    """The signal ends them; they write no report, and neither does the parent."""
    process = doctor(
        before="import atexit",
        then="pid = os.fork(); "
        "pid or time.sleep(60); "
        "os.kill(pid, signal.SIGTERM); "
        "print(os.waitpid(pid, 0)[1], flush=True); "
        "pid = os.fork(); "
        # At its end JAX joins threads that a forked process does not have: most of the
        # time it crashes, without the doctor too.
        "pid or atexit.register(os._exit, 0); "
        "pid and print(os.waitpid(pid, 0)[1], flush=True)",
    )
    out, err = process.communicate(timeout=60)
    assert out.split() == [str(int(signal.SIGTERM)), "0"], err
    assert err.count("1 finding") == 1 and process.returncode == 0


def test_the_timeline(doctor, tmp_path):
    process = doctor("--trace", "t.json", then="time.sleep(0.3)")
    process.communicate(timeout=60)
    assert process.returncode == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    events = trace["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["main thread", "where the main thread was (sampled)"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    calls = [e for e in spans if e["name"] == "f"]
    assert [e["args"]["cause"] for e in calls] == ["first-call", *["static-churn"] * 3]
    # The stages of a call follow it in order, and add up to its duration.
    for call in calls:
        i = spans.index(call)
        parts = spans[i + 1 : i + 5]
        assert [e["cat"] for e in parts] == ["trace", "lower", "compile", "first_run"]
        assert parts[0]["ts"] == call["ts"]
        assert sum(e["dur"] for e in parts) == pytest.approx(call["dur"], abs=1)
    # The program slept for that long at one line.
    slept = [e for e in spans if e["tid"] == 2 and e["cat"] == "line"]
    assert any(e["dur"] > 1e5 for e in slept)
