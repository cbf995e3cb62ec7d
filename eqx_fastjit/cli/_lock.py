"""Run a program, and record every signature that its functions under filter_jit are
called with: leaf paths, shapes, dtypes and shortened texts of statics. Functions under
plain jax.jit are not included, nor are calls inside other jitted functions, which are
compiled with those.
"""

import argparse
import collections
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from eqx_fastjit.doctor import _lock as lockfile

from . import _script
from ._common import add_options, check_output, CommandError, write_output


def declare(parser: _script.ProgramParser) -> None:
    output = {"-o --output FILE": "the lock file (default: fastjit.lock)"}
    add_options(parser, output, output="fastjit.lock")
    modes = {
        "--check": "run the program and exit with 1, explaining why, if it uses a "
        "signature that is not in the file",
        "--precompile": "compile every signature in the file into JAX's persistent "
        "compilation cache. This runs the program, because compiling needs its "
        "objects, and ends it once all signatures have been compiled. Until then, its "
        "side effects are real. The exit code is 1 if the program ends before that",
    }
    add_options(parser.add_mutually_exclusive_group(), modes)
    cache = {
        "--cache-dir DIR": "where --precompile keeps compiled programs (default: what "
        "JAX_COMPILATION_CACHE_DIR or the program itself sets). To use them, run the "
        "program (with `eqx-fastjit run`, or with `install()`) with the same setting. "
        "It has to be spelled in the same way, because JAX compares the text",
    }
    add_options(parser, cache)
    parser.add_program(trailing=True)


def main(options: argparse.Namespace) -> int:
    program, output = options.program, options.output
    if options.cache_dir is not None and not options.precompile:
        raise CommandError("--cache-dir: only with --precompile")
    if options.check:
        return _check(program, output)
    if options.precompile:
        return _precompile(program, output, options.cache_dir)
    return _write(program, output)


def _say(text: str) -> None:
    print(f"eqx-fastjit lock: {text}", file=sys.stderr)


def _recorded(program: Any, *hooks: Any) -> tuple[lockfile.Recorder, int]:
    """Run the program; what it is called with, and its exit code."""
    script = os.path.dirname(os.path.realpath(program.name))
    recorder = lockfile.Recorder(os.getcwd() if program.is_module else script, *hooks)
    return recorder, _script.run_watched(program, recorder)


def _load(path: str) -> tuple[Any, set[tuple[str, str]]]:
    """The signatures in a file by function, and the name and key of each."""
    try:
        with open(path, encoding="utf-8") as file:
            locked = lockfile.load(file.read())
    except OSError as e:
        raise CommandError(f"cannot read {path!r}: {e.strerror or e}") from None
    except (lockfile.LockError, UnicodeDecodeError) as e:
        raise CommandError(f"{path!r} is not a lock file: {e}") from None
    key_of = lockfile.key_of
    return locked, {(name, key_of(s)) for name, found in locked.items() for s in found}


def _count(n: int) -> str:
    return f"{n} signature{'s' * (n != 1)}"


def _write(program: Any, output: str) -> int:
    check_output("-o", output)
    # The program may change the directory.
    path = os.path.abspath(output)
    recorder, code = _recorded(program)
    signatures = recorder.signatures()
    n = len(signatures)
    text = f"{_count(len(recorder.seen))} of {n} function{'s' * (n != 1)}"
    if code != 0:
        _say(f"saw {text}; not written, as the program ended with exit code {code}")
        return code
    write_output("-o", path, lockfile.dump(signatures))
    _say(f"wrote {text} to {output}")
    return 0


