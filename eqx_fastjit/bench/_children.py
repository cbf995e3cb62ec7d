"""Processes that import this package, and not another one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


_PACKAGE = Path(__file__).parent.parent


def environment() -> dict[str, str]:
    """The environment for a process that is started with `python -c`.

    It would look for this package in the current folder first. In a checkout that is
    the source, which has no C extension unless it was built there: another engine.
    """
    env = dict(os.environ)
    if _PACKAGE.parent != Path.cwd():
        env.setdefault("PYTHONSAFEPATH", "1")
    return env


@contextlib.contextmanager
def in_environment() -> Iterator[None]:
    """Start processes of `multiprocessing` in that environment.

    They get our `sys.path`, but only after the fork server has imported what it
    preloads.
    """
    added = environment().items() - os.environ.items()
    os.environ.update(added)
    try:
        yield
    finally:
        for name, _ in added:
            del os.environ[name]
