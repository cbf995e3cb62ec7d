"""The error for an argument that contains itself, which names the path."""

from typing import Any

from ._statics import generated_fields, has_only_identity


# How deep a cycle is looked for.
_MAX_DEPTH = 200


def cycle_error(name: str, arguments: list[tuple[str, Any]]) -> ValueError | None:
    """The error of a call of the function `name` if an argument contains itself."""
    found = _cycle(arguments, (), set())
    if found is None:
        return None
    error = ValueError(
        f"In a call of {name}, `{found}` contains itself. Expected arguments without "
        "cycles."
    )
    error.__suppress_context__ = True
    return error


def _cycle(
    parts: list[tuple[str, Any]], above: tuple[int, ...], done: set[int]
) -> str | None:
    """The path of the first part that contains itself."""
    for path, x in parts:
        # By id: all that is above is alive.
        if id(x) in above:
            return path
        if id(x) not in done and len(above) <= _MAX_DEPTH:
            done.add(id(x))
            found = _cycle(_parts(path, x), (*above, id(x)), done)
            if found is not None:
                return found
    return None


def _parts(path: str, x: Any) -> list[tuple[str, Any]]:
    """What a call reads of a value. No flatten function is called again."""
    if isinstance(x, dict):
        return [(f"{path}[{k!r}]", v) for k, v in x.items()]
    if isinstance(x, list | tuple):
        return [(f"{path}[{i}]", v) for i, v in enumerate(x)]
    if has_only_identity(x):
        return []
    try:
        names = generated_fields(type(x)) or vars(x)
        return [(f"{path}.{name}", getattr(x, name, None)) for name in names]
    except Exception:  # it has no `__dict__`, or one of its own
        return []
