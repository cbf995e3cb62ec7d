"""Values that a function reads from outside: which, where, and whether they changed."""

import functools as ft
import gc
import sys
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _record, filter_jit
from eqx_fastjit.insight import (
    _captures,
    _reads,
    _snapshots,
    _stand_ins,
    _surroundings,
    captures,
    changed,
    snapshot,
    watch,
)


pytestmark = pytest.mark.one_engine

PROGRAM = """
CONF = OTHER = RATE = 1
def outer():
    scale = own = 1
    def f(x, y=1, /, z=2, *, k=3):
        a = RATE
        b = (CONF.lr
             .deep + CONF
             .mu)
        class C:
            RATE2 = 1
            q = RATE2
            r = OTHER
        def inside():
            return own, scale, RATE
        own = 3
        return a, [RATE for _ in y], CONF.lr, scale
    return f
f = outer()
"""


@pytest.fixture
def program():
    module = types.ModuleType("program_of_a_test")
    exec(compile(PROGRAM, "/program.py", "exec"), vars(module))
    return module


# --- what is read --------------------------------------------------------------------


def test_lines_of_reads(program):
    found = _reads.reads(program.f.__code__)
    found.pop(("global", "__name__"))
    assert found == {
        ("global", "RATE"): 6,
        ("global", "CONF"): 7,
        ("global", "CONF", "lr"): 7,
        ("global", "CONF", "mu"): 9,
        ("global", "OTHER"): 13,
        ("closure", "scale"): 17,
    }
    names = _reads.names_in(program.f.__code__)
    assert names >= {"RATE", "CONF", "OTHER", "lr", "mu", "deep"}
    assert not names & {"own", "scale", "inside", "a", "y"}


def test_values_that_may_be_read(program):
    found = list(_reads.readable(program.f, frozenset({"RATE", "CONF", "none"})))
    assert found == [
        *(("global", "CONF", 1), ("global", "RATE", 1), ("closure", "scale", 1)),
        *(("default", "y", 1), ("default", "z", 2), ("default", "k", 3)),
    ]
    values = [_reads.current_value(program.f, *read[:2]) for read in found]
    assert values == [1, 1, 1, 1, 2, 3]
    for kind in ("global", "closure", "default"):
        assert _reads.current_value(program.f, kind, "none") is _reads.MISSING

    def unset():
        return later

    assert list(_reads.readable(unset, frozenset())) == []
    later = 1
    assert [x for _, _, x in _reads.readable(unset, frozenset())] == [1]


def plain(x):
    return x


class Called(eqx.Module):
    def __call__(self, x):
        return x

    def method(self, x):
        return x


class Unwrapped:
    __wrapped__ = staticmethod(plain)

    def __call__(self):
        pass


def wrapped(n):
    f = plain
    for _ in range(n):
        f = eqx.Partial(f)
    return f


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (plain, plain),
        (ft.wraps(plain)(lambda: 1), plain),
        (filter_jit(plain), plain),
        (jax.jit(plain), plain),
        (ft.partial(plain), plain),
        (eqx.filter_jit(ft.partial(plain, 1)), plain),
        (Called(), Called.__call__),
        (Called().method, Called.method),
        (Unwrapped(), plain),
        (wrapped(19), plain),
        (wrapped(20), None),
        (int, None),
        (len, None),
        (3, None),
    ],
)
def test_the_function_behind(x, found):
    assert _reads.python_function(x) is getattr(found, "__wrapped__", found)


@pytest.mark.parametrize(
    ("name", "file", "library"),
    [
        *(("jax.numpy", None, True), ("json.tool", None, True), ("mine", None, False)),
        *(("mine", eqx.__file__, True), ("mine", "/me/mine.py", False)),
        *(("numpyro", None, False), ("jaxlib", None, True)),
    ],
)
def test_modules_of_libraries(name, file, library):
    module = types.ModuleType(name)
    module.__file__ = file
    assert _reads.is_library_module(module) is library


# --- what is the same ----------------------------------------------------------------


def stand_in(x):
    return _stand_ins.stand_in(x, _stand_ins._Budget())


LONG = "x" * 65_537


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x" * 64, "x" * 63 + "y", False),
        ("x" * 65, "x" * 65, True),
        ("x" * 65, "x" * 64 + "y", False),
        ("x" * 65_536, "".join(["x"] * 65_536), True),
        (LONG, "".join(["x"] * 65_537), False),  # by its identity
        (LONG, LONG, True),
        (b"x" * 65, b"x" * 65, True),
        (b"x" * 65, b"y" * 65, False),
        ("\udc80" * 70, "\udc80" * 70, True),
        ({1, 2, "a"}, {"a", 2, 1}, True),
        (frozenset({1, 2}), {1, 2}, False),
        ({1: 2}, {2: 1}, False),
        ({1: 2}, {1: 3}, False),
        ([1, [2]], [1, [2]], True),
        ([0] * 99, [0] * 99, True),
        ([0] * 100, [0] * 100, False),
        ([[0] * 49, [0] * 48], [[0] * 49, [0] * 48], True),
        ([[0] * 49, [0] * 49], [[0] * 49, [0] * 49], False),
        ([object], [object], True),
        ([object()], [object()], False),
        (np.float32(1), np.float64(1), False),
        (np.zeros(2), np.zeros((2, 1)), False),
        (np.zeros(2), np.zeros(2, "f4"), False),
        (np.zeros(2), np.array([0.0, 1.0]), False),
        (np.zeros(2), np.zeros(2), True),
        (np.array([None]), np.array([None]), False),
        (np.zeros(8192), np.eye(1, 8192, 1)[0], False),
        (np.zeros(16384), np.eye(1, 16384, 1)[0], True),  # not in the sample
        (np.zeros(16384), np.eye(1, 16384, 2)[0], False),
        (np.zeros(3 * 8192), np.eye(1, 3 * 8192, 3)[0], False),
        (np.zeros(3 * 8192), np.eye(1, 3 * 8192, 2)[0], True),
    ],
)
def test_what_is_the_same(old, new, same):
    assert (stand_in(old) == stand_in(new)) is same


