"""Runs a program, as `python SCRIPT` or `python -m MODULE` would.

What the program sees is the same: `__main__`, `sys.argv`, `sys.path[0]`, its exit code
and its tracebacks. This library is installed when the program first imports Equinox,
and no earlier: the program may want to set environment variables before that. The
doctor has to see what JAX does, so there it is when the program first imports JAX.
"""

import argparse
import builtins
import importlib
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import eqx_fastjit

from ._cache import use_cache


PACKAGES = ("jax", "equinox", "eqx_fastjit")
# What a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130


def run(
    options: argparse.Namespace,
    then: Callable[[], None] = lambda: None,
    awaited: Sequence[str] = PACKAGES[1:],
) -> int:
    """Run the program of a command in this process, which is its own from here on.

    This library is installed just before the program imports one of the `awaited`
    packages for the first time, and `then` is called.

    Returns the exit code that Python would give. An exception has been printed then,
    without frames of this library; 130 stands for Ctrl-C. Raises `OSError` if the
    program cannot be read.
    """
    if options.cache is not None:
        use_cache(options.cache)
    name = options.program[0]
    source = None if options.is_module else Path(name).read_bytes()
    # These and `__main__` stay as the program leaves them, because its threads and its
    # `atexit` functions run on afterwards.
    sys.argv[:] = options.program
    originals = builtins.__import__, importlib.import_module

    def restore() -> None:
        builtins.__import__, importlib.import_module = originals

    def begin() -> None:
        restore()
        eqx_fastjit.install(asynchronous=options.asynchronous)
        then()

    builtins.__import__, importlib.import_module = _importers(begin, awaited)
    try:
        if source is None:
            sys.path[0] = os.getcwd()
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(name))
            # `runpy` would put back the `__main__` that was there before.
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__file__ = os.path.abspath(name)
            exec(compile(source, main.__file__, "exec", dont_inherit=True), vars(main))
    except SystemExit as e:
        if isinstance(e.code, int | None):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException as e:
        return _report(e)
    finally:
        restore()
    return 0


def _report(error: BaseException) -> int:
    """Print an exception as Python does. Returns the exit code."""
    package = os.path.dirname(eqx_fastjit.__file__) + os.sep
    ours = (package, runpy.__file__, "<frozen runpy>")
    # The first frame is that of `run`. Behind it, only the program's are linked again.
    first: Any = error.__traceback__
    last, this = first, first.tb_next
    while this is not None:
        if not this.tb_frame.f_code.co_filename.startswith(ours):
            last.tb_next, last = this, this
        this = this.tb_next
    last.tb_next = None
    error.__traceback__ = first.tb_next
    sys.excepthook(type(error), error, first.tb_next)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _importers(begin: Callable[[], None], awaited: Sequence[str]) -> tuple[Any, Any]:
    """An `__import__`, which import statements call, and an `import_module`.

    They call `begin` just before the program imports one of the awaited packages for
    the first time. Each can be imported then, because none is half imported.
    """
    import_, import_module = builtins.__import__, importlib.import_module
    has_begun = False  # the program may keep what it got of these

    def look(name: str, importer: str) -> None:
        nonlocal has_begun
        is_inside = importer.split(".")[0] in (*PACKAGES, "jaxtyping")
        if not has_begun and not is_inside and name.split(".")[0] in awaited:
            has_begun = True
            begin()

    # What is relative to a package goes by the name of that.
    def importing(
        name: str, globals: Any = None, locals: Any = None, fromlist=(), level=0
    ) -> Any:
        scope = globals or {}
        shown = (level and scope.get("__package__")) or name
        look(shown, scope.get("__name__") or "")
        return import_(name, globals, locals, fromlist, level)

    def importing_module(name: str, package: str | None = None) -> Any:
        look((name.startswith(".") and package) or name, "")
        return import_module(name, package)

    return importing, importing_module
