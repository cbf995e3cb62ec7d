"""Runs a program, as `python SCRIPT` or `python -m MODULE` would.

What the program sees is the same: `__main__`, `sys.argv`, `sys.path[0]`, its exit code
and its tracebacks. `equinox.filter_jit` is replaced as soon as Equinox has been
imported, and not before: the program may want to set JAX's environment variables first.
"""

import os
import pkgutil
import runpy
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import eqx_fastjit


# What a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130


class ImportHook:
    """Installs this library once Equinox is imported, and then calls `then`.

    `timed` is called with name and seconds of each outermost import. With it, this
    library is installed once JAX is imported: not all programs have Equinox.
    """

    def __init__(
        self,
        then: Callable[[], None] | None = None,
        timed: Callable[[str, float], None] | None = None,
        *,
        asynchronous: bool = False,
    ):
        self._asynchronous = asynchronous
        self._then = then
        self._timed = timed
        self._is_installed = False
        # Modules that are being imported, the outermost first.
        self._active: list[str] = []
        sys.meta_path.insert(0, self)  # pyright: ignore[reportArgumentType]

    def stop(self) -> None:
        """What is imported from now on is none of the program's."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by Python for each import: have the module's loader call back."""
        if not _concerns(name) and (self._timed is None or self._active):
            return None
        start = time.perf_counter()
        for finder in [f for f in sys.meta_path if f is not self]:
            if (spec := finder.find_spec(name, path, target)) is not None:
                # Those of built-in modules are classes.
                if spec.loader is not None and not isinstance(spec.loader, type):
                    self._wrap(name, spec.loader, start)
                return spec
        return None

    def _wrap(self, name: str, loader: Any, start: float) -> None:
        original = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module  # the class has its own
            self._active.append(name)
            try:
                original(module)
            finally:
                self._active.remove(name)
            if self._timed is not None and not self._active:
                self._timed(name, time.perf_counter() - start)
            if not self._is_installed and _concerns(name):
                self._install()

        loader.exec_module = exec_module

    def _install(self) -> None:
        """Install this library, if all that it needs can be imported."""
        # While Equinox or a module of this library is half imported, it can not.
        if any(name != "jax" and _concerns(name) for name in self._active):
            return
        if ("equinox" if self._timed is None else "jax") in sys.modules:
            self._is_installed = True
            eqx_fastjit.install(asynchronous=self._asynchronous)
            if self._then is not None:
                self._then()


def _concerns(name: str) -> bool:
    return name in ("jax", "equinox") or name.startswith("eqx_fastjit.")


def run_program(program: list[str], is_module: bool) -> int:
    """Run a program in this process, which is the program's from here on.

    `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` stay as the program leaves
    them, because its threads and its `atexit` functions run on afterwards. `program` is
    a script or a module, and its arguments.

    **Returns:** the exit code that Python would give. An exception has been printed
    then, without frames of this library; 130 stands for Ctrl-C.
    """
    name, sys.argv[:] = program[0], program
    file = os.path.join(os.getcwd(), name)
    try:
        if not is_module and pkgutil.get_importer(file) is not None:
            runpy.run_path(name, run_name="__main__")  # a directory, or a zip file
            return 0
        if not sys.flags.safe_path:  # or Python has put no directory there
            folder = os.path.dirname(os.path.realpath(file))
            sys.path[0] = os.getcwd() if is_module else folder
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _run_file(file)
    except SystemExit as e:
        if isinstance(e.code, int | None):
            return int(e.code or 0)
        sys.stdout.flush()
        print(e.code, file=sys.stderr)
        return 1
    except BaseException as e:
        return _report(e)
    return 0


def _run_file(file: str) -> None:
    with open(file, "rb") as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    # `runpy` would put back the `__main__` that was there before.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = file
    exec(code, main.__dict__)


def _report(error: BaseException) -> int:
    """Print an exception as Python does. Returns the exit code."""
    traceback = error.__traceback__
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    sys.excepthook(type(error), error, traceback)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
