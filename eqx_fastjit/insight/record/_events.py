"""Events: the facts of the engine in words, with what each call was given.

A tool calls `history()` for all that has happened, or adds a function with `watch`
for what will. Without tools the engine keeps facts, and nothing is described. A fact
can be described as long as its specialization is there, which has the statics of the
call. What is watched is described at once.

An event refers to none of the user's values: leaves are described by shapes, dtypes and
short texts (`_describe.py`).
"""

import collections
import contextlib
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from eqx_fastjit import _facts, _traced
from eqx_fastjit._blocking import opened
from eqx_fastjit._callables import column_of, place_of, python_signature
from eqx_fastjit._engine import ENGINE
from eqx_fastjit._facts import Compilation, Fact, FunctionInfo, is_users

from ._describe import describe, number_of
from ._leaves import Leaf
from ._private import arguments_in_jit, function_in_jit, jaxpr_in_jit
from ._programs import Program, program_of


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """A fact in words. What the fact has, such as its function, the event has, too."""

    fact: Fact
    # The leaves, nodes and statics of the call, in order, and JAX's settings. Empty if
    # they are gone, which they never are of an event that was watched.
    signature: tuple[Leaf, ...] = ()
    # What was traced, if it is known.
    program: Program | None = None
    # Seconds of `jax.jit` inside, of which the engine does not know.
    jitted_inside: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fact, name)

    @property
    def nested(self) -> float:
        """The part of its seconds that was spent on functions inside."""
        return self.fact.nested + self.jitted_inside

    @property
    def seconds(self) -> float:
        """Spent on tracing, lowering and compiling. Each second is in one event."""
        return max(0.0, self.trace + self.lower + self.compile - self.nested)

    @property
    def is_outside(self) -> bool:
        """Whether it is of plain `jax.jit`, or of an operation outside of jit."""
        return self.function.number <= 0

    def for_json(self) -> dict[str, Any]:
        """All but what refers to this process."""
        names = [x.name for x in dataclasses.fields(Fact) if x.name not in _ONLY_HERE]
        fact = {name: getattr(self, name) for name in names}
        return {**fact, "signature": self.signature, "program": self.program}


_ONLY_HERE = ("specialization", "kinds", "kind_numbers", "first", "settings")


# --- what tools call ------------------------------------------------------------------


def history(function: FunctionInfo | None = None) -> list[Event]:
    """The events that are kept, in order, each described now if it has not been.

    With a `function`, those of functions that were made by the same line.
    """
    facts = tuple(_facts.history)
    if function is not None:
        facts = tuple(x for x in facts if x.function.key() == function.key())

    events: list[Event] = []
    for fact in facts:
        event = _described.get(fact.number)
        if event is None:
            event = _event_of(fact)
            event.program = program_of(_kept_jaxpr(event))
        events.append(event)
    return events


def watch(
    observer: Callable[[Event], None] | None = None,
    *,
    starting: Callable[[Event], None] | None = None,
    compiling: Callable[[Event], None] | None = None,
) -> None:
    """From now on, describe each event as it happens, and tell an observer of it.

    **Arguments:**

    - `observer`: called with each event when it is complete. If it raises an exception,
        that is printed, and it is not called again.
    - `starting`: called with an event whose Python function is about to be run. An
        exception ends the call.
    - `compiling`: called with an event whose program is about to be compiled, and is
        known. An exception ends the call.
    """
    for told, of in zip(_observers, (observer, starting, compiling), strict=True):
        if of is not None and of not in told:
            told.append(of)
    if _tools not in _facts.watchers:
        _facts.watchers.append(_tools)


def unwatch(observer: Callable[[Event], None]) -> None:
    """Tell an observer of nothing any more, whatever it was told of."""
    for told in _observers:
        told[:] = [x for x in told if x != observer]
    if not any(_observers) and _tools in _facts.watchers:
        _facts.watchers.remove(_tools)


# Of events that are complete, that start, and whose program is about to be compiled.
_observers: tuple[list[Callable[[Event], None]], ...] = ([], [], [])
_complete, _starting, _compiling = _observers


