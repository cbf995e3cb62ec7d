"""Suggested lengths to which inputs of many shapes should be padded."""

import itertools
import random
import re

import pytest

from eqx_fastjit.doctor._buckets import (
    cheapest_buckets,
    padding_advice,
    parse_shape,
    show_shapes,
)
from eqx_fastjit.insight._differences import FIX_SHAPES, PADDING


pytestmark = pytest.mark.one_engine


def padding(lengths, buckets):
    padded = sum(min(b for b in buckets if b >= n) * c for n, c in lengths.items())
    return padded / sum(n * c for n, c in lengths.items()) - 1


def test_no_set_of_buckets_is_cheaper():
    """Compared with every possible set of at most as many buckets."""
    numbers = random.Random(0)
    for _ in range(60):
        n = numbers.randint(1, 7)
        lengths = {numbers.randint(1, 40): numbers.randint(1, 4) for _ in range(n)}
        found = cheapest_buckets(lengths)
        assert padding(lengths, found) <= 0.25 and found == sorted(found)
        for k in range(1, len(found) + 1):
            for others in itertools.combinations(sorted(lengths), k):
                if max(others) < max(lengths):
                    continue
                loss = padding(lengths, others)
                if k < len(found):
                    assert loss > 0.25
                else:
                    assert loss >= padding(lengths, found) - 1e-9


def test_a_length_of_nothing():
    assert cheapest_buckets({0: 3}) == [0]
    assert cheapest_buckets({0: 1, 5: 1}) == [0, 5]


def test_axes_and_leaves():
    text = padding_advice(
        {"x": ["(8, 3)", "(9, 3)"], "y": ["(8,)", "(9,)"], "z": ["(8, 1)", "(8, 99)"]}
    )
    assert (
        "Axis 0 of `x`, `y` padded to 9 is 1 length in place of 2, for 6% more" in text
    )
    assert "Axis 1 of `z` padded to 1, 99 is 2 lengths in place of 2" in text
    # The ranks differ, or a dimension is symbolic.
    assert padding_advice({"x": ["(8, 3)", "(9,)"], "y": ["(n,)", "(9,)"]}) == ""
    assert "Axis 0 of `x` padded" in padding_advice({"x": ["[8,3]", "[9,3]"]})


def test_counts():
    shapes = ["(1,)", "(2,)", "(1,)", *[f"({n},)" for n in range(3, 12)]]
    text = show_shapes(shapes)
    assert text.startswith("(1,) (2 times), (2,), (3,)") and text.endswith("and 3 more")


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        # A quarter more is not too much.
        ({4: 1, 2: 0}, [4]),
        ({5: 1, 3: 1}, [5]),
        ({5: 1, 2: 1}, [2, 5]),
        ({1: 5, 5: 1}, [1, 5]),
        ({1: 1, 2: 2, 3: 1}, [2, 3]),
        ({1: 9, 2: 1, 3: 1}, [1, 3]),
    ],
)
def test_lengths_to_pad_to(lengths, expected):
    assert cheapest_buckets(lengths) == expected


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        *[("(3, 4)", (3, 4)), ("[3,4]", (3, 4)), ("(3,)", (3,)), ("()", ())],
        *[("(12,)", (12,)), ("(n,)", None), ("(3, n)", None), ("(-3,)", None)],
        *[(" [ 3 ] ", (3,)), ("(3, 2*n)", None)],
    ],
)
def test_shapes_are_read(text, shape):
    assert parse_shape(text) == shape


def test_shapes_in_words():
    shapes = [f"({n},)" for n in range(8)]
    assert show_shapes(shapes) == ", ".join(shapes)
    assert show_shapes([*shapes, "(8,)"]) == f"{', '.join(shapes)} and 1 more"
    assert show_shapes(["(1,)", "(0,)", "(0,)", "(0,)"]) == "(1,), (0,) (3 times)"


def test_advice_in_full():
    leaves = {name: ["(6,)", "(8,)"] for name in "abc"}
    assert padding_advice(leaves) == (
        f"{FIX_SHAPES} {PADDING} Axis 0 of `a`, `b`, `c` padded to 8 is 1 program in "
        "place of 2, for 14% more elements."
    )
    assert "of `a`, `b`, `c` and 1 more padded to 8 is" in padding_advice(
        {**leaves, "d": ["(6,)", "(8,)"]}
    )
    # An axis for each, of which three are mentioned; what does not vary is not.
    shapes = ["(1, 1, 2, 3, 4)", "(1, 2, 3, 4, 5)"]
    text = padding_advice({"x": shapes})
    assert re.findall(r"Axis \d", text) == ["Axis 1", "Axis 2", "Axis 3"]
    assert padding_advice({"x": ["(1,)", "(n,)"]}) == padding_advice({}) == ""
    # A shape that is not a number is left out, and the others count.
    assert "Axis 0 of `x` padded to 8" in padding_advice(
        {"x": ["(6,)", "(n,)", "(8,)"]}
    )
    # What cannot be padded is skipped, and what follows is not.
    text = padding_advice({"x": ["(1,)", "(1, 2)"], "y": ["(6,)", "(8,)"]})
    assert "of `y` padded to 8" in text
