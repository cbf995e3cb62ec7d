"""The ways to compare the values of a type."""

import enum
from typing import Any, NamedTuple


class Kind(enum.IntEnum):
    """How values of a type are compared. `_walk.h` has the same numbers."""

    # By identity alone.
    IDENTITY = 0
    # Exactly these types, by value; floats by their bits.
    INT = 1
    FLOAT = 2
    COMPLEX = 3
    STR = 4
    BYTES = 5
    # By `hash` and `==`, which do not run the user's code.
    PURE = 6
    # By the user's `hash` and `==`. A change is only noticed if it changes the hash.
    OPAQUE = 7
    # Part by part: tuples, lists, dicts (in order) and their subclasses.
    TUPLE = 8
    LIST = 9
    DICT = 10
    # Part by part: attributes in the instance's `__dict__`, by name.
    FIELDS = 11
    # Part by part, with a function that returns the parts.
    PARTS = 12
    # By a hashable key that a function makes.
    KEY = 13
    # Part by part, as a pytree with its arrays: Modules, as `eqx.tree_equal` does, but
    # types and bits decide.
    NODE = 14
    # By the object it is bound to, and its function.
    METHOD = 15
    # Part by part: attributes, by name, wherever the instance has them.
    ATTRIBUTES = 16
    # By its value: a subclass of `str`, `int` or `float`.
    SCALAR = 17


class Hashable(enum.IntEnum):
    """Whether a value has a hash, which a static *leaf* must have, as in Equinox."""

    YES = 0
    NO = 1
    # If all its parts do.
    AS_PARTS = 2
    # To be asked.
    ASK = 3


class Policy(NamedTuple):
    """How the values of one type are compared."""

    kind: Kind
    # For `FIELDS` and `ATTRIBUTES` the names, for `PARTS` and `KEY` a function of the
    # value; for subclasses of a container or a scalar, one for those with attributes.
    data: Any = None
    hashable: Hashable = Hashable.YES
    # Whether a value can change while its hash stays the same.
    mutable: bool = False
