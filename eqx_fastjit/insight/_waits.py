"""What blocks: the lines at which Python waited for the device.

`float(x)`, `x.item()`, `print(x)`, `np.asarray(x)` and `block_until_ready` need the
value of an array, and wait until the device has it. In a loop, Python cannot prepare
the next step meanwhile. Nothing is watched until a `Waits` is entered.
"""

import ast
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import jax

from eqx_fastjit._place import Place
from eqx_fastjit._private import hook_waits

from ._frames import expression_at, user_frame


# What waits if a jitted call does not return before its result is ready: because of a
# host callback, of large NumPy arguments, or under `equinox.filter_jit`.
JITTED_CALL = "a jitted call that blocks"
# Shorter waits do not count: the device was done, and the value was only copied.
_SHORTEST = 50e-6
# Their functions are shown with the name of the module.
_MODULES = ("eqx", "jax", "jnp", "np", "numpy")


@dataclasses.dataclass
class Wait:
    """All waits of one expression in a line of source. Times are in seconds."""

    place: Place
    # `float(...)`, `print(...)`, `.item()` or the like; or `JITTED_CALL`.
    what: str
    # The source of the expression; empty if it is not known.
    expression: str
    count: int = 0
    seconds: float = 0.0


class _Here(threading.local):
    inside = False


class Waits(contextlib.AbstractContextManager["Waits"]):
    """Within this context, notes each wait of the program for the device."""

    def __init__(self) -> None:
        # Functions that this version of JAX does not have: waits in them are missing.
        self.missing: list[str] = []
        self._found: dict[tuple[Place, str], Wait] = {}
        self._here = _Here()
        self._lock = threading.Lock()
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.missing = hook_waits(self._timed, self._hooks)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def found(self) -> list[Wait]:
        """The waits until now, by seconds."""
        with self._lock:
            return sorted(self._found.values(), key=lambda wait: -wait.seconds)

    def _timed(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        here, clock = self._here, time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            others = kind == "numpy" and not (args and isinstance(args[0], jax.Array))
            if here.inside or others:
                return function(*args, **kwargs)
            here.inside, start = True, clock()
            try:
                return function(*args, **kwargs)
            finally:
                here.inside, end = False, clock()
                if end - start >= _SHORTEST:
                    self._note(end - start, kind)

        for name in functools.WRAPPER_ASSIGNMENTS:
            # What nanobind makes has odd names.
            with contextlib.suppress(AttributeError, TypeError):
                setattr(timed, name, getattr(function, name))
        return timed

    def _note(self, seconds: float, kind: str) -> None:
        frame, called = user_frame()
        if frame is None:
            return
        code = frame.f_code
        place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
        expression = expression_at(frame)
        # The program called `block_until_ready` itself, or a function that did.
        is_call = kind == "blocks" and called not in ("timed", "block_until_ready")
        with self._lock:
            key = (place, expression)
            if (wait := self._found.get(key)) is None:
                what = JITTED_CALL if is_call else _what(expression)
                wait = self._found[key] = Wait(place, what, expression)
            wait.count += 1
            wait.seconds += seconds


def _what(expression: str) -> str:
    """What an expression does with an array, in a word."""
    if not expression:
        return "the value of an array"
    if expression.startswith("{"):  # so Python 3.12 has the value in an f-string
        return "an f-string"
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return expression
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=name)):
            return f"{base}.{name}(...)" if base in _MODULES else f".{name}()"
        case ast.Call(func=ast.Attribute(attr=name)):
            return f".{name}()"
        case ast.Call():
            return f"{ast.unparse(node.func)}(...)"
        case ast.JoinedStr() | ast.FormattedValue():
            return "an f-string"
        case _:
            return f"`{expression}`"
