"""`warmup`: compile before the first call."""

# Values are anybody's: of what `isinstance` tells of them the rest is unknown.
# pyright: reportUnknownVariableType=false

from collections.abc import Iterable
from typing import Any

from eqx_fastjit._jit import jitted_function


def warmup(f: Any, *args: Any, **kwargs: Any) -> None:
    """Trace and compile a function for a call, without running it.

    A later call with this signature does not trace, lower or compile.

    **Arguments:**

    - `f`: a function or method wrapped by `eqx_fastjit.filter_jit`.
    - `*args`, `**kwargs`: those of the call. A `jax.ShapeDtypeStruct` may be passed in
        place of an array. Arrays are neither read nor donated.

    Raises `TypeError` if `f` was not wrapped by `eqx_fastjit`.
    """
    jitted_function(f)
    f.lower(*args, **kwargs).compile()


def warmup_all(
    calls: Iterable[tuple[Any, ...]], *, progress: bool | None = None
) -> None:
    """`warmup` for several functions and signatures, with a progress bar.

    **Arguments:**

    - `calls`: for each, `(f, args)` or `(f, args, kwargs)`, with a tuple and a
        dictionary.
    - `progress`: whether to show a progress bar with the time left, on stderr. By
        default, it is shown if stderr is a terminal and rich is installed.

    Raises `ValueError` for an entry that is neither, and whatever `warmup` raises.
    Anything that was compiled before stays compiled.
    """
    todo = [_check(i, call) for i, call in enumerate(calls)]
    for f, args, kwargs in _shown(todo, progress):
        warmup(f, *args, **kwargs)


def _check(i: int, call: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    match call:
        case (f, tuple() as args):
            return f, args, {}
        case (f, tuple() as args, dict() as kwargs):
            return f, args, kwargs
        case _:
            raise ValueError(
                f"warmup_all: entry {i} is a {type(call).__name__}; expected "
                "`(f, args)` or `(f, args, kwargs)`, with a tuple `args` and a dict "
                "`kwargs`."
            )


def _shown(todo: list[Any], progress: bool | None) -> Iterable[Any]:
    if progress is False:
        return todo
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        if progress:
            raise
        return todo
    console = Console(stderr=True)
    shown = progress or console.is_terminal
    return track(todo, "Compiling", console=console) if shown else todo
