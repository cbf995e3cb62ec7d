"""What `eqx-fastjit export` and `eqx-fastjit show` do."""

import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any

import jax.export

from . import _format
from ._tree import show_line


def export_command(
    function: str,
    args: str,
    output: str,
    *,
    compiled: bool = False,
    platforms: Sequence[str] | None = None,
    vjp_order: int = 0,
) -> None:
    """Export a jitted function, or a jitted method of a Module, to a file.

    **Arguments:**

    - `function`: its name, as `"package.module:name"`.
    - `args`: the name of a function without parameters that returns the arguments: a
        tuple, or a dictionary of keyword arguments.
    - `output`: the path of the file.
    - `compiled`, `platforms`, `vjp_order`: as for `Exported.save`.

    Raises `ImportError` or `AttributeError` if a name is not there, `ValueError` for
    what cannot be exported, and `OSError` if the file cannot be written.
    """
    f, make_arguments = map(pkgutil.resolve_name, (function, args))
    if not hasattr(f, "export"):
        raise ValueError(
            f"{function!r} is no jitted function. Wrap it: `eqx_fastjit.filter_jit(f)`."
        )
    found = make_arguments()
    if not isinstance(found, tuple | dict):
        raise ValueError(
            f"{args!r} returned {type(found).__name__}; expected a tuple of arguments, "
            "or a dictionary of keyword arguments."
        )
    exported = f.export(**found) if isinstance(found, dict) else f.export(*found)
    exported.save(output, compiled=compiled, platforms=platforms, vjp_order=vjp_order)


def show_command(path: str) -> str:
    """Check a file, and say what is in it. It imports nothing that the file names.

    Raises `ValueError` if the file is not one of `save`, or is damaged; or `OSError`.
    """
    with _format.one_error(path):
        return "\n".join(_lines(path, *_format.read(path)))


def _lines(
    path: str, header: dict[str, Any], sections: dict[str, memoryview]
) -> Iterator[str]:
    exported = jax.export.deserialize(bytearray(sections["portable"]))
    yield f"{path}: {header['name']}, made by {header['made_by']}"
    devices = f"{exported.nr_devices} devices"
    yield f"StableHLO for {', '.join(exported.platforms)} ({devices})"
    yield f"differentiable {header['vjp_order']} times, donate={header['donate']!r}"
    if "compiled" in sections:
        yield f"native code for {header['compiled']['environment']}"
    yield ", ".join(f"{name} {len(x):,} bytes" for name, x in sections.items())
    arguments = [line for *_, lines in header["parameters"] for line in lines]
    for title, lines, avals in (
        ("arguments", arguments, exported.in_avals),
        ("result", header["result"], exported.out_avals),
    ):
        yield f"{title}:"
        for path, kind, about, n in lines:
            is_array = kind == "array"
            text = avals[about] if is_array else show_line([path, kind, about, n])
            yield f"    {path}  {text.str_short() if is_array else text}"
