"""Runs a program, as `python SCRIPT` or `python -m MODULE` would.

What the program sees is the same: `__main__`, `sys.argv`, `sys.path[0]`, its exit code
and its tracebacks. (Only code that walks the stack to its very bottom finds frames of
ours there.) `equinox.filter_jit` is replaced as soon as Equinox has been imported, and
not before: the program may want to set JAX's environment variables first.

Processes that the program starts are left alone, but for those that it forks.
"""

import argparse
import builtins
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from typing import Any, NamedTuple, NoReturn, TYPE_CHECKING

import eqx_fastjit

from ._common import CommandError


if TYPE_CHECKING:
    from eqx_fastjit.doctor._lock import Recorder
    from eqx_fastjit.doctor._watch import Watch


# What a shell reports for a program that Ctrl-C ended.
_INTERRUPTED = 130


# --- the command line ----------------------------------------------------------------


class Program(NamedTuple):
    """What is to be run: the path of a script, or the name of a module."""

    name: str
    args: tuple[str, ...]
    is_module: bool


class ProgramParser(argparse.ArgumentParser):
    """A parser of `[our options] SCRIPT [ARGS...]` or `[our options] -m MODULE ...`.

    What is not ours it leaves untouched, `--help` and `-m` included. A parser on which
    `add_program` was not called is an ordinary one.
    """

    _takes_program = _trailing = False

    def add_program(self, *, trailing: bool = False) -> None:
        """Have the parser take a program; it will be the option `program`.

        With `trailing`, our options may also stand right after SCRIPT or MODULE.
        """
        self._takes_program, self._trailing = True, trailing
        self.usage = (
            f"{self.prog} [OPTIONS] SCRIPT [ARGS...]\n"
            f"       {self.prog} [OPTIONS] -m MODULE [ARGS...]"
        )
        self.epilog = "Everything after SCRIPT or MODULE is passed to the program." + (
            " Options of this command may also come right after it; `--` ends them."
            if trailing
            else ""
        )

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        if not self._takes_program:
            return super().parse_known_args(args, namespace)
        own, program = self._split(list(sys.argv[1:] if args is None else args))
        namespace, rest = super().parse_known_args(own, namespace)
        if program is None:
            self.error("expected SCRIPT or -m MODULE")
        namespace.program = program
        return namespace, rest

    def _split(self, args: list[str]) -> tuple[list[str], Program | None]:
        """Our own options, and the program with its arguments."""
        own, rest = self._leading(args, also_unknown=True)
        if rest == ["-m"]:
            self.error("argument -m: expected the name of a module")
        is_module = rest[:1] == ["-m"]
        if is_module or rest[:1] == ["--"]:
            rest = rest[1:]
        if not rest:
            return own, None
        name, *rest = rest
        if self._trailing:
            more, rest = self._leading(rest, also_unknown=False)
            own += more
            if rest[:1] == ["--"]:
                rest = rest[1:]
        return own, Program(name, tuple(rest), is_module)

    def _leading(
        self, args: list[str], also_unknown: bool
    ) -> tuple[list[str], list[str]]:
        """The options at the beginning, and the rest.

        With `also_unknown`, what begins with a dash and is no option of ours is taken
        for one (and refused).
        """
        known = {
            name: action.nargs != 0
            for action in self._actions
            for name in action.option_strings
        }
        i = 0
        while i < len(args):
            arg = args[i]
            name, has_value, _ = arg.partition("=")
            if arg in ("-", "--", "-m") or not arg.startswith("-"):
                break
            if name not in known and not also_unknown:
                break
            i += 2 if known.get(name) and not has_value else 1
        return args[:i], args[i:]


# --- the import hook -----------------------------------------------------------------


class _Hook:
    """A meta path finder that calls back, once, after a module has been imported."""

    def __init__(self, module: str, then: Callable[[], None], around: tuple[str, ...]):
        self.module, self.then, self.around = module, then, around
        self.depth = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module and not name.startswith(self.around):
            return None
        for finder in [f for f in sys.meta_path if f is not self]:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(self, spec.loader)
                return spec
        return None

    def loaded(self) -> None:
        if self.depth == 0 and self.module in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
            self.then()


class _Loader:
    """Executes a module with its own loader, and tells the hook."""

    def __init__(self, hook: _Hook, loader: Any):
        self._hook, self._loader = hook, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._hook.depth += 1
        try:
            self._loader.exec_module(module)
        finally:
            self._hook.depth -= 1
        self._hook.loaded()

    # Python leaves frames of its import machinery out of tracebacks, going by the file
    # name. This function is such machinery, and the traceback is the program's.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap_external>"
    )


