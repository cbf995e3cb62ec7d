"""Programs of tests that are run in processes of their own."""

import os
import subprocess
import sys
import textwrap


def run_code(code, *args, common="", engine="native", timeout=280, **env):
    """Run a program, after `common`, with an engine and environment variables.

    With `PYTHONMALLOC="debug"`, memory that was freed has no meaning any more.
    """
    return subprocess.run(
        [sys.executable, "-c", common + textwrap.dedent(code), *args],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine, **env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
