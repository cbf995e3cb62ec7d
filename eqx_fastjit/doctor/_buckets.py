"""What to do about shapes that vary, and lengths to pad to."""

import collections
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from eqx_fastjit._units import plural


# The most that padding may add, on average.
_PADDING = 0.25
# The most leaves and axes to mention.
_MAX_SENTENCES = 3
_MAX_SHOWN = 8


def cheapest_buckets(lengths: dict[int, int]) -> list[int]:
    """The fewest lengths that pad by at most a quarter on average, in order.

    Lengths come with the number of their occurrences. Of all sets of that many, it is
    the one that pads least; the largest length is always in it.
    """
    sizes = sorted(lengths)
    total = sum(n * count for n, count in lengths.items())
    # For each last bucket, the padded sum of all lengths up to it, and the buckets.
    # Each round adds one bucket.
    counts = list(itertools.accumulate((lengths[n] for n in sizes), initial=0))
    best: list[tuple[int, list[int]]] = [
        (n * counts[i + 1], [n]) for i, n in enumerate(sizes)
    ]
    while best[-1][0] > (1 + _PADDING) * total:
        best = [
            min(
                (
                    (best[j][0] + n * (counts[i + 1] - counts[j + 1]), [*best[j][1], n])
                    for j in range(i)
                ),
                default=best[i],
            )
            for i, n in enumerate(sizes)
        ]
    return best[-1][1]


def parse_shape(text: str) -> tuple[int, ...] | None:
    """The numbers in `(3, 4)` or `[3,4]`, or `None` if it is not a shape of numbers."""
    parts = [part.strip() for part in text.strip()[1:-1].split(",") if part.strip()]
    if all(re.fullmatch(r"\d+", part) for part in parts):
        return tuple(map(int, parts))
    return None


def show_shapes(shapes: Sequence[str]) -> str:
    """The shapes in order of first occurrence, with counts above one."""
    counts = collections.Counter(shapes)
    shown = [
        f"{shape} ({n} times)" if n > 1 else shape
        for shape, n in itertools.islice(counts.items(), _MAX_SHOWN)
    ]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def padding_advice(leaves: Mapping[str, Iterable[str]]) -> str:
    """What keeps results, and what padding would save, given shapes by a leaf's path.

    Empty if no axis can be padded.
    """
    from eqx_fastjit.insight._differences import FIX_SHAPES, PADDING

    # Leaves that vary in the same way are mentioned together.
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for path, texts in leaves.items():
        shapes = [shape for text in texts if (shape := parse_shape(text)) is not None]
        if len({len(shape) for shape in shapes}) != 1:
            continue
        for axis, lengths in enumerate(zip(*shapes, strict=True)):
            if len(set(lengths)) > 1:
                alike.setdefault((axis, lengths), []).append(path)
    # With several axes, it depends on their combinations how many programs there are.
    what = "program" if len(alike) == 1 else "length"
    sentences: list[str] = []
    for (axis, lengths), paths in itertools.islice(alike.items(), _MAX_SENTENCES):
        counts = collections.Counter(lengths)
        chosen = cheapest_buckets(counts)
        before = sum(lengths)
        after = sum(min(b for b in chosen if b >= n) for n in lengths)
        names = ", ".join(f"`{path}`" for path in paths[:3])
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        numbers = ", ".join(map(str, chosen))
        sentences.append(
            f"Axis {axis} of {names}{more} padded to {numbers} is "
            f"{plural(len(chosen), what)} in place of {len(counts)}, for "
            f"{after / before - 1:.0%} more elements."
        )
    return " ".join([FIX_SHAPES, PADDING, *sentences]) if sentences else ""