def test_an_identity_does_not_outlive_its_object():
    class Weak:
        pass

    x = Weak()
    one, other = _stand_ins._Same(x), _stand_ins._Same(x)
    assert one == other and one != x and one != _stand_ins._Same(Weak())
    del x
    gc.collect()
    assert one != other
    assert _stand_ins._Same(3) == _stand_ins._Same(3)
    for x, is_identity in ((object(), True), (3, False), ([1], False), (LONG, True)):
        value = _stand_ins.value_of(x, frozenset())
        assert _stand_ins.is_identity(value) is is_identity


def test_attributes_that_are_settings():
    module = types.ModuleType("settings")
    module.rate, module.names, module.f = 1, ["a"], plain
    module.module, module.array = types, np.zeros(1)
    wanted = frozenset({"rate", "names", "f", "module", "array", "none"})
    value = _stand_ins.value_of(module, wanted)
    assert value.attributes.keys() == {"rate", "names", "array"}
    assert value.attributes["rate"].shown == "1"
    settings = types.SimpleNamespace(f=plain, other=1)
    assert _stand_ins.value_of(settings, wanted).attributes.keys() == {"f"}
    found = _stand_ins.value_of(settings, wanted, with_attributes=False)
    assert found.attributes == {}


@pytest.mark.parametrize(
    ("x", "is_plain"),
    [
        (types.SimpleNamespace(), True),
        (types, True),
        *((x, False) for x in (int, plain, len, Called(), 3, object(), Unwrapped())),
        (Called().method, False),
        (jnp.ones(1), False),
    ],
)
def test_plain_objects(x, is_plain):
    assert _stand_ins.is_plain_object(x) is is_plain


# --- what has changed ----------------------------------------------------------------


def shown(taken):
    return {(c.name, c.kind, c.where, c.old, c.new) for c in changed(taken)}


def test_changes_with_their_lines(program):
    program.CONF = types.SimpleNamespace(lr=1, mu=[1], deep=1)
    taken = snapshot(program.f)
    assert shown(taken) == set()
    program.RATE, program.f.__kwdefaults__["k"] = 2, 4
    program.CONF.lr, program.CONF.mu[0], program.CONF.deep = 1.0, 1.5, 3
    program.f.__defaults__ = (1, 5)
    del program.OTHER
    assert shown(taken) == {
        ("RATE", "global", "/program.py:6", "1", "2"),
        ("k", "default", "/program.py:5", "3", "4"),
        ("z", "default", "/program.py:5", "2", "5"),
        ("CONF.lr", "attribute", "/program.py:7", "1", "1.0"),
        ("CONF.mu", "attribute", "/program.py:9", "[1]", "[1.5]"),
        ("OTHER", "global", "/program.py:13", "1", "<deleted>"),
    }
    del program.CONF.lr
    assert ("CONF.lr", "attribute", "/program.py:7", "1", "<deleted>") in shown(taken)
    program.CONF = types.SimpleNamespace()
    found = {c.name: (c.kind, c.new) for c in changed(taken)}
    assert found["CONF"] == ("global", "another SimpleNamespace")
    assert "CONF.lr" not in found


def test_values_that_look_the_same(program):
    program.RATE = [0] * 200
    program.CONF = types.SimpleNamespace(lr=np.zeros(2), mu=1, deep=1)
    program.OTHER = np.zeros(2)
    taken = snapshot(program.f)
    program.RATE, program.OTHER = [0] * 200, np.ones(2)
    program.CONF.lr = np.ones(2)
    found = {c.name: (c.old, c.new) for c in changed(taken)}
    assert found["OTHER"] == ("float64[2]", "float64[2], changed")
    assert found["CONF.lr"] == ("float64[2]", "float64[2], changed")
    assert found["RATE"][1] == f"another {found['RATE'][0]}"


