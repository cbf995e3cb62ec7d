"""Programs that tests run in subprocesses."""

import os
import subprocess
import sys
import textwrap


def run_code(code, *args, common="", engine="native", timeout=280, **env):
    """Run `common` and a program in a subprocess, on an engine.

    Other keyword arguments are environment variables. `PYTHONMALLOC="debug"` overwrites
    freed memory, so that its use is noticed.
    """
    return subprocess.run(
        [sys.executable, "-c", common + textwrap.dedent(code), *args],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine, **env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
