"""Run a program unchanged under equinox.filter_jit and under eqx_fastjit, and compare
how long it takes. For each jitted function, report how long a call takes and how much
time is saved. The program runs once to count calls. Then it runs in at least three
pairs of fresh processes, until one way is significantly faster, or the difference is
below 2%. Its output is discarded, and its input is empty. The exit code is 0, or that
of the program if it fails.
"""

import argparse
import functools as ft
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._common import add_options, as_json, check_output, CommandError, write_output
from ._gain_child import command
from ._script import end_as_interrupted, Program, ProgramParser


_SECONDS, _REPLAY = 300.0, 60.0
_PACKAGE = Path(__file__).parent.parent.parent
# Of what a program wrote before it failed.
_LINES = 20


def declare(parser: ProgramParser) -> None:
    options = {
        "--json FILE": "write the report as JSON",
        "--html FILE": "write the report as a page",
        "--pairs N": "run at most N pairs (default: 27)",
        "--seconds S": "after the first three pairs, stop once S seconds have passed "
        f"(default: {_SECONDS:.0f})",
        "--replay S": "time calls of jitted functions for about S seconds "
        f"(default: {_REPLAY:.0f})",
    }
    add_options(parser, options, seconds=_SECONDS, replay=_REPLAY)
    parser.add_program(trailing=True)


class _Failed(Exception):
    """A run has failed: which, its exit code, and what it wrote to stderr."""


def _seconds(program: Program, out: str, replay: float, how: str) -> float:
    """Run the program once; the wall time. Raises `_Failed`."""
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        run = subprocess.run(
            command(str(_PACKAGE), how, out, replay, program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        seconds = time.perf_counter() - start
        if run.returncode:
            said.seek(0)
            raise _Failed(how, run.returncode, said.read().decode(errors="replace"))
    return seconds


def main(options: argparse.Namespace) -> int:
    _check(options)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "count")
        seconds = ft.partial(_seconds, options.program, out, options.replay)
        try:
            report, interrupted = _compare(options, out, seconds)
        except _Failed as e:
            return _tell(*e.args)
        except KeyboardInterrupt:
            text = "eqx-fastjit gain: interrupted before the first pair of runs"
            print(text, file=sys.stderr)
            sys.stderr.flush()
            end_as_interrupted()
    print(report)
    if options.json is not None:
        write_output("--json", options.json, as_json(report))
    if options.html is not None:
        from eqx_fastjit.insight._gain_page import page

        write_output("--html", options.html, page(report))
    if interrupted:
        sys.stdout.flush()
        end_as_interrupted()
    return 0


def _check(options: argparse.Namespace) -> None:
    pairs = options.pairs
    if pairs is not None and pairs < 1:
        raise CommandError(f"--pairs {pairs}: expected at least 1")
    for name in ("seconds", "replay"):
        if not getattr(options, name) >= 0:
            raise CommandError(f"--{name} {getattr(options, name)}: expected 0 or more")
    for name in ("json", "html"):
        if getattr(options, name) is not None:
            check_output(f"--{name}", getattr(options, name))


def _tell(run: str, code: int, text: str) -> int:
    """Say how the program has failed; returns its exit code."""
    under = "equinox.filter_jit" if run == "equinox" else "eqx_fastjit"
    lines = text.rstrip().splitlines()[-_LINES:]
    print("\n".join(lines), file=sys.stderr)
    how = f"ended with exit code {code}" if code > 0 else f"was killed (signal {-code})"
    print(f"eqx-fastjit: under {under} the program {how}", file=sys.stderr)
    return code if code > 0 else 128 - code


def _compare(
    options: argparse.Namespace, out: str, seconds: Callable[[str], float]
) -> tuple[Any, bool]:
    """The report, and whether Ctrl-C has cut it short."""
    from eqx_fastjit._progress import Progress

    with Progress("eqx-fastjit gain") as progress:
        progress.stage("counting calls")
        took = seconds("count")
        try:
            with open(out, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            raise CommandError(
                "the program ended with `os._exit`, so its calls could not be counted"
            ) from None
        if not found["functions"]:
            raise CommandError(
                "the program called no function under equinox.filter_jit, so there is "
                "nothing to gain"
            )
        if found["caches"]:
            # It has to be filled for Equinox's functions too.
            seconds("equinox")

        def told(n: int) -> None:
            progress.stage(f"pair {n} of runs", 2 * took)

        pairs, interrupted = take_pairs(seconds, told, options.seconds, options.pairs)
    if not pairs:
        raise KeyboardInterrupt
    return _report(options.program, found, pairs), interrupted


def take_pairs(
    seconds: Callable[[str], float],
    told: Callable[[int], None],
    limit: float,
    most: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[tuple[float, float]], bool]:
    """Run the program in pairs until the comparison is conclusive.

    `seconds` runs it under `"equinox"` or `"ours"`, and returns the time; `told` is
    called with the number of each pair before it starts. After `limit` seconds no
    further pair starts, once there are three. At most, there are `most`.

    **Returns:** the times of pairs, Equinox first, and whether Ctrl-C ended it.
    """
    from eqx_fastjit.insight._gain import interval, LOOKS, looks_at, UNKNOWN

    pairs: list[tuple[float, float]] = []
    begun = clock()
    most = LOOKS[-1] if most is None else most
    while len(pairs) < most:
        if len(pairs) >= LOOKS[0] and clock() - begun > limit:
            break
        told(len(pairs) + 1)
        # They take turns, because the speed of the machine may change.
        order = ("equinox", "ours") if len(pairs) % 2 == 0 else ("ours", "equinox")
        try:
            times = {how: seconds(how) for how in order}
        except KeyboardInterrupt:
            return pairs, True
        pairs.append((times["equinox"], times["ours"]))
        if len(pairs) in LOOKS:
            found = interval([b / a for a, b in pairs], looks_at(len(pairs)))
            if found.verdict != UNKNOWN:
                break
    return pairs, False


def _report(program: Program, found: Any, pairs: list[tuple[float, float]]) -> Any:
    from eqx_fastjit.doctor._sites import shorten
    from eqx_fastjit.insight._gain import FunctionGain, Gain, interval, looks_at

    functions: list[FunctionGain] = []
    for f in found["functions"]:
        place = "" if f["file"] is None else f"{shorten(f['file'])}:{f['line']}"
        functions.append(FunctionGain(place=place, **f))
    return Gain(
        program=program.name,
        equinox=tuple([a for a, _ in pairs]),
        ours=tuple([b for _, b in pairs]),
        ratio=interval([b / a for a, b in pairs], looks_at(len(pairs))),
        functions=tuple(functions),
        compiling=found["compiling"],
        engine=found["engine"],
    )
