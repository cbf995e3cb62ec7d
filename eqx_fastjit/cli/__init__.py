"""The command `eqx-fastjit`.

Nothing here imports JAX before the program does.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import pkgutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import eqx_fastjit

from ._script import PACKAGES, run


# After SCRIPT they are the program's, which the doctor notes.
_DOCTOR_OPTIONS = {
    "--async",
    "--cache",
    "--fail-on",
    "--html",
    "--json",
    "--verbose",
}


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process.

    Returns the exit code: that of the program, if one is run; 1 if `--fail-on` finds
    something; 2 if the command cannot do what it is asked to. Raises `SystemExit` with
    2 for invalid arguments, and `KeyboardInterrupt` if Ctrl-C ended the program.
    """
    parser = _parser()
    arguments = sys.argv[1:] if argv is None else [*argv]
    options = parser.parse_args(_with_cache_directory(arguments))
    if "program" in options:
        # As it was given: it may have an option `--cache` of its own.
        options.program = arguments[-len(options.program) :]
        if options.program[0] == "--":  # which Python 3.11 leaves there
            del options.program[0]

    if options.version:
        return _print_versions()
    if options.command is None:
        parser.print_help()
        return 2

    try:
        code = _COMMANDS[options.command](options)
    except Exception as e:
        # What this library says to its users needs no traceback, nor do files that are
        # missing; but `export` calls the user's code, which may have opened them.
        is_own = type(e).__module__.startswith("eqx_fastjit.")
        is_of_file = isinstance(e, OSError) and options.command != "export"
        if not (is_own or is_of_file):
            raise
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2

    if options.was_interrupted:
        # Python then ends by its own signal, so that a shell stops a loop, for example.
        sys.excepthook = lambda *_: None  # the exception has been printed
        raise KeyboardInterrupt
    return code


def _with_cache_directory(words: Sequence[str]) -> list[str]:
    """The arguments, with an empty directory for each `--cache` before a script.

    What follows `--cache` is a directory, unless it is a file: then, the program.
    """
    out = list(words)
    for i, (word, following) in enumerate(itertools.pairwise(words)):
        if word == "--cache" and os.path.isfile(following):
            out[i] = "--cache="
    return out


def _parser() -> argparse.ArgumentParser:
    flag: Any = {"action": "store_true"}
    file: Any = {"type": _output, "metavar": "FILE"}
    parser = argparse.ArgumentParser(
        prog="eqx-fastjit", description="A faster drop-in for equinox.filter_jit."
    )
    parser.set_defaults(was_interrupted=False)
    parser.add_argument("--version", **flag, help="print versions")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    # What the commands that run a program have in common.
    program = argparse.ArgumentParser(add_help=False)
    add = program.add_argument
    add(
        "program",
        nargs=argparse.PARSER,
        metavar="SCRIPT",
        help="a script or, with -m, a module; what follows is passed to it",
    )
    add("-m", dest="is_module", **flag, help="run a module")
    add("--async", dest="is_async", **flag, help="calls return immediately, as in JAX")
    add("--cache", nargs="?", const="", metavar="DIR", help="keep what is compiled")

    commands.add_parser("run", parents=[program], help="run a program with it")
    doctor = commands.add_parser(
        "doctor",
        parents=[program],
        help="run a program, and report why it compiled; or read an event file",
        description="Report to stderr what was compiled and why, where, and how to fix "
        "it. SCRIPT may also be a file that EQX_FASTJIT_LOG=FILE.jsonl writes.",
    )
    doctor.add_argument("--json", **file, help="write the report as JSON")
    doctor.add_argument("--html", **file, help="write the report as a page")
    doctor.add_argument("--verbose", **flag, help="report everything")
    doctor.add_argument("--fail-on", choices=["any"], help="exit with 1 on any finding")
    commands.add_parser("profile", parents=[program], help="show where time goes")
    rule = commands.add_parser("rule", help="explain a rule of the doctor")
    rule.add_argument("name", nargs="?", metavar="NAME")

    export = commands.add_parser("export", help="trace a function, and save it")
    export.add_argument("function", metavar="MODULE:FUNCTION")
    export.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        required=True,
        help="a function that returns the arguments, as a tuple or a dictionary",
    )
    export.add_argument("-o", "--output", **file, required=True)
    export.add_argument("--compiled", **flag, help="with native code")
    show = commands.add_parser("show", help="show the contents of an exported file")
    show.add_argument("file", metavar="FILE")
    return parser


