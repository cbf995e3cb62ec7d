"""What each command does. Each function returns the exit code.

Nothing here imports JAX before the program does.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import eqx_fastjit

from ._script import ImportHook, run_program


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


@contextlib.contextmanager
def _in_one_line(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as e:
        raise CommandError(str(e)) from None


def _need(package: str, extra: str) -> None:
    """Raise `CommandError` if a package is missing, with the line that installs it."""
    if importlib.util.find_spec(package) is None:
        line = f'pip install "eqx_fastjit[{extra}]"'
        raise CommandError(f"this needs {package}: {line}")


# Settings that change what is traced, how, or where it runs.
_SETTINGS = ("EQX_", "JAX_", "JAXTYPING_", "XLA_FLAGS")


def print_versions() -> int:
    """Print what a bug report needs. What may fail comes last."""
    print("eqx_fastjit", eqx_fastjit.__version__)
    print("equinox", version("equinox"))
    for name, value in sorted(os.environ.items()):
        if name.startswith(_SETTINGS):
            print(f"{name}={value}")
    print("engine", eqx_fastjit.engine(), flush=True)
    import jax

    jax.print_environment_info()
    return 0


# --- commands that run a program ------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run a program."""
    program = _program(options)
    ImportHook(asynchronous=options.asynchronous)
    return run_program(program, options.is_module)


def _program(options: argparse.Namespace) -> list[str]:
    """The program and its arguments. Python itself reports errors in a module."""
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise CommandError("expected SCRIPT or -m MODULE")
    if not options.is_module and not os.path.exists(program[0]):
        raise CommandError(f"cannot open {program[0]!r}: no such file")
    return program


def doctor(options: argparse.Namespace) -> int:
    """Report on a program, or on event files."""
    _need("rich", "insight")
    if options.html:
        _need("jinja2", "insight")
    program = _program(options)
    is_file = program[0].endswith(".jsonl") and not options.is_module
    if is_file and not (len(program) <= 2 and program[-1].endswith(".jsonl")):
        raise CommandError("expected one or two event files, and options before them")
    if is_file and len(program) == 2:
        return _compare(options, *program)
    if options.fail_on == "new":
        raise CommandError("--fail-on new: expected two event files, OLD and NEW")
    if is_file:
        from eqx_fastjit.insight._report import make_report

        report, code = make_report(_read(program[0])), 0
    else:
        report, code = _watch(program, options)
    if options.json:
        from eqx_fastjit.insight._file import write_json

        write_json(options.json, report)
    if options.html:
        from eqx_fastjit.insight._page import page

        options.html.write_text(page(report), encoding="utf-8")
    if options.trace:
        from eqx_fastjit.insight._trace import as_trace

        options.trace.write_text(json.dumps(as_trace(report)), encoding="utf-8")
    from eqx_fastjit.insight._text import write_text

    sys.stdout.flush()  # what the program has printed comes first
    write_text(report, sys.stderr)
    return code or int(options.fail_on == "any" and bool(report.findings))


def _watch(program: list[str], options: argparse.Namespace) -> tuple[Any, int]:
    from eqx_fastjit.insight._watch import Watch

    watch = Watch()
    hook = ImportHook(
        watch.jax_imported, watch.imported, asynchronous=options.asynchronous
    )
    try:
        code = run_program(program, options.is_module)
    finally:
        watch.stop()
        hook.stop()
    return watch.report(program[0], code), code


def _read(path: str) -> Any:
    from eqx_fastjit.insight._file import FileError, read

    with _in_one_line(FileError, OSError):
        return read(path)


def _compare(options: argparse.Namespace, old: str, new: str) -> int:
    if options.html or options.trace:
        raise CommandError("--html and --trace: expected a program, or one event file")
    from eqx_fastjit.insight._compare import compare_runs, comparison_lines
    from eqx_fastjit.insight._file import write_json

    runs = _read(old), _read(new)
    found = compare_runs(*runs)
    print("\n".join(comparison_lines(*runs, found)))
    if options.json:
        write_json(options.json, {"found": found})
    return int(options.fail_on is not None and bool(found))


def profile(options: argparse.Namespace) -> int:
    """Profile a program's functions."""
    _need("pyinstrument", "profile")
    program = _program(options)
    from eqx_fastjit.insight._program import ProgramProfile

    watched = ProgramProfile()
    ImportHook(watched.begin)
    code = run_program(program, options.is_module)
    sys.stdout.flush()
    print(watched.report(options.functions, options.html))
    return code


# --- exported functions ---------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Trace a function, and save it to a file."""
    _need("flatbuffers", "export")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    function, arguments = _find(options.function), _find(options.args)()
    if not isinstance(function, eqx_fastjit.JitWrapped | eqx_fastjit.BoundJit):
        with _in_one_line(TypeError):
            function = eqx_fastjit.filter_jit(function)
    if not isinstance(arguments, tuple | list | dict):
        kind = type(arguments).__name__
        raise CommandError(f"{options.args} returned `{kind}`; expected a tuple")
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    with _in_one_line(ValueError):
        function.export(*args, **kwargs).save(
            options.output,
            compiled=options.compiled,
            platforms=options.platforms,
            vjp_order=options.vjp_order,
        )
    size = options.output.stat().st_size / 1024
    print(f"wrote {options.output} ({size:.1f} KiB)")
    return 0


def _find(text: str) -> Any:
    """What `MODULE:NAME` says."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise CommandError(f"{text!r}: expected MODULE:NAME")
    with _in_one_line(ImportError, AttributeError):
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    return found


def show(options: argparse.Namespace) -> int:
    """Show the contents of an exported file."""
    from eqx_fastjit._export._show import show as text_of

    with _in_one_line(OSError, ValueError):
        print(text_of(options.file, everything=options.all))
    return 0
