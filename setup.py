"""Builds the C extension, and says where the project is. All else is in pyproject.toml.

Where the extension cannot be built, the package is installed without it: calls then
take the plain Python reference, and `eqx_fastjit.engine()` says so. A wheel that is
published must have it: `EQX_FASTJIT_REQUIRE_NATIVE=1` in the environment makes failure
an error.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


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


def repository() -> str | None:
    """Where this checkout came from, as a page; `None` if nobody says."""
    server, name = map(os.environ.get, ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"))
    if server and name:
        return f"{server}/{name}"
    command = ["git", "remote", "get-url", "origin"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    url = out.stdout.strip().removesuffix(".git")
    url = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", url)
    return url if url.startswith("https://") else None


def readme(url: str | None) -> str:
    """The README, for a page on which links to files of the checkout lead nowhere."""
    text = Path("README.md").read_text(encoding="utf-8")
    if url is None:
        return text
    raw = url.replace("https://github.com/", "https://raw.githubusercontent.com/")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{raw}/HEAD/", text)
    text = re.sub(r"((?:src|srcset)=\")(?!https?:)", rf"\1{raw}/HEAD/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{url}/blob/HEAD/", text)


# Not build/ beside this file: what an earlier version of the package has left in it
# would be packed as well.
_build = tempfile.mkdtemp(prefix="eqx_fastjit-build-")
atexit.register(shutil.rmtree, _build, ignore_errors=True)

_url = repository()
_pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/HEAD/CHANGELOG.md"}

setup(
    ext_modules=[NATIVE],
    cmdclass={"build_ext": BuildExt},
    options={"build": {"build_base": _build}},
    long_description=readme(_url),
    long_description_content_type="text/markdown",
    project_urls={k: _url + v for k, v in _pages.items()} if _url else {},
)
