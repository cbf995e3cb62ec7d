"""Checks files before they are written."""

import os


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` if a file cannot be written.

    It is opened to be sure, and left as it was: there, or not there.
    """
    existed = os.path.exists(path)
    with open(path, "a"):
        pass
    if not existed:
        os.remove(os.path.realpath(path))  # a link to it stays
