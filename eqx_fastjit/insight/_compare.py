"""Why something was compiled: what differs from the most similar earlier call.

This is said of each event as it happens. What of it was needed is told by the programs
of all calls (`_diagnosis.py`).
"""

import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from eqx_fastjit._facts import Place

from ._describe import is_below, Leaf, parent


# The earlier events that a new one is compared with.
_MAX_COMPARED = 32


class Cause(enum.StrEnum):
    """Why something was traced or compiled. The most important is first."""

    NEW_FUNCTION = "new function"
    CONFIGURATION = "configuration"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    # The length of an array often is a static as well, and changes because that does.
    SHAPE = "shape"
    STATIC = "static"
    PLACEMENT = "placement"


_RANKS = {cause: rank for rank, cause in enumerate(Cause)}


class Difference(NamedTuple):
    """One leaf that differs between two calls: in what, and so the cause that it is."""

    path: str
    cause: Cause
    # `None` where the leaf is in the other call only.
    old: Leaf | None
    new: Leaf | None

    @property
    def looks_same(self) -> bool:
        """Whether texts do not show it: another object, a weak type, a placement."""
        old, new = self.old, self.new
        if old is None or new is None:
            return False
        return (old.type, old.text) == (new.type, new.text)


class Reason(NamedTuple):
    """Why an event happened."""

    cause: Cause = Cause.NEW_FUNCTION
    # The most important first. There is none for the first call of a function, and for
    # one of which JAX's caches were cleared.
    differences: tuple[Difference, ...] = ()
    # The user's lines that led to the event that it differs from, innermost first. Of a
    # first call, those of the same function before its cell was run again.
    earlier: tuple[Place, ...] = ()


def compare(
    event: Any,
    history: Sequence[Any],
    signature_of: Callable[[Any], tuple[Leaf, ...]] = attrgetter("signature"),
) -> Reason | None:
    """Why an event happened, against the earlier one that it differs least from.

    `None` if it differs from earlier ones, and the arguments are gone, of these or of
    this one.

    **Arguments:**

    - `history`: earlier events, or facts, the newest last.
    - `signature_of`: gives the signature of one, which is empty if it is gone.
    """
    alike = list(itertools.islice(_alike(event, history), _MAX_COMPARED))
    own = [old for old in alike if old.function.number == event.function.number]
    known = [old for old in own or alike if signature_of(old)]
    is_known = bool(known and event.signature)
    if own and not is_known:
        return None
    found, earlier = [], ()
    if is_known:
        nearest = min(  # of several, the newest
            known, key=lambda old: _n_changed(signature_of(old), event.signature)
        )
        found = differences(signature_of(nearest), event.signature)
        earlier = nearest.frames
    if not own:
        if not alike:
            return Reason()
        if all(old.cell != event.cell for old in alike):
            return Reason(earlier=alike[0].frames)  # the cell was run again
        # The line that made this function has made another one before.
        found.insert(0, Difference(event.function.name, Cause.NEW_FUNCTION, None, None))
        earlier = earlier or alike[0].frames
    cause = found[0].cause if found else Cause.CONFIGURATION
    return Reason(cause, tuple(found), earlier)


def shared(event: Any) -> object:
    """The same for events of which the first could have spared the others."""
    # Two lines that jit a class, say, are two functions. JAX shares nothing that is
    # compiled between stages and calls.
    line = event.frames[:1] if event.function.place is None else ()
    return event.function.key(), line, event.ahead


def _alike(event: Any, history: Sequence[Any]) -> Iterator[Any]:
    """The earlier events that could have spared this one, the newest first."""
    key = shared(event)
    for old in reversed(history):
        # A part of another function has spared no compilation.
        is_less = event.compile and not old.compile
        if not (old.failed or is_less) and shared(old) == key:
            yield old


def differences(old: tuple[Leaf, ...], new: tuple[Leaf, ...]) -> list[Difference]:
    """Each leaf that differs between two calls, the most important first."""
    # Most leaves of two calls of one function are the same objects.
    pairs = [(a, b) for a, b in itertools.zip_longest(old, new) if a is not b]
    before = _by_path(a for a, _ in pairs if a is not None)
    after = _by_path(b for _, b in pairs if b is not None)
    everything = functools.cache(lambda: [*map(_by_path, (old, new))])
    out: list[Difference] = []
    told: list[str] = []  # everything below these
    # In the order of the new call; what is gone comes last.
    for path in dict.fromkeys([*after, *before]):
        a, b = before.get(path), after.get(path)
        if a == b or any(is_below(path, node) for node in told):
            continue
        if any(x is not None and x.of and _is_same(x, *everything()) for x in (a, b)):
            continue  # it was changed in place, and nobody looks at it
        if (cause := _cause(a, b)) is not None:
            out.append(Difference(path, cause, a, b))
        if a is None or b is None or a.kind == "structure" or a.type != b.type:
            told.append(path)
    # Not statics that are others because of a field, which is there as well.
    fields = [d.path for d in out if any(leaf and leaf.of for leaf in (d.old, d.new))]
    out = [d for d in out if not any(is_below(f, d.path) for f in fields)]
    return sorted(out, key=lambda d: (d.looks_same, _RANKS[d.cause]))


def _by_path(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in leaves}


def _is_same(
    field: Leaf, before: Mapping[str, Leaf], after: Mapping[str, Leaf]
) -> bool:
    """Whether the static object that a field is in is the same in both calls."""
    path = field.path
    while path := parent(path):
        owner = before.get(path)
        if owner is not None and not owner.of:
            return owner == after.get(path)
    return False


def _n_changed(old: tuple[Leaf, ...], new: tuple[Leaf, ...]) -> int:
    """How many leaves would have to change, for two calls to be alike.

    Below another structure these are all, in the larger of the two.
    """
    total = 0
    for path, _, a, b in differences(old, new):
        is_node = any(x is None or x.kind == "structure" for x in (a, b))
        counts = (_n_leaves(x, path) for x in (old, new)) if is_node else (1,)
        total += max(1, *counts)
    return total


def _n_leaves(signature: Iterable[Leaf], path: str) -> int:
    leaves = (x for x in signature if x.kind in ("array", "static") and not x.of)
    return sum(x.path == path or is_below(x.path, path) for x in leaves)


def _cause(a: Leaf | None, b: Leaf | None) -> Cause | None:
    """The most important way in which two leaves of a path differ, if they do."""
    kinds = [leaf.kind for leaf in (a, b) if leaf is not None]
    # An array that was a number, or a static that was None, is no other structure; nor
    # is a configuration with another option.
    if "static" in kinds:
        return Cause.STATIC
    if a is None or b is None or a.kind != b.kind:
        return Cause.STRUCTURE
    if b.kind != "array":
        return Cause(b.kind)
    if a.dtype == b.dtype and a.shape != b.shape:
        return Cause.SHAPE
    if (a.dtype, a.weak_type) != (b.dtype, b.weak_type):
        return Cause.DTYPE
    # A tracer does not say.
    is_known = a.sharding is not None and b.sharding is not None
    return Cause.PLACEMENT if is_known else None
