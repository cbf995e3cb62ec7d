"""`eqx-fastjit profile`: where a program spends its time, and what its calls save.

Nothing here imports JAX before the program does.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

from ._table import show_time, table


# Seconds between two samples of the program, which may run for long.
_INTERVAL = 0.01
# Seconds between two looks at the arguments of a function: not at each call.
_LOOK_AGAIN = 0.2


@dataclasses.dataclass
class _Called:
    """The calls of the functions that one line of the program makes."""

    info: Any
    calls: int = 0
    # Of a call outside of all traces: the function and its arguments.
    fun: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    looked: float = 0.0


class ProgramProfile:
    """Samples a program that is run in this thread, and counts its calls."""

    def __init__(self) -> None:
        from pyinstrument import Profiler

        self._called: dict[Any, _Called] = {}
        self._profiler = Profiler(interval=_INTERVAL, async_mode="disabled")
        self._profiler.start()
        self._start = time.perf_counter()

    def begin(self) -> None:
        """Count calls from now on. To be called once the engine may be imported."""
        from eqx_fastjit._jit import JitWrapped

        call = JitWrapped.__call__
        note = self._note

        def counted(jitted: Any, /, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            note(jitted, args, kwargs)
            return call(jitted, *args, **kwargs)

        JitWrapped.__call__ = counted

    def report(self, functions: int = 1, html: str | None = None) -> str:
        """What the program, which is over, spent its time on.

        **Arguments:**

        - `functions`: how many functions to call again, those with the most calls.
        - `html`: a file, to which pyinstrument's page is written.

        **Returns:** pyinstrument's tree, a table with calls times saving, one sentence.
        """
        seconds = time.perf_counter() - self._start
        session = self._profiler.stop()
        if not self._called:
            return "The program called no function of equinox.filter_jit."
        from eqx_fastjit._jit import JitWrapped

        from ._profile import tree_html, tree_text

        if "__call__" in vars(JitWrapped):
            del JitWrapped.__call__
        if html is not None:
            Path(html).write_text(tree_html(session), encoding="utf-8")
        ranked = sorted(self._called.values(), key=lambda x: -x.calls)
        costs = {x.info.key(): _costs(x) for x in ranked[:functions]}
        rows, saved = _rows(ranked, costs)
        header = ("calls", "function", "defined at", "a call", "saves", "in all")
        return "\n\n".join(
            [
                tree_text(session),
                table("Jitted functions", header, rows),
                _sentence(saved, seconds, len(ranked) - functions),
            ]
        )

    def _note(self, jitted: Any, args: Any, kwargs: Any) -> None:
        info = jitted._function.info
        called = self._called.get(info.key())
        if called is None:
            called = self._called[info.key()] = _Called(info)
        called.calls += 1
        now = time.perf_counter()
        if called.fun is None or now - called.looked > _LOOK_AGAIN:
            called.looked = now
            if not _has_tracers((jitted.__wrapped__, args, kwargs)):
                called.fun = jitted.__wrapped__
                called.args, called.kwargs = args, kwargs


def _has_tracers(tree: Any) -> bool:
    import jax

    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def _costs(called: _Called) -> Any:
    """What a call takes; an exception if it could not be made again; or `None`."""
    import jax
    import jax.numpy as jnp

    from ._profile import measure

    if called.fun is None:  # only called in traces of other functions
        return None

    def alive(x: Any) -> Any:
        is_deleted = isinstance(x, jax.Array) and x.is_deleted()  # it was donated
        return jnp.zeros(x.shape, x.dtype) if is_deleted else x

    call = (called.fun, called.args, called.kwargs)
    try:
        return measure(*jax.tree.map(alive, call))[0]
    except Exception as e:
        return e


def _rows(ranked: list[_Called], costs: dict[Any, Any]) -> tuple[list[Any], float]:
    """The rows of the table, and what the calls have saved. Seconds."""
    from ._words import show_place

    rows: list[Any] = []
    total = 0.0
    for called in ranked:
        found = costs.get(called.info.key())
        cells = ["", "", ""]
        if isinstance(found, Exception):
            cells[0] = f"raised {type(found).__name__}"
        elif found is not None:
            saved, _ = found.saved
            total += called.calls * saved
            cells = [
                show_time(found.call),
                show_time(saved),
                show_time(called.calls * saved),
            ]
        place = show_place(called.info.place) if called.info.place else ""
        rows.append((called.calls, called.info.qualname, place, *cells))
    return rows, total


def _sentence(saved: float, seconds: float, others: int) -> str:
    """Whether what is saved matters for this program."""
    from ._profile import MATTERS
    from ._words import plural

    share = saved / (seconds + max(saved, 0.0))
    rest = f", not counting {plural(others, 'function')}" if others > 0 else ""
    matters = "matters" if share >= MATTERS else "does not matter"
    return (
        f"The program took {show_time(seconds)}; its calls save {show_time(saved)} "
        f"that `equinox.filter_jit` would take in addition ({share:.1%}){rest}: for "
        f"this program the overhead of calls {matters}."
    )
