"""Whose line it was, what a sample found, and how many samples."""

import os
import sys
import sysconfig
import textwrap
import types

import equinox
import jax
import pytest

import eqx_fastjit
from eqx_fastjit.doctor import _sampler, _sites
from eqx_fastjit.doctor._sampler import merged, Sampler, Stretch, Where
from eqx_fastjit.doctor._sites import Line
from tests.doctor_records import HERE


pytestmark = pytest.mark.one_engine

STDLIB = sysconfig.get_path("stdlib")
PURELIB = sysconfig.get_path("purelib")
FOLDERS = {
    name: os.path.dirname(module.__file__)
    for name, module in (("jax", jax), ("equinox", equinox), ("ours", eqx_fastjit))
}


# --- files ---------------------------------------------------------------------------


def test_paths_for_people(tmp_path, monkeypatch):
    monkeypatch.setattr(_sites, "_FOLDER", str(tmp_path))
    assert _sites.shorten(str(tmp_path / "sub" / "a.py")) == os.path.join("sub", "a.py")
    assert _sites.shorten("/elsewhere/../b.py") == "/b.py"
    assert _sites.shorten(f"{PURELIB}/jax/a.py") == "jax/a.py"
    assert _sites.shorten(f"{STDLIB}/json/a.py") == "json/a.py"
    assert _sites.shorten(f"{PURELIB}x/a.py").endswith("site-packagesx/a.py")
    assert str(Line("a.py", 3)) == "a.py:3"

    def other_drive(path, start):
        raise ValueError(path)

    monkeypatch.setattr(os.path, "relpath", other_drive)
    assert _sites.shorten("/d/a.py") == "/d/a.py"


def test_a_directory_that_is_gone(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert _sites._current_folder() == os.sep
    assert _sites.shorten("/a/../b.py").endswith("b.py")
    assert _sites.shorten("a/../<input>") == "<input>"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (types.__file__, True),
        (f"{PURELIB}/a.py", True),
        ("/somewhere/site-packages/a.py", True),
        ("/somewhere/site-packages.py", False),
        ("<frozen importlib._bootstrap>", True),
        ("<timeit-src>", True),
        ("<stdin>", False),
        ("<string>", False),
        (f"{FOLDERS['jax']}/a.py", True),
        (f"{FOLDERS['ours']}/a.py", True),
        (f"{FOLDERS['ours']}_more/a.py", False),
        (__file__, False),
    ],
)
def test_files_of_libraries(file, expected):
    assert _sites.is_library(file) is expected


def test_files_of_packages():
    for name, folder in FOLDERS.items():
        expected = "eqx_fastjit" if name == "ours" else name
        assert _sites.package_of(f"{folder}/a/b.py") == expected
        assert _sites.package_of(f"{folder}_more/b.py") == ""
    assert _sites.package_of(types.__file__) == ""


def test_a_library_that_is_imported_later(monkeypatch):
    file = "/checkout/jax/a.py"
    assert not _sites.is_library(file) and _sites.package_of(file) == ""
    module = types.SimpleNamespace(__file__="/checkout/jax/__init__.py")
    monkeypatch.setitem(sys.modules, "jax", module)
    assert not _sites.is_library(file) and _sites.package_of(file) == ""
    _sites.look_again()
    try:
        assert _sites.is_library(file) and _sites.package_of(file) == "jax"
    finally:
        monkeypatch.undo()
        _sites.look_again()


# --- frames --------------------------------------------------------------------------


def module(text, file, **names):
    """The functions of a text, as if it stood in a file."""
    exec(compile(textwrap.dedent(text), file, "exec"), names)
    return types.SimpleNamespace(**names)


def library(file):
    return module("def call(f, *args):\n    return f(*args)\n", file).call


JAX = library(f"{FOLDERS['jax']}/a.py")
OTHER = library(f"{PURELIB}/other/a.py")
OWN = f"{FOLDERS['ours']}/{{}}.py"


def program(text, **names):
    return module(text, "/program/a.py", **names)


def test_lines_of_the_program():
    inner = program("def g(f):\n    return f()\n").g
    found = JAX(inner, lambda: (_sites.user_line(), _sites.user_lines()))
    line, lines = found
    assert line == lines[0] and line.file == __file__
    assert lines[1] == Line("/program/a.py", 2, "g")
    assert lines[2].function == "test_lines_of_the_program"
    text = "def g(n):\n    return g(n - 1) if n else lines()\n"
    lines = program(text, lines=_sites.user_lines).g(50)
    assert lines == (Line("/program/a.py", 2, "g"),) * 32


