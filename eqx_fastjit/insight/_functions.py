"""Which lines and functions the equations of a trace come from."""

import collections
from collections.abc import Iterator
from typing import Any

from eqx_fastjit._place import Place
from eqx_fastjit.doctor._sites import is_library

from ._equations import Scope
from ._jaxpr_report import Inlined, LineCount
from ._places import is_jax, Path


# Frames that are a part of a function, or stand for a walk over a pytree.
_NO_FUNCTIONS = ("comp>", "<genexpr>", "tree_map")


class Counts:
    """Equations by line and by path, and calls by function."""

    def __init__(self, scope: Scope):
        self._lines: collections.Counter[tuple[Place, str]] = collections.Counter()
        self._paths: collections.Counter[tuple[Path, str]] = collections.Counter()
        # By function that is itself a jaxpr: the equations and the line of each call.
        self._calls: dict[tuple[str, str, Place], list[tuple[int, Place]]] = {}
        # Lines that call back into Python, in the order of the trace.
        self.callbacks: dict[Place, None] = {}
        for equation, callers in scope.walk():
            name = equation.name
            if name.endswith("callback") or name == "debug_print":
                frames = (equation.place, *reversed(callers))
                users = [f for f in frames if not is_library(f.file)]
                self.callbacks.setdefault(users[0] if users else equation.place)
            if not equation.is_call:
                self._lines[equation.place, name] += 1
                self._paths[equation.path, name] += 1
                continue
            for inner in equation.inner:
                place = inner.defined_at
                kind = equation.jax.params.get("name")
                kind = str(kind or getattr(place, "function", name))
                key = (name, kind, place or equation.place)
                self._calls.setdefault(key, []).append((inner.size, equation.place))

    def lines(self) -> tuple[LineCount, ...]:
        """The lines with the most equations first."""
        by_frame: dict[Place, collections.Counter[str]] = {}
        for (frame, primitive), n in self._lines.items():
            by_frame.setdefault(frame, collections.Counter())[primitive] += n
        counts = [
            LineCount(*frame, c.total(), tuple(c.most_common(3)))
            for frame, c in by_frame.items()
        ]
        return tuple(sorted(counts, key=lambda x: (-x.equations, x.file, x.line)))

    def inlined(self) -> tuple[Inlined, ...]:
        """Functions that more than one call led to."""
        found: list[Inlined] = []
        for (kind, name, (file, line, _)), calls in self._calls.items():
            if len(calls) > 1 and not is_jax(file):
                sites = len({site for _, site in calls})
                total = sum(size for size, _ in calls)
                found.append(Inlined(name, file, line, kind, len(calls), sites, total))
        found += self._plain_functions()
        return tuple(sorted(found, key=lambda x: -x.equations))

    def _plain_functions(self) -> Iterator[Inlined]:
        """Python functions of the user's that more than one call led to."""
        # By function: the path to it, the path from there, the primitive, how many.
        found: dict[tuple[str, str], list[tuple[Path, Path, str, int]]] = {}
        for (path, primitive), n in self._paths.items():
            # The outermost frame is the function itself, which is there once.
            for i, (file, _, name) in enumerate(path[1:], 1):
                if not is_library(file) and not name.endswith(_NO_FUNCTIONS):
                    part = (path[:i], path[i:], primitive, n)
                    found.setdefault((file, name), []).append(part)
        for (file, name), parts in found.items():
            line = min(inside[0].line for _, inside, _, _ in parts)
            sites = len({outside for outside, _, _, _ in parts})
            # As often as the same is below the call, it was called.
            counts: collections.Counter[Any] = collections.Counter()
            for _, inside, primitive, n in parts:
                counts[inside, primitive] += n
            calls = max(sites, min(counts.values()))
            if calls > 1:
                total = counts.total()
                yield Inlined(name, file, line, "python", calls, sites, total)
