"""Benchmarks of eqx_fastjit; see README.md."""

import sys
from pathlib import Path


def prefer_installed_package() -> None:
    """Import `eqx_fastjit` from where it is installed, rather than from this checkout.

    `python -m` puts the current folder first, and the source in a checkout has no C
    extension unless it was built in place. This must precede the import.
    """
    root = str(Path(__file__).parent.parent)
    if sys.path[0] in ("", root):
        sys.path.append(sys.path.pop(0))
