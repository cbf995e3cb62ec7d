"""`eqx-fastjit profile`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ._common import check_output, CommandError, need
from ._script import (
    check_program,
    end_as_interrupted,
    install_on_import,
    run_script,
    was_interrupted,
)


# Functions that are watched; a program that makes a new one in each step stops there.
_MAX_WATCHED = 256


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Declare the subcommand and its arguments."""
    parser = commands.add_parser(
        "profile",
        help="run a program, then profile the jitted functions that it called most",
        description="Run a program with eqx_fastjit.filter_jit in place of "
        "equinox.filter_jit. Then profile the jitted functions that it called most, "
        "with the arguments of their last call: under eqx_fastjit.filter_jit, "
        "equinox.filter_jit and jax.jit.",
    )
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page")
    parser.add_argument(
        "--calls",
        type=int,
        default=2000,
        metavar="N",
        help="calls of each function (default: 2000)",
    )
    parser.add_argument(
        "--functions",
        type=int,
        default=1,
        metavar="N",
        help="how many functions (default: 1)",
    )
    parser.add_program(trailing=True)
    return parser


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; returns the program's exit code."""
    need("pyinstrument", "profile")
    for name in ("calls", "functions"):
        if getattr(options, name) < 1:
            raise CommandError(
                f"--{name} {getattr(options, name)}: expected at least 1"
            )
    name, args, is_module = options.program
    check_program(name, is_module)
    html = None
    if options.html is not None:
        check_output("--html", options.html)
        html = Path(options.html).absolute()  # the program may change the directory
    watched = _Watched()
    install_on_import(then=watched.begin)
    code = run_script(name, args, is_module)
    sys.stdout.flush()
    if was_interrupted(code):
        print(watched.counts())
        end_as_interrupted()
    watched.report(options.functions, options.calls, html)
    return code


class _Watched:
    """Jitted functions, how often they were called, and with what the last time."""

    def __init__(self) -> None:
        # By what is traced, since a function may be wrapped more than once.
        self.calls: dict[Any, list[Any]] = {}

    def begin(self) -> None:
        """Called once our `filter_jit` is in Equinox's place: watch what it makes."""
        import functools

        from eqx_fastjit import _install, _jit

        ours = _jit.filter_jit

        @functools.wraps(ours)
        def filter_jit(*args: Any, **kwargs: Any) -> Any:
            made = ours(*args, **kwargs)
            if isinstance(made, _jit.JitWrapped):
                return self.watch(made)
            return lambda fun: filter_jit(fun, **kwargs)

        _install._replace(ours, filter_jit)

    def watch(self, wrapped: Any) -> Any:
        front, key = wrapped.__call__, wrapped._function

        def counted(*args: Any, **kwargs: Any) -> Any:
            seen = self.calls.get(key)
            if seen is not None or len(self.calls) < _MAX_WATCHED:
                n = 1 if seen is None else seen[0] + 1
                self.calls[key] = [n, wrapped, args, kwargs]
            return front(*args, **kwargs)

        object.__setattr__(wrapped, "__call__", counted)
        return wrapped

    def ranked(self) -> list[list[Any]]:
        return sorted(self.calls.values(), key=lambda seen: -seen[0])

    def counts(self) -> str:
        lines = [f"  {n:>8}  {w._function.qualname}" for n, w, *_ in self.ranked()]
        return "\n".join(["Calls of jitted functions so far:", *(lines or ["  none"])])

    def report(self, functions: int, n: int, html: Path | None) -> None:
        """Profile the functions that were called most, and print that."""
        if not self.calls:
            print("eqx-fastjit: the program called no function of equinox.filter_jit")
            return
        from eqx_fastjit.insight import profile
        from eqx_fastjit.insight._profile import html_page

        print(self.counts())
        found = []
        for _, wrapped, args, kwargs in self.ranked():
            if len(found) == functions:
                break
            call = _alive((wrapped._fun, args, kwargs))
            if call is None:
                continue  # called inside of another jitted function
            fun, args, kwargs = call
            found.append(profile(fun, *args, n=n, **kwargs))
            print(f"\n{found[-1].full_text()}")
        if html is not None:
            html.write_text(html_page(found), encoding="utf-8")


def _alive(tree: Any) -> Any:
    """The same with zeros for what was donated; `None` if there are tracers in it."""
    import jax
    import jax.numpy as jnp
    from jax.core import Tracer

    if any(isinstance(x, Tracer) for x in jax.tree_util.tree_leaves(tree)):
        return None

    def again(x: Any) -> Any:
        if isinstance(x, jax.Array) and x.is_deleted():
            return jnp.zeros(x.shape, x.dtype)
        return x

    return jax.tree_util.tree_map(again, tree)
