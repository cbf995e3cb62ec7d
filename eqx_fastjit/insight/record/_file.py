"""The event file: one JSON object a line, written as things happen.

`EQX_FASTJIT_LOG=run.jsonl` writes one. `docs/event-file.md` says what its lines have.
Each compilation is a line with the fields of an `Event`.
"""

import atexit
import dataclasses
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, TextIO

import equinox as eqx
import jax

from eqx_fastjit._facts import Fact, Place
from eqx_fastjit.insight._words import show_place, show_seconds

from ._events import Event, watch
from ._leaves import Leaf
from ._programs import Program
from ._run import Run
from ._why import line_of


VERSION = 5

# Tells child processes that another process has this file: its number, and the path.
_OWNER = "EQX_FASTJIT_LOG_OWNER"


class FileError(Exception):
    """A file that is no event file, or one of another version."""


# --- writing --------------------------------------------------------------------------


class Writer:
    """Writes each event as it is complete, from now on. May raise `OSError`."""

    def __init__(self, path: str):
        # The program may change the directory.
        self._path = Path(path).absolute()
        self._started, self._process = time.time(), os.getpid()
        self._lock = threading.RLock()
        self._file: TextIO | None = None
        self._has_failed = False
        self._rank: dict[str, int] = {}

        own = f"{self._process}:{path}"
        owner = os.environ.get(_OWNER, "")
        if not owner.endswith(f":{path}"):
            os.environ[_OWNER] = owner = own
        # A child process has a file of its own.
        if owner != own:
            self._path = self._path.with_suffix(f".{self._process}{self._path.suffix}")
        # In a job that has begun, another process may have written to it.
        mode = "ab" if jax.distributed.is_initialized() else "wb"
        self._path.open(mode).close()
        watch(self._write_event, starting=self._write_start)
        atexit.register(self._end)

    def _write_event(self, event: Event) -> None:
        self._write("compile", event)

    def _write_start(self, event: Event) -> None:
        names = ("function", "frames", "number", "started", "thread")
        self._write("start", {name: getattr(event, name) for name in names})

    def _write(self, kind: str, fields: Any) -> None:
        """Write a line. A full disk, say, must not end the program."""
        if self._has_failed or os.getpid() != self._process:  # forked
            return
        try:
            with self._lock:  # threads compile
                file = self._file or self._open()
                line = {"type": kind, **as_json(fields), **self._rank}
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()
        except (OSError, ValueError) as e:
            self._has_failed = True
            print(f"eqx_fastjit: {self._path} ends here: {e}", file=sys.stderr)

    def _open(self) -> TextIO:
        # Not before the first trace, when a job of several processes has begun. To ask
        # for a rank otherwise would choose the devices, which a program may still do.
        if jax.distributed.is_initialized():
            self._rank = {"rank": (rank := jax.process_index())}
            if rank:
                self._path = self._path.with_suffix(f".{rank}{self._path.suffix}")
        self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115
        packages = (jax, eqx, sys.modules["eqx_fastjit"])
        header = {
            "version": VERSION,
            "program": " ".join(sys.argv),
            "started": self._started,
            "process": self._process,
            "cache": cache_directory(),
            "packages": {x.__name__: x.__version__ for x in packages},
        }
        self._write("run", header)
        return self._file

    def _end(self) -> None:
        if self._file is not None:
            self._write("end", {"seconds": time.time() - self._started})


def cache_directory() -> str | None:
    """JAX's directory for what was compiled, if it is set."""
    return getattr(jax.config, "jax_compilation_cache_dir", None)


def as_json(x: Any) -> Any:
    """An event, or a report, as `json` takes it."""
    if hasattr(x, "for_json"):
        x = x.for_json()
    elif hasattr(x, "_asdict") and not isinstance(x, Place):
        x = x._asdict()
    elif dataclasses.is_dataclass(x):
        x = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    if isinstance(x, dict):
        return {k: as_json(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return list(map(as_json, x))
    # The dimensions of an array may be symbols.
    return x if isinstance(x, int | float | str | None) else str(x)


def write_json(path: Path, x: Any) -> None:
    """Write a report, say, for other programs."""
    text = json.dumps(as_json(x), indent=2, allow_nan=False)
    path.write_text(f"{text}\n", encoding="utf-8")


# --- reading --------------------------------------------------------------------------


def read(path: str) -> Run:
    """The run that a file has, up to now.

    Raises `FileError` if it is no event file, and `OSError` if it cannot be read.
    """
    notes = ["An event file has no waits: run `doctor SCRIPT` for them."]
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]  # without one that is being written
        if not lines:
            raise FileError(f"{path}: nothing has been compiled so far")

        header, *parsed = map(json.loads, lines)
        if (version := header["version"]) != VERSION:
            reads = f"this eqx_fastjit reads version {VERSION}"
            raise FileError(f"{path}: version {version} of the event file; {reads}")
        started = float(header["started"])

        events = tuple(_event(x) for x in parsed if x["type"] == "compile")
        ends = [float(x["seconds"]) for x in parsed if x["type"] == "end"]
        known = [e.started + e.elapsed - started for e in events]
        known += [x["started"] - started for x in parsed if x["type"] == "start"]

        if not ends:
            killed = "The program has not ended, or it was killed."
            notes = [killed, *_hanging(parsed, started), *notes]
        # (The exit code is not in the file: that of a program that raised counts as 0.)
        seconds, code = (ends[0], 0) if ends else (max(known, default=0.0), None)
        program, cache = header["program"], header["cache"]
        return Run(program, started, seconds, code, cache, events, notes=notes)
    except (LookupError, TypeError, ValueError) as e:
        what = "no event file of eqx_fastjit (EQX_FASTJIT_LOG=FILE)"
        raise FileError(f"{path}: {what}, or a damaged one: {e!r}") from None


def _hanging(lines: list[dict[str, Any]], started: float) -> Iterator[str]:
    """What had begun to compile in each thread, and has not ended."""
    ended = {x["number"] for x in lines if x["type"] == "compile"}
    starts = [x for x in lines if x["type"] == "start" and x["number"] not in ended]
    # The first one of each thread; others are parts of it.
    for line in {x["thread"]: x for x in reversed(starts)}.values():
        event = _event(line)
        at = show_place(line_of(event) or event.function.place)
        after = show_seconds(event.started - started)
        yield (
            f"Compiling `{event.function.name}`, called at {at}, began after {after}, "
            "and has not ended."
        )


def _event(line: dict[str, Any]) -> Event:
    # An event writes the fields of its fact beside its own (`Event.for_json`).
    leaves, program = line.get("signature", ()), line.get("program")
    signature = tuple(_made(Leaf, x) for x in leaves)
    return Event(_made(Fact, line), signature, _made(Program, program))


_hints = functools.cache(get_type_hints)


def _made(kind: Any, x: Any) -> Any:
    """A value of a type, of what `as_json` has made of one.

    Types are `Any`, `tuple[X, ...]`, and a number, a text or a record, or `None`.
    """
    if x is None or kind is Any:
        return x
    if get_origin(kind) is tuple:
        return tuple(_made(get_args(kind)[0], y) for y in x)
    kind, *_ = get_args(kind) or (kind,)  # or `None`
    if isinstance(x, list):  # a place, which is short: file, line and function
        return kind(*x)
    if isinstance(x, int | float):
        return x
    if not isinstance(x, dict):
        return kind(x)
    hints = _hints(kind)
    return kind(**{k: _made(hints[k], y) for k, y in x.items() if k in hints})
