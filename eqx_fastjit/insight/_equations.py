"""Walks over the equations of a trace, for all analyses."""

import functools as ft
from collections.abc import Iterator
from typing import Any

import jax.extend.core

from eqx_fastjit._compat import name_stack
from eqx_fastjit._place import Place

from ._places import (
    defined_at,
    Instruction,
    instruction_of,
    is_jax,
    opened,
    Path,
    path_of,
    subjaxprs,
    user_frame,
)


UNKNOWN = Place("<unknown>", 0, "<unknown>")

Literal = jax.extend.core.Literal

# Equations that XLA replaces by what is in them.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "checkpoint",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "remat2",
)


class Equation:
    """An equation in a `Scope`."""

    def __init__(self, equation: Any, prefix: Path, inner: "tuple[Scope, ...]"):
        self.jax = equation
        self.name: str = equation.primitive.name
        # Of its own jaxprs.
        self.inner = inner
        # Whether it is only a call of a function.
        self.is_call = self.name in _CALLS and bool(inner)
        # Equations in it, as they are counted by line.
        self.size = sum(scope.size for scope in inner) + (not self.is_call)
        self._prefix = prefix

    @ft.cached_property
    def path(self) -> Path:
        """The calls of the user's that led to it, outermost first."""
        return self._prefix or path_of(self.jax)

    @ft.cached_property
    def place(self) -> Place:
        """The user's line."""
        return user_frame(self.path) or UNKNOWN

    @ft.cached_property
    def instruction(self) -> Instruction | None:
        """Where in the bytecode it comes from, if JAX tells."""
        return instruction_of(self.jax)

    @property
    def is_backward(self) -> bool:
        """Whether it is of a backward pass, which JAX marks in the name stack."""
        return "transpose(" in name_stack(self.jax)


class Scope:
    """A jaxpr in the place from which it is reached."""

    def __init__(self, jaxpr: Any, prefix: Path, equations: list[Equation]):
        self.jax = opened(jaxpr)
        self.consts: list[Any] = list(getattr(jaxpr, "consts", ()))
        # The path of the call, for functions of JAX's, whose own frames are those of
        # whoever traced them first.
        self.prefix = prefix
        self.equations = equations
        self.size = sum(equation.size for equation in equations)
        # Where the function is defined, if that is known.
        self.defined_at = defined_at(jaxpr)

    def walk(
        self, callers: tuple[Place, ...] = ()
    ) -> Iterator[tuple[Equation, tuple[Place, ...]]]:
        """Each equation, as often as its call is made; calls before their parts.

        With the lines of the calls that lead to it, outermost first.
        """
        for equation in self.equations:
            yield equation, callers
            for scope in equation.inner:
                yield from scope.walk((*callers, equation.place))

    def distinct(self) -> "list[Scope]":
        """This one and those inside; of those with the same jaxpr only the first."""
        found: dict[int, Scope] = {}  # alive: they are in the trace

        def visit(scope: Scope) -> None:
            if id(scope.jax) not in found:
                found[id(scope.jax)] = scope
                for equation in scope.equations:
                    for inner in equation.inner:
                        visit(inner)

        visit(self)
        return list(found.values())


def read_jaxpr(jaxpr: Any) -> Scope:
    """A jaxpr, open or closed, with all that are inside."""
    # A function that is called often is there once, unless it is one of JAX's.
    known: dict[tuple[int, Path], Scope] = {}

    def read(jaxpr: Any, prefix: Path) -> Scope:
        key = (id(opened(jaxpr)), prefix)
        if key not in known:
            equations = [read_equation(e, prefix) for e in opened(jaxpr).eqns]
            known[key] = Scope(jaxpr, prefix, equations)
        return known[key]

    def read_equation(equation: Any, prefix: Path) -> Equation:
        inner: list[Scope] = []
        for sub in subjaxprs(equation):
            place = defined_at(sub)
            of_jax = place is not None and is_jax(place.file)
            path = prefix or path_of(equation) if of_jax else ()
            inner.append(read(sub, path))
        return Equation(equation, prefix, tuple(inner))

    return read(jaxpr, ())
