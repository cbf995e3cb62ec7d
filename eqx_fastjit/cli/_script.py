"""Runs a program, as `python SCRIPT` or `python -m MODULE` would.

What the program sees is the same: `__main__`, `sys.argv`, `sys.path[0]`, its exit code
and its tracebacks. This library is installed when the program first imports Equinox,
and no earlier: the program may want to set environment variables before that. The
doctor has to see what JAX does, so there it is when the program first imports JAX.
"""

import argparse
import builtins
import contextlib
import hashlib
import importlib
import os
import platform
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import eqx_fastjit


PACKAGES = ("jax", "equinox", "eqx_fastjit")


def run(
    options: argparse.Namespace,
    then: Callable[[], None] = lambda: None,
    awaited: Sequence[str] = PACKAGES[1:],
) -> int:
    """Run the program of a command in this process, which is its own from here on.

    This library is installed, and `then` called, just before the program imports one
    of the `awaited` packages for the first time.

    Returns the exit code that Python would give. After Ctrl-C it is 130, as a shell
    says it, and `options.was_interrupted` is true. An exception has been printed then.
    Raises `OSError` if the program cannot be read.
    """
    if options.cache is not None:
        _use_cache(options.cache)
    name = options.program[0]
    if options.is_module:
        source, folder = b"", os.getcwd()
    else:
        source = Path(name).read_bytes()
        folder = os.path.dirname(os.path.realpath(name))

    def begin() -> None:
        eqx_fastjit.install(asynchronous=options.is_async)
        then()

    # `sys` and `__main__` stay as the program leaves them, because its threads and its
    # `atexit` functions still run afterwards.
    sys.argv[:] = options.program
    if not sys.flags.safe_path:
        sys.path[0] = folder
    try:
        with _before_importing(awaited, begin):
            if options.is_module:
                # It says what is wrong with a name, and restores `__main__` afterwards.
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                main = types.ModuleType("__main__")
                main.__file__ = os.path.abspath(name)
                code = compile(source, main.__file__, "exec", dont_inherit=True)
                sys.modules["__main__"] = main
                exec(code, vars(main))
    except SystemExit as e:
        if isinstance(e.code, int | None):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException as e:
        _print_exception(e)
        options.was_interrupted = isinstance(e, KeyboardInterrupt)
        return 130 if options.was_interrupted else 1
    return 0


def _print_exception(error: BaseException) -> None:
    """Print an exception as Python does, without frames of this library."""
    package = os.path.dirname(eqx_fastjit.__file__) + os.sep
    left_out = (package, runpy.__file__, "<frozen runpy>")

    # The first frame is that of `run`. After it, only those of the program stay linked.
    first: Any = error.__traceback__
    last_kept = first
    traceback = first.tb_next
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(left_out):
            last_kept.tb_next = traceback
            last_kept = traceback
        traceback = traceback.tb_next
    last_kept.tb_next = None

    error.__traceback__ = first.tb_next
    sys.excepthook(type(error), error, first.tb_next)


@contextlib.contextmanager
def _before_importing(
    awaited: Sequence[str], begin: Callable[[], None]
) -> Iterator[None]:
    """Call `begin` just before an awaited package is imported for the first time.

    `begin` can import each of them, because none is half imported.
    """
    import_ = builtins.__import__
    import_module = importlib.import_module
    has_begun = False  # the program may have kept a reference to a replacement

    def restore() -> None:
        builtins.__import__ = import_
        importlib.import_module = import_module

    # A relative name begins with a dot, and is of the importer's own package.
    def look(name: str, importer: str = "") -> None:
        nonlocal has_begun
        package, importing_package = name.split(".")[0], importer.split(".")[0]
        # jaxtyping, which Equinox needs, imports JAX while it is half imported itself.
        is_inside = importing_package in (*PACKAGES, "jaxtyping")
        if not has_begun and not is_inside and package in awaited:
            has_begun = True
            restore()
            begin()

    def importing(
        name: str, globals: Any = None, locals: Any = None, fromlist=(), level=0
    ) -> Any:
        look("." * level + name, (globals or {}).get("__name__") or "")
        return import_(name, globals, locals, fromlist, level)

    def importing_module(name: str, package: str | None = None) -> Any:
        look(name)
        return import_module(name, package)

    builtins.__import__ = importing
    importlib.import_module = importing_module
    try:
        yield
    finally:
        restore()


def _use_cache(directory: str) -> None:
    """Keep everything that is compiled, by default in the user's cache folder.

    JAX reads these variables when it is imported, so they are set before that. What is
    set in the environment wins, and so does what the program sets later.
    """
    # What XLA compiles for one kind of processor may not run on another.
    processor = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        flags = (line for line in lines if line.startswith(("flags", "Features")))
        processor = next(flags, processor)
    digest = hashlib.md5(processor.encode(), usedforsecurity=False).hexdigest()

    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"jax-{version('jaxlib')}-{platform.machine()}-{digest[:8]}"
    folder = directory or os.path.join(base, "eqx_fastjit", name)
    if "://" not in folder:  # of a cloud; a path has to outlast `os.chdir`
        folder = os.path.abspath(folder)
    for variable, value in (
        ("JAX_COMPILATION_CACHE_DIR", folder),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
        ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
    ):
        os.environ.setdefault(variable, value)
