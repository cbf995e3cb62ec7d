"""Runs a program, as `python SCRIPT` or `python -m MODULE` would.

What the program sees is the same: `__main__`, `sys.argv`, `sys.path[0]`, its exit code
and its tracebacks. `equinox.filter_jit` is replaced as soon as Equinox has been
imported, and not before: the program may want to set JAX's environment variables first.
"""

import builtins
import os
import pkgutil
import runpy
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import eqx_fastjit


# What a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130


class Program(NamedTuple):
    """What is to be run: the path of a script, or the name of a module."""

    name: str
    args: tuple[str, ...]
    is_module: bool


def why_not(program: Program) -> str | None:
    """Why a program cannot be run; of modules, Python itself says so."""
    name = program.name
    if program.is_module:
        return None
    if not os.path.exists(name):
        return f"cannot open {name!r}: no such file"
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "__main__.py")):
        return f"cannot run {name!r}: a directory with no __main__.py"
    return None if os.access(name, os.R_OK) else f"cannot open {name!r}: not readable"


# --- imports --------------------------------------------------------------------------


class _InThread(threading.local):
    """Modules that are being imported, the outermost first."""

    def __init__(self) -> None:
        self.active: list[str] = []


class ImportHook:
    """Has this library installed once Equinox is imported, and times imports.

    **Arguments:**

    - `then`: called once after `eqx_fastjit.install()`.
    - `timed`: called with name and seconds of each outermost import. With it, Equinox
        is imported by the hook once JAX is, so that programs without Equinox are seen.
    - `asynchronous`: as for `eqx_fastjit.install`.
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
        self._here = _InThread()
        self._is_ready = False

    def start(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)  # pyright: ignore[reportArgumentType]

    def stop(self) -> None:
        """What is imported from now on is none of the program's."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by Python for each import: have the module's loader call back."""
        is_outermost = self._timed is not None and not self._here.active
        if not (_concerns(name) or is_outermost):
            return None
        start = time.perf_counter()
        for finder in [f for f in sys.meta_path if f is not self]:
            if (spec := finder.find_spec(name, path, target)) is not None:
                self._wrap(name, spec.loader, start)
                return spec
        return None

    def _wrap(self, name: str, loader: Any, start: float) -> None:
        if loader is None or isinstance(loader, type):  # of modules in C
            return
        original = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module  # the class has its own
            self._here.active.append(name)
            try:
                original(module)
            finally:
                self._here.active.pop()
            self._imported(name, time.perf_counter() - start)

        loader.exec_module = exec_module

    def _imported(self, name: str, seconds: float) -> None:
        if self._timed is not None and not self._here.active:
            self._timed(name, seconds)
        if self._is_ready or not _concerns(name) or any(map(_concerns, self._ours())):
            return
        if "equinox" in sys.modules or (self._timed is not None and name == "jax"):
            self._is_ready = True
            eqx_fastjit.install(asynchronous=self._asynchronous)
            if self._then is not None:
                self._then()

    def _ours(self) -> list[str]:
        """What is half imported, and must be whole before this library is used."""
        return [name for name in self._here.active if name != "jax"]


def _concerns(name: str) -> bool:
    return name in ("jax", "equinox") or name.startswith("eqx_fastjit.")


# --- running --------------------------------------------------------------------------


def run_program(program: Program) -> int:
    """Run a program in this process, which is the program's from here on.

    `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` stay as the program leaves
    them, because its threads and its `atexit` functions run on afterwards.

    **Returns:** the exit code that Python would give. An exception has been printed
    then, without frames of this library; 130 stands for Ctrl-C.
    """
    name, args, is_module = program
    sys.argv[:] = [name, *args]
    filename = os.path.join(os.getcwd(), name)
    try:
        if is_module:
            _set_first_path(os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif pkgutil.get_importer(filename) is not None:  # a directory, or a zip file
            runpy.run_path(name, run_name="__main__")
        else:
            _set_first_path(os.path.dirname(os.path.realpath(filename)))
            _run_file(filename)
    except SystemExit as e:
        return _exit_code(e)
    except BaseException as e:
        return _report(e)
    return 0


def _set_first_path(path: str) -> None:
    """Put `path` where Python has put the directory of this command."""
    if not sys.flags.safe_path:
        sys.path[0] = path


# The command's own `__main__` stays alive: code may run after the program.
_kept: list[types.ModuleType] = []


def _run_file(filename: str) -> None:
    with open(filename, "rb") as file:
        code = compile(file.read(), filename, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __annotations__={}, __builtins__=builtins, __file__=filename, __cached__=None
    )
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if isinstance(code, int | None):
        return int(code or 0)
    sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """Print an exception as Python does. Returns the exit code."""
    traceback = error.__traceback__
    # runpy's own frames are named "<frozen runpy>".
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    sys.excepthook(type(error), error, traceback)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _is_ours(file: str) -> bool:
    return file == __file__ or file.endswith("runpy>")


def end_as_interrupted() -> NoReturn:
    """End this process as Python ends one after Ctrl-C, killed by its own signal.

    A shell that waits for it can tell then, and stops a loop, say.
    """
    sys.excepthook = lambda *_: None  # it has been reported
    raise KeyboardInterrupt


def split(args: Sequence[str], with_values: set[str]) -> tuple[list[str], list[str]]:
    """Options of the command, and the program with what follows it.

    **Arguments:**

    - `args`: what follows the name of the command.
    - `with_values`: the options that are given something.
    """
    i = 0
    while i < len(args):
        arg = args[i]
        if arg == "--":
            return list(args[:i]), list(args[i + 1 :])
        if arg in ("-", "-m") or not arg.startswith("-"):
            break
        i += 2 if arg in with_values else 1
    return list(args[:i]), list(args[i:])
