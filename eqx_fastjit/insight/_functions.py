"""Which lines and functions the equations of a trace come from."""

import collections
from collections import Counter
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
        self._lines: dict[Place, Counter[str]] = collections.defaultdict(Counter)
        self._paths: Counter[tuple[Path, str]] = Counter()
        # By function that is itself a jaxpr: the equations and the line of each call.
        self._calls: dict[tuple[str, str, Place], list[tuple[int, Place]]] = {}
        # Lines that call back into Python, in the order of the trace.
        self.callbacks: dict[Place, None] = {}
        for equation, callers in scope.walk():
            name = equation.name
            if name.endswith("callback") or name == "debug_print":
                frames = (equation.place, *reversed(callers))
                users = (f for f in frames if not is_library(f.file))
                self.callbacks.setdefault(next(users, equation.place))
            if not equation.is_call:
                self._lines[equation.place][name] += 1
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
        counts = [
            LineCount(*place, c.total(), tuple(c.most_common(3)))
            for place, c in self._lines.items()
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
        # By function: the paths to it, and how often what is below it is there.
        sites: dict[Any, set[Path]] = collections.defaultdict(set)
        counts: dict[Any, Counter[Any]] = collections.defaultdict(Counter)
        for (path, primitive), n in self._paths.items():
            # The outermost frame is the function itself, which is there once.
            for i, (file, _, name) in enumerate(path[1:], 1):
                if not is_library(file) and not name.endswith(_NO_FUNCTIONS):
                    sites[file, name].add(path[:i])
                    counts[file, name][path[i:], primitive] += n
        for (file, name), count in counts.items():
            line = min(path[0].line for path, _ in count)
            from_sites = len(sites[file, name])
            # As often as the same is below the call, it was called.
            calls = max(from_sites, min(count.values()))
            if calls > 1:
                total = count.total()
                yield Inlined(name, file, line, "python", calls, from_sites, total)
