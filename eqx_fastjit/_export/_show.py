"""A file in words, for `eqx-fastjit show`. Nothing that it names is imported."""

from typing import Any

import jax.export

from . import _format
from ._tree import show_line


# Models have too many leaves to read.
_MAX_LINES = 50


def show(path: Any, *, everything: bool = False) -> str:
    """The contents of a file that `Exported.save` wrote, as text.

    With `everything`, every part is listed, however many there are. Raises `ValueError`
    if it is not such a file, or is damaged; or `OSError`.
    """
    with _format.one_error(path):
        header, sections = _format.read(path)
        exported = jax.export.deserialize(bytearray(sections["portable"]))
        n = exported.nr_devices
        devices = "1 device" if n == 1 else f"{n} devices"
        out = [
            f"{path}: {header['name']}, made by {header['made_by']}",
            f"StableHLO for {', '.join(exported.platforms)} ({devices})",
            f"differentiable {header['vjp_order']} times, donate={header['donate']!r}",
        ]
        if "compiled" in sections:
            out.append(f"native code for {header['made_for']}")
        out.append(", ".join(f"{x} {len(y):,} bytes" for x, y in sections.items()))
        arguments = [line for *_, lines in header["parameters"] for line in lines]
        for title, lines, avals in (
            ("arguments", arguments, exported.in_avals),
            ("result", header["result"], exported.out_avals),
        ):
            out.append(f"{title}:")
            most = len(lines) if everything else _MAX_LINES
            for line in lines[:most]:
                is_array = line[1] == "array"
                text = avals[line[2]].str_short() if is_array else show_line(line)
                out.append(f"    {line[0]}  {text}")
            if len(lines) > most:
                out.append(f"    ... and {len(lines) - most} more (--all shows them)")
        return "\n".join(out)
