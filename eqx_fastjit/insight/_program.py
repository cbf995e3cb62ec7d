"""`eqx-fastjit profile`: where Python was in a program, and where its time went.

Pyinstrument draws the tree, of the samples that the doctor takes as well. Nothing here
imports JAX before the program does.
"""

import ast
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from ._watch import Watch
from ._words import show_place, show_seconds, wrapped
from .record._samples import INTERVAL, Position, Stack


class ProgramProfile:
    """Samples a program that is run in this thread, as the doctor does."""

    def __init__(self) -> None:
        # The tree begins where these frames end.
        around = traceback.walk_stack(sys._getframe(1))
        self._around = [Position(frame.f_code, -1) for frame, _ in around]
        self._watch = Watch()

    def begin(self) -> None:
        """The program uses the engine from now on."""
        self._watch.jax_imported()

    def report(self) -> str:
        """Where Python was in the program, which is over, and where its time went."""
        uses_jax, sampler = self._watch.stop(), self._watch.sampler
        if sampler.why_not:
            return f"Where Python was is not known: {sampler.why_not}."

        from ._profile import tree_text

        texts = [tree_text(self._session([sampler.seconds(), sampler.set_aside()]))]
        if uses_jax:
            from .record._time import times_of
            from .show._text import time_text

            run = self._watch.run("", 0)
            went = time_text(times_of(run), run.seconds)
            sentences = [_outside_of_jit(run.activities), went]
            texts += ["\n".join(wrapped(x)) for x in sentences if x]
        return "\n\n".join(texts)

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
            start_time=self._watch.started,
            duration=duration,
            min_interval=INTERVAL,
            max_interval=INTERVAL,
            sample_count=self._watch.sampler.count,
            start_call_stack=_frames(Stack(tuple(self._around))),
            target_description="",
            cpu_time=self._watch.cpu_seconds,
            sys_path=sys.path,
            sys_prefixes=[sys.prefix, sys.base_prefix],
        )


def _outside_of_jit(found: Iterable[Any]) -> str:
    """How long operations ran outside of jit, and which line ran for longest."""
    from .record._activity import OPERATIONS
    from .record._why import costliest

    operations = [x for x in found if x.kind == OPERATIONS]
    most = costliest((x.statement.place, x.seconds) for x in operations)
    if most is None:
        return ""

    took = show_seconds(sum(x.seconds for x in operations))
    where = f"{most.function} ({show_place(most)})"
    return f"Operations outside of jit ran for about {took}, most of it in {where}."


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