def test_how_many_functions_are_followed(monkeypatch):
    monkeypatch.setattr(_snapshots, "_MAX_FUNCTIONS", 3)
    module = types.ModuleType("helpers")
    text = "A = B = C = 1\ndef a(): return A\ndef b(): return B\ndef c(): return C\n"
    exec(text + "def f(): return a(), b(), c(), f()\n", vars(module))
    taken = snapshot(module.f)
    assert [r.name for r in taken.values] == ["a", "b", "c", "f", "B", "A"]
    module.__name__ = "other"
    vars(module)["a"].__module__ = "other"
    taken = snapshot(module.f)
    assert [r.name for r in taken.values] == ["a", "b", "c", "f", "C", "B"]


def test_snapshots_of_the_last_traces():
    def f():
        return PROGRAM

    for i in range(17):
        watch(f, i)
    kept = _captures._snapshots[f]
    assert list(kept) == list(range(1, 17))
    watch(f, 1)
    assert list(kept)[-1] == 1
    more = snapshot(lambda: LONG)
    _captures.remember(f, 2, more)
    assert kept[2].values == (*kept[3].values, *more.values)
    before = dict(kept)
    _captures.remember(f, 99, more)
    _captures.remember(3, 2, more)
    assert kept == before
    found = captures(f)
    assert (found.name, found.snapshots, found.changes) == ("f", 16, ())


# --- surroundings --------------------------------------------------------------------


def test_modules_of_the_program(monkeypatch):
    made = {}
    for name in ("a", "b", "c"):
        made[name] = types.ModuleType(name)
        made[name].__file__ = f"/me/{name}.py"
        made[name].__extra__ = 1
        made[name].value, made[name].f, made[name].cls = [1], plain, Called
    made["b"].a, made["b"].jax, made["c"].x_ = made["a"], jax, 2
    listed = {"jax": jax, **made, "none": None, "sys": sys}
    monkeypatch.setattr(_surroundings.sys, "modules", listed)
    monkeypatch.setattr(_surroundings, "_MAX_MODULES", 2)
    found = _surroundings.surroundings()
    monkeypatch.undo()
    assert list(found) == ["/me/a.py", "/me/b.py"]
    assert found["/me/a.py"].variables is vars(made["a"])
    assert list(found["/me/a.py"].values) == ["value"]
    assert list(found["/me/b.py"].values) == ["value", "a"]
    assert found["/me/b.py"].values["a"].attributes.keys() >= {"value"}


def test_what_code_reads_of_its_surroundings(program):
    program.CONF = types.SimpleNamespace(lr=1, mu=1, deep=1)
    program.__file__ = "/program.py"
    values = dict(_surroundings._values(vars(program), {}))
    around = {"/program.py": _surroundings.Around(vars(program), values)}
    code = program.f.__code__
    # The trace itself has changed these.
    program.OTHER, program.CONF.mu = 2, 2
    taken = _surroundings.read_by({code, plain.__code__}, around)
    assert sorted(r.name for r in taken.values) == ["CONF", "RATE"]
    (conf,) = [r for r in taken.values if r.name == "CONF"]
    assert conf.value.attributes.keys() == {"lr", "deep"}
    assert shown(taken) == set()
    program.RATE, program.CONF.lr = 2, 2
    assert {x[:3] for x in shown(taken)} == {
        ("RATE", "global", "/program.py:6"),
        ("CONF.lr", "attribute", "/program.py:7"),
    }


def test_traces_that_have_begun(monkeypatch):
    monkeypatch.setattr(_surroundings, "_begun", {})
    monkeypatch.setattr(_surroundings, "surroundings", dict)
    info = _record.FunctionInfo(1, "f", "f", None)
    traces = [_record.Trace(info, (), ahead=False) for _ in range(66)]
    traces[0].inside = 1
    for trace in traces:
        _surroundings._on_trace(trace, plain)
    assert list(_surroundings._begun) == [t.number for t in traces[2:]]
    _surroundings._on_called(traces[5], None, [])  # not traced, after all
    assert traces[5].number not in _surroundings._begun
    _surroundings._on_trace(traces[5], 3)  # an `int` has no weak reference
    assert len(_surroundings._begun) == 63


def test_a_source_that_is_gone(monkeypatch):
    """What a trace knows of a function does not keep it alive."""
    monkeypatch.setattr(_surroundings, "_begun", {})

    def f():
        return PROGRAM

    trace = _record.Trace(_record.FunctionInfo(1, "f", "f", None), (), ahead=False)
    trace.retraced = True
    _surroundings._on_trace(trace, f)
    taken, gone = snapshot(f), weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None
    _surroundings._on_called(trace, None, [])
    assert changed(taken) == []


class Hostile:
    @property
    def __dict__(self):
        raise RuntimeError


def test_what_is_left_out_of_a_snapshot():
    module = types.ModuleType("left_out")
    exec("def f(): return A, B, C, D\nB = D = 1", vars(module))
    module.A, module.C = jax, Hostile()
    assert [r.name for r in snapshot(module.f).values] == ["B", "D"]

    def traced(x):
        module.A = x
        return len(snapshot(module.f).values) * x

    assert float(jax.make_jaxpr(traced)(1.0).eqns[0].invars[0].val) == 2
    module.A = 1
    taken = snapshot(module.f)
    module.A, module.B, module.D = Hostile(), 2, 2
    assert [c.name for c in changed(taken)] == ["B", "D"]
