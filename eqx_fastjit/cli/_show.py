"""`eqx-fastjit show`."""

import argparse
from typing import Any

from ._common import CommandError


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "show",
        help="show the contents of a file written by eqx-fastjit export",
        description="Validate a file written by eqx-fastjit export or Exported.save, "
        "and show its contents. This does not import anything that the file names, or "
        "run any of its code.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--all", action="store_true", help="list all leaves, however many there are"
    )
    return parser


def main(options: argparse.Namespace) -> int:
    from eqx_fastjit._export._show import show

    try:
        print(show(options.file, everything=options.all))
    except OSError as e:
        raise CommandError(f"cannot read {options.file!r}: {e.strerror or e}") from None
    except ValueError as e:
        raise CommandError(str(e)) from None
    return 0
