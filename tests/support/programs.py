"""Runs programs in processes of their own: those of `tests/programs/`, and others."""

import os
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"


def run_python(*words, code=0, stdin=None, cwd=None, timeout=300, env=None):
    """The finished process of Python with these words, which ended with this code."""
    process = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**(os.environ if env is None else env), "PYTHONPATH": str(ROOT)},
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
    )
    assert code is None or process.returncode == code, process.stderr[-4000:]
    return process


def run_program(name, *args, check=True, stdin=None, timeout=280, **environment):
    """The finished process of a program, which may import `tests.support`.

    Other keyword arguments are environment variables: `PYTHONMALLOC="debug"` overwrites
    freed memory, so that its use is noticed.
    """
    words = ("-X", "faulthandler", PROGRAMS / name, *args)
    env = {**os.environ, **environment}
    code = 0 if check else None
    return run_python(*words, code=code, stdin=stdin, timeout=timeout, env=env)


def start_python(*words, **environment):
    """A process of Python that is running; `communicate("")` ends its input."""
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
