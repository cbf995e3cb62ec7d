"""The file format: a JSON header and sections of bytes, each with a checksum.

    8 bytes    b"\x93EQXJIT\n"
    4 bytes    version of the format, little-endian, as all numbers
    4 bytes    size of the header
    32 bytes   SHA-256 of the header
    ...        the header: JSON in UTF-8; its `"sections"` is a list of
               {"name": ..., "size": ..., "sha256": ...}
    ...        the sections, one after the other, in that order, and nothing after them

Nothing here is executed: reading a file calls nothing that the file names.
"""

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Generator, Mapping
from typing import Any


MAGIC = b"\x93EQXJIT\n"
VERSION = 1
_PREFIX = struct.Struct("<8sII32s")
# Several times what a model with 100,000 leaves needs. Parsed, JSON may take twenty
# times its size: at most some 700 MB.
MAX_HEADER = 32 * 2**20


class ExportFileError(ValueError):
    """A file was not written by `save`, is damaged, or needs something unavailable."""


def write(path: Any, header: Mapping[str, Any], sections: Mapping[str, bytes]) -> None:
    """Write a file, either completely or not at all.

    The header is what JSON can hold, and has no `"sections"` yet.
    """
    table = [
        {"name": name, "size": len(x), "sha256": hashlib.sha256(x).hexdigest()}
        for name, x in sections.items()
    ]
    text = json.dumps(
        {**header, "sections": table}, ensure_ascii=True, allow_nan=False
    ).encode()
    if len(text) > MAX_HEADER:
        raise ValueError(
            f"the structure of the arguments takes {len(text)} bytes to describe, and "
            f"at most {MAX_HEADER} are allowed."
        )
    path = os.fspath(path)
    prefix = _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=".eqx-fastjit-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(prefix)
            file.write(text)
            for x in sections.values():
                file.write(x)
        # The permissions that `open` would have given it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Reader:
    """A file with a checked header. Sections are read and checked on access.

    Raises `ExportFileError` for everything that is wrong with it, `OSError` if it
    cannot be read.
    """

    def __init__(self, path: Any):
        self.path = os.fspath(path)
        self.size = os.path.getsize(self.path)
        with open(self.path, "rb") as file:
            prefix = file.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
                raise self.error("it was not written by `Exported.save`")
            _, version, size, checksum = _PREFIX.unpack(prefix)
            if version != VERSION:
                raise self.error(
                    f"its format has version {version}; this eqx_fastjit reads version "
                    f"{VERSION}. Export it again, or install the eqx_fastjit that "
                    "wrote it"
                )
            if size > min(MAX_HEADER, self.size - _PREFIX.size):
                raise self.error("it is truncated or damaged (header)")
            text = file.read(size)
        if hashlib.sha256(text).digest() != checksum:
            raise self.error("it is truncated or damaged (header)")
        self.sections: dict[str, tuple[int, int, str]] = {}
        offset = _PREFIX.size + size
        with self.one_error():
            self.header: dict[str, Any] = json.loads(text)
            for x in self.header.pop("sections"):
                name, n, digest = str(x["name"]), count(x["size"]), str(x["sha256"])
                if name in self.sections:
                    raise ValueError(f"two sections {name!r}")
                self.sections[name] = offset, n, digest
                offset += n
        if offset != self.size:
            raise self.error(
                f"it is truncated or damaged: {offset} bytes expected, {self.size} "
                "found"
            )

    def error(self, reason: str) -> ExportFileError:
        """The one error for a file that cannot be loaded."""
        return ExportFileError(f"{self.path!r} cannot be loaded: {reason}.")

    @contextlib.contextmanager
    def one_error(self) -> Generator[None, None, None]:
        """Whatever is wrong with the file, the error names it."""
        try:
            yield
        except ExportFileError as e:
            if str(e).startswith(repr(self.path)):
                raise
            raise self.error(str(e)) from e.__cause__
        except (
            *(ArithmeticError, AssertionError, AttributeError, LookupError),
            *(MemoryError, RuntimeError, TypeError, ValueError),
        ) as e:  # of Python, NumPy and JAX, for a header that is nonsense
            raise self.error(f"its header is invalid ({e!r})") from e

    def section(self, name: str) -> bytes:
        """The bytes of a section, compared with their checksum."""
        offset, size, checksum = self.sections[name]
        with open(self.path, "rb") as file:
            file.seek(offset)
            out = file.read(size)
        if hashlib.sha256(out).hexdigest() != checksum:
            raise self.error(f"it is damaged (section {name!r})")
        return out


def count(n: Any) -> int:
    """A number of things in a header. Raises `ExportFileError` for anything else."""
    if type(n) is not int or n < 0:
        raise ExportFileError(f"its header is invalid ({n!r} is not a count)")
    return n
