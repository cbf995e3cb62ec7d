"""`eqx-fastjit profile`: where a program spends its time, and what its calls save.

Nothing here imports JAX before the program does.
"""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false

import dataclasses
import time
from typing import Any

from ._words import show_seconds, table, wrapped


# Seconds between two samples of the program, which may run for long.
_INTERVAL = 0.01
# Functions that are called again, to time them: those with the most calls.
_MEASURED = 3


@dataclasses.dataclass
class _Called:
    """The calls of the functions that one line of the program makes."""

    function: Any
    calls: int = 0
    # The first call outside of all traces: the function and its arguments.
    call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None


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
        import jax
        from jax.core import Tracer

        from eqx_fastjit._jit import JitWrapped

        from ._device import Device

        self._device = Device()
        self._device.__enter__()
        jitted_type: Any = JitWrapped
        call, all_called = jitted_type.__call__, self._called

        def counted(jitted: Any, /, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            info = jitted._function.info
            called = all_called.setdefault(info.key(), _Called(info))
            called.calls += 1
            if called.call is None:
                leaves = jax.tree.leaves((args, kwargs))
                if not any(isinstance(x, Tracer) for x in leaves):
                    called.call = (jitted.__wrapped__, args, kwargs)
            return call(jitted, *args, **kwargs)

        jitted_type.__call__ = counted
        # What it inherits is back.
        self._device.callback(delattr, jitted_type, "__call__")

    def report(self) -> str:
        """What the program, which is over, spent its time on.

        **Returns:** pyinstrument's tree, a table with calls times saving, one sentence.
        """
        seconds = time.perf_counter() - self._start
        session = self._profiler.stop()
        if not self._called:
            return "The program called no function of equinox.filter_jit."
        from ._profile import MATTERS, of_program, tree_text
        from ._why import title_of

        self._device.close()
        ranked = sorted(self._called.values(), key=lambda x: -x.calls)
        total, rows = 0.0, []
        for i, x in enumerate(ranked):
            takes, saving = _measured(x) if i < _MEASURED else ("", 0.0)
            saves = show_seconds(saving) if saving else ""
            rows.append((x.calls, takes, saves, title_of(x.function)))
            total += x.calls * saving
        header = ("calls", "a call", "saves", "function")
        share = total / (seconds + max(total, 0.0))
        others = len(ranked) - _MEASURED
        rest = f", {others} of the functions not counted" if others > 0 else ""
        conclusion = (
            f"The program took {show_seconds(seconds)}. Under `equinox.filter_jit`, "
            f"its calls would take {show_seconds(total)} more ({share:.1%}{rest}), so "
            "for this program the overhead of calls "
            f"{'matters' if share >= MATTERS else 'does not matter'}."
        )
        calls = table("Jitted functions", header, rows)
        tree, outside = of_program(session)
        texts = filter(None, (outside, self._device.use(), conclusion))
        last = ["\n".join(wrapped(str(text))) for text in texts]
        return "\n\n".join([tree_text(tree), calls, *last])


def _measured(called: _Called) -> tuple[str, float]:
    """What a call takes, in words, and the seconds that it saves."""
    import jax
    import jax.numpy as jnp

    from ._profile import contenders, EQUINOX, OURS, time_calls, TIMING_SECONDS

    def alive(x: Any) -> Any:
        is_deleted = isinstance(x, jax.Array) and x.is_deleted()  # it was donated
        return jnp.zeros(x.shape, x.dtype) if is_deleted else x

    if called.call is None:
        return "only in traces of others", 0.0
    try:
        calls = contenders(*jax.tree.map(alive, called.call))
        timings = time_calls(calls, TIMING_SECONDS)
    except Exception as e:  # the program may be over in other ways, too
        return f"raised {type(e).__name__}", 0.0
    # It is not there if it compiles for too long.
    theirs = timings.get(EQUINOX, timings[OURS])
    return show_seconds(timings[OURS].ready), timings[OURS].saves_over(theirs)[0]
