"""A file in words. Nothing that it names is imported, and none of its code is run."""

import re
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._units import plural, show_bytes, show_seconds

from ._arrays import show_array
from ._format import Reader


# Models have too many leaves to read.
_MAX_LINES = 50


def show(path: Any, *, everything: bool = False) -> str:
    """The contents of a file that `Exported.save` wrote, as text.

    With `everything`, every leaf is listed, however many there are. Raises `ValueError`
    if it is not such a file, or is damaged.
    """
    reader = Reader(path)
    for name in reader.sections:
        reader.section(name)  # compares the checksum
    with reader.one_error():
        return "\n".join(_lines(reader, None if everything else _MAX_LINES))


def _lines(reader: Reader, limit: int | None) -> Iterator[str]:
    header = reader.header
    made = header["made_by"]
    names = ", ".join(x["name"] for x in header["parameters"])
    yield f"{reader.path}: {header['qualname']}({names})"
    versions = ", ".join(f"{name} {made[name]}" for name in made)
    yield f"{show_bytes(reader.size)}, made with {versions}"
    yield ""
    yield from _payloads(reader)
    yield ""
    donated = set(header["donated"])
    rows = [
        (x["path"], show_array(x) + " (donated)" * (i in donated))
        for i, x in enumerate(header["arrays"])
    ]
    yield from _table(plural(len(rows), "argument array"), rows, limit)
    rows = [(str(path), str(text)) for path, text in header["statics"]]
    yield from _table(plural(len(rows), "static"), rows, limit)
    rows = [(f"[{i}]", show_array(x)) for i, x in enumerate(header["outputs"])]
    yield from _table(plural(len(rows), "result array"), rows, limit)
    texts = [(text, "") for _, x in header["checks"] for text in x]
    yield from _table("checks (`eqx.error_if`)", texts, limit)
    own = {"jax", "equinox", "numpy", "builtins"}
    needs = [(x, "") for x in header["names"] if re.split("[.:]", x)[0] not in own]
    yield from _table("needs", needs, limit)


def _payloads(reader: Reader) -> Iterator[str]:
    header, sizes = reader.header, reader.sections
    if "portable" in sizes:
        order = header["vjp_order"]
        gradient = "no gradients" if not order else f"gradients of order {order}"
        yield (
            f"portable  {show_bytes(sizes['portable'][1])}: StableHLO for "
            f"{', '.join(header['platforms'])}; "
            f"{plural(header['n_devices'], 'device')}; {gradient}"
        )
    if "compiled" in sizes:
        fits = header["compiled"]["fits"]
        devices = len(header["compiled"]["record"]["devices"])
        yield (
            f"compiled  {show_bytes(sizes['compiled'][1])}: native code for "
            f"{fits['platform']} ({fits['device']}), jaxlib {fits['jaxlib']}; "
            f"{plural(devices, 'device')}"
        )
    kept = plural(len(header["kept"]), "array")
    yield f"arrays    {show_bytes(sizes['arrays'][1])}: {kept} of the function itself"
    seconds = header["seconds"]
    took = ", ".join(f"{name} {show_seconds(seconds[name])}" for name in seconds)
    yield f"time to export: {took}"
    if cost := header.get("cost"):
        found = [f"{cost['flops']:,.0f} flops"] * ("flops" in cost)
        if "bytes accessed" in cost:
            found.append(f"{show_bytes(cost['bytes accessed'])} accessed")
        yield f"a call, estimated by the compiler: {', '.join(found)}"


def _table(title: str, rows: list[tuple[str, str]], limit: int | None) -> Iterator[str]:
    if not rows:
        return
    yield title
    shown = rows if limit is None else rows[:limit]
    width = max(len(left) for left, _ in shown)
    for left, right in shown:
        yield f"    {left:<{width}}  {right}".rstrip()
    if len(shown) < len(rows):
        yield f"    ... and {len(rows) - len(shown)} more (--all shows them)"
