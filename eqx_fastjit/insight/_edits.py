"""What to write in place of an argument that made a function compile again."""

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

import jax

from eqx_fastjit._place import call_of

from ._differences import Difference


# Its type is none of Python's own.
OF_A_CLASS = re.compile(r"\([\w.<>]+\.[\w.<>]+\)$")
_NUMBER = re.compile(r".* \((?:numpy\.)?(int|float|complex|bool)\d*\)")
_ARRAY = re.compile(r"\w+\(.*\)")


class Edit(NamedTuple):
    """What to write in place of an argument, and why."""

    # With "{}" for the argument.
    text: str
    why: str

    def wrap(self, argument: str) -> str:
        """What to write for it: of a call of the same function, another call."""
        name, _, rest = self.text.partition("(")
        call = call_of(argument) if rest.startswith("{}") else None
        if call is not None and call.args and ast.unparse(call.func) == name:
            argument = ast.get_source_segment(argument, call.args[0]) or argument
        return self.text.replace("{}", argument)


def field_advice(d: Difference) -> str | None:
    """Of a number in a configuration: an array in it would have no hash."""
    old, new = _NUMBER.fullmatch(d.old), _NUMBER.fullmatch(d.new)
    if old is None or new is None or old[1] != new[1]:
        return None
    return (
        f"Pass `jnp.asarray({d.path})` as an argument of its own, and keep the "
        f"{d.of} the same: all of it is static, and each new value recompiles. (If "
        "shapes or an `if` depend on the number, it has to stay static.)"
    )


def static_edit(d: Difference) -> Edit | None:
    old, new = (_NUMBER.fullmatch(text) for text in (d.old, d.new))
    if old is not None and new is not None and old[1] != new[1]:
        types = {"bool": 0, "int": 1, "float": 2, "complex": 3}
        name = max(old[1], new[1], key=types.__getitem__)
        why = f"Its type changed, {old[1]} to {new[1]}."
        return Edit(name + "({})", why)
    if (old or _ARRAY.fullmatch(d.old)) and (new or _ARRAY.fullmatch(d.new)):
        why = (
            "A number that is not an array is static, and each new value "
            "recompiles. (If shapes or an `if` depend on it, it has to stay static.)"
        )
        number = old or new
        is_array = old is None or new is None  # in one of the calls
        if is_array and number is not None and number[1] in d.dtype:
            # Without it, the array would be weakly typed, which recompiles once more.
            return _cast(d.dtype, why)
        return Edit("jnp.asarray({})", why)
    return None


def becomes_array(d: Difference) -> bool:
    """Whether a static number became an array."""
    return bool(_NUMBER.fullmatch(d.old) and _ARRAY.fullmatch(d.new))


STRONG = (
    "jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype) if eqx.is_array(x) else x, "
    "{})"
)


def _cast(dtype: str, why: str) -> Edit:
    """To the dtype that JAX uses: for NumPy's `float64` mostly its `float32`."""
    try:
        dtype = str(jax.dtypes.canonicalize_dtype(dtype))
    except TypeError:  # none of NumPy's
        pass
    return Edit(f"jnp.asarray({{}}, dtype=jnp.{dtype})", why)


def _weak_edit(d: Difference) -> Edit:
    which = "the first" if d.old in ("True", "weak") else "a later"
    why = f"In {which} call it comes from a Python number, and is weakly typed."
    return Edit(f"jnp.asarray({{}}, dtype=jnp.{d.dtype or 'float32'})", why)


def _dtype_edit(d: Difference) -> Edit:
    if becomes_float(d.old, d.new):
        why = "The initial value has integers, and later values do not."
        return _cast(d.new, why)
    return _cast(d.old, f"Its dtype was {d.old}, and then {d.new}.")


def becomes_float(old: str, new: str) -> bool:
    """Whether integers became floats: of dtypes, which may have JAX's short names."""
    whole = ("bool", "pred", "i", "s", "u")
    return old.startswith(whole) and not new.startswith(whole)


def fed_back_edit(d: Difference) -> Edit:
    why = f"The initial value is {d.old}, and the function returns {d.new}."
    return _cast(d.new, why)


def _sharding_edit(d: Difference) -> Edit:
    why = "Use one sharding for all calls, or fix `in_shardings` and `out_shardings`."
    return Edit("jax.device_put({}, sharding)", why)


EDITS: dict[str, Callable[[Difference], Edit | None]] = {
    "static-churn": static_edit,
    "weak-type": _weak_edit,
    "dtype-churn": _dtype_edit,
    "sharding-churn": _sharding_edit,
}
