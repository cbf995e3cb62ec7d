"""What the doctor reports on many small programs."""

import json
import textwrap

from tests.processes import run_code


# All scripts run in one process, because importing JAX takes seconds.
_DRIVER = """
import json, os, sys
from eqx_fastjit.cli._script import Program
from eqx_fastjit.cli._script import run_watched
from eqx_fastjit.doctor import _causes
from eqx_fastjit.doctor._find import make_report
from eqx_fastjit.doctor._watch import Watch

for name, value in json.loads(sys.argv[1]).items():
    setattr(_causes, name, value)
out = {}
for script in sys.argv[2:]:
    name = os.path.basename(script).removesuffix(".py")
    watch = Watch(numerics=name.startswith("numerics"))
    # Else it is the calls that block, not what the program does.
    early = name.startswith("blocking")
    code = run_watched(Program(script, (), False), watch, asynchronous=early)
    slow = 0.9 if name.startswith("slow") else 60.0
    out[name] = make_report(watch, script, code, slow=slow).as_json()
print(json.dumps(out), file=sys.stderr)
"""


# Programs begin with it.
START = """
import argparse
import dataclasses
import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

x = jnp.ones(3)
"""


def write_with_fixes(folder, programs):
    """Write programs, and each again with its fix, as `NAME_fixed.py`.

    `programs` has for each name its text, and what replaces what in it.
    """
    for name, (text, edits) in programs.items():
        fixed = text = START + textwrap.dedent(text)
        for old, new in edits:
            assert old in fixed
            fixed = fixed.replace(old, new)
        (folder / f"{name}.py").write_text(text)
        # A warning about a fix is an error.
        fixed = f"import warnings\nwarnings.simplefilter('error')\n{fixed}"
        (folder / f"{name}_fixed.py").write_text(fixed)


def check_fault(reports, name, kind, leaf, line, message, fix):
    """A program has this finding alone, and none with its fix."""
    (finding,) = reports[name]["findings"]
    assert (finding["kind"], finding["leaf"]) == (kind, leaf)
    assert message in finding["message"], finding["message"]
    assert finding["fix"].startswith(fix), finding["fix"]
    with open(finding["file"]) as f:
        assert line in f.read().splitlines()[finding["line"] - 1]
    assert reports[f"{name}_fixed"]["findings"] == []
    assert reports[f"{name}_fixed"]["exit_code"] == 0


def check_clean(report):
    """A program has no finding, and no note on functions under plain `jax.jit`."""
    assert report["exit_code"] == 0
    assert report["findings"] == []
    assert not [note for note in report["notes"] if "jax.jit" in note]


def reports_of_programs(folder, faults, others, thresholds=None):
    """The reports on programs with a fault, with its fix, and on others, by engine.

    The last two of each fault are its text, and what its fix replaces in it.
    """
    write_with_fixes(folder, {name: fault[-2:] for name, fault in faults.items()})
    for name, text in others.items():
        (folder / f"{name}.py").write_text(START + textwrap.dedent(text))
    return reports_on_engines(folder, thresholds)


def reports_on_engines(folder, thresholds=None, **env):
    """`reports_of` all scripts in a folder, by engine."""
    scripts = sorted(map(str, folder.glob("*.py")))
    return {
        engine: reports_of(scripts, thresholds, engine=engine, **env)
        for engine in ("native", "python")
    }


def reports_of(scripts, thresholds=None, engine="auto", **env):
    """The JSON report of the doctor on each script, by the script's name.

    `thresholds` replaces some of those in `doctor/_causes.py`.
    """
    arguments = [json.dumps(thresholds or {}), *scripts]
    out = run_code(_DRIVER, *arguments, engine=engine, timeout=600, **env)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stderr.splitlines()[-1])
