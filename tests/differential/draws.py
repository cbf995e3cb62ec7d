"""Hypothesis strategies: programs as plain data, which `outcomes.py` runs."""

from hypothesis import strategies as st


def _tagged(kind, *strategies):
    return st.tuples(st.just(kind), *strategies).map(list)


def _many(kind, elements, max_size=3):
    return st.lists(elements, max_size=max_size).map(lambda xs: [kind, *xs])


# --- scalars ---

# Some are equal to others of another type, or have the same hash.
_ANY_PLAIN = _tagged(
    "plain", st.sampled_from([0, 1, -1, -2, 2, 10**20, True, False, None, "a", "b", ""])
)
_ANY_FLOAT = _tagged("float", st.sampled_from([0.0, "-0.0", 1.0, 0.5, "nan", "inf"]))
ANY_SCALAR = st.one_of(
    _ANY_PLAIN,
    _ANY_FLOAT,
    _tagged("complex", st.sampled_from([0.0, 1.0, -1.0]), st.just(0.0)),
    _tagged("bytes", st.sampled_from(["a", "b"])),
    _tagged("function", st.sampled_from(["tanh", "sin", "int", "Pair"])),
    _tagged("object", st.integers(0, 2)),
)
# Of these, no two are equal, so that Equinox tells them apart as well.
APART = st.one_of(
    _tagged("plain", st.sampled_from([2, 3, None, "a", "b"])),
    _tagged("float", st.sampled_from([0.5, 2.5])),
    _tagged("function", st.sampled_from(["tanh", "int"])),
    _tagged("object", st.integers(0, 1)),
)

# --- arrays ---

_SHAPES = st.sampled_from([[], [2], [2, 3], [0]])
_DTYPES = st.sampled_from(["float32", "int32", "bool"])
ARRAY = st.one_of(
    _tagged("jax", _DTYPES, _SHAPES, st.integers(0, 2)),
    _tagged("numpy", _DTYPES, _SHAPES, st.integers(0, 2)),
)
_STATIC_ARRAY = _tagged(
    "numpy", st.sampled_from(["float32", "float64"]), _SHAPES, st.integers(0, 2)
)


# --- trees ---


def _dict(values, *, is_sorted=False):
    """A dictionary, in the order that was drawn, or sorted."""

    def described(dictionary):
        keys = sorted(dictionary) if is_sorted else dictionary
        return ["dict", *([["plain", key], dictionary[key]] for key in keys)]

    keys = st.sampled_from("abc")
    return st.dictionaries(keys, values, max_size=3).map(described)


def _hashable(scalars):
    """What has a hash, and so may be a leaf under Equinox.

    What is compared by `==`, by contract, holds no values that are equal and differ.
    """

    def extend(inner):
        kinds = [
            _many("tuple", inner),
            _tagged("frozen", inner),
            _tagged("hashed", APART),
            _many("frozenset", APART),
        ]
        if scalars is not APART:  # `==` takes a named tuple for a tuple
            kinds.append(_tagged("pair", inner, inner))
        return st.one_of(kinds)

    return st.recursive(scalars, extend, max_leaves=4)


def static(*, of_equinox):
    """What may be in a static field; or of that, on which Equinox agrees.

    For its `==` of dictionaries, order does not count.
    """
    base = _hashable(APART if of_equinox else ANY_SCALAR)
    if not of_equinox:
        base = st.one_of(base, _STATIC_ARRAY)

    def extend(inner):
        kinds = [
            _many("list", inner),
            _many("tuple", inner),
            _dict(inner, is_sorted=of_equinox),
        ]
        if not of_equinox:
            kinds += [
                _many("set", APART),
                _many("deque", inner),
                _tagged("mutable", inner),
                _tagged("unhashed", inner),
                _tagged("namespace", inner),
                _tagged("inner", inner),
            ]
        return st.one_of(kinds)

    return st.recursive(base, extend, max_leaves=4)


def tree(leaves, statics, aux):
    """An argument: a pytree of arrays and statics."""

    def node(aux_and_children):
        description, children = aux_and_children
        return ["node", description, *children]

    def extend(inner):
        return st.one_of(
            _many("list", inner),
            _many("tuple", inner),
            _dict(inner),
            _tagged("pair", inner, inner),
            _tagged("inner", inner),
            _tagged("holder", inner, statics),
            _tagged("registered", inner, aux),
            st.tuples(aux, st.lists(inner, max_size=2)).map(node),
        )

    return st.recursive(st.one_of(ARRAY, leaves), extend, max_leaves=6)


# All that the contract says.
ANY_TREE = tree(
    st.one_of(ANY_SCALAR, _hashable(ANY_SCALAR), _tagged("mutable", ANY_SCALAR)),
    static(of_equinox=False),
    _hashable(ANY_SCALAR),
)
# On which Equinox agrees.
EQUINOX_TREE = tree(
    _hashable(APART),
    static(of_equinox=True),
    _hashable(APART),
)


# --- programs ---

_SPELLINGS = st.sampled_from(["position", "keyword", "default"])


def _calls(n_values):
    # Of the value that is kept, or of a new and equal one.
    return st.tuples(
        st.just("call"), st.integers(0, n_values - 1), _SPELLINGS, st.booleans()
    ).map(list)


def _changes(n_values):
    return st.tuples(
        st.just("change"), st.integers(0, n_values - 1), st.integers(0, 9), ANY_SCALAR
    ).map(list)


@st.composite
def programs(draw, trees, *, changes):
    """Values, what is called, and steps."""
    values = draw(st.lists(trees, min_size=1, max_size=3))
    steps = _calls(len(values))
    if changes:
        steps = st.one_of(steps, steps, _changes(len(values)))
    return {
        "values": values,
        "callable": draw(st.sampled_from(["function", "method", "module", "nested"])),
        "steps": draw(st.lists(steps, min_size=2, max_size=7)),
    }