def _output(path: str) -> Path:
    """A file that can be written, which is checked before a program is run."""
    file = Path(path).absolute()  # the program may change the directory
    written = file if os.path.exists(file) else file.parent
    if os.path.isdir(file) or not os.access(written, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {path!r}")
    return file


def _print_versions() -> int:
    """Print what a bug report needs. What may fail comes last."""
    print("eqx_fastjit", eqx_fastjit.__version__)
    if importlib.util.find_spec("equinox") is None:
        print("equinox: not installed")
    else:
        print("equinox", version("equinox"))

    try:
        print("engine", eqx_fastjit.engine(), flush=True)
        import jax

        jax.print_environment_info()
    except Exception as e:
        print(f"{type(e).__name__}: {e}")
    return 0


def _need(extra: str, *packages: str) -> None:
    """Raise an error if a package is missing, with the extra that installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise CommandError(f"needs {package}, which the extra {extra!r} installs")


def doctor(options: argparse.Namespace) -> int:
    """Report on a program, or on an event file."""
    _need("insight", "rich", "jinja2")
    name, *others = options.program
    if name.endswith(".jsonl") and not options.is_module:
        from eqx_fastjit.insight.record import _file
        from eqx_fastjit.insight.show import _report

        if others:
            raise CommandError("expected one event file. Options come before it")
        report = _report.make_report(_file.read(name))
        code = 0
    else:
        report, code = _watch_program(options)
    if report is not None:
        _write_report(options, report)
        if code == 0 and options.fail_on == "any" and report.findings:
            code = 1
    return code


def _watch_program(options: argparse.Namespace) -> tuple[Any, int]:
    """Run a program. Returns the report, if there is one, and the exit code."""
    from eqx_fastjit.insight._watch import Watch

    name, *others = options.program
    watch = Watch()
    _report_on_signal()
    for word in others:
        if word.partition("=")[0] in _DOCTOR_OPTIONS:
            watch.notes.append(f"{word} came after SCRIPT, and went to it.")

    code = run(options, watch.jax_imported, awaited=PACKAGES)
    _flush_stdout()
    uses_jax = watch.stop()
    if uses_jax or options.json or options.html:
        with _printing_errors():
            return watch.report(name, code), code
        return None, code or (2 if options.fail_on == "any" else 0)

    with _printing_errors():
        print("eqx-fastjit doctor:", *watch.notes, file=sys.stderr)
    return None, code


def _flush_stdout() -> None:
    """Have what the program has printed come first."""
    with contextlib.suppress(Exception):  # of a stdout that the program has closed
        sys.stdout.flush()


@contextlib.contextmanager
def _printing_errors() -> Iterator[None]:
    """Print an error of a report in a line: the program counts, and its exit code."""
    try:
        yield
    except Exception as e:
        with contextlib.suppress(Exception):  # of a stderr that the program has closed
            print(f"eqx-fastjit: no report: {e!r}", file=sys.stderr)


def _write_report(options: argparse.Namespace, report: Any) -> None:
    """Write a report to stderr, and to the files that are asked for."""
    from eqx_fastjit.insight.record import _file
    from eqx_fastjit.insight.show import _text

    if sys.stderr is not None:  # a program may have closed it, or replaced it
        with _printing_errors():
            _text.write_text(report, sys.stderr, options.verbose)
    if options.json:
        _file.write_json(options.json, report)
    if options.html:
        page = eqx_fastjit.insight.DoctorReport(report).to_html()
        options.html.write_text(page, encoding="utf-8")


def _report_on_signal() -> None:
    """Have `kill -USR1` print the report up to now, unless the program uses it."""

    def on_signal(*_: Any) -> None:
        if "jax" in sys.modules:
            with _printing_errors():  # JAX may be half imported
                print(eqx_fastjit.insight.report(), file=sys.stderr)

    number = getattr(signal, "SIGUSR1", None)  # Windows has none
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, on_signal)


def profile(options: argparse.Namespace) -> int:
    """Show where Python is in a program."""
    _need("profile", "pyinstrument")
    from eqx_fastjit.insight._program import ProgramProfile

    watched = ProgramProfile()
    code = run(options, watched.begin)
    _flush_stdout()
    with _printing_errors():
        print(watched.report(), file=sys.stderr)
    return code


def rule(options: argparse.Namespace) -> int:
    """Print the section of a rule, as Markdown, or the names of all."""
    from eqx_fastjit.insight.show._sections import sections

    if options.name is None:
        for name, text in sections().items():
            paragraph, _, _ = text.partition("\n\n")
            print(f"{name:19} {textwrap.shorten(paragraph, 60, placeholder=' ...')}")
        return 0

    if options.name not in sections():
        raise CommandError(f"no rule {options.name!r}: `eqx-fastjit rule` lists them")
    print(f"# {options.name}\n\n{sections()[options.name]}")
    return 0


def export(options: argparse.Namespace) -> int:
    """Trace a function, and save it to a file."""
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    function, factory = _resolve(options.function), _resolve(options.args)
    if not (callable(function) and callable(factory)):
        raise CommandError("expected functions, as MODULE:FUNCTION")

    arguments = factory()
    if not isinstance(function, eqx_fastjit.JitWrapped | eqx_fastjit.BoundJit):
        function = eqx_fastjit.filter_jit(function)
    if isinstance(arguments, dict):
        exported = function.export(**arguments)
    elif isinstance(arguments, tuple | list):
        exported = function.export(*arguments)
    else:
        kind = type(arguments).__name__
        raise CommandError(f"{options.args} returned `{kind}`; expected a tuple")

    try:
        exported.save(options.output, compiled=options.compiled)
    except OSError as e:
        raise CommandError(str(e)) from e
    print(f"wrote {options.output} ({options.output.stat().st_size / 1024:.1f} KiB)")
    return 0


def _resolve(name: str) -> Any:
    """What `MODULE:FUNCTION` names. Raises `CommandError` if there is no such thing."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as e:
        # What a module raises while it is imported is the user's.
        frames = (frame for frame, _ in traceback.walk_tb(e.__traceback__))
        if any(frame.f_code.co_name == "<module>" for frame in frames):
            raise
        raise CommandError(str(e)) from e


def show(options: argparse.Namespace) -> int:
    """Show the contents of an exported file."""
    from eqx_fastjit import _export

    print(_export.show(options.file))
    return 0


_COMMANDS = {
    "run": run,
    "doctor": doctor,
    "profile": profile,
    "rule": rule,
    "export": export,
    "show": show,
}
