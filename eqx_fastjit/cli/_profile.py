"""Run a program with eqx_fastjit.filter_jit in place of equinox.filter_jit. Then call
the jitted functions that it called most again, with the program's arguments, under
eqx_fastjit, Equinox and jax.jit. This times the parts of a call, and samples it with
pyinstrument.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ._common import add_options, check_output, CommandError, need
from ._script import install_on_import, ProgramParser, run_script, was_interrupted


def declare(parser: ProgramParser) -> None:
    options = {
        "--html FILE": "write a self-contained page",
        "--calls N": "calls of each function to sample (default: as many as take half "
        "a second)",
        "--functions N": "how many functions (default: 1)",
    }
    add_options(parser, options, functions=1)
    parser.add_program(trailing=True)


def main(options: argparse.Namespace) -> int:
    need("pyinstrument")
    for name in ("calls", "functions"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise CommandError(f"--{name} {number}: expected at least 1")
    if options.html is not None:
        check_output("--html", options.html)
    # The program may change the directory.
    html = options.html and Path(options.html).absolute()
    watched = _Watched()
    install_on_import(then=watched.begin)
    code = run_script(*options.program)
    sys.stdout.flush()
    if was_interrupted(code):
        print(watched.counts())
    else:
        watched.report(options.functions, options.calls, html)
    return code


class _Watched:
    """What the program calls, and what is told of it."""

    def __init__(self) -> None:
        self.samples: Any = None

    def begin(self) -> None:
        """Called once our `filter_jit` is in Equinox's place."""
        from eqx_fastjit.insight._samples import Samples

        self.samples = Samples()
        self.samples.start()

    def counts(self) -> str:
        """How often each function was called."""
        ranked = [] if self.samples is None else self.samples.ranked()
        lines = [f"  {called.calls:>8}  {called.name}" for called in ranked]
        return "\n".join(["Calls of jitted functions so far:", *(lines or ["  none"])])

    def report(self, functions: int, n: int | None, html: Path | None) -> None:
        """Profile the functions that were called most, and print that."""
        if self.samples is None or not self.samples.called:
            print(
                "eqx-fastjit: the program called no function under equinox.filter_jit"
            )
            return
        from eqx_fastjit.insight import profile
        from eqx_fastjit.insight._profile import html_page
        from eqx_fastjit.insight._samples import alive

        self.samples.stop()
        print(self.counts())
        found: list[Any] = []
        # Some are called under an eager transformation alone.
        signed = [called for called in self.samples.ranked() if called.signatures]
        for called in signed[:functions]:
            fun, args, kwargs = alive(called.ranked()[0])
            try:
                found.append(profile(fun, *args, n=n, **kwargs))
            except Exception as e:  # of the function, which may have ended the program
                print(f"\n{called.name} raised {type(e).__name__} when called again")
            else:
                print(f"\n{found[-1].full_text()}")
        if html is not None:
            html.write_text(html_page(found), encoding="utf-8")
