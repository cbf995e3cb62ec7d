"""What an operation outside of jit is, while it is being compiled.

Each is a program of its own. `_outside.py` says which of them are a fault.
"""

import itertools
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from eqx_fastjit._blocking import jaxprs_in, opened
from eqx_fastjit._facts import is_users, is_written_by_user, Place

from ._describe import show_array
from ._equations import CONTROL_FLOW, JAX
from ._private import jaxpr_in_jit


# In these functions models and states are made, of whichever library.
_MAKERS = ("__init__", "init", "init_fn")
# Equations that are looked at, and characters that are kept of an option.
_MAX_EQUATIONS, _MAX_OPTION = 50, 200
# Operands of an operation that NumPy should have: a program of them compiles for long.
_MANY = 64
# NumPy's scalars show their type.
_SCALAR = re.compile(r"np\.\w+\((-?[\w.]+)\)")


class Operation(NamedTuple):
    """An operation that is being compiled."""

    operands: str = ""
    results: str = ""
    # What is static: `limit_indices=(3,)`.
    options: tuple[str, ...] = ()
    n_operands: int = 0
    # Whether it is `scan`, `cond` or the like; and the user's function that it runs.
    is_loop: bool = False
    body: str = ""
    # Whether it is there to make a model, or an optimiser's state.
    is_making: bool = False
    # Whether the user's line calls JAX itself, and no other library.
    is_direct: bool = True
    # Of an operation of a model, the user's line that calls it, and which call it is.
    called_at: Place | None = None
    call: int = 0

    @property
    def has_many_operands(self) -> bool:
        """Whether the user's line puts many arrays together."""
        return self.n_operands >= _MANY and self.is_direct

    def differs_from(self, others: "Sequence[Operation]") -> str:
        """The first kind of what is not the same in all of them."""
        if self == Operation():
            return "unseen"
        for kind in ("operands", "results", "options"):
            # Of a few operations that take turns, each is compiled once.
            if len({getattr(x, kind) for x in others}) > len(others) // 2:
                return kind
        return "created again" if self.is_loop else "again"


def is_maker(code: CodeType) -> bool:
    """Whether code makes a model, or an optimiser's state."""
    return code.co_name in _MAKERS and not code.co_filename.startswith(JAX)


def operation() -> Operation:
    """The operation that is being compiled in this thread."""
    stack = [*traceback.walk_stack(sys._getframe(1))]
    is_making = any(is_maker(frame.f_code) for frame, _ in stack)
    jaxpr = opened(jaxpr_in_jit())
    if jaxpr is None:
        return Operation(is_making=is_making)
    options: list[str] = []
    is_loop, bodies = False, [""]
    for equation in jaxpr.eqns[:_MAX_EQUATIONS]:
        if inner := jaxprs_in(equation):
            is_loop = is_loop or equation.primitive.name in CONTROL_FLOW
            bodies += map(_users_function, inner)
        else:
            shown = (f"{k}={v}" for k, v in equation.params.items())
            options += [_SCALAR.sub(r"\1", x)[:_MAX_OPTION] for x in shown]
    operands, results = map(_show_avals, (jaxpr.invars, jaxpr.outvars))
    body = max(bodies, key=len)
    called_at, call = (None, 0) if is_making else _model_call(stack)
    return Operation(
        operands,
        results,
        tuple(options),
        n_operands=len(jaxpr.invars),
        is_loop=is_loop,
        body=body,
        is_making=is_making,
        is_direct=_is_direct(stack),
        called_at=called_at,
        call=call,
    )


def _is_direct(stack: Iterable[tuple[FrameType, int]]) -> bool:
    codes = (frame.f_code for frame, _ in stack)
    inside = [*itertools.takewhile(lambda x: not is_written_by_user(x), codes)]
    return inside[-1].co_filename.startswith(JAX)  # the innermost is this library's


def _model_call(stack: Iterable[tuple[FrameType, int]]) -> tuple[Place | None, int]:
    """The call of the outermost model of a stack: the user's line, and its number."""
    found, model = None, None
    for frame, line in stack:
        code = frame.f_code
        if _is_model(frame):
            found, model = None, frame
        elif model and found is None and is_written_by_user(code):
            found = Place(code.co_filename, line, code.co_qualname)
    return found, _number_of_call(model) if model and found else 0


class _Mark:
    """The trace function of a frame, which nothing calls unless the user debugs.

    So frames are told apart: another one may have the `id` of one that is gone, and
    there are no weak references to frames.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)

    def __call__(self, *_: Any) -> None: ...


_numbers = itertools.count(1)


def _number_of_call(frame: FrameType) -> int:
    if frame.f_trace is None:
        frame.f_trace = _Mark()
    return getattr(frame.f_trace, "number", 0)


def _is_model(frame: FrameType) -> bool:
    """Whether a Module of Equinox, or of another library, is being called."""
    name, _, method = frame.f_code.co_qualname.rpartition(".")
    cls = frame.f_globals.get(name) if method == "__call__" else None
    return isinstance(cls, type) and any(x.__name__ == "Module" for x in cls.__mro__)


def _show_avals(variables: Iterable[Any]) -> str:
    shown: list[str] = []
    for aval in (v.aval for v in variables):
        weak = "weak " * getattr(aval, "weak_type", False)
        shown.append(weak + show_array(aval.shape, str(aval.dtype)))
    out: list[str] = []
    for text, same in itertools.groupby(shown):
        n = len([*same])
        # Of a list that is stacked, there are hundreds.
        out += [text] * n if n < 3 else [f"{n} x {text}"]
    return ", ".join(out)


def _users_function(jaxpr: Any) -> str:
    """The name of the user's function behind a jaxpr, or nothing."""
    info = getattr(opened(jaxpr), "debug_info", None)
    name, _, place = str(getattr(info, "func_src_info", "")).partition(" at ")
    return name if place and is_users(place) else ""
