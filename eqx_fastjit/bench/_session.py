"""Running cases: a fresh process for each contender, interleaved rounds."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from eqx_fastjit._signals import held

from ._case import Case
from ._timing import same_arrays
from ._worker import in_environment, probe, serve


class Refused(Exception):
    """A case that is not timed, and why."""


def _context() -> Any:
    """How processes start.

    Where there is a fork server, it imports JAX once, and every process begins as a
    copy of it: fresh, for nothing has run in the server, and quick.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eqx_fastjit.bench._worker", "eqx_fastjit.bench"])
    return context


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, not even before they can ignore it.

    They inherit the signal mask, by way of the fork server. Here, an interrupt takes
    effect afterwards: a process that is not told what to do ends with a traceback. (The
    mask alone does not see to that, because another thread may get the signal.)
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    with held([signal.SIGINT]):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Process:
    """A worker, and our end of its pipe."""

    def __init__(self, target: Callable[..., None], *args: Any):
        context = _context()
        self._pipe, theirs = context.Pipe()
        args = (theirs, *args)
        self._process = context.Process(target=target, args=args, daemon=True)
        with _interrupts_held(), in_environment():
            self._process.start()
        theirs.close()

    def order(self, order: str) -> Any:
        with contextlib.suppress(OSError):  # a dead one's last words are still to read
            self._pipe.send(order)
        return self.answer()

    def answer(self) -> Any:
        try:
            status, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            raise Refused(f"its process ended with code {code}") from None
        if status == "error":
            raise Refused(value)
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def describe_device(device: str | None) -> dict[str, str]:
    """The `device` (the platform), `device_kind` and `engine` of a fresh process.

    It uses the device `"cpu"` or `"gpu"`, or with `None` what JAX chooses. Raises
    `Refused`.
    """
    with contextlib.closing(_Process(probe, device)) as process:
        return process.answer()


def _prove_equal(
    case: Case, outputs: dict[str, list[np.ndarray]], proved: dict[str, Any]
) -> None:
    """Compare each contender with the first, and that with equal cases before it."""
    what = case.computes or case.name
    first, expected = proved.setdefault(what, next(iter(outputs.items())))
    for name, got in outputs.items():
        if not same_arrays(expected, got):
            raise Refused(f"{name} and {first} return different results")


def run_case(
    case: Case,
    contenders: tuple[str, ...],
    device: str | None,
    rounds: int,
    times: dict[str, dict[str, list[float]]],
    proved: dict[str, Any],
    advance: Callable[[int], None],
) -> None:
    """Time a case.

    `times` is filled in round by round, by mode and contender, so that those done stay
    when a later one is interrupted. Outputs are added to `proved`, by what they are.
    `advance` is called with 1 after each round, and with as much as all rounds after
    each contender built. Raises `Refused` if one cannot be built, or returns other
    results.
    """
    with contextlib.ExitStack() as stack:
        workers: dict[str, _Process] = {}

        def answer(name: str, order: str | None = None) -> Any:
            worker = workers[name]
            try:
                return worker.answer() if order is None else worker.order(order)
            except Refused as e:
                raise Refused(f"{name}: {e}") from None

        for name in contenders:
            worker = contextlib.closing(_Process(serve, case, name, device))
            workers[name] = stack.enter_context(worker)
        outputs = {}
        for name in workers:
            outputs[name] = answer(name)
            advance(rounds)
        _prove_equal(case, outputs, proved)
        for name in workers:
            answer(name, "warm")
        order = list(workers)
        for _ in range(rounds):
            done = {name: answer(name, "round") for name in order}
            for mode in case.modes:
                for name in contenders:
                    by_contender = times.setdefault(mode, {})
                    by_contender.setdefault(name, []).append(done[name][mode])
            # No contender is always first, or always after the same rival.
            order = order[1:] + order[:1]
            advance(1)
