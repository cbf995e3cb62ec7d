"""`compare_eager`: whether a function computes the same with and without jit."""

# Of JAX's functions not all have types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from eqx_fastjit._describe import describe_static
from eqx_fastjit._nodes import ARRAY_TYPES
from eqx_fastjit._progress import Progress
from eqx_fastjit._static_keys import static_key

from ._table import Report, show_type, Table
from ._target import target


@dataclasses.dataclass(frozen=True)
class LeafDifference:
    """How one leaf of the result differs, without its values."""

    # As the user would write it: `result[0].weight`.
    path: str
    # Under jit and without it: dtype and shape, or a short repr of a static.
    jitted: str
    eager: str
    # Largest over the elements that are finite in both; `None` where it has no meaning.
    absolute: float | None = None
    # Of the value without jit, where that is not zero.
    relative: float | None = None
    # Units in the last place: how many floating-point numbers lie in between.
    ulps: int | None = None
    # Elements that are NaN, or an infinity, in one alone (or of the other sign).
    nan_mismatches: int = 0
    inf_mismatches: int = 0
    # Elements that differ at all.
    different: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.jitted == self.eager and not self.different


@dataclasses.dataclass(frozen=True)
class Comparison(Report):
    """The result of `compare_eager`."""

    name: str
    leaves: tuple[LeafDifference, ...]
    # What differs in the structure of the result; empty if nothing does.
    structure: str = ""

    @property
    def same(self) -> bool:
        """Whether the two results agree bit for bit."""
        return not self.structure and all(leaf.same for leaf in self.leaves)

    def title(self) -> str:
        """The outcome, in a line."""
        return f"{self.name}: jitted against eager: " + (
            "the same, bit for bit" if self.same else "different"
        )

    def tables(self) -> list[Table]:
        """The differences, by leaf."""
        header = ("leaf", "jitted", "eager", "different", "abs", "rel", "ULP")
        header += ("NaN", "inf")
        rows: list[Sequence[Any]] = []
        for x in self.leaves:
            leaf = x.path, x.jitted, x.eager, x.different
            ulps = "" if x.ulps is None else x.ulps
            largest = _show(x.absolute), _show(x.relative), ulps
            rows.append((*leaf, *largest, x.nan_mismatches, x.inf_mismatches))
        notes = (self.structure,) if self.structure else ()
        return [Table("Largest difference by leaf of the result", header, rows, notes)]


def _show(x: float | None) -> str:
    return "" if x is None else f"{x:.3g}"


def compare_eager(
    f: Any, *args: Any, disable_jit: bool = False, **kwargs: Any
) -> Comparison:
    """Call a function with and without jit, and compare the results.

    The function runs twice. Arrays that it donates are copied first.

    **Arguments:**

    - `f`: a function under `eqx_fastjit.filter_jit`, `equinox.filter_jit` or `jax.jit`,
        or a plain one, which is jitted.
    - `*args`, `**kwargs`: the arguments of the call.
    - `disable_jit`: run the eager call under `jax.disable_jit()`, so that jitted
        functions inside it also run op by op, and loops of `jax.lax` run in Python.
        This is slow.

    **Returns:**

    A `Comparison`: the largest absolute, relative and ULP difference of each leaf, and
    NaNs and infinities that are in only one of the results. Integers, booleans and
    statics are compared exactly.
    """
    it = target(f)
    with Progress(f"compare_eager of {it.name}") as progress:
        progress.stage("the call without jit")
        with jax.disable_jit(disable_jit):
            eager = it.eager(*args, **kwargs)
        jitted_call = it.jitted if it.kind == "plain" else f
        if it.donates:
            copied = jtu.tree_map(_copy, (jitted_call, args, kwargs))
            jitted_call, args, kwargs = copied
        progress.stage("the call with jit")
        jitted = jitted_call(*args, **kwargs)
        progress.stage("comparing")
        return compare(it.name, jitted, eager)


def _copy(x: Any) -> Any:
    return jnp.copy(x) if isinstance(x, jax.Array) else x


