"""`eqx-fastjit bench`."""

import argparse
from typing import Any

from ._common import CommandError, need


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Declare the subcommand and its arguments."""
    parser = commands.add_parser(
        "bench", help="time jax.jit, equinox.filter_jit and eqx_fastjit side by side"
    )
    parser.add_argument(
        "--cases",
        default="table",
        help="names separated by commas; 'table' (identity and MLPs); or 'all'",
    )
    parser.add_argument("--rounds", type=int, default=25, help="rounds for each case")
    parser.add_argument("--quick", action="store_true", help="five rounds only")
    return parser


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    need("rich", "bench")
    from eqx_fastjit.bench import case_names
    from eqx_fastjit.bench._table import run

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
            raise CommandError(f"no case {name!r}; there are: {', '.join(names)}")
    if options.rounds < 1:
        raise CommandError(f"--rounds {options.rounds}: expected at least 1")
    run(chosen, 5 if options.quick else options.rounds)
    return 0
