"""Validate a file written by eqx-fastjit export or Exported.save, and show its
contents. This does not import anything that the file names, or run any of its code.
"""

import argparse

from ._common import add_options, CommandError


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_options(parser, {"--all": "list all leaves, however many there are"})


def main(options: argparse.Namespace) -> int:
    from eqx_fastjit._export._show import show

    try:
        print(show(options.file, everything=options.all))
    except OSError as e:
        raise CommandError(f"cannot read {options.file!r}: {e.strerror or e}") from None
    except ValueError as e:
        raise CommandError(str(e)) from None
    return 0
