"""Regression tests: faults found in a twelfth adversarial review: traces of others."""

import array
import collections
import dataclasses
import datetime
import decimal
import typing

import equinox as eqx
import numpy as np
import pytest

from .traces import count_traces


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")


class Holder(eqx.Module):
    static: typing.Any = eqx.field(static=True)


def _strings(*values):
    return np.array(values, dtype=np.dtypes.StringDType())


def test_static_arrays_of_strings():
    """The bytes of a long string are its address and length."""
    f, traces = count_traces(lambda h: h.static.tolist())
    for _ in range(2):
        for text in ("a", "b", "a" * 40, "b" * 40, "c" * 400):
            assert f(Holder(_strings(text))) == [text]
    assert len(traces) == 5
    strings = _strings("a" * 40, "b")
    for text in ("c" * 40, "d", "e" * 400, "f" * 400):
        strings[0] = text
        assert f(Holder(strings)) == [text, "b"]


class Quantity(np.ndarray):
    """An array with a unit."""

    unit: str

    def __new__(cls, value, unit):
        out = np.array(value).view(cls)
        out.unit = unit
        return out


class QuantityWithSlot(np.ndarray):
    __slots__ = ("unit",)

    def __new__(cls, value, unit):
        out = np.array(value).view(cls)
        out.unit = unit
        return out


@pytest.mark.parametrize("cls", [Quantity, QuantityWithSlot])
def test_static_arrays_with_a_unit(cls):
    f, traces = count_traces(lambda h: h.static.unit)
    for _ in range(2):
        for unit in ("m", "km"):
            assert f(Holder(cls([1.0], unit))) == unit
    assert len(traces) == 2
    quantity = cls([1.0, 2.0], "m")
    assert f(Holder(quantity)) == "m"
    quantity.unit = "km"
    assert f(Holder(quantity)) == "km"


def test_what_a_static_masked_array_is_filled_with():
    f, _ = count_traces(lambda h: h.static.filled().tolist())
    masked = np.ma.MaskedArray([1.0], mask=[True], fill_value=2.0)
    assert f(Holder(masked)) == [2.0]
    masked.fill_value = 3.0
    assert f(Holder(masked)) == [3.0]


def _subclass(base, slots):
    namespace = {"__slots__": ("extra",)} if slots else {}
    return type("Sub", (base,), namespace)


BASES = [
    (list, ([1],)),
    (dict, ({"a": 1},)),
    (set, ([1],)),
    (frozenset, ([1],)),
    (str, ("a",)),
    (float, (1.5,)),
    (complex, (1j,)),
    (collections.deque, ([1],)),
    (collections.OrderedDict, ({"a": 1},)),
    (collections.defaultdict, (int, {"a": 1})),
    (collections.Counter, ("a",)),
    (collections.UserDict, ({"a": 1},)),
    (collections.UserList, ([1],)),
    (collections.UserString, ("a",)),
    (bytearray, (b"a",)),
    (array.array, ("i", [1])),
    (decimal.Decimal, ("1",)),
    (datetime.datetime, (2020, 1, 1)),
    (datetime.time, (12,)),
]


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(("base", "args"), BASES, ids=lambda x: str(x))
def test_attributes_of_subclasses(base, args, slots):
    """Those in slots were not compared, and those of some types not at all."""
    f, traces = count_traces(lambda h: repr(getattr(h.static, "extra", None)))
    cls = _subclass(base, slots)
    first = cls(*args)
    assert f(Holder(first)) == "None"
    for extra in (1, 1.0, True, [1], 1):
        first.extra = extra
        other = cls(*args)
        other.extra = extra
        assert f(Holder(first)) == f(Holder(other)) == repr(extra)
    assert len(traces) <= 6


def test_private_slots_of_one_name():
    class Base(list):
        __slots__ = ("__x",)

        def __init__(self, x):
            self.__x = x

        def get(self):
            return self.__x

    class Sub(Base):
        __slots__ = ("__x",)

        def __init__(self, x, y):
            super().__init__(x)
            self.__x = y

        def both(self):
            return self.get(), self.__x

    f, _ = count_traces(lambda h: h.static.both())
    for both in ((1, 2), (2, 1), (1, 1)):
        assert f(Holder(Sub(*both))) == both


class Number(decimal.Decimal):
    pass


class Instant(datetime.datetime):
    pass


class Clock(datetime.time):
    pass


class Bytes(bytearray):
    pass


class Numbers(array.array):
    pass


_UTC = datetime.UTC
_CET = datetime.timezone(datetime.timedelta(hours=1))
EQUAL = [
    (Number("1.0"), Number("1.00"), Number("1")),
    (Instant(2020, 1, 1, 12, tzinfo=_UTC), Instant(2020, 1, 1, 13, tzinfo=_CET)),
    (Instant(2020, 1, 1, 12), Instant(2020, 1, 1, 12, fold=1)),
    (Clock(12, tzinfo=_UTC), Clock(13, tzinfo=_CET), Clock(12, tzinfo=_UTC, fold=1)),
    (Numbers("i", [1]), Numbers("d", [1]), Numbers("b", [1])),
]


@pytest.mark.parametrize("values", EQUAL, ids=str)
def test_equal_values_of_subclasses_that_differ(values):
    """As those of the types themselves (`test_attacks_9p.py`)."""
    f, traces = count_traces(lambda h: repr(h.static))
    for value in (*values, *values):
        assert f(Holder(value)) == repr(value)
    assert len(traces) == len(values)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fields", [["x"], ["x", "y"]])
def test_a_field_that_becomes_a_property(fields, frozen):
    """What its dictionary has was compared."""
    cls = dataclasses.make_dataclass("Config", fields, frozen=frozen)
    f, traces = count_traces(lambda h: h.static.x)
    config = cls(*[1] * len(fields))
    assert f(Holder(config)) == 1
    factor = 5
    setattr(cls, "x", property(lambda self: vars(self)["x"] * factor))  # noqa: B010
    assert f(Holder(config)) == f(Holder(config)) == 5
    factor = 7
    assert f(Holder(config)) == 7
    assert len(traces) == 3


def test_sets_in_sets_take_linear_time():
    """Each level made the keys of all below it twice: it took 30 s."""
    static: typing.Any = frozenset({0.5})
    for _ in range(60):
        static = frozenset({static, (static,)})
    f, traces = count_traces(lambda h: len(h.static))
    assert f(Holder(static)) == f(Holder(static)) == 2
    assert len(traces) == 1


def test_sets_as_deep_as_any():
    def deep(value):
        static: typing.Any = frozenset({value})
        for _ in range(3000):
            static = frozenset({static})
        return static

    f, traces = count_traces(lambda h: len(h.static))
    for value in (0.5, 0.5, 1, 1.0):
        assert f(Holder(deep(value))) == 1
    assert len(traces) == 3
