"""Operations outside of jit, as they are compiled."""

import sys
import traceback
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import opened
from eqx_fastjit._facts import is_written_by_user

from ._equations import CONTROL_FLOW, JAX
from ._programs import show_aval


# In these functions models and states are made, of whichever library.
_MAKERS = ("__init__", "init", "init_fn")
# Equations that are looked at, operands that are shown.
_MAX_EQUATIONS, _SHOWN = 50, 3


class Operation(NamedTuple):
    """An operation outside of jit, as it is compiled."""

    # The shapes of its operands and of its results.
    operands: str = ""
    results: str = ""
    # How many operands it has.
    n_operands: int = 0
    # Whether it is `scan`, `cond` or the like, which runs a function of the user's.
    is_loop: bool = False
    # Whether it is there to make a model, or an optimiser's state.
    is_making: bool = False
    # The instruction of the user's innermost function, and what tells the call that it
    # makes there from others; nothing of one for each leaf of a tree.
    instruction: int = 0
    call: Any = None
    # What tells the call of this function from others.
    function: Any = None


def operation(jaxpr: Any) -> Operation:
    """The operation that is being compiled in this thread."""
    stack = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    n = next((i for i, x in enumerate(stack) if is_written_by_user(x.f_code)), 1)
    is_of_leaf = any(x.f_code.co_name.endswith("tree_map") for x in stack)
    found = Operation(
        is_making=any(_is_maker(x.f_code) for x in stack),
        instruction=stack[n].f_lasti,
        call=None if is_of_leaf else _marked(stack[n - 1]),
        function=_marked(stack[n]),
    )
    inner = opened(jaxpr)
    if inner is None:
        return found
    operands, results = ([*map(show_aval, x)] for x in (inner.invars, inner.outvars))
    names = (e.primitive.name for e in inner.eqns[:_MAX_EQUATIONS])
    return found._replace(
        operands=_listed(operands),
        results=_listed(results),
        n_operands=len(operands),
        is_loop=any(x in CONTROL_FLOW for x in names),
    )


class _Mark:
    """What tells a frame from others: a trace function of its own.

    Another frame may have the `id` of one that is gone, and there are no weak
    references to frames. Under a debugger it calls the trace function that was there.
    """

    def __init__(self, traced: Any):
        self.traced = traced

    def __call__(self, *event: Any) -> Any:
        self.traced = self.traced and self.traced(*event)
        return self


def _marked(frame: FrameType) -> Any:
    if not isinstance(frame.f_trace, _Mark):
        frame.f_trace = _Mark(frame.f_trace)
    return frame.f_trace


def _listed(shapes: list[str]) -> str:
    return f"({', '.join(shapes[:_SHOWN] + ['...'] * (len(shapes) > _SHOWN))})"


def _is_maker(code: CodeType) -> bool:
    return code.co_name in _MAKERS and not code.co_filename.startswith(JAX)