def test_no_line_of_the_program(monkeypatch):
    monkeypatch.setattr(_sites, "is_library", lambda file: True)
    assert _sites.user_line() is _sites.user_frame() is _sites.outermost_frame() is None
    assert _sites.user_lines() == ()


def test_the_outermost_call_of_jax():
    def found():
        return _sites.outermost_frame().f_code.co_name

    inner = program("def inner(f):\n    return f()\n").inner
    middle = program("def middle(call, *args):\n    return call(*args)\n").middle
    # `middle` calls JAX, which calls `inner`.
    assert middle(JAX, inner, found) == "middle"
    assert middle(JAX, OTHER, inner, found) == "middle"
    assert middle(JAX, middle, JAX, inner, found) == "middle"
    assert JAX(middle, JAX, inner, found) == "test_the_outermost_call_of_jax"
    # Through another library alone, the innermost.
    assert middle(OTHER, inner, found) == "found"


def test_the_source_of_an_expression(tmp_path):
    path = tmp_path / "a.py"
    text = "def g(f):\n    é = 1; return 1 + f(é,\n        2) * 3\n\n"
    text += "def h(f): return [f\n()]\n"
    path.write_text(text)
    found = []

    def look(*_):
        frame = sys._getframe(1)
        found.append(_sites.expression_at(frame.f_code, frame.f_lasti))
        return 1

    functions = module(text, str(path))
    functions.g(look)
    functions.h(look)
    assert found == ["f(é,\n        2)", "f\n()"]
    code = functions.g.__code__
    assert _sites.expression_at(code, 10_000) == ""
    positions = [(1, 1, 0, 3), (None, 1, 0, 3), (1, None, 0, 3), (1, 1, None, 3)]
    positions += [(1, 1, 0, None)]
    for i, position in enumerate(positions):
        code = _Code([(1, 1, 0, 2), position], str(path))
        assert _sites.expression_at(code, 2) == ("def" if i == 0 else "")


class _Code:
    """A code object with other positions."""

    def __init__(self, positions, file):
        self.positions, self.co_filename = positions, file

    def co_positions(self):
        return iter(self.positions)


# --- samples -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "file", "function", "expected"),
    [
        ("", f"{FOLDERS['jax']}/a.py", "f", "jax"),
        ("", f"{FOLDERS['equinox']}/a.py", "f", "jax"),
        ("", OWN.format("_jit"), "f", "jax"),
        ("library", OWN.format("_jit"), "f", "jax"),
        ("", OWN.format("doctor/_watch"), "f", "own"),
        ("", OWN.format("insight/_jaxpr"), "f", "own"),
        ("jax", OWN.format("insight/_jaxpr"), "f", "own"),
        ("", OWN.format("doctor/_waits"), "timed", "wait"),
        ("jax", OWN.format("doctor/_waits"), "timed", "wait"),
        ("", OWN.format("doctor/_waits"), "_note", "own"),
        ("", OWN.format("doctor/_other"), "timed", "own"),
        ("", f"{PURELIB}/doctor/_waits.py", "timed", "library"),
        ("own", f"{FOLDERS['jax']}/a.py", "f", "own"),
        ("wait", OWN.format("doctor/_watch"), "f", "wait"),
        ("", "<frozen importlib._bootstrap>", "f", "import"),
        ("jax", "<frozen importlib._bootstrap>", "f", "import"),
        ("import", f"{FOLDERS['jax']}/a.py", "f", "import"),
        ("", types.__file__, "f", "library"),
        ("jax", types.__file__, "f", "jax"),
        ("library", types.__file__, "f", "library"),
        ("", "<string>", "f", "library"),
    ],
)
def test_kinds_of_frames(kind, file, function, expected):
    assert _sampler._kind(kind, file, function) == expected


def test_where_a_thread_is():
    here = program("def g(f):\n    return f()\n", f=None)

    def look():
        return _sampler.where(sys._getframe(1))

    assert here.g(look) == Where("line", Line("/program/a.py", 2, "g"))
    found = here.g(lambda: OTHER(look))
    assert (found.kind, found.line.file) == ("library", __file__)
    assert _sampler.where(None) == Where("library", None)
    # Functions made of strings are no program's.
    text = module("def call(f):\n    return f()\n", "<string>").call
    assert here.g.__code__ and text(look).line.function == "test_where_a_thread_is"
    assert text(look).kind == "library"


