"""Made-up records of traces, as a `Watch` keeps them."""

import types

from eqx_fastjit import _record
from eqx_fastjit._describe import Entry
from eqx_fastjit._place import Place
from eqx_fastjit.doctor._plain import Compile, Miss
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._watch import Seen, Watch
from eqx_fastjit.insight._jaxpr import Inspection


HERE = Line("a.py", 1, "main")
THERE = Line("b.py", 20, "train")
# Where the function is defined, as the two types have it.
DEFINED = Place("a.py", 9, "f")
F = Line("a.py", 9, "f")
# A file that is not the program's own.
LIBRARY = types.__file__


def array(path, shape="(2,)", dtype="float32", **facets):
    """The entry of an array that is on a device, unless `sharding` is `None`."""
    facets = {"shape": shape, "dtype": dtype, "weak_type": "False", **facets}
    facets = {"sharding": "cpu:0", **facets}
    return Entry(path, "array", tuple((k, v) for k, v in facets.items() if v))


def static(path, value, kind="int"):
    """The entry of a static."""
    return Entry(path, "static", (("type", kind), ("value", value)))


def node(path, kind, size):
    """The entry of a container or a Module."""
    return Entry(path, "node", (("type", kind), ("size", str(size))))


def trace_of(
    *entries, name="f", place=DEFINED, seconds=(1.0, 2.0, 4.0, 8.0), number=1, **parts
):
    """The trace of a call.

    **Arguments:**

    - `entries`: of its arguments.
    - `name`, `place`: of the function. It is another one for each `number`.
    - `seconds`: durations of the four stages in order.
    - `parts`: other attributes.
    """
    function = _record.FunctionInfo(number, name, name, place)
    trace = _record.Trace(function, entries, ahead=False)
    trace.trace, trace.lower, trace.compile, trace.first_run = seconds
    trace.site, trace.config, trace.retraced, trace.started = None, (), True, 900.0
    for key, value in parts.items():
        setattr(trace, key, value)
    return trace


def seen_of(*entries, site=HERE, inspection=None, stack=None, results=(), **parts):
    """What was seen of a call, with the arguments of `trace_of`."""
    if stack is None:
        stack = () if site is None else (site,)
    seen = Seen(trace_of(*entries, **parts), site, inspection, stack=stack)
    seen.results = tuple(results)
    return seen


def plain(name, miss=None, site=HERE, started=900.0, parts=(0.5, 0.25, 0.25), **more):
    """The compilation of a function under `jax.jit`, and why JAX says that it was."""
    kind = miss and Miss(name, F, *miss)
    return Compile(name, kind, site, started, "", *parts, **more)


def inspected(equations=100, loops=(), inlined=(), constants=(), callbacks=()):
    """What was found in a trace."""
    return Inspection(equations, loops, inlined, constants, callbacks)


def watch_of(*seen, seconds=1000.0, plain=()):
    """The record of a run that began 900 s after the epoch and is over."""
    watch = Watch()
    watch.started, watch.seconds = 900.0, seconds
    watch.seen = {s.trace.number: s for s in seen}
    watch.plain.compiles = list(plain)
    watch._share = 1.0
    return watch
