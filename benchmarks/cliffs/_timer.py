"""Times programs in a subprocess, since they may crash."""

import contextlib
import faulthandler
import gc
import signal
from multiprocessing.connection import Connection
from typing import Any

from ._limits import Outcome, outcome
from ._programs import from_json, Program, to_json


# Classes, programs and traces are never released, so the process is replaced from time
# to time. Starting one takes as long as two programs.
_PROGRAMS_A_PROCESS = 40
_PROGRAM_SECONDS = 180


def timed(program: Program, rounds: int) -> Outcome:
    """Time a program in this process, with all contenders in turn.

    **Arguments:**

    - `program`: what to time.
    - `rounds`: number of rounds of each contender.
    """
    from ._contenders import contender, difference, NAMES

    by_name = {}
    for name in [name for name in NAMES if name != "ours"]:
        try:
            by_name[name] = contender(program, name)
            # Call with all arguments, so that every contender starts with the same
            # ones.
            for _ in range(by_name[name].turns):
                by_name[name].call()
        except Exception as e:
            return Outcome(refused=f"{name}: {_one_line(e)}")
    try:
        by_name["ours"] = contender(program, "ours")
        fault = difference(program, by_name)
    except Exception as e:
        return Outcome(fault=f"ours: {_one_line(e)}")
    return Outcome(fault=fault) if fault else _of_rounds(by_name, rounds)


def _of_rounds(by_name: dict[str, Any], rounds: int) -> Outcome:
    from eqx_fastjit.bench._timing import Sampler

    samplers = {n: Sampler(c.call, modes=("dispatch",)) for n, c in by_name.items()}
    for sampler in samplers.values():
        sampler.warm()
    times: dict[str, list[float]] = {name: [] for name in samplers}
    order = list(samplers)
    for _ in range(rounds):
        for name in order:
            times[name].append(samplers[name].round()["dispatch"])
        # Rotate, so that no contender is always first or always follows the same one.
        order = order[1:] + order[:1]
    return outcome(times)


def _one_line(e: Exception) -> str:
    lines = str(e).strip().splitlines() or [""]
    return f"{type(e).__name__}: {lines[0]}"


def serve(pipe: Connection, device: str | None) -> None:
    """Time the programs that arrive, until the parent closes the pipe."""
    from eqx_fastjit.bench._worker import _configure

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _configure(device, 1)
    from . import _contenders as _contenders

    # Exclude imported modules from the garbage collections between rounds.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            description, rounds = pipe.recv()
            # If a program hangs, print where, and exit.
            faulthandler.dump_traceback_later(_PROGRAM_SECONDS, exit=True)
            found = timed(from_json(description), rounds)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(("ok", found))


class Timer:
    """Times programs in subprocesses, one after the other.

    **Arguments:**

    - `device`: `"cpu"`, `"gpu"`, or `None` for JAX's default.
    """

    def __init__(self, device: str | None = None):
        self._device = device
        self._process: Any = None
        self._programs = 0

    def __call__(self, program: Program, rounds: int) -> Outcome:
        """Time a program, with the arguments of `timed`. A crash is reported as a
        fault.
        """
        from eqx_fastjit.bench._session import _Process, Refused

        if self._programs == _PROGRAMS_A_PROCESS:
            self.close()
        if self._process is None:
            self._process = _Process(serve, self._device)
        self._programs += 1
        try:
            return self._process.order((to_json(program), rounds))
        except Refused as e:
            self.close()
            return Outcome(fault=str(e))

    def close(self) -> None:
        """End the subprocess, if there is one."""
        if self._process is not None:
            self._process.close()
        self._process, self._programs = None, 0
