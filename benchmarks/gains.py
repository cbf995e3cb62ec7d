"""How much faster unedited programs are, for the table on the performance page.

    python -m benchmarks.gains FOLDER --json benchmarks/results/gain.json

Runs `eqx-fastjit gain` on each `*.py` in FOLDER, sorted by name, and stores the figures
but none of the source. If a program fails, its name is printed and the others still
run. Run nothing else meanwhile, since noise increases the number of pairs of runs.

The programs of the documentation are example notebooks of Equinox, Diffrax and
Optimistix. To convert one (where `$CHECKOUT` is a checkout of the project):

    jupyter nbconvert --to script --output-dir FOLDER \\
        --output diffrax_neural_ode $CHECKOUT/docs/examples/neural_ode.ipynb

FOLDER/stand_ins is on the path of all programs. Its modules replace data that a program
would download: for example, a `torchvision.py` that returns noise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import eqx_fastjit
from eqx_fastjit.bench._results import new_results


def measure(script: Path, options: list[str], scratch: Path) -> dict[str, Any]:
    """Measure one program.

    **Arguments:**

    - `script`: the program.
    - `options`: options of `eqx-fastjit gain`.
    - `scratch`: an empty folder in which it runs.

    **Returns:** the JSON report. Raises `RuntimeError` if the program fails.
    """
    report = scratch / "report.json"
    command = [sys.executable, "-m", "eqx_fastjit.cli", "gain", *options]
    env = {**os.environ, "MPLBACKEND": "Agg"}  # do not open windows
    here = str(Path(eqx_fastjit.__file__).parent.parent)
    paths = [str(script.parent / "stand_ins"), here, env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    run = subprocess.run(
        [*command, "--json", str(report), str(script)],
        cwd=scratch,
        env=env,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(last)
    return json.loads(report.read_text(encoding="utf-8"))


def kept(report: dict[str, Any]) -> dict[str, Any]:
    """The report without paths of this machine."""
    functions = [
        {key: value for key, value in f.items() if key not in ("file", "line")}
        for f in report["functions"]
    ]
    return {
        **report,
        "program": Path(report["program"]).stem,
        "functions": functions,
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--pairs", metavar="N", help="see `eqx-fastjit gain --help`")
    parser.add_argument("--seconds", metavar="S", help="see `eqx-fastjit gain --help`")
    options = parser.parse_args(argv)
    passed: list[str] = []
    for name in ("pairs", "seconds"):
        if (value := getattr(options, name)) is not None:
            passed += [f"--{name}", value]
    command = " ".join(["python -m benchmarks.gains FOLDER", *passed])
    results = new_results(command, eqx_fastjit.engine())
    results["programs"] = []
    scripts = sorted(options.folder.glob("*.py"))
    if not scripts:
        parser.error(f"no program in {options.folder}")
    for script in scripts:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                report = measure(script.resolve(), passed, Path(scratch))
            except RuntimeError as e:
                results["problems"].append(f"{script.stem}: {e}")
                print(results["problems"][-1], file=sys.stderr)
                continue
        results["programs"].append(kept(report))
        print(f"{script.stem}: {report['verdict']}", flush=True)
        # Saved after each program, so that an interruption loses nothing.
        text = json.dumps(results, indent=1, allow_nan=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    return int(bool(results["problems"]))


if __name__ == "__main__":
    sys.exit(main())