def jaxpr_of(event: Event) -> Any:
    """What was traced for an event of which observers are being told, or `None`."""
    return jaxpr_in_jit() if event.is_outside else _here.jaxprs.get(event.number)


# --- from a fact to an event ----------------------------------------------------------

# By the numbers of facts, as many as the engine keeps.
_described: dict[int, Event] = {}


def _event_of(fact: Fact, arrays: Sequence[Any] | None = None) -> Event:
    """The event of a fact, with all that is known of its arguments by now.

    `arrays` are those of its call, or its tracers, if they are there.
    """
    # Statics of a stage ahead of time are those of the first one.
    first = _described.get((fact.first or fact).number)
    known = first.signature if first else ()
    event = _described.setdefault(fact.number, Event(fact, known))
    if arrays is not None or not event.signature:
        with contextlib.suppress(Exception):  # of a user's class, say
            event.signature = _signature_of(fact, arrays) or event.signature
    if len(_described) > (_facts.history.maxlen or 0):
        with contextlib.suppress(KeyError, RuntimeError):  # another thread does
            _described.pop(next(iter(_described)))
    return event


def _signature_of(fact: Fact, arrays: Sequence[Any] | None) -> tuple[Leaf, ...]:
    """What a call was given, by what its specialization stores. Empty if that is gone.

    `arrays`, if they are there, are for classes that are built of nothing else.
    """
    fact = fact.first or fact
    specialization = fact.specialization()
    if specialization is None:
        return ()
    arrays = _structs(fact) if arrays is None else arrays
    function = specialization.flat.function()
    values = specialization.flat.structure.rebuild(arrays)

    # Once its call is over, a static may have been changed in place.
    is_over = specialization is not ENGINE.active()
    if is_over and ENGINE.read(values, True)[0] != specialization:
        return ()
    by_id = dict(zip(map(id, arrays), fact.arrays, strict=True))
    # The function has a name, unless it is passed along with the arguments.
    fun = function.fun and function.fun()
    name = None if fun is None else (fact.function.name, fun)
    leaves = describe(function.arguments_of(values), by_id, fact.settings, name)
    return tuple(map(_shared, leaves))


# Most leaves are those of the last call, and a model has thousands.
_shared: Callable[[Leaf], Leaf] = functools.lru_cache(maxsize=1 << 16)(lambda x: x)


def _kept_jaxpr(event: Event) -> Any:
    """What was traced for an event that nobody watched, if JAX still has it."""
    # One that was compiled again, for another device say, has the trace of the first.
    specialization = event.specialization()
    if specialization is None or not (event.traced and event.compile):
        return None
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return _traced.kept_trace(specialization.jitted, _structs(event.fact)).jaxpr
    return None


def _structs(fact: Fact) -> list[jax.ShapeDtypeStruct]:
    """What stands for the arrays of a call."""
    return [_struct(x) for x, _ in fact.arrays]


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    weak_type = getattr(aval, "weak_type", False)  # a key has none
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak_type)


