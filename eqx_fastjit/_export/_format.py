"""The file format: a JSON header, and sections of bytes.

    8 bytes    b"\\x93EQXJIT\\n"
    4 bytes    version of the format, little-endian, as all numbers
    4 bytes    size of the header
    32 bytes   SHA-256 of all that follows
    ...        the header: JSON in ASCII; its "sections" has the name and size of each
    ...        the sections, one after the other, in that order

Reading a file runs nothing that the file names.
"""

import contextlib
import hashlib
import json
import os
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, IO


MAGIC = b"\x93EQXJIT\n"
VERSION = 2
PREFIX = struct.Struct("<8sII32s")


class ExportFileError(ValueError):
    """A file was not written by `save`, is damaged, or needs something unavailable."""


@contextlib.contextmanager
def replacing(path: Any) -> Iterator[IO[bytes]]:
    """A file to write, which then replaces that at `path`, or leaves it as it was.

    Raises `OSError` before anything else, if its directory cannot be written.
    """
    # Absolute, as an error of `open` shows it.
    temporary = f"{os.fsdecode(os.path.abspath(path))}.{uuid.uuid4().hex}"

    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write(file: IO[bytes], header: Any, sections: Mapping[str, bytes]) -> None:
    """Write a header, which is what JSON can hold, and sections."""
    sizes = {name: len(section) for name, section in sections.items()}
    text = json.dumps({**header, "sections": sizes}).encode("ascii")
    data = b"".join([text, *sections.values()])

    checksum = hashlib.sha256(data).digest()
    file.write(PREFIX.pack(MAGIC, VERSION, len(text), checksum) + data)


def read(path: Any) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """The header and the sections of a file. Raises `ExportFileError` or `OSError`."""
    with open(path, "rb") as file:
        prefix = file.read(PREFIX.size)
        if not prefix.startswith(MAGIC):
            raise ExportFileError("it was not written by `Exported.save`")
        data = memoryview(file.read())

    _, version, header_size, checksum = PREFIX.unpack(prefix)
    if version != VERSION:
        raise ExportFileError(
            f"its format has version {version}; this eqx_fastjit reads version "
            f"{VERSION}. Export it again, or install the eqx_fastjit that wrote it"
        )
    if hashlib.sha256(data).digest() != checksum:
        raise ExportFileError("it is truncated or damaged")

    header = json.loads(bytes(data[:header_size]))
    sections = {}
    end = header_size
    for name, size in header["sections"].items():
        sections[name] = data[end : end + size]
        end += size
    # The checksum does not cover the size of the header, nor need sizes be sensible.
    if end != len(data):
        raise ExportFileError("its sections have other sizes than its header says")
    return header, sections


@contextlib.contextmanager
def one_error(path: Any) -> Iterator[None]:
    """Raise one kind of error, which names the file, for whatever is wrong with it.

    An `OSError` is raised as it is.
    """
    prefix = f"{os.fspath(path)!r} cannot be loaded: "

    try:
        yield
    except ExportFileError as e:
        raise ExportFileError(f"{prefix}{e}.") from e.__cause__
    except OSError:
        raise
    except Exception as e:  # of Python, NumPy, JAX and flatbuffers
        raise ExportFileError(
            f"{prefix}it is damaged, was made by another JAX, or needs what is not "
            f"here ({e!r})."
        ) from e
