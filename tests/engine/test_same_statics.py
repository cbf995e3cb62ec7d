"""Statics that are the same objects as in the call before are read at the least cost.

So each change in place, wherever it is, is a chance to see what was, and not what is. A
program of random changes compares what the function saw with what is there.
"""

import copy
import dataclasses

import jax.numpy as jnp
from hypothesis import given, settings, strategies as st

from eqx_fastjit import filter_jit
from tests.support.modules import Hashed, Holder, Unhashed


X = jnp.ones(2)


@dataclasses.dataclass
class Config:
    name: object
    sizes: object


def new_static():
    return {
        "words": [f"word {i}" for i in range(4)],
        "sizes": [1, 2.0, True, None],
        "config": Config("first", [1, 2]),
        "plain": Unhashed({"a": [0]}),
        "layers": (Config("second", {"b": 1}), [Unhashed("c"), [[]]]),
    }


# New objects each time, maybe where one of those before was; and some that are equal to
# others, but of another type.
VALUES = st.sampled_from(
    [
        lambda i: f"word {i}",
        lambda i: i,
        lambda i: float(i),
        lambda i: i % 2 == 0,
        lambda i: [i],
        lambda i: {"k": i},
        lambda i: Unhashed(i),
        lambda i: Config(i, [i]),
    ]
)

CHANGES = {
    "word": lambda s, x, i: s["words"].__setitem__(i, x),
    "longer": lambda s, x, i: s["words"].append(x),
    "shorter": lambda s, x, i: s["words"].__setitem__(slice(i, None), []),
    "size": lambda s, x, i: s["sizes"].__setitem__(i, x),
    "turned": lambda s, x, i: s["sizes"].reverse(),
    "field": lambda s, x, i: setattr(s["config"], "name", x),
    "inner": lambda s, x, i: s["config"].sizes.append(x),
    "state": lambda s, x, i: setattr(s["plain"], "value", x),
    "deep": lambda s, x, i: s["layers"][1][1].append(x),
    "object": lambda s, x, i: setattr(s["layers"][0], "sizes", x),
    "key": lambda s, x, i: s.__setitem__(f"key {i}", x),
    "order": lambda s, x, i: s.__setitem__("sizes", s.pop("sizes")),
    "nothing": lambda s, x, i: None,
}


def change(static, name, value, i):
    words = static["words"]
    words += [""] * (4 - len(words))
    CHANGES[name](static, value, i)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(CHANGES)), VALUES, st.integers(0, 3), st.booleans()
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_change_is_seen(steps):
    """Also of a copy, which is equal and no more, and back again of the first."""
    f = filter_jit(lambda m, y: (m.x, repr((m.static, y))))
    static = new_static()
    f(Holder(X, static), static["words"])

    for name, new, i, is_copied in steps:
        change(static, name, new(i), i)
        passed = copy.deepcopy(static) if is_copied else static
        for _ in range(2):
            seen = f(Holder(X, passed), passed["words"])[1]
            assert seen == repr((passed, passed["words"]))


def test_a_change_during_the_reading():
    """Of what is read after it, it is seen; so it is by the next call of all."""
    words, armed = ["a", "b"], []

    class Changing(Hashed):
        __eq__ = Hashed.__eq__

        def __hash__(self):
            if armed:
                armed.clear()
                words[1] += "!"
            return 1

    key = Changing(0)
    f = filter_jit(lambda x, key, words: (x, tuple(words)))
    for i in range(6):
        if i % 3:
            armed.append(None)
        assert f(X, key, words)[1] == tuple(words)


def test_a_change_during_the_call():
    """By the function itself, as it is traced."""
    words = ["a"]
    f = filter_jit(lambda x, words: (x, len(words), words.append("b"))[:2])
    f(X, words)
    for n in range(3):
        words[:] = ["c"] * (n + 1)
        assert f(X, words)[1] == n + 1
