"""What each command does. Each function returns the exit code.

Nothing here imports JAX before the program does.
"""

import argparse
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eqx_fastjit

from ._script import ImportHook, Program, run_program


class CommandError(Exception):
    """Printed as one line after the command's name; the exit code is 2."""


def need(package: str, extra: str) -> None:
    """Raise `CommandError` if a package is missing, with the line that installs it."""
    if importlib.util.find_spec(package) is None:
        line = f'pip install "eqx_fastjit[{extra}]"'
        raise CommandError(f"this needs {package}: {line}")


def run(options: argparse.Namespace) -> int:
    """Run a program."""
    ImportHook(asynchronous=options.asynchronous).start()
    return run_program(options.program)


# --- doctor ---------------------------------------------------------------------------


def doctor(options: argparse.Namespace) -> int:
    """Report on a program, or on event files."""
    program: Program = options.program
    need("rich", "insight")
    if options.html:
        need("jinja2", "insight")
    names = [program.name, *program.args]
    is_file = program.name.endswith(".jsonl") and not program.is_module
    if is_file and len(names) == 2:
        return _compare(options, *names)
    if options.fail_on == "new":
        raise CommandError("--fail-on new: expected two event files, OLD and NEW")
    outputs = _outputs(options)
    code = 0
    if is_file:
        report = _read(program.name)
    else:
        report, code = _watch(program, options.asynchronous)
    _show(report)
    for name, path in outputs.items():
        Path(path).write_text(_RENDERERS[name](report), encoding="utf-8")
    return code or int(options.fail_on == "any" and bool(report.findings))


def _watch(program: Program, asynchronous: bool) -> tuple[Any, int]:
    from eqx_fastjit.insight._watch import Watch

    watch = Watch()
    hook = ImportHook(watch.jax_imported, watch.imported, asynchronous=asynchronous)
    hook.start()
    try:
        code = run_program(program)
    finally:
        watch.stop()
        hook.stop()
    return watch.report(program.name, code), code


def _read(path: str) -> Any:
    from eqx_fastjit.insight._report import report_of_file

    return report_of_file(_run_of(path))


def _run_of(path: str) -> Any:
    from eqx_fastjit.insight._file import FileError, read

    try:
        return read(path)
    except FileError as e:
        raise CommandError(str(e)) from None
    except OSError as e:
        raise CommandError(f"cannot read {path!r}: {e.strerror or e}") from None


def _compare(options: argparse.Namespace, old: str, new: str) -> int:
    from eqx_fastjit.insight._compare import compare_runs, comparison_lines

    comparison = compare_runs(_run_of(old), _run_of(new))
    print("\n".join(comparison_lines(comparison)))
    if options.json:
        Path(options.json).write_text(_as_json(comparison), encoding="utf-8")
    return int(options.fail_on is not None and bool(comparison.found))


def _outputs(options: argparse.Namespace) -> dict[str, str]:
    """The files to be written. The program may change the directory."""
    given = {name: getattr(options, name) for name in _RENDERERS}
    paths = {name: os.path.abspath(path) for name, path in given.items() if path}
    for name, path in paths.items():
        _check_output(f"--{name}", path)
    return paths


def _check_output(option: str, path: str) -> None:
    """Raise `CommandError` if a file cannot be written, before anything is run."""
    try:
        existed = os.path.exists(path)
        with open(path, "ab"):
            pass
        if not existed:
            os.remove(path)
    except OSError as e:
        why = e.strerror or e
        raise CommandError(f"{option}: cannot write {path!r}: {why}") from None


def _show(report: Any) -> None:
    """Write the report to stderr, which nobody may read any more."""
    from eqx_fastjit.insight._text import write_text

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
            if stream is sys.stderr:
                write_text(report, stream)
        except (AttributeError, OSError, ValueError):  # closed by the program
            pass


def _as_json(report: Any) -> str:
    return json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n"


def _as_page(report: Any) -> str:
    from eqx_fastjit.insight._page import page

    return page(report)


def _as_trace(report: Any) -> str:
    from eqx_fastjit.insight._trace import as_trace

    return json.dumps(as_trace(report))


_RENDERERS: dict[str, Callable[[Any], str]] = {
    "json": _as_json,
    "html": _as_page,
    "trace": _as_trace,
}


# --- profile --------------------------------------------------------------------------


def profile(options: argparse.Namespace) -> int:
    """Profile a program's functions."""
    need("pyinstrument", "profile")
    if options.html:
        _check_output("--html", options.html)
    from eqx_fastjit.insight._program import ProgramProfile

    html = os.path.abspath(options.html) if options.html else None
    watched = ProgramProfile()
    ImportHook(watched.begin).start()
    code = run_program(options.program)
    sys.stdout.flush()
    print(watched.report(options.functions, html))
    return code


# --- export and show ------------------------------------------------------------------

# Those that JAX can lower for on any machine.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export(options: argparse.Namespace) -> int:
    """Trace a function, and save it to a file."""
    if options.vjp_order < 0:
        raise CommandError(f"--vjp-order {options.vjp_order}: expected at least 0")
    platforms = options.platforms.split(",") if options.platforms else None
    for platform in platforms or ():
        if platform not in _PLATFORMS:
            expected = ", ".join(_PLATFORMS)
            raise CommandError(f"--platforms {platform!r}: expected {expected}")
    need("flatbuffers", "export")
    _check_output("-o", options.output)
    output = os.path.abspath(options.output)
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    function = _find(options.function)
    if not isinstance(function, eqx_fastjit.JitWrapped | eqx_fastjit.BoundJit):
        if not callable(function):
            raise CommandError(f"{options.function!r} cannot be called")
        function = eqx_fastjit.filter_jit(function)
    args, kwargs = _arguments(_find(options.args)(), options.args)
    try:
        function.export(*args, **kwargs).save(
            output,
            compiled=options.compiled,
            platforms=platforms,
            vjp_order=options.vjp_order,
        )
    except ValueError as e:
        raise CommandError(str(e)) from None
    print(f"wrote {options.output} ({os.path.getsize(output) / 1024:.1f} KiB)")
    return 0


def _find(text: str) -> Any:
    """What `MODULE:NAME` says."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise CommandError(f"{text!r}: expected MODULE:NAME")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as e:
        raise CommandError(f"{text!r}: {e}") from None
    return found


def _arguments(given: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, dict):
        return (), given
    if isinstance(given, tuple | list):
        return tuple(given), {}
    raise CommandError(
        f"--args {name} returned `{type(given).__name__}`; expected a tuple of "
        "arguments, or a dictionary of keyword arguments"
    )


def show(options: argparse.Namespace) -> int:
    """Show the contents of an exported file."""
    from eqx_fastjit._export._show import show as text_of

    try:
        print(text_of(options.file, everything=options.all))
    except OSError as e:
        why = e.strerror or e
        raise CommandError(f"cannot read {options.file!r}: {why}") from None
    except ValueError as e:
        raise CommandError(str(e)) from None
    return 0
