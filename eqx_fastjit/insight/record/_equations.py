"""The equations of a trace, and the lines of the program that they come from."""

import functools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from eqx_fastjit import _traced
from eqx_fastjit._blocking import jaxprs_in, opened
from eqx_fastjit._facts import is_users, Place

from ._private import raw_frames
from ._samples import Position
from ._statements import location_of


# JAX and this library: their frames are none of the user's calls.
JAX = tuple(os.path.dirname(str(x.__file__)) + os.sep for x in (jax, _traced))

UNKNOWN = Place("<unknown>", 0, "<unknown>")

# What XLA does not replace by what is in it, as it does with calls.
CONTROL_FLOW = {"scan", "while", "cond"}


class Frame(NamedTuple):
    """A function that was running when an equation was made."""

    file: str
    function: str
    # The first line of the function.
    begins: int
    # Where in the file: line and column of the beginning, and of the end.
    start: tuple[int, int]
    end: tuple[int, int]
    # Distinguishes code objects, and the instructions of a line without columns.
    instruction: tuple[int, int]


class Equation:
    """An equation in a `Scope`."""

    def __init__(self, equation: Any, frames: tuple[Frame, ...], inner: "list[Scope]"):
        self.jax = equation
        self.name: str = equation.primitive.name
        # Where it was made, innermost frame first, JAX's own functions included.
        self.frames = frames
        # Of its own jaxprs.
        self.inner = inner
        # Whether it is only a call of a function.
        self.is_call = bool(inner) and self.name not in CONTROL_FLOW
        # Equations in it, as they are counted by line.
        self.size: int = sum(scope.size for scope in inner) + (not self.is_call)

    @functools.cached_property
    def path(self) -> tuple[Frame, ...]:
        """The calls of the user's that led to it, outermost first."""
        return tuple(x for x in reversed(self.frames) if not x.file.startswith(JAX))

    @property
    def place(self) -> Place:
        """The innermost line of the program's own; else of a library's."""
        path = [x for x in self.path if is_users(x.file)] or self.path
        if not path:
            return UNKNOWN
        return Place(path[-1].file, path[-1].start[0], path[-1].function)


class Scope:
    """A jaxpr in the place from which it is reached."""

    def __init__(self, jaxpr: Any, is_jax: bool, equations: list[Equation]):
        self.jax = opened(jaxpr)
        self.consts: list[Any] = list(getattr(jaxpr, "consts", ()))
        # Whether the function behind it is one of JAX's.
        self.is_jax = is_jax
        self.equations = equations
        self.size = sum(equation.size for equation in equations)

    def walk(self, around: Place = UNKNOWN) -> Iterator[tuple[Equation, Place]]:
        """Each equation, as often as its call is made, with its line.

        JAX's functions have the lines of whoever traced them first: here they have that
        of the call, which is `around`.
        """
        for equation in self.equations:
            place = around if self.is_jax else equation.place
            yield equation, place
            for scope in equation.inner:
                yield from scope.walk(place)

    @functools.cached_property
    def calls(self) -> "Counter[Scope]":
        """This one and those inside, outer ones first; how often each is called."""
        found: Counter[Scope] = Counter([self])
        for inner in (x for e in self.equations for x in e.inner):
            found.update(inner.calls)
        return found


def read_jaxpr(jaxpr: Any) -> Scope:
    """A jaxpr, open or closed, with all that are inside."""
    return _Reader().scope(jaxpr)


class _Reader:
    """Reads each jaxpr, and each instruction that equations come from, once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], Frame] = {}
        self._scopes: dict[int, Scope] = {}  # by `id`: the trace has all of them

    def scope(self, jaxpr: Any, is_jax: bool = False) -> Scope:
        number = id(opened(jaxpr))
        if number not in self._scopes:
            equations = [self._equation(e) for e in opened(jaxpr).eqns]
            self._scopes[number] = Scope(jaxpr, is_jax, equations)
        return self._scopes[number]

    def _equation(self, equation: Any) -> Equation:
        inner = [self.scope(x, _is_of_jax(x)) for x in jaxprs_in(equation)]
        return Equation(equation, self._stack(equation), inner)

    def _stack(self, equation: Any) -> tuple[Frame, ...]:
        """Innermost frame first, from the traced function on."""
        frames = [self._frame(*x) for x in raw_frames(equation)]
        # What is further out than the outermost trace called it.
        begins = [i for i, x in enumerate(frames) if x.file == _traced.__file__]
        return tuple(frames[: begins[-1]] if begins else frames)

    def _frame(self, code: Any, instruction: int) -> Frame:
        key = (id(code), instruction)
        if key not in self._frames:
            first, last, start, end = location_of(Position(code, instruction))
            begins = code.co_firstlineno
            line = first or begins
            span = (line, start or 0), (last or line, end or 0)
            file, function = code.co_filename, code.co_qualname
            # A call has several instructions, of which Python 3.11 is at another one
            # when it has specialized the code: after eight iterations, say.
            instruction = instruction if start is None else 0
            tell = id(code), instruction
            self._frames[key] = Frame(file, function, begins, *span, tell)
        return self._frames[key]


def _is_of_jax(jaxpr: Any) -> bool:
    """Whether the function behind a jaxpr is one of JAX's."""
    info = getattr(opened(jaxpr), "debug_info", None)
    # `name at file:line`
    _, _, place = str(getattr(info, "func_src_info", "")).partition(" at ")
    return place.startswith(JAX)
