"""Which lines and functions the equations of a trace come from."""

import collections
from collections.abc import Iterator

from eqx_fastjit._place import Place

from ._equations import Scope
from ._jaxpr_report import Inlined, LineCount
from ._places import is_jax, is_library, Path


class Counts:
    """Equations by line and by path, and calls by function."""

    def __init__(self, scope: Scope):
        self._lines: collections.Counter[tuple[Place, str]] = collections.Counter()
        self._paths: collections.Counter[tuple[Path, str]] = collections.Counter()
        self._calls: dict[tuple[str, str, Place], _Calls] = {}
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
                self._calls.setdefault(key, _Calls()).add(inner.size, equation.place)

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
        found = [
            Inlined(
                name, place.file, place.line, kind, c.calls, len(c.sites), c.equations
            )
            for (kind, name, place), c in self._calls.items()
            if c.calls > 1 and not is_jax(place.file)
        ]
        found += self._plain_functions()
        return tuple(sorted(found, key=lambda x: -x.equations))

    def _plain_functions(self) -> Iterator[Inlined]:
        """Python functions of the user's that more than one call led to."""
        found: dict[tuple[str, str], _PlainFunction] = {}
        for (path, primitive), n in self._paths.items():
            # The outermost frame is the function itself, which is there once.
            for i in range(1, len(path)):
                frame = path[i]
                if is_library(frame.file) or frame.function.endswith("comp>"):
                    continue
                if frame.function.endswith(("<genexpr>", "tree_map")):
                    continue
                key = (frame.file, frame.function)
                found.setdefault(key, _PlainFunction(frame.line)).add(
                    path, i, primitive, n
                )
        for (file, name), function in found.items():
            sites, inner = len(function.sites), function.inner
            calls = max(sites, min(inner.values()))
            if calls > 1:
                total = inner.total()
                yield Inlined(name, file, function.line, "python", calls, sites, total)


class _Calls:
    """The calls of a function that is itself a jaxpr."""

    def __init__(self) -> None:
        self.calls = 0
        self.equations = 0
        self.sites: set[Place] = set()

    def add(self, equations: int, site: Place) -> None:
        self.calls += 1
        self.equations += equations
        self.sites.add(site)


class _PlainFunction:
    """What is known of a Python function from the stacks of its equations."""

    def __init__(self, line: int):
        self.line = line
        # The paths that lead to it.
        self.sites: set[Path] = set()
        # Below the call, by what it does: as often as it is there it was called.
        self.inner: collections.Counter[tuple[Path, str]] = collections.Counter()

    def add(self, path: Path, i: int, primitive: str, n: int) -> None:
        """Take in `n` equations, of a path whose frame `i` is in this function."""
        self.line = min(self.line, path[i].line)
        self.sites.add(path[:i])
        self.inner[path[i:], primitive] += n
