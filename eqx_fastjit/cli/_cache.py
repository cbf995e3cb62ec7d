"""`--cache`: JAX's persistent cache, for a program that does not set it itself.

JAX reads these variables when it is imported, so they are set before that.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


# Of the commands: the options that take a value.
_WITH_VALUE = ("--json", "--html", "--fail-on")


def use_cache(directory: str) -> None:
    """Keep everything that is compiled, by default in the user's cache folder.

    What is set in the environment wins, and so does what the program sets later.
    """
    for name, value in (
        ("JAX_COMPILATION_CACHE_DIR", directory or str(_folder())),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
        ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
    ):
        os.environ.setdefault(name, value)


def _folder() -> Path:
    """A folder for this version of JAX and this kind of processor.

    What XLA compiles for one kind may not run on another.
    """
    caches = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}
    base = os.environ.get("XDG_CACHE_HOME") or caches.get(sys.platform, "~/.cache")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = [x for x in lines if x.startswith(("model name", "flags", "Features"))]
    except OSError:
        kind = [platform.processor()]
    digest = hashlib.md5("".join(kind[:2]).encode(), usedforsecurity=False).hexdigest()
    name = f"jax-{version('jaxlib')}-{platform.machine()}-{digest[:8]}"
    return Path(base).expanduser() / "eqx_fastjit" / name


def with_directory(argv: Sequence[str]) -> list[str]:
    """Arguments in which `--cache` and what may be its directory are one.

    A file is none: `--cache train.py` is the default directory, and a program.
    """
    out = list(argv)
    i = 1
    while i < len(out) and out[i].startswith("-"):
        if out[i] == "--cache":
            following = out[i + 1 : i + 2]
            is_directory = len(out) > i + 2 and not following[0].startswith("-")
            if is_directory and not os.path.isfile(following[0]):
                return [*out[:i], f"--cache={following[0]}", *out[i + 2 :]]
            out[i] = "--cache="
            return out
        i += 2 if out[i] in _WITH_VALUE else 1
    return out
