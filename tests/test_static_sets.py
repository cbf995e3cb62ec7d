"""Static sets: equal if their members are the same, of whatever kind, in any order."""

import dataclasses
import enum
import math
import typing

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from tests.traces import count_traces


X = jnp.ones(())


class _Holder(eqx.Module):
    static: typing.Any = eqx.field(static=True)


class _Colour(enum.Enum):
    RED = 1
    BLUE = 2


class _Word(enum.StrEnum):
    A = "a"
    B = "b"


class _Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


@dataclasses.dataclass(frozen=True)
class _Window:
    size: typing.Any


class _Named:
    """Compared by what it holds, with a hash that is often the same."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return type(other) is _Named and self.name == other.name

    def __hash__(self):
        return len(self.name)


def _traces_of(*statics):
    f, traces = count_traces(lambda m, x: x)
    out = []
    for static in statics:
        f(_Holder(static), X)
        out.append(len(traces))
    return out


MEMBERS = {
    "floats": lambda: [1.5, -2.5, 8.0, math.inf],
    "numbers": lambda: [1, 2.0, 0.5, 1 + 2j],
    "bytes": lambda: [bytes([97]), b"b"],
    "booleans": lambda: [True, False, None],
    "enum": lambda: [*_Colour],
    "enums": lambda: [_Colour.RED, _Word.A, _Bits.TWO, "b"],
    "tuples": lambda: [(1, 2.0), (3, (_Colour.BLUE,))],
    "dataclasses": lambda: [_Window(1), _Window((2, "a"))],
    "sets": lambda: [frozenset([1.0, 9.0]), frozenset([0.5]), frozenset()],
    "dtypes": lambda: [np.dtype("float32"), np.dtype("int8")],
    "classes": lambda: [float, _Colour, jnp.float32],
    "functions": lambda: [math.sin, jnp.tanh],
    "objects": lambda: [_Named("a"), _Named("bb")],
    # Their hash is the same: -2.
    "integers of the same hash": lambda: [-1, -2, 3],
    "same hash": lambda: [-1.0, -2.0, _Window(1)],
    "objects of the same hash": lambda: [_Named("a"), _Named("b")],
    "nan": lambda: [float("nan"), 1.0],
    "few": lambda: ["a", "b", 1],
    "many words": lambda: list(map(str, range(300))),
    "many": lambda: [i / 2 for i in range(300)],
}


@pytest.mark.parametrize("kind", [frozenset, set])
@pytest.mark.parametrize("name", MEMBERS)
def test_equal_sets_share_a_trace(name, kind):
    make = MEMBERS[name]
    backwards = kind(reversed(make()))
    assert _traces_of(kind(make()), kind(make()), backwards) == [1, 1, 1]
    # and the number of its members counts
    assert _traces_of(kind(make()), kind(make()[1:]), kind(make())) == [1, 2, 2]


DIFFERENT = [
    ({1.0}, {1}, {True}, {1 + 0j}, {np.float64(1)}),
    ({0.0}, {-0.0}, {0}, {False}),
    ({1, 2.0}, {1.0, 2}, {1, 2}, {1.0, 2.0}),
    ({_Word.A}, {"a"}, {_Word.B}, {_Word.A, "b"}, {_Word.A, _Word.B}),
    ({_Bits.ONE}, {1}, {1.0}, {_Bits.TWO}),
    ({(1, 2.0)}, {(1, 2)}, {(True, 2.0)}, {(1.0, 2.0)}),
    ({_Window(1)}, {_Window(1.0)}, {_Window(True)}, {_Window((1,))}),
    ({frozenset({1.0})}, {frozenset({1})}, {frozenset({frozenset({1})})}),
    ({-1.0, -2.0}, {-1, -2.0}, {-1.0, -2}, {-1, -2}),
    ({0.5}, frozenset({0.5}), (0.5,), [0.5], {0.5: None}),
    ({0.5, (0.25,)}, {0.5, 0.25}, {(0.5, 0.25)}),
    ({float("nan")}, {math.inf}, {0.0}),
    (set(), frozenset(), {0.5}, {None}),
]


@pytest.mark.parametrize("statics", DIFFERENT, ids=lambda x: str(x[0]))
def test_different_sets_do_not(statics):
    assert _traces_of(*statics, *statics) == [
        *range(1, len(statics) + 1),
        *[len(statics)] * len(statics),
    ]
    nested = [frozenset({(x,)}) for x in statics if isinstance(x, frozenset)]
    assert _traces_of(*nested) == [*range(1, len(nested) + 1)]


def test_a_set_that_changes():
    changing = {0.5, 1.5}
    f, traces = count_traces(lambda m, x: x * sum(m.static))
    assert float(f(_Holder(changing), X)) == 2.0
    changing.add(2.5)
    assert float(f(_Holder(changing), X)) == 4.5
    # What was traced holds the changed set.
    assert float(f(_Holder({0.5, 1.5}), X)) == 2.0
    assert len(traces) == 3


def test_a_member_that_changes():
    member = _Window(1)
    f, traces = count_traces(lambda m, x: x * sum(w.size for w in m.static))
    assert float(f(_Holder(frozenset({member})), X)) == 1.0
    object.__setattr__(member, "size", 3)
    assert float(f(_Holder(frozenset({member})), X)) == 3.0
    assert len(traces) == 2


def test_a_hash_that_changes_the_set():
    class Hostile:
        def __hash__(self):
            for x in holders:
                if len(x) > 1:
                    x.clear()
            return 1

    holders = []
    static = {0.5, Hostile(), (2, 3)}
    f, _ = count_traces(lambda m, x: x)
    f(_Holder(static), X)
    holders.append(static)
    assert f(_Holder(static), X) == 1
    assert static == set()
    assert f(_Holder(static), X) == 1


def test_a_hash_that_raises():
    class Fickle:
        raises = False

        def __hash__(self):
            if self.raises:
                raise ValueError("no hash")
            return 1

    member = Fickle()
    static = frozenset({0.5, member})
    f, traces = count_traces(lambda m, x: x)
    f(_Holder(static), X)
    member.raises = True
    assert f(_Holder(static), X) == 1
    assert len(traces) <= 2


def test_as_a_leaf():
    f, traces = count_traces(lambda x, static: x * len(static))
    assert float(f(X, frozenset([1.5, 2.5]))) == 2.0
    assert float(f(X, frozenset([2.5, 1.5]))) == 2.0
    assert float(f(X, frozenset([2.5, _Colour.RED, ()]))) == 3.0
    assert len(traces) == 2
    with pytest.raises(TypeError, match="unhashable type: 'set'"):
        f(X, {1.5})
