"""One contender of one case, in a process of its own.

The parent asks the workers of a case in turn, so that only one runs at a time while the
others wait. Messages are pairs: `("ok", value)` or `("error", message)`.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

import eqx_fastjit

from ._case import Case
from ._timing import output_arrays, Sampler


_PACKAGE = Path(__file__).parent.parent


def environment() -> dict[str, str]:
    """The environment for a process that is started with `python -c`.

    It would look for this package in the current folder first. In a checkout that is
    the source, which has no C extension unless it was built there: another engine.
    """
    env = dict(os.environ)
    if _PACKAGE.parent != Path.cwd():
        env.setdefault("PYTHONSAFEPATH", "1")
    return env


@contextlib.contextmanager
def in_environment() -> Iterator[None]:
    """Start processes of `multiprocessing` in that environment.

    They get our `sys.path`, but only after the fork server has imported what it
    preloads.
    """
    added = environment().items() - os.environ.items()
    os.environ.update(added)
    try:
        yield
    finally:
        for name, _ in added:
            del os.environ[name]


def _configure(device: str | None, cpu_devices: int) -> None:
    """Choose the platform, before JAX looks for one.

    In the environment too, for the processes that some cases start.
    """
    # Several processes share the GPU.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # A cache on disk would be shared by the contenders.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    jax.config.update("jax_enable_compilation_cache", False)
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
    if cpu_devices > 1:
        jax.config.update("jax_num_cpu_devices", cpu_devices)


def probe(pipe: Connection, device: str | None) -> None:
    """Send what device JAX uses here."""
    with _errors_sent(pipe):
        _configure(device, 1)
        found = jax.devices()[0]
        description = {
            "device": found.platform,
            "device_kind": found.device_kind,
            "engine": eqx_fastjit.engine(),
        }
        _tell(pipe, "ok", description)


def serve(pipe: Connection, case: Case, contender: str, device: str | None) -> None:
    """Build the contender, send its output, then do as told.

    Told `"warm"`, it gets ready to be timed; told `"round"`, it sends the times of one.
    It ends when the parent closes the pipe.
    """
    with _errors_sent(pipe):
        _configure(device, case.cpu_devices)
        call = case.make(contender)
        _tell(pipe, "ok", output_arrays(call))
        sampler = Sampler(call, case.steps, case.times_itself)
        while True:
            order = pipe.recv()
            _tell(pipe, "ok", sampler.warm() if order == "warm" else sampler.round())


@contextlib.contextmanager
def _errors_sent(pipe: Connection) -> Iterator[None]:
    # Ctrl-C reaches the whole process group; the parent decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    except Exception as e:  # `EOFError` as well: then nobody listens
        first, *_ = str(e).strip().splitlines() or [""]
        _tell(pipe, "error", f"{type(e).__name__}: {first}")


def _tell(pipe: Connection, status: str, value: Any) -> None:
    """Send, or end this process if nobody listens: the parent was interrupted."""
    try:
        pipe.send((status, value))
    except OSError:
        raise SystemExit from None
