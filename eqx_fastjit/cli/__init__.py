"""The command `eqx-fastjit`.

Nothing here imports JAX before the program does.
"""

import argparse
import importlib.util
import os
import pkgutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import eqx_fastjit

from ._cache import with_directory
from ._script import INTERRUPTED, PACKAGES, run


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process.

    Returns the exit code: 0, 1 if a requested check fails, or 2 for invalid arguments.
    """
    parser = _parser()
    options = parser.parse_args(with_directory(sys.argv[1:] if argv is None else argv))
    if options.version:
        return _print_versions()
    if options.command is None:
        parser.print_help()
        return 2
    try:
        code = _COMMANDS[options.command](options)
    except Exception as e:
        # What this library says to its users needs no traceback.
        is_ours = type(e).__module__.partition(".")[0] == "eqx_fastjit"
        if not is_ours and not isinstance(e, OSError):
            raise
        print(f"eqx-fastjit: {e}", file=sys.stderr)
        return 2
    if code == INTERRUPTED:
        # Python ends then by its own signal, so that a shell stops a loop, say.
        sys.excepthook = lambda *_: None  # it has been reported
        raise KeyboardInterrupt
    return code


def _parser() -> argparse.ArgumentParser:
    flag: Any = {"action": "store_true"}
    file: Any = {"type": _output, "metavar": "FILE"}
    parser = argparse.ArgumentParser(
        prog="eqx-fastjit", description="A faster drop-in for equinox.filter_jit."
    )
    parser.add_argument("--version", **flag, help="print versions")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    # What the commands that run a program have in common.
    program = argparse.ArgumentParser(add_help=False)
    program.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="SCRIPT",
        help="a script or, with -m, a module; what follows is passed to it",
    )
    program.add_argument("-m", dest="is_module", **flag, help="run a module")
    program.add_argument(
        "--async",
        dest="asynchronous",
        **flag,
        help="calls return before the device has finished, as with jax.jit",
    )
    program.add_argument(
        "--cache",
        metavar="[DIR]",
        help="keep what is compiled for later runs, in DIR or the user's cache folder",
    )
    commands.add_parser(
        "run", parents=[program], help="run a program with eqx_fastjit's filter_jit"
    )
    doctor = commands.add_parser(
        "doctor",
        parents=[program],
        help="run a program, and report why it compiled; or read an event file",
        description="Run a program as `run` does, and when it ends, report to stderr "
        "what was compiled and why, the lines responsible, and how to fix them. SCRIPT "
        "may also be a FILE.jsonl, which EQX_FASTJIT_LOG=FILE.jsonl writes, also while "
        "it grows.",
    )
    doctor.add_argument("--json", **file, help="write the report as JSON")
    doctor.add_argument("--html", **file, help="write the report as a page")
    doctor.add_argument("--verbose", **flag, help="report everything")
    doctor.add_argument(
        "--fail-on",
        choices=("any",),
        help="exit with 1 if there is any finding",
    )
    commands.add_parser(
        "profile",
        parents=[program],
        help="show where Python is in a program, and whether dispatch matters",
    )
    rule = commands.add_parser("rule", help="explain a rule of the doctor")
    rule.add_argument("name", nargs="?", metavar="NAME")
    export = commands.add_parser("export", help="trace a function, and save it")
    export.add_argument("function", metavar="MODULE:FUNCTION")
    export.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        required=True,
        help="a function without parameters that returns the arguments: a tuple, or a "
        "dictionary of keyword arguments. A jax.ShapeDtypeStruct can be an array",
    )
    export.add_argument("-o", "--output", **file, required=True)
    export.add_argument("--compiled", **flag, help="with native code")
    show = commands.add_parser("show", help="show the contents of an exported file")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--all", **flag, help="list all leaves")
    return parser


def _output(path: str) -> Path:
    """A file to write in the end: whether it can be is known before anything is run."""
    file = Path(path).absolute()  # the program may change the directory
    where = file if file.exists() else file.parent
    if file.is_dir() or not os.access(where, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {path!r}")
    return file


def _print_versions() -> int:
    """Print what a bug report needs. What may fail comes last."""
    print("eqx_fastjit", eqx_fastjit.__version__)
    try:
        print("equinox", version("equinox"))
    except PackageNotFoundError:
        print("equinox: not installed")
    try:
        print("engine", eqx_fastjit.engine(), flush=True)
        import jax

        jax.print_environment_info()
    except Exception as e:
        print(f"{type(e).__name__}: {e}")
    return 0


def _need(package: str, extra: str) -> None:
    """Raise an error if a package is missing, with the line that installs it."""
    if importlib.util.find_spec(package) is None:
        raise CommandError(f"this needs {package}, which the extra {extra!r} installs")


# --- commands that run a program ------------------------------------------------------


def doctor(options: argparse.Namespace) -> int:
    """Report on a program, or on an event file."""
    _need("rich", "insight")
    if options.html:
        _need("jinja2", "insight")
    name, *others = options.program
    is_file = name.endswith(".jsonl") and not options.is_module
    if is_file and others:
        raise CommandError("expected one event file. Options come before it")
    if is_file:
        from eqx_fastjit.insight import _file, _report

        report, code = _report.make_report(_file.read(name)), 0
    else:
        from eqx_fastjit.insight._watch import Watch

        watch = Watch()
        _report_on_signal()
        ours = {"--async", "--cache", "--fail-on", "--html", "--json", "--verbose"}
        if late := ours & {*others}:
            note = f"{', '.join(sorted(late))} came after SCRIPT, and went to it."
            watch.notes.append(note)
        code = run(options, watch.jax_imported, awaited=PACKAGES)
        sys.stdout.flush()  # what the program has printed comes first
        if not watch.stop() and not (options.json or options.html):
            print(
                "eqx-fastjit doctor: nothing was compiled.",
                *watch.notes,
                file=sys.stderr,
            )
            return code
        report = watch.report(name, code)
    from eqx_fastjit.insight import _file, _text

    if options.json:
        _file.write_json(options.json, report)
    if options.html:
        from eqx_fastjit.insight import _page

        options.html.write_text(_page.page(report), encoding="utf-8")
    _text.write_text(report, sys.stderr, options.verbose)
    return code or int(options.fail_on == "any" and bool(report.findings))


def _report_on_signal() -> None:
    """Have `kill -USR1` print the report up to now, unless the program uses it."""

    def on_signal(number: int, frame: Any) -> None:
        if "jax" in sys.modules:
            print(eqx_fastjit.insight.report(), file=sys.stderr, flush=True)

    number = getattr(signal, "SIGUSR1", None)  # Windows has none
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, on_signal)


def profile(options: argparse.Namespace) -> int:
    """Show where Python is in a program."""
    _need("pyinstrument", "profile")
    from eqx_fastjit.insight._program import ProgramProfile

    watched = ProgramProfile()
    code = run(options, watched.begin)
    sys.stdout.flush()
    print(watched.report(), file=sys.stderr)
    return code


def rule(options: argparse.Namespace) -> int:
    """Print the section of a rule, as Markdown, or the names of all."""
    from eqx_fastjit.insight._sections import sections

    if options.name is None:
        for name, text in sections().items():
            first = text.partition("\n\n")[0]
            print(f"{name:19} {textwrap.shorten(first, 60, placeholder=' ...')}")
        return 0
    if options.name not in sections():
        raise CommandError(f"no rule {options.name!r}: `eqx-fastjit rule` lists them")
    print(f"# {options.name}\n\n{sections()[options.name]}")
    return 0


# --- exported functions ---------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Trace a function, and save it to a file."""
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        function = pkgutil.resolve_name(options.function)
        factory = pkgutil.resolve_name(options.args)
    except (ImportError, AttributeError, ValueError) as e:
        raise CommandError(str(e)) from e
    for name, found in ((options.function, function), (options.args, factory)):
        if not callable(found):
            raise CommandError(f"{name} is no function; expected MODULE:FUNCTION")
    arguments = factory()
    if not isinstance(function, eqx_fastjit.JitWrapped | eqx_fastjit.BoundJit):
        function = eqx_fastjit.filter_jit(function)
    if not isinstance(arguments, tuple | list | dict):
        kind = type(arguments).__name__
        raise CommandError(f"{options.args} returned `{kind}`; expected a tuple")
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    exported = function.export(*args, **kwargs)
    exported.save(options.output, compiled=options.compiled)
    size = options.output.stat().st_size / 1024
    print(f"wrote {options.output} ({size:.1f} KiB)")
    return 0


def show(options: argparse.Namespace) -> int:
    """Show the contents of an exported file."""
    from eqx_fastjit._export._show import show as text_of

    print(text_of(options.file, everything=options.all))
    return 0


_COMMANDS = {x.__name__: x for x in (run, doctor, profile, rule, export, show)}