@pytest.mark.parametrize(("depth", "expected"), [(399, "line"), (400, None)])
def test_deep_recursion(depth, expected):
    deep = module(
        "def g(n, f):\n    return g(n - 1, f) if n > 1 else f()\n", f"{PURELIB}/a.py"
    ).g
    found = deep(depth, lambda: _sampler.where(sys._getframe(1)))
    assert found.kind == "library" and (found.line is None) == (expected is None)


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([(3, 4), (1, 2)], [(1, 2), (3, 4)]),
        ([(1, 2), (2, 3)], [(1, 3)]),
        ([(1, 5), (2, 3), (4, 6)], [(1, 6)]),
        ([(1, 2), (5, 9), (6, 7)], [(1, 2), (5, 9)]),
    ],
)
def test_intervals_are_merged(intervals, expected):
    assert merged(intervals) == expected


A, B = Where("line", HERE), Where("jax", HERE)


def test_samples_in_a_row():
    sampler = Sampler(list)
    for found, start, end in ((A, 0, 1), (A, 1, 2), (A, 3, 4), (B, 4, 5), (A, 5, 6)):
        sampler.add(found, start, end)
    kept = sampler.kept()
    assert kept == [
        *(Stretch(A, 0, 2), Stretch(A, 3, 4), Stretch(B, 4, 5), Stretch(A, 5, 6))
    ]
    kept.clear()
    assert sampler.seconds() == {A: 4, B: 1} and len(sampler.kept()) == 4


def test_twenty_thousand_samples_are_kept():
    sampler = Sampler(list)
    counts = []
    for i in range(20_001):
        sampler.add((A, B)[i % 2], i, i + 1)
        counts.append(len(sampler._stretches))
    assert counts[-2:] == [20_000, 10_001]


def test_the_first_half_is_summed_up(monkeypatch):
    monkeypatch.setattr(_sampler, "_MAX_STRETCHES", 4)
    sampler = Sampler(list)
    for i in range(5):
        sampler.add((A, B)[i % 2], i, i + 1)
    assert [s.start for s in sampler.kept()] == [2, 3, 4]
    assert sampler._summed == {A: 1, B: 1}
    assert sampler.seconds() == {A: 3, B: 2} == sampler.seconds()


@pytest.mark.parametrize(
    ("compiling", "expected"),
    [
        ([(0, 10)], 10),
        ([(0, 12)], 8),
        ([(0, 13), (15, 17), (19, 30)], 4),
        ([(12, 14), (13, 15)], 7),
        ([(20, 30)], 10),
        ([(5, 30)], 0),
        ([(10, 20)], 0),
        ([(0, 1), (2, 3), (11, 12)], 9),
    ],
)
def test_what_was_compiled_meanwhile(compiling, expected):
    sampler = Sampler(lambda: compiling)
    sampler.add(A, 10, 20)
    assert sampler.seconds() == {A: expected}


def test_looks_of_the_sampler(monkeypatch):
    """Each look is of the time since the one before."""
    times = iter([100.0, 101.0, 103.0, 104.0])
    clock = types.SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr(_sampler, "time", clock)
    sampler = Sampler(list)
    waits = []

    class Wake:
        def wait(self, seconds):
            waits.append(seconds)
            return len(waits) > 3

    sampler._wake = Wake()
    frames = iter([{sampler._main: sys._getframe()}, {}, {sampler._main: None}])
    frames = iter(
        [{sampler._main: sys._getframe()}, {}, {sampler._main: sys._getframe()}]
    )
    monkeypatch.setattr(sys, "_current_frames", lambda: next(frames))
    sampler._look()
    assert [(s.start, s.end) for s in sampler.kept()] == [(100, 101), (103, 104)]
    assert waits == [0.02] * 4
    assert sampler.kept()[0].where.line.file == __file__


def test_a_sampler_that_was_not_started():
    sampler = Sampler(list)
    sampler.stop()
    assert not sampler._alive.locked()
    sampler.start()
    assert sampler._alive.locked()
    sampler.stop()
    assert sampler._wake.is_set() and not sampler._running
