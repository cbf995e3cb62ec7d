"""Programs: what was traced, so that two compilations can be told to be of the same.

A *program* is a jaxpr but for what could have been an argument: scalar literals, where
slices begin, captured constants and weak types do not count. Two compilations of the
same program differ in nothing that had to be static. Programs of the same *kinds* of
operations differ in shapes, in dtypes, or in how often a Python loop ran.
"""

import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from eqx_fastjit._blocking import jaxprs_in, opened
from eqx_fastjit._facts import is_users, Place
from eqx_fastjit._texts import show_array

from ._describe import number_of
from ._private import raw_frames
from ._samples import position_of
from ._statements import place_of


class Weak(NamedTuple):
    """An array with a weak type that a program returns, and the line that made it."""

    text: str
    place: Place


class Program(NamedTuple):
    """What was traced, in digests. Other processes can compare all but the values."""

    # Of equations, wiring, options and avals.
    same: str
    # Of the kinds of its operations, whatever their shapes, and however many.
    kinds: str
    # How many operations it runs, those of a `scan` in each step; and the arrays that
    # it returns, as `float32[5]`.
    size: int
    returns: tuple[str, ...] = ()
    # What could have been arguments, in order: literals, and digests of constants.
    values: tuple[str, ...] = ()
    weak: tuple[Weak, ...] = ()
    # Whether there are convolutions, which XLA's loops on a CPU make slow.
    convolves: bool = False


# What other shapes and dtypes need beside the operations of a program: conversions and
# broadcasts; and calls, whose operations count by themselves.
_ASIDE = frozenset(
    {
        *("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy"),
        *("copy_p", "stop_gradient", "pjit", "jit", "closed_call", "core_call"),
        *("custom_jvp_call", "custom_vjp_call"),
    }
)
# Options that are no part of the program: weak types; and what an array could be, which
# is where a slice begins, and the padding by which JAX writes its gradient.
_ARGUMENTS = ("weak_type", "start_indices", "limit_indices", "padding_config")
# Values of a program that are kept; and the bytes of an array up to which it is told
# by its content.
_MAX_VALUES, _MAX_BYTES = 200, 1 << 20
# In the text of a function.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def program_of(jaxpr: Any) -> Program | None:
    """The program of a jaxpr; `None` if that is not known."""
    if jaxpr is None:
        return None
    try:
        reader = _Reader()
        text, kinds = reader.read(jaxpr)
        weak = tuple(_weak_results(opened(jaxpr)))
    except Exception:  # of an option of another library's primitive, say
        return None
    outvars = opened(jaxpr).outvars
    returns = [show_aval(v) for v in outvars if hasattr(v.aval, "dtype")]
    values, more = reader.values[:_MAX_VALUES], reader.values[_MAX_VALUES:]
    values += [_digest(more)] if more else []
    return Program(
        text,
        _digest(sorted(kinds)),
        kinds.total(),
        tuple(returns),
        tuple(values),
        weak,
        "conv_general_dilated" in kinds,
    )


def _weak_results(jaxpr: Any) -> Iterator[Weak]:
    """The arrays that it returns with a weak type, of which the line is known."""
    returned = [v for v in jaxpr.outvars if not hasattr(v, "val")]
    weak = {v for v in returned if getattr(v.aval, "weak_type", False)}
    for e in jaxpr.eqns:
        for v in weak.intersection(e.outvars):
            lines = [x for x in raw_frames(e) if is_users(x[0].co_filename)]
            if lines:
                yield Weak(show_aval(v), place_of(position_of(*lines[0])))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.md5(";".join(texts).encode(), usedforsecurity=False).hexdigest()


def _identity(x: Any) -> str:
    """What tells a captured array from others.

    JAX captures its own arrays as they are. It copies those of NumPy, which are told by
    what is in them; a large one counts as another one in each trace.
    """
    if isinstance(x, jax.Array) or x.nbytes > _MAX_BYTES:
        return f"@{number_of(x)}"
    return _digest([show_array(x.shape, str(x.dtype)), np.asarray(x).tobytes().hex()])


def number_text(x: Any) -> str:
    """A number, as a literal and as a static: of a float, the digits of both."""
    value = np.asarray(x).item()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


class _Reader:
    """Reads a jaxpr with all that are inside, each once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, Counter[str]]] = {}  # alive: in the trace
        self.values: list[str] = []

    def read(self, jaxpr: Any) -> tuple[str, Counter[str]]:
        """The digest of a jaxpr, and how often each kind of operation is in it."""
        inner = opened(jaxpr)
        self.values += map(_identity, getattr(jaxpr, "consts", ()))
        if id(inner) not in self._known:
            self._known[id(inner)] = self._read(inner)
        return self._known[id(inner)]

    def _read(self, jaxpr: Any) -> tuple[str, Counter[str]]:
        texts: list[str] = []
        kinds: Counter[str] = Counter()
        numbers: dict[Any, int] = {}

        def name(v: Any) -> str:
            # Literals have no number, and constants are given none.
            if getattr(v, "val", None) is not None:
                is_number = v.aval.shape == ()
                read = number_text if is_number else _identity
                self.values.append(read(v.val))
            is_value = hasattr(v, "val") or v not in numbers
            return show_aval(v) if is_value else f"{numbers[v]}"

        fresh = itertools.count()
        for v in jaxpr.invars:
            numbers[v] = next(fresh)
            texts.append(show_aval(v))
        for e in jaxpr.eqns:
            found = [self.read(x) for x in jaxprs_in(e)]
            # As in a Python loop, whose iterations are in the trace.
            times = e.params["length"] if e.primitive.name == "scan" else 1
            if e.primitive.name not in _ASIDE:
                kinds[e.primitive.name] += 1
            for _, inside in found:
                kinds.update({k: n * times for k, n in inside.items()})
            params = sorted(e.params.items())
            options = [f"{k}={_option(x)}" for k, x in params if k not in _ARGUMENTS]
            for option in ("start_indices", "padding_config"):
                self.values += map(str, e.params.get(option, ()))
            inputs = " ".join(map(name, e.invars))
            results = " ".join(map(show_aval, e.outvars))
            inner = " ".join(text for text, _ in found)
            texts.append(f"{e.primitive.name} {options} {inner} {inputs} > {results}")
            if _is_conversion(e) and results == " ".join(map(show_aval, e.invars)):
                # Of a weak type alone: there is none in a call with a strong one.
                texts.pop()
                if e.invars[0] in numbers:
                    numbers[e.outvars[0]] = numbers[e.invars[0]]
                continue
            for v in e.outvars:
                numbers[v] = next(fresh)
        texts.append(" ".join(map(name, jaxpr.outvars)))
        return _digest(texts), kinds


def _is_conversion(equation: Any) -> bool:
    is_conversion = equation.primitive.name == "convert_element_type"
    return is_conversion and not hasattr(equation.invars[0], "val")


def show_aval(v: Any) -> str:
    """The shape and dtype of a variable: `float32[5]`."""
    return _show(v.aval)


@functools.lru_cache(maxsize=4096)  # most are alike
def _show(aval: Any) -> str:
    if not hasattr(aval, "dtype"):
        return str(aval)
    return show_array(getattr(aval, "shape", ()), str(aval.dtype))


def _option(x: Any) -> str:
    """An option of an equation in words; nothing of jaxprs, which are read."""
    if isinstance(x, tuple | list) and any(hasattr(opened(y), "eqns") for y in x):
        return ""
    return "" if hasattr(opened(x), "eqns") else _ADDRESS.sub("", str(x))
