"""The line of progress on a terminal, by a fake clock."""

import io
import os
import pty
import subprocess
import sys

import pytest

from eqx_fastjit._progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    now = [0.0]

    def read():
        return now[0]

    read.now = now
    return read


def test_what_takes_long_is_told(clock):
    stream = Terminal()
    with Progress("profile", stream, clock) as progress:
        progress.stage("first")
        assert stream.getvalue() == ""
        progress.stage("second", 2.5)
        assert stream.getvalue() == "\rprofile: second, about 2.5 s\x1b[K"
        for i in range(30):
            clock.now[0] += 0.125
            progress.step("calls", i, 30)
        text = stream.getvalue()
        assert "calls: 6 of 30" not in text and "calls: 7 of 30" in text
        assert "calls: 8 of 30" not in text and "calls: 9 of 30" in text
    assert stream.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_is_not(clock):
    stream = Terminal()
    with Progress("profile", stream, clock) as progress:
        progress.stage("first")
        progress.step("calls", 1, 2)
        clock.now[0] += 0.9
        progress.stage("second")
    assert stream.getvalue() == ""


def test_a_stage_that_cannot_tell_is_told(clock):
    stream = Terminal()
    with Progress("breakdown", stream, clock) as progress:
        progress.show_if_late()
        progress.stage("compiling")
        progress.show_if_late()
        assert stream.getvalue() == ""
        clock.now[0] += 1.0
        progress.show_if_late()
        text = "\rbreakdown: compiling\x1b[K"
        assert stream.getvalue() == text
        progress.show_if_late()
        assert stream.getvalue() == text
    progress.show_if_late()
    assert stream.getvalue() == text + "\r\x1b[K"


def test_no_terminal(clock):
    stream = io.StringIO()
    with Progress("profile", stream, clock) as progress:
        progress.stage("first", 100.0)
        clock.now[0] += 5
        progress.step("calls", 1, 2)
    assert stream.getvalue() == ""


PROFILED = [f"{who}: 20 calls" for who in ("eqx_fastjit", "equinox", "jax.jit")]
TOLD = {
    "profile(f, x, n=20)": ("profile", PROFILED),
    "breakdown(f, x)": ("breakdown", ["tracing", "compiling", "calls without jit"]),
    "inspect_jaxpr(f, x, measure=True)": ("inspect_jaxpr", ["tracing", "compiling"]),
    "compare_eager(f, x)": ("compare_eager", ["the call without jit", "comparing"]),
}


@pytest.mark.one_engine
@pytest.mark.parametrize("call", TOLD)
def test_on_a_terminal(call):
    """The progress is written to the terminal, and none of it to stdout."""
    name, stages = TOLD[call]
    program = f"""
import jax.numpy as jnp
from eqx_fastjit import _progress
from eqx_fastjit.insight import {name}
_progress._SILENT = 0.0
f, x = lambda x: x + 1, jnp.ones(2)
{call}
print("done")
"""
    ours, theirs = pty.openpty()
    out = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=200,
    )
    os.close(theirs)
    told = os.read(ours, 100_000).decode()
    os.close(ours)
    assert (out.returncode, out.stdout) == (0, "done\n"), told
    for stage in stages:
        assert f"{name} of <lambda>: {stage}" in told
    assert told.endswith("\r\x1b[K")
