"""What to do about a cause that JAX's log reported, of a function under `jax.jit`."""

import re
from typing import Any

from ._advice import advice, parameters
from ._differences import Difference


_SHORT = re.compile(r"(bf|f|s|i|u|c)(\d+)")
_LONG = {"bf": "bfloat", "f": "float", "s": "int", "i": "int", "u": "uint"}


def _dtype(short: str) -> str:
    """`float32` for `f32`."""
    found = _SHORT.fullmatch(short)
    if found is None:
        return "bool_" if short == "pred" else short
    return _LONG.get(found[1], "complex") + found[2]


def plain_advice(
    miss: Any, *, site: tuple[str, int] | None, defined: tuple[str, int] | None
) -> str:
    """What to do about a cause that JAX's log reported (`doctor._plain.Miss`)."""
    leaf, old, new = miss.leaf, miss.old, miss.new
    if miss.kind == "dtype-churn":
        old, new = _dtype(old), _dtype(new)
    if (found := re.fullmatch(r"argument (\d+)", leaf)) is not None:
        names = parameters(defined, miss.name)
        leaf = names[int(found[1])] if int(found[1]) < len(names) else leaf
    difference = Difference(leaf, "", old, new, _dtype(miss.dtype)) if leaf else None
    text = advice(miss.kind, difference, site=site, function=miss.name, defined=defined)
    if miss.kind == "static-churn" and "jnp.asarray(" in text and leaf.isidentifier():
        # Otherwise, an array would be an error.
        text = f"Remove `{leaf}` from `static_argnames` or `static_argnums`. {text}"
    return text
