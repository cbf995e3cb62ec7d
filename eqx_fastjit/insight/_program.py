"""`eqx-fastjit profile`: where a program spends its time, and what its calls save.

Nothing here imports JAX before the program does.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false

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
    call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
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
        from eqx_fastjit._private import hide_from_tracebacks

        hide_from_tracebacks(__file__)
        jitted_type: Any = JitWrapped
        call, note = jitted_type.__call__, self._note

        def counted(jitted: Any, /, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            note(jitted, args, kwargs)
            return call(jitted, *args, **kwargs)

        jitted_type.__call__ = counted

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

        from ._profile import MATTERS, tree_html, tree_text

        if "__call__" in vars(JitWrapped):
            del JitWrapped.__call__
        if html is not None:
            Path(html).write_text(tree_html(session), encoding="utf-8")
        ranked = sorted(self._called.values(), key=lambda x: -x.calls)
        rows: list[Any] = []
        total = 0.0
        for i, called in enumerate(ranked):
            cells, saved = _saving(called) if i < functions else (["", "", ""], 0.0)
            rows.append([called.calls, called.info.title(), *cells])
            total += saved
        share = total / (seconds + max(total, 0.0))
        others = len(ranked) - functions
        rest = f", {others} of the functions not counted" if others > 0 else ""
        header = ("calls", "function", "a call", "saves", "in all")
        return (
            f"{tree_text(session)}\n\n{table('Jitted functions', header, rows)}\n\n"
            f"The program took {show_time(seconds)}; its calls save {show_time(total)} "
            f"that `equinox.filter_jit` would take in addition ({share:.1%}{rest}), so "
            "for this program the overhead of calls "
            f"{'matters' if share >= MATTERS else 'does not matter'}."
        )

    def _note(self, jitted: Any, args: Any, kwargs: Any) -> None:
        info = jitted._function.info
        called = self._called.get(info.key())
        if called is None:
            called = self._called[info.key()] = _Called(info)
        called.calls += 1
        now = time.perf_counter()
        if called.call is None or now - called.looked > _LOOK_AGAIN:
            called.looked = now
            call = (jitted.__wrapped__, args, kwargs)
            if not _has_tracers(call):
                called.call = call


def _has_tracers(tree: Any) -> bool:
    import jax
    from jax.core import Tracer

    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


def _saving(called: _Called) -> tuple[list[str], float]:
    """What a call takes and saves, and all calls, as text; the last in seconds too."""
    import jax
    import jax.numpy as jnp

    from ._profile import measure, OURS, saved

    def alive(x: Any) -> Any:
        is_deleted = isinstance(x, jax.Array) and x.is_deleted()  # it was donated
        return jnp.zeros(x.shape, x.dtype) if is_deleted else x

    if called.call is None:
        return ["only in traces of others", "", ""], 0.0
    try:
        timings, _ = measure(*jax.tree.map(alive, called.call))
    except Exception as e:  # the program may be over in other ways, too
        return [f"raised {type(e).__name__}", "", ""], 0.0
    saving, _ = saved(timings)
    total = called.calls * saving
    return [show_time(timings[OURS].ready), show_time(saving), show_time(total)], total
