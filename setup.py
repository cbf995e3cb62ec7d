"""Builds the C extension. Everything else about the package is in pyproject.toml.

Where the extension cannot be built, the package is installed without it: calls then
take the plain Python reference, and `eqx_fastjit.engine()` says so. A wheel that is
published must have it: `EQX_FASTJIT_REQUIRE_NATIVE=1` in the environment makes failure
an error.
"""

import atexit
import gzip
import os
import shutil
import sys
import tarfile
import tempfile
import textwrap
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist


_SOURCES = Path("eqx_fastjit/csrc")
NATIVE = Extension(
    "eqx_fastjit._native",
    sorted(path.as_posix() for path in _SOURCES.glob("*.c")),
    depends=sorted(path.as_posix() for path in _SOURCES.glob("*.h")),
)

_REQUIRED = os.environ.get("EQX_FASTJIT_REQUIRE_NATIVE", "0") not in ("", "0")
_NOT_BUILT = (
    "eqx_fastjit: the C extension was not built ({reason}): installed with the Python "
    "engine only, which is not made for speed. The extension needs a C compiler and "
    "Python's headers."
)


class BuildExt(build_ext):
    """Builds the extension if it can be built."""

    def build_extensions(self) -> None:
        NATIVE.extra_compile_args = self._flags()
        super().build_extensions()

    def run(self) -> None:
        in_checkout = self.inplace
        try:
            super().run()
        # Each platform and kind of compiler has exceptions of its own for this.
        except Exception as error:
            if _REQUIRED:
                raise
            if in_checkout:
                # An earlier editable install may have left one that was built from
                # other sources.
                self.inplace = True
                Path(self.get_ext_fullpath(NATIVE.name)).unlink(missing_ok=True)
            reason = textwrap.shorten(str(error), 72, placeholder="...")
            print(_NOT_BUILT.format(reason=reason), file=sys.stderr)

    def _flags(self) -> list[str]:
        if self.compiler.compiler_type == "msvc":
            return ["/std:c11"]
        flags = ["-std=c11", "-fvisibility=hidden"]
        # These come after $CFLAGS, and would override them.
        if "CFLAGS" not in os.environ:
            # Debugging information names the folder of the build: never the same twice.
            flags += ["-O3", "-g0"]
        return flags


class Sdist(sdist):
    """The source archive: what git has, and the same bytes for the same files."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        # Written by setuptools; no build needs them.
        os.remove(os.path.join(base_dir, "setup.cfg"))
        shutil.rmtree(os.path.join(base_dir, "eqx_fastjit.egg-info"))

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if format != "gztar" or epoch is None:
            return super().make_archive(
                base_name, format, root_dir=root_dir, base_dir=base_dir, **owner
            )
        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            # `add` sorts what is in a folder.
            archive.add(base_dir, filter=lambda entry: _plain(entry, int(epoch)))
        return name


def _plain(entry: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    """Without what differs from one checkout to another."""
    executable = entry.isdir() or entry.mode & 0o100
    return entry.replace(
        mtime=epoch,
        mode=0o755 if executable else 0o644,
        uid=0,
        gid=0,
        uname="",
        gname="",
        deep=False,
    )


# Not build/ beside this file: what an earlier version of the package has left in it
# would be packed as well.
_build = tempfile.mkdtemp(prefix="eqx_fastjit-build-")
atexit.register(shutil.rmtree, _build, ignore_errors=True)

setup(
    ext_modules=[NATIVE],
    cmdclass={"build_ext": BuildExt, "sdist": Sdist},
    options={"build": {"build_base": _build}},
)
