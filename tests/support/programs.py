"""Runs the programs of `tests/programs/` in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"


def run_program(name, *args, check=True, stdin=None, timeout=280, **environment):
    """The finished process of a program, which may import `tests.support`.

    Other keyword arguments are environment variables: `PYTHONMALLOC="debug"` overwrites
    freed memory, so that its use is noticed.
    """
    out = subprocess.run(
        [sys.executable, "-X", "faulthandler", PROGRAMS / name, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or out.returncode == 0, out.stderr[-4000:]
    return out