class _Tools:
    """The watcher that the engine has while there are observers."""

    def starting(self, compilation: Compilation, arrays: Sequence[Any]) -> None:
        """Describe it, by its tracers, if anybody asks before it is complete."""
        fact = compilation.fact
        if not fact.ahead:  # of a call that fails there are none later
            compilation.set_arrays(arrays)
        if not (_starting or _compiling):
            return
        event = _event_of(fact, arrays)
        for observer in tuple(_starting):
            observer(event)

    def compiling(self, fact: Fact) -> None:
        """Keep its jaxpr, which may be one that JAX had, until it is complete."""
        if fact.number in _here.jaxprs:
            return
        jaxpr = _here.jaxprs[fact.number] = jaxpr_in_jit()
        if not _compiling:
            return

        is_known = fact.traced or fact.ahead
        if not is_known and jaxpr is not None:  # as of a call that was refused
            fact.kinds = tuple((v.aval, "traced") for v in opened(jaxpr).invars)
            fact.kind_numbers = range(len(fact.kinds))
        event = _event_of(fact)
        event.program = program_of(jaxpr)
        try:
            for observer in tuple(_compiling):
                observer(event)
        except BaseException:  # it refuses the call, which then may never complete
            _here.jaxprs.pop(fact.number, None)
            raise

    def complete(self, fact: Fact, arrays: Sequence[Any] | None) -> None:
        """Describe it again, by its arrays."""
        if fact.inside is None and fact.is_part and not fact.ahead:
            # Of a trace of `jax.jit`, if that is compiled.
            _here.nested.append((time.time(), fact.elapsed))
        event = _event_of(fact, arrays)
        event.program = event.program or program_of(_here.jaxprs.get(fact.number))
        event.jitted_inside = _here.jitted_inside.pop(fact.number, 0.0)
        try:
            _tell(event)
        finally:
            _here.jaxprs.pop(fact.number, None)

    def spent_elsewhere(self, stage: str, seconds: float, name: str) -> None:
        """Make an event of it when it is compiled."""
        if stage != "trace":  # what JAX makes of a trace of `f` is `jit(f)`, or `jit_f`
            name = name[4:-1] if name.startswith("jit(") else name.removeprefix("jit_")
        _here.pending[name, stage] += seconds
        if stage != "compile":
            return

        # What else was traced since it began is a part of it.
        stages = _facts.STAGES.values()
        took: dict[str, Any] = {x: _here.pending[name, x] for x in stages}
        began = time.time() - sum(took.values())
        nested = sum(seconds for ended, seconds in _here.nested if ended > began)
        nested = min(nested, took["trace"])
        _here.pending.clear()
        _here.nested.clear()

        fun = function_in_jit()
        place = place_of(fun)
        if place is not None and is_users(place.file):
            # Below zero; 0 is that of all operations. A bound method is made each time.
            number = -number_of(getattr(fun, "__func__", fun))
            variant = str(column_of(fun))
            function = FunctionInfo(name, place.function, place, number, variant)
        else:  # an operation, or a library's
            function = FunctionInfo(name, name, None, number=0)

        fact = Fact(function, traced=took["trace"] > 0, nested=nested, **took)
        fact.started -= sum(took.values())
        event = Event(fact, program=program_of(jaxpr_in_jit()))
        if function.number:
            with contextlib.suppress(Exception):  # of a user's class, say
                event.signature = _signature_in_jit(name, fun)

        if (around := _facts.tracing_now()) is not None:
            fact.inside = around.number
            _here.jitted_inside[around.number] += fact.elapsed
        _tell(event)


_tools = _Tools()


def _tell(event: Event) -> None:
    for observer in tuple(_complete):
        try:
            observer(event)
        except Exception as e:  # it must not end a call of the user's
            unwatch(observer)
            print(f"eqx_fastjit: {observer} ends here: {e!r}", file=sys.stderr)


# --- outside of this library ----------------------------------------------------------


class _Here(threading.local):
    """What this thread is doing."""

    def __init__(self) -> None:
        # Seconds of `jax.jit` since it last compiled, by function and stage; and of the
        # part that has events, when each ended, and its seconds.
        self.pending: dict[Any, float] = collections.defaultdict(float)
        self.nested: list[tuple[float, float]] = []
        # Of facts that are not complete yet, by their numbers.
        self.jaxprs: dict[int, Any] = {}
        self.jitted_inside: dict[int, float] = collections.defaultdict(float)


_here = _Here()


def _signature_in_jit(name: str, fun: Any) -> tuple[Leaf, ...]:
    """What the function that `jax.jit` is compiling was given.

    What the jaxpr has not is static. What it has may be a number, which is an array to
    `jax.jit`.
    """
    args, kwargs = arguments_in_jit()
    bound = python_signature(fun).bind(*args, **kwargs)
    traced = {*opened(jaxpr_in_jit()).debug_info.arg_names}

    def aval(keys: Any, x: Any) -> Any:
        path = keys[0].key + jtu.keystr(keys[1:])
        if path not in traced or not isinstance(x, bool | int | float | complex):
            return x
        return _struct(jax.typeof(x))

    avals = jtu.tree_map_with_path(aval, bound.arguments)
    arguments = [(key, avals[key]) for key in bound.arguments]
    return describe(arguments, None, (), (name, fun))
