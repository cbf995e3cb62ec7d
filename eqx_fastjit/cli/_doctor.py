"""`eqx-fastjit doctor`."""

import argparse
import json
import os
import sys
from typing import Any

from eqx_fastjit.doctor._report import KINDS

from ._common import check_output, CommandError
from ._script import check_program, end_as_interrupted, was_interrupted


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Declare the subcommand and its arguments."""
    parser = commands.add_parser(
        "doctor",
        help="run a program, unchanged, and report why it compiled, recompiled, waited",
        description="Run a program as python does, with our filter_jit in the place of "
        "Equinox's, and report what it lost to compiling and waiting, and how to mend "
        "it. The report goes to stderr, after the program's own output. The exit code "
        "is the program's; 1 if --fail-on finds something.",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    parser.add_argument(
        "--fail-on",
        metavar="KIND,...",
        default="",
        help="exit with 1 if there is a finding of such a kind; 'any' for all of: "
        + ", ".join(KINDS),
    )
    parser.add_argument(
        "--numerics",
        action="store_true",
        help="compare the first call of each function with an eager run; runs the "
        "function's Python code twice more, side effects included",
    )
    parser.add_argument(
        "--slow",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="a first call that compiles for longer is a finding (default: 60)",
    )
    parser.add_program(trailing=True)
    return parser


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    from eqx_fastjit.doctor._find import make_report
    from eqx_fastjit.doctor._text import write_text
    from eqx_fastjit.doctor._watch import Watch

    from ._watched import run_watched, write_output

    fatal = _kinds(options.fail_on)
    if not options.slow >= 0:
        raise CommandError(f"--slow {options.slow}: expected 0 or more")
    check_program(options.program.name, options.program.is_module)
    # The program may change the directory.
    paths = {
        option: os.path.abspath(path)
        for option, path in (("--json", options.json), ("--html", options.html))
        if path is not None
    }
    for option, path in paths.items():
        check_output(option, path)
    watch = Watch(numerics=options.numerics)
    code = run_watched(options.program, watch)
    name = options.program.name
    report = make_report(watch, name, code, slow=options.slow)
    write_text(report, sys.stderr)
    if "--json" in paths:
        text = json.dumps(report.as_json(), indent=2, allow_nan=False)
        write_output("--json", paths["--json"], text + "\n")
    if "--html" in paths:
        from eqx_fastjit.doctor._page import page

        write_output("--html", paths["--html"], page(report))
    if was_interrupted(code):
        end_as_interrupted()
    found = sum(f.kind in fatal for f in report.findings)
    return code or int(found > 0)


def _kinds(text: str) -> set[str]:
    kinds = {kind.strip() for kind in text.split(",")} - {""}
    for kind in sorted(kinds - KINDS.keys() - {"any"}):
        raise CommandError(
            f"--fail-on: no kind {kind!r}; there are: any, {', '.join(KINDS)}"
        )
    return set(KINDS) if "any" in kinds else kinds
