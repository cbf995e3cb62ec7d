"""Run a program as python would, with eqx_fastjit.filter_jit in place of
equinox.filter_jit. Calls block, as with Equinox, unless --async is given. Report the
time lost to compiling and blocking, the lines responsible, and how to fix them. The
report is written to stderr when the program ends, or before SIGTERM ends it. The exit
code is that of the program, or 1 if --fail-on finds something.
"""

import argparse
import functools
import json
import os
import sys
from typing import Any

from eqx_fastjit.doctor._report import KINDS

from . import _script, _signals
from ._common import (
    add_options,
    as_json,
    ASYNC,
    check_output,
    CommandError,
    write_output,
)


def declare(parser: _script.ProgramParser) -> None:
    options = {
        "--json FILE": "write the report as JSON",
        "--html FILE": "write the report as a page",
        "--trace FILE": "write a timeline that Perfetto (ui.perfetto.dev) opens",
        "--interim FILE": "write an interim report whenever this file appears, and "
        "remove the file. SIGUSR1 does the same",
        "--fail-on KIND,...": "exit with 1 if there are findings of these kinds: "
        "'any', or " + ", ".join(KINDS),
        "--programs": "add the jaxpr, the HLO, and XLA's estimates of cost and memory "
        "of each compilation to --html and --json. This compiles everything twice",
        "--numerics": "compare the first call of each function with an eager run. This "
        "runs the function's Python code twice more, including its side effects",
        "--slow SECONDS": "report first calls that compile for longer (default: 60)",
    }
    add_options(parser, {**ASYNC, **options}, fail_on="")
    parser.add_program(trailing=True)


def main(options: argparse.Namespace) -> int:
    from eqx_fastjit.doctor._watch import Watch

    fatal = _kinds(options.fail_on)
    if options.slow is not None and not options.slow >= 0:
        raise CommandError(f"--slow {options.slow}: expected 0 or more")
    outputs = _outputs(options)
    watch = Watch(numerics=options.numerics, programs=options.programs)
    asynchronous = options.asynchronous
    write = functools.partial(_report, watch, options, outputs)
    pid = os.getpid()
    interim = options.interim and os.path.abspath(options.interim)
    reporter = _signals.Reporter(write, interim)
    reporter.start()
    try:
        code = _script.run_watched(options.program, watch, asynchronous=asynchronous)
        if os.getpid() != pid:
            return code  # a process that the program forked
        report = reporter.write(code)
    finally:
        reporter.stop()
    return code or int(any(f.kind in fatal for f in report.findings))


def _outputs(options: argparse.Namespace) -> dict[str, str]:
    """The files to be written, by option. The program may change the directory."""
    given = {name: getattr(options, name) for name in ("json", "html", "trace")}
    paths = {name: os.path.abspath(path) for name, path in given.items() if path}
    for name, path in paths.items():
        check_output(f"--{name}", path)
    return paths


def _report(
    watch: Any, options: argparse.Namespace, outputs: dict[str, str], code: int | None
) -> Any:
    """Write all that was asked for; an interim report if there is no exit code yet."""
    from eqx_fastjit.doctor._find import make_report

    report = make_report(watch, options.program.name, code, slow=options.slow)
    _show(report)
    if "json" in outputs:
        write_output("--json", outputs["json"], as_json(report))
    if "html" in outputs:
        from eqx_fastjit.doctor._page import page

        write_output("--html", outputs["html"], page(report))
    if "trace" in outputs:
        from eqx_fastjit.doctor._timeline import timeline

        write_output("--trace", outputs["trace"], json.dumps(timeline(watch, report)))
    return report


def _show(report: Any) -> None:
    """Write the report to stderr, which nobody may read any more."""
    from eqx_fastjit.doctor._text import write_text

    # The files are written all the same, and the exit code is the program's.
    stream: Any = sys.stderr
    if stream is None or stream.closed:
        return
    try:
        write_text(report, stream)
    except OSError:
        # What is still in its buffer would fail once more as Python ends.
        sys.stderr = None  # pyright: ignore[reportAttributeAccessIssue]


def _kinds(text: str) -> set[str]:
    kinds = {kind.strip() for kind in text.split(",")} - {""}
    for kind in sorted(kinds - KINDS.keys() - {"any"}):
        raise CommandError(
            f"--fail-on: no kind {kind!r}; expected one of any, {', '.join(KINDS)}"
        )
    return set(KINDS) if "any" in kinds else kinds