def _check(program: Any, output: str) -> int:
    locked, known = _load(output)
    recorder, code = _recorded(program)
    new = {key: value for key, value in recorder.seen.items() if key not in known}
    # Of a function that is in the file with no signature, they all read the same.
    texts = collections.Counter(
        "\n".join(lockfile.explain_unknown(name, signature, site, locked))
        for (name, _), (signature, site) in new.items()
    )
    for text, n in texts.items():
        print(text if n == 1 else f"{_count(n)}: {text}", file=sys.stderr)
    unused = len(known - recorder.seen.keys())
    _say(
        f"{_count(len(recorder.seen))} used, {len(new)} not in {output}"
        + (f"; {unused} in it not used" if unused else "")
    )
    return code or int(bool(new))


class _Precompiling:
    """Ticks signatures off as they are compiled; ends the program after the last."""

    def __init__(self, todo: set[tuple[str, str]], advance: Callable[[str], None]):
        self.todo = set(todo)
        self.advance = advance
        self.hits = self.from_cache = self.compiled = 0
        # Of the cache: `None` until something is compiled, empty if there is none.
        self.directory: str | None = None

    def on_jax(self) -> None:
        import jax

        jax.monitoring.register_event_listener(self._on_event)

    def _on_event(self, event: str, **_: Any) -> None:
        from eqx_fastjit import _record

        if event == "/jax/compilation_cache/cache_hits" and _record.is_busy():
            self.hits += 1

    def __call__(self, name: str, signature: Any, trace: Any) -> None:
        import jax

        if trace.compile == 0:
            return  # traced or lowered ahead of time: the rest is to come
        self.directory = getattr(jax.config, "jax_compilation_cache_dir", None) or ""
        if not self.directory:
            raise SystemExit(2)
        hits, self.hits = self.hits, 0
        key = (name, lockfile.key_of(signature))
        if key not in self.todo:
            return
        self.todo.remove(key)
        self.from_cache += bool(hits)
        self.compiled += not hits
        self.advance(name)
        if not self.todo:
            raise SystemExit(0)


def _precompile(program: Any, output: str, cache_dir: str | None) -> int:
    _, todo = _load(output)
    if not todo:
        _say(f"no signatures in {output}")
        return 0
    _set_cache(cache_dir)
    with _progress(len(todo)) as advance:
        precompiling = _Precompiling(todo, advance)
        _, code = _recorded(program, precompiling, precompiling.on_jax)
    if precompiling.directory == "":
        raise CommandError(
            "--precompile: no cache directory; give --cache-dir DIR or set "
            "JAX_COMPILATION_CACHE_DIR"
        )
    _say(
        f"{precompiling.compiled} compiled now, {precompiling.from_cache} in the cache "
        f"before, {len(precompiling.todo)} not reached"
    )
    if precompiling.directory:
        # Its spelling is a part of JAX's key, as the programs of our functions are.
        _say(
            f"run it with JAX_COMPILATION_CACHE_DIR={precompiling.directory} "
            "eqx-fastjit run"
        )
    if code == 0 and precompiling.todo:
        for name in sorted({name for name, _ in precompiling.todo}):
            print(f"not reached: {name}", file=sys.stderr)
        return 1
    return code


def _set_cache(cache_dir: str | None) -> None:
    """Make JAX cache every program, however small. Call this before JAX is imported."""
    if cache_dir is not None:
        try:
            os.makedirs(cache_dir, exist_ok=True)
        except OSError as e:
            raise CommandError(
                f"--cache-dir: cannot make {cache_dir!r}: {e.strerror or e}"
            ) from None
        if not os.access(cache_dir, os.W_OK):
            raise CommandError(f"--cache-dir: cannot write to {cache_dir!r}")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.abspath(cache_dir)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """What is called with the name of each function as it is compiled."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            pass
        else:
            # The program's own output must stay as it is.
            console = Console(stderr=True)
            with Progress(
                console=console, redirect_stdout=False, redirect_stderr=False
            ) as bar:
                task = bar.add_task("Compiling", total=total)
                yield lambda name: bar.update(task, advance=1, description=name)
            return
    done = iter(range(1, total + 1))
    yield lambda name: print(f"[{next(done)}/{total}] {name}", file=sys.stderr)