def compare(name: str, jitted: Any, eager: Any) -> Comparison:
    """Compare two results of a function, leaf by leaf."""
    ours = {jtu.keystr(p): x for p, x in jtu.tree_flatten_with_path(jitted)[0]}
    theirs = {jtu.keystr(p): x for p, x in jtu.tree_flatten_with_path(eager)[0]}
    leaves = tuple(
        _compare_leaf(f"result{path}", x, theirs[path])
        for path, x in ours.items()
        if path in theirs
    )
    only = [
        f"result{path} only {where}"
        for a, b, where in ((ours, theirs, "jitted"), (theirs, ours, "eagerly"))
        for path in a
        if path not in b
    ]
    return Comparison(name, leaves, "; ".join(only))


def _compare_leaf(path: str, jitted: Any, eager: Any) -> LeafDifference:
    # A number that the eager call returned may well be an array under jit.
    numeric = all(isinstance(x, _NUMERIC) for x in (jitted, eager))
    static = not numeric or (type(jitted) is type(eager) and type(jitted) in _NUMBERS)

    def shown(x: Any) -> str:
        if isinstance(x, ARRAY_TYPES):
            return show_type(x)
        return describe_static(x) if static else type(x).__name__

    leaf = ft.partial(LeafDifference, path, shown(jitted), shown(eager))
    if static:
        has_array = any(isinstance(x, ARRAY_TYPES) for x in (jitted, eager))
        same = not has_array and static_key(jitted) == static_key(eager)
        return leaf(different=int(not same))
    a, b = _to_numpy(jitted), _to_numpy(eager)
    if a.shape != b.shape:
        return leaf(different=max(a.size, b.size))
    if not (jnp.issubdtype(a.dtype, jnp.inexact) and a.dtype == b.dtype):
        return _compare_exactly(leaf, a, b)
    return _compare_floats(leaf, _parts(a), _parts(b))


_NUMBERS = (int, float, complex, bool)
_NUMERIC = (*ARRAY_TYPES, *_NUMBERS)
_Leaf = Callable[..., LeafDifference]


def _to_numpy(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _parts(x: np.ndarray) -> np.ndarray:
    """The real numbers in an array, as one row."""
    x = np.ascontiguousarray(x).ravel()
    return x.view(np.finfo(x.dtype).dtype) if np.iscomplexobj(x) else x


def _compare_exactly(leaf: _Leaf, a: np.ndarray, b: np.ndarray) -> LeafDifference:
    differ = a != b
    absolute = None
    if a.dtype == b.dtype and a.dtype.kind in "iu":
        # As Python integers: a difference of 64-bit integers may not fit into 64 bits.
        gaps = [abs(int(x) - int(y)) for x, y in zip(a[differ], b[differ], strict=True)]
        absolute = float(max(gaps, default=0))
    return leaf(absolute=absolute, different=int(differ.sum()))


def _compare_floats(leaf: _Leaf, a: np.ndarray, b: np.ndarray) -> LeafDifference:
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    inf = np.isinf(a) | np.isinf(b)
    nan_mismatch, neither = nan_a != nan_b, ~(nan_a | nan_b)
    inf_mismatch = neither & inf & (a != b)
    x, y = a[neither & ~inf], b[neither & ~inf]
    # Wide enough not to overflow, and to be exact for the narrow types.
    wide = np.longdouble if a.dtype.itemsize == 8 else np.float64
    gap = np.abs(x.astype(wide) - y.astype(wide))
    size = np.abs(y.astype(wide))
    distance = _ulps(x, y)
    return leaf(
        absolute=_largest(gap),
        relative=_largest(gap[size > 0] / size[size > 0]),
        ulps=int(distance.max(initial=0)),
        nan_mismatches=int(nan_mismatch.sum()),
        inf_mismatches=int(inf_mismatch.sum()),
        different=int((nan_mismatch | inf_mismatch).sum() + (distance > 0).sum()),
    )


def _largest(x: np.ndarray) -> float:
    out = float(x.max(initial=0))
    assert not math.isnan(out)
    return out


def _ulps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many floating-point numbers lie between two, as unsigned integers.

    The bits of a float, its sign turned into an offset, count all floats in order. The
    two zeros are one apart: they do differ.
    """
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    top = unsigned.type(1 << (8 * unsigned.itemsize - 1))

    def rank(z: np.ndarray) -> np.ndarray:
        bits = z.view(unsigned)
        return np.where(bits & top, ~bits, bits | top)

    a, b = rank(x), rank(y)
    return np.where(a > b, a - b, b - a)