def when_imported(
    module: str, then: Callable[[], None], around: tuple[str, ...] = ()
) -> None:
    """Call `then` once the program has imported a module; at once if it has.

    Modules whose names begin with one of `around` may be what imports it. The outermost
    import counts.
    """
    hook = _Hook(module, then, around)
    sys.meta_path.insert(0, hook)  # pyright: ignore[reportArgumentType]
    hook.loaded()


def install_on_import(
    then: Callable[[], None] = lambda: None, *, asynchronous: bool = False
) -> None:
    """Call `eqx_fastjit.install()`, and `then`, once Equinox has been imported."""

    def install() -> None:
        eqx_fastjit.install(asynchronous=asynchronous)
        then()

    # Where the program imports a module of ours, and that one Equinox, ours is complete
    # only after Equinox.
    when_imported("equinox", install, around=("eqx_fastjit.",))


# --- running -------------------------------------------------------------------------


def check_program(name: str, is_module: bool) -> None:
    """Raise `CommandError` if there is no such script.

    A module is looked for by Python itself, which says so if there is none.
    """
    if is_module:
        return
    if not os.path.exists(name):
        raise CommandError(f"cannot open {name!r}: no such file")
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "__main__.py")):
            raise CommandError(f"cannot run {name!r}: a directory with no __main__.py")
    elif not os.access(name, os.R_OK):
        raise CommandError(f"cannot open {name!r}: permission denied")


def run_script(path_or_module: str, args: Sequence[str], is_module: bool) -> int:
    """Run a program in this process, which is the program's from here on.

    `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` stay as the program leaves
    them, because its threads and its `atexit` functions run on afterwards.

    A path is that of a script, or of a directory or zip file with a `__main__.py`.

    **Returns:** the exit code that Python would give. An exception has been printed
    then, by `sys.excepthook` and without frames of ours; 130 stands for Ctrl-C.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update({"__annotations__": {}, "__builtins__": builtins})
    # The old one stays alive: code that runs after the program may be defined there.
    main_before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    sys.argv[:] = ["-m" if is_module else path_or_module, *args]
    # Not `os.path.abspath`, which would normalise the user's spelling.
    filename = os.path.join(os.getcwd(), path_or_module)
    try:
        if is_module:
            _set_first_path(os.getcwd())
            _run_module(path_or_module, alter_argv=True)
        elif pkgutil.get_importer(filename) is not None:
            # As Python does, even with -P.
            _set_first_path(filename, always=True)
            _run_module("__main__", alter_argv=False)
        else:
            _set_first_path(os.path.dirname(os.path.realpath(filename)))
            _run_file(main, filename)
    except SystemExit as e:
        return _exit_code(e)
    except BaseException as e:
        return _report(e)
    finally:
        _kept.append(main_before)
    return 0


_kept: list[types.ModuleType] = []


def run_watched(
    program: Program, watch: "Watch | Recorder", *, asynchronous: bool = False
) -> int:
    """Run a program as python does, watched; returns its exit code."""
    watch.begin()
    when_imported("jax", watch.jax_imported)
    install_on_import(watch.equinox_imported, asynchronous=asynchronous)
    try:
        return run_script(*program)
    finally:
        watch.stop()
        flush()


def flush() -> None:
    """Flush the program's output, so that it appears before ours."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed by the program
            pass


def _set_first_path(path: str, always: bool = False) -> None:
    """Put `path` where Python has put the directory of our own command."""
    if not sys.flags.safe_path:
        sys.path[0] = path
    elif always:
        sys.path.insert(0, path)


def _run_module(name: str, alter_argv: bool) -> None:
    # What the interpreter itself calls for `python -m`. The public `run_module` makes a
    # module of its own, which pickle and multiprocessing do not know as `__main__`.
    run: Any = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]
    run(name, alter_argv)


def _run_file(main: types.ModuleType, filename: str) -> None:
    if filename.endswith(".pyc"):
        loader: Any = SourcelessFileLoader("__main__", filename)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", filename)
        with open(filename, "rb") as file:
            source = file.read()
        code = compile(source, filename, "exec", dont_inherit=True)
    main.__dict__.update(
        {"__loader__": loader, "__file__": filename, "__cached__": None}
    )
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
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, traceback)
    except SystemExit as e:
        return _exit_code(e)
    except BaseException as failure:
        inner = failure.__traceback__
        failure.__traceback__ = None if inner is None else inner.tb_next
        failure.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, traceback)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def was_interrupted(code: int) -> bool:
    """Whether it was Ctrl-C that made `run_script` return `code`."""
    last = getattr(sys, "last_type", None)
    interrupted = isinstance(last, type) and issubclass(last, KeyboardInterrupt)
    return interrupted and code == _INTERRUPTED


def end_as_interrupted() -> NoReturn:
    """End this process as Python ends one after Ctrl-C, killed by its own signal.

    A shell that waits for it can tell then, and stops a loop, say.
    """
    sys.excepthook = lambda *_: None  # it has been reported
    raise KeyboardInterrupt
