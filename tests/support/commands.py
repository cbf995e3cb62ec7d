"""The real command, in a process of its own."""

import json
import os

from tests.support.programs import ROOT as ROOT, run_python


def command(*args, python=("-m", "eqx_fastjit"), cwd=None, code=0, **env):
    """Run `eqx-fastjit` with these arguments, or another program with `python`."""
    environment = {"JAX_PLATFORMS": "cpu", "COLUMNS": "100", **env}
    for name, value in os.environ.items():
        if not name.startswith("EQX_FASTJIT_"):
            environment.setdefault(name, value)
    return run_python(*python, *args, code=code, cwd=cwd, env=environment)


def doctor(script, tmp_path, *args, **options):
    """The doctor's report on a program, as JSON, and the process that has ended."""
    file = tmp_path / "report.json"
    process = command("doctor", "--json", file, script, *args, **options)
    return json.loads(file.read_text()), process
