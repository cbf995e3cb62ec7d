"""What is to be seen in a program while it is compiled: loops, constants, callbacks.

A trace is looked through as soon as it is compiled, if that took long. Nothing of it is
kept.
"""

import contextlib
from typing import Any, NamedTuple

from eqx_fastjit._blocking import call_back, is_callback, opened
from eqx_fastjit._engine import ENGINE

from ._constants import Constant, find_constants, seconds_of_constants
from ._equations import Equation, read_jaxpr
from ._events import Event
from ._loops import find_loops, UnrolledLoop
from ._operations import Operation, operation
from ._private import function_in_jit
from ._why import is_operation


# Seconds of a compilation that make it worth to look at its equations; and those that
# its constants may add, for which these are worth to be named, and how many of them.
_LEAST_SECONDS, _NAMED = 0.2, 3


class Look(NamedTuple):
    """What is to be seen in a program."""

    # Whether it calls back into Python; and whether only for checks of Equinox.
    calls_back: bool = False
    only_checks: bool = False
    equations: int = 0
    # The largest constants, if they may add to compiling; and how much, at most.
    constants: tuple[Constant, ...] = ()
    most_by_constants: float = 0.0
    # The unrolled loops that a `scan` could have, none inside another one.
    loops: tuple[UnrolledLoop, ...] = ()
    # Of an operation outside of jit.
    operation: Operation = Operation()


def look(event: Event, jaxpr: Any) -> Look:
    """Look at what has just been compiled."""
    out = Look()
    # Values of the program's, with attributes of any kind, are looked at.
    with contextlib.suppress(Exception):
        if is_operation(event):
            size = 0 if jaxpr is None else read_jaxpr(jaxpr).size
            return Look(equations=size, operation=operation(jaxpr))

        if jaxpr is None:
            return out
        # Only lowering tells of primitives that are not JAX's: it would take long.
        calls_back = bool(call_back(opened(jaxpr).eqns))
        is_long = event.seconds >= _LEAST_SECONDS and not event.cached
        if not (is_long or calls_back):
            return out

        scope = read_jaxpr(jaxpr)
        equations = (e for x in scope.calls for e in x.equations)
        only_checks = calls_back and not any(map(_is_own_callback, equations))
        out = out._replace(calls_back=calls_back, only_checks=only_checks)

        if is_long:
            source = None if event.is_outside else ENGINE.active().flat.source
            function = function_in_jit() if event.is_outside else source and source()
            constants = find_constants(scope, function)
            most = seconds_of_constants(scope, constants)
            named = constants[:_NAMED] if most > _LEAST_SECONDS else ()
            loops = find_loops(scope, outermost=True)
            out = out._replace(
                equations=scope.size,
                constants=named,
                most_by_constants=most,
                loops=loops,
            )
    return out


def _is_own_callback(equation: Equation) -> bool:
    """Whether an equation calls a function that is not Equinox's."""
    function = equation.jax.params.get("callback")
    function = getattr(function, "callback_func", function)
    is_equinox = getattr(function, "__module__", "").startswith("equinox.")
    return is_callback(equation.name) and not is_equinox
