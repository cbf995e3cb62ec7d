"""`eqx-fastjit profile`: where Python was in a program, and whether dispatch matters.

Pyinstrument draws the tree, of the samples that the doctor takes as well. Nothing here
imports JAX before the program does.
"""

import ast
import collections
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from ._words import show_place, show_seconds, wrapped
from .record._samples import INTERVAL, Position, Sampler, Stack


class ProgramProfile:
    """Samples a program that is run in this thread, and what the device does then."""

    def __init__(self) -> None:
        # Of a program that uses the engine.
        self._calls: Any = None
        self._started, self._cpu = time.time(), time.process_time()
        # The tree begins where these frames end.
        around = traceback.walk_stack(sys._getframe(1))
        self._around = [Position(frame.f_code, -1) for frame, _ in around]
        self._sampler = Sampler()
        self._sampler.start()

    def begin(self) -> None:
        """The program uses the engine from now on."""
        from .record._calls import Calls
        from .record._events import unwatch, watch

        watch(self._sampler.on_event)
        self._calls = Calls().__enter__()
        self._calls.callback(unwatch, self._sampler.on_event)

    def report(self) -> str:
        """Where Python was in the program, which is over, and what the device did."""
        self._sampler.stop()
        if self._calls is not None:
            self._calls.close()
        if why_not := self._sampler.why_not:
            return f"Where Python was is not known: {why_not}."

        from ._profile import tree_text

        running = self._sampler.seconds()
        texts = [_outside_of_jit(running)]
        if self._calls is not None:
            texts.append(str(self._calls.use() or ""))
        tree = tree_text(self._session([running, self._sampler.set_aside()]))
        last = ["\n".join(wrapped(text)) for text in texts if text]
        return "\n\n".join([tree, *last])

    def _session(self, parts: Iterable[Mapping[Stack, float]]) -> Any:
        from pyinstrument.session import Session

        records = [
            (_frames(stack), seconds)
            for part in parts
            for stack, seconds in part.items()
        ]
        duration = sum(seconds for _, seconds in records)
        return Session(
            frame_records=records,
            start_time=self._started,
            duration=duration,
            min_interval=INTERVAL,
            max_interval=INTERVAL,
            sample_count=self._sampler.count,
            start_call_stack=_frames(Stack(tuple(self._around), False)),
            target_description="",
            cpu_time=time.process_time() - self._cpu,
            sys_path=sys.path,
            sys_prefixes=[sys.prefix, sys.base_prefix],
        )


def _outside_of_jit(samples: Mapping[Stack, float]) -> str:
    """How long operations ran outside of jit, and which line ran for longest."""
    from .record._activity import activities, OPERATIONS

    seconds = collections.defaultdict[str, float](float)
    for activity in activities(samples):
        if activity.kind == OPERATIONS:
            place = activity.statement.place
            seconds[f"{place.function} ({show_place(place)})"] += activity.seconds
    if not seconds:
        return ""

    most = max(seconds, key=lambda x: seconds[x])
    took = show_seconds(sum(seconds.values()))
    return f"Operations outside of jit ran for about {took}, most of it in {most}."


def _frames(stack: Stack) -> list[str]:
    """The frames of a stack, outermost first, as pyinstrument writes them.

    What an operation outside of jit is called by is marked, and what calls a function
    of `jax.jit` has its name.
    """
    from .record._activity import JIT, kind_of, OPERATIONS, within_user

    names = [x.code.co_name for x in stack.positions]
    inside = len(within_user(stack.positions))
    if 0 < inside < len(names):
        kind = kind_of(stack.positions)
        if kind == OPERATIONS:
            names[inside - 1] += " (outside of jit)"
        if kind == JIT:
            names[inside - 1] += _of_function(stack.positions[inside])
    pairs = zip(names, stack.positions, strict=True)
    return [_frame(name, position) for name, position in pairs][::-1]


def _of_function(position: Position) -> str:
    """Of which function the call at a position is."""
    from .record._statements import expression_of

    called = expression_of(position)
    return f" of {ast.unparse(called.func)}" if isinstance(called, ast.Call) else ""


def _frame(name: str, position: Position) -> str:
    from .record._statements import place_of

    code = position.code
    line = place_of(position).line
    return f"{name}\0{code.co_filename}\0{code.co_firstlineno}\x01l{line}"
