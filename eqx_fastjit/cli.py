"""The command `eqx-fastjit`."""

import argparse
import sys
from collections.abc import Sequence

from . import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    **Arguments:**

    - `argv`: the arguments after the name of the command; those of the process if left
        out.

    **Returns:**

    The exit code: 0, or 2 for arguments that make no sense.
    """
    parser = argparse.ArgumentParser(
        prog="eqx-fastjit",
        description="A drop-in equinox.filter_jit that costs less than jax.jit.",
    )
    parser.add_argument("--version", action="store_true", help="print versions")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    bench = commands.add_parser(
        "bench", help="time jax.jit, equinox.filter_jit and eqx_fastjit side by side"
    )
    bench.add_argument(
        "--cases",
        default="table",
        help="names separated by commas; 'table' (identity and MLPs); or 'all'",
    )
    bench.add_argument("--rounds", type=int, default=25, help="rounds for each case")
    bench.add_argument("--quick", action="store_true", help="five rounds only")
    options = parser.parse_args(argv)
    if options.version:
        from importlib.metadata import version

        print("eqx_fastjit", __version__)
        for name in ("equinox", "jax", "jaxlib", "numpy"):
            print(name, version(name))
        print("python", sys.version.split()[0])
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return _bench(options)


def _fail(message: str) -> int:
    print(f"eqx-fastjit: {message}", file=sys.stderr)
    return 2


def _bench(options: argparse.Namespace) -> int:
    try:
        import rich  # noqa: F401
    except ImportError:
        return _fail("the table needs rich: pip install 'eqx_fastjit[bench]'")
    from .bench import case_names
    from .bench._table import run

    names = case_names()
    if options.cases == "table":
        chosen = [n for n in names if n == "identity" or n.startswith("mlp_")]
        chosen.remove("mlp_100_layers")
    elif options.cases == "all":
        chosen = list(names)
    else:
        chosen = [name.strip() for name in options.cases.split(",")]
    for name in chosen:
        if name not in names:
            return _fail(f"no case {name!r}; there are: {', '.join(names)}")
    if options.rounds < 1:
        return _fail(f"--rounds {options.rounds}: expected at least 1")
    run(chosen, 5 if options.quick else options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
