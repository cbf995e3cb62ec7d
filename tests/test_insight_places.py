"""Which line of the program an equation, and a loop, is attributed to."""

import importlib
import linecache
import os
import sysconfig
import types

import equinox as eqx
import pytest

import eqx_fastjit
from eqx_fastjit._place import Place
from eqx_fastjit.insight import _places, _target
from eqx_fastjit.insight._places import TREE_MAP


pytestmark = pytest.mark.one_engine

SOURCE = """\
for i in range(3):
    a(
        i)
else:
    b()
while (c and
       d):
    e()
async def f(x):
    for k in [
        g(k)
        for k in x
    ]:
        def inner():
            h()
        i()
    return {y: (
        z) for y in x}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    linecache.checkcache(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("lines", "loop"),
    [
        *(([2], (1, 2, 3, 0)), ([2, 3], (1, 2, 3, 0)), ([1], None), ([3, 5], None)),
        *(([5], None), ([6], (6, 6, 8, 0)), ([7, 8], (6, 6, 8, 0)), ([3, 6], None)),
        # The innermost: a comprehension in the head of a loop, and one in a loop.
        *(([11, 12], (10, 10, 13, 9)), ([16], (10, 14, 16, 9)), ([13, 14], None)),
        *(([17, 18], (17, 17, 18, 9)), ([9], None)),
        # A function in a loop is not the loop.
        *(([15], None), ([15, 16], None), ([15, 14], None)),
    ],
)
def test_the_loop_around_lines(file, lines, loop):
    assert _places.loop_around(file, lines) == loop
    assert _places.loop_around(file, iter(lines)) == loop
    assert _places.loop_around("/none.py", lines) is None


def path(*steps, file="a.py"):
    return tuple(s if isinstance(s, Place) else Place(file, *s) for s in steps)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        # They differ in the line of one function, within its loop.
        ([[(20, "main"), (2, "f")], [(20, "main"), (3, "f")]], (1, "f")),
        # They are the same.
        ([[(20, "main"), (2, "f")]] * 2, (1, "f")),
        # One is shorter, or they differ in the function: the loop is further out.
        ([[(2, "f"), (9, "g")], [(2, "f")]], (1, "f")),
        ([[(2, "f"), (9, "g")], [(2, "f"), (9, "h")]], (1, "f")),
        ([[(2, "f"), (9, "g"), (1, "k")], [(2, "f"), (9, "h"), (1, "k")]], (1, "f")),
        ([[(2, "f"), (9, "<lambda>")]] * 2, (1, "f")),
        ([[(2, "f"), (9, "g.<lambda>"), (9, "h")]] * 2, (1, "f")),
        ([[(5, "f"), (9, "g")]] * 2, None),
        ([[(2, "f"), TREE_MAP]] * 2, None),
        ([[(2, "f"), TREE_MAP, (9, "g")]] * 2, None),
        ([[(2, "<lambda>")]] * 2, None),
        ([[(2, "f")], []], None),
        ([], None),
    ],
)
def test_the_loop_of_paths(file, steps, found):
    loop = _places.find_loop([path(*s, file=file) for s in steps])
    assert loop == (found and Place(file, *found))


def test_loops_without_source():
    """The line is all that is known; so it has to be one."""
    same = path((3, "f"), (7, "g"))
    assert _places.find_loop([same, same]) == Place("a.py", 7, "g")
    assert _places.find_loop([same, path((3, "f"), (8, "g"))]) is None
    assert _places.find_loop([same, path((3, "f"), (7, "h"))]) == same[0]


def test_a_loop_that_does_more_than_what_is_repeated(file):
    run = [path((2, "f"), (5, "g"), file=file)] * 3
    more = [path((3, "f"), (i, "g"), file=file) for i in range(3)]
    found = Place(file, 1, "f")
    elsewhere = [path((6, "f"), file=file), path((3, "h"), file=file), ()]
    elsewhere += [path((20, "main"), (2, "f"), file=file), path((2, "f"))]
    assert _places.find_loop(run, [*run, *more[:1], *elsewhere]) == found
    assert _places.find_loop(run, [*run, *more[:2], *elsewhere]) is None
    inner = [path((20, "main"), (2, "f"), file=file)] * 3
    others = [path((n, "main"), (3, "f"), file=file) for n in (20, 21, 22)]
    assert _places.find_loop(inner, [*others, *inner]) == found


OURS = os.path.dirname(eqx_fastjit.__file__)
JAX, JAXLIB = (importlib.import_module(name).__file__ for name in ("jax", "jaxlib"))


@pytest.mark.parametrize(
    ("file", "library", "of_jax"),
    [
        *((JAX, True, True), (JAXLIB, True, True), (__file__, False, False)),
        *((f"{OURS}/x.py", True, True), (f"{OURS}x/x.py", False, False)),
        *((eqx.__file__, True, False), (os.__file__, True, False)),
        (f"{sysconfig.get_path('purelib')}/x.py", True, False),
        ("<frozen importlib>", True, False),
    ],
)
def test_whose_file_it_is(file, library, of_jax):
    assert (_places.is_library(file), _places.is_jax(file)) == (library, of_jax)


def test_the_path_of_an_equation(monkeypatch):
    def of(*frames):
        monkeypatch.setattr(_places, "equation_frames", lambda _: list(frames))
        return _places.path_of(None)

    inner, outer = Place("a.py", 1, "f"), Place("b.py", 2, "g")
    jax_ = Place(JAX, 3, "bind")
    leaves = Place(JAX, 3, "jax.tree_map")
    begin = Place(f"{OURS}/_function.py", 4, "Function.call_python")
    boundary = Place(_target.BOUNDARY_FILE, 5, "boundary")
    assert of(inner, jax_, outer) == (outer, inner)
    assert of(inner, boundary, outer) == (inner,)
    # Of calls within calls, the outermost began the trace.
    assert of(inner, begin, jax_, outer, begin, outer) == (outer, inner)
    assert of(jax_, inner, leaves, leaves, outer) == (outer, TREE_MAP, inner)
    assert of(leaves) == (TREE_MAP,)
    assert _places.user_frame((outer, inner, TREE_MAP)) is inner
    assert _places.user_frame((outer, TREE_MAP, jax_)) is outer
    assert _places.user_frame((leaves, jax_)) is jax_
    assert _places.user_frame((TREE_MAP,)) is _places.user_frame(()) is None


def test_the_instruction_of_an_equation():
    def equation(raw_frames):
        traceback = types.SimpleNamespace(raw_frames=raw_frames)
        info = types.SimpleNamespace(traceback=traceback)
        return types.SimpleNamespace(source_info=info)

    files = (JAX, f"{OURS}/x.py", "a.py", JAX, "b.py")
    codes = [types.SimpleNamespace(co_filename=f) for f in files]
    found = _places.instruction_of(equation(lambda: (codes, [1, 2, 3, 4, 5])))
    assert found.stack == tuple(zip(codes, [1, 2, 3, 4, 5], strict=True))
    assert found.users == found.stack[2:]
    found = _places.instruction_of(equation(lambda: (codes[:2], [1, 2])))
    assert found.users == ()
    for raw_frames in (lambda: 1 / [], lambda: (codes, [1], 2), None):
        assert _places.instruction_of(equation(raw_frames)) is None
    assert _places.instruction_of(types.SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("info", "place"),
    [
        ("f at /a:b.py:12", Place("/a:b.py", 12, "f")),
        ("f at x at a.py:3", Place("x at a.py", 3, "f")),
        *(("f at a.py", None), ("f", None), (None, None), ("f at a.py:x", None)),
    ],
)
def test_where_a_jaxpr_is_defined(info, place):
    jaxpr = types.SimpleNamespace(debug_info=types.SimpleNamespace(func_src_info=info))
    assert _places.defined_at(jaxpr) == place
    assert _places.defined_at(types.SimpleNamespace(jaxpr=jaxpr)) == place
    assert _places.defined_at(types.SimpleNamespace()) is None
