"""How the doctor reads from the source whether a dtype is meant to change."""

import textwrap

import pytest

from eqx_fastjit.doctor import _intent
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.insight._differences import Difference
from tests.doctor_records import array, DEFINED, HERE, node, seen_of, static


pytestmark = pytest.mark.one_engine

DEF = "def f(x, y=0):\n    pass\n"


@pytest.fixture
def at(tmp_path):
    """A program, and its line that ends in `# here`."""
    count = iter(range(100))

    def at(text):
        path = tmp_path / f"program{next(count)}.py"
        text = DEF + textwrap.dedent(text).strip("\n")
        path.write_text(text)
        lines = text.splitlines()
        (number,) = [i for i, x in enumerate(lines, 1) if x.endswith("# here")]
        return Line(str(path), number, "<module>")

    return at


# --- loops ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for a in b:\n    f(a)  # here", ["For"]),
        ("for a in b:\n    c\n    f(a)  # here\n    d", ["For"]),
        ("for a in f(b):  # here\n    c", []),
        ("for a in b:\n    c\nf(a)  # here", []),
        ("for a in b:\n    c\nelse:\n    f(a)  # here", []),
        ("while f(a):\n    g(\n        f(a)  # here\n    )", ["While"]),
        ("async def g():\n    async for a in b:\n        f(a)  # here", ["AsyncFor"]),
        ("for a in b:\n    [f(c) for c in a]  # here", ["For", "ListComp"]),
        ("{f(c) for c in a}  # here", ["SetComp"]),
        ("{f(c): 1 for c in a}  # here", ["DictComp"]),
        ("g(f(c) for c in a)  # here", ["GeneratorExp"]),
        ("[\n    f(c)\n    for c in a  # here\n]", ["ListComp"]),
        ("[\n    f(c)\n    for c in a\n]\nf(c)  # here", []),
        ("for a in b:\n    for c in a:\n        f(c)  # here", ["For", "For"]),
    ],
)
def test_loops_around_a_line(text, expected, at):
    found = _intent._loops_around(at(text))
    assert [type(node).__name__ for node in found] == expected


FOR = "for {} in {}:\n    f(x)  # here"


@pytest.mark.parametrize(
    ("target", "source", "expected"),
    [
        ("x", "data", False),
        # By the variable's name.
        ("dtype", "data", True),
        ("i, (x, *precision)", "data", True),
        ("low", "data", True),
        ("flow", "data", False),
        ("x", "range(3)", False),
        # By what is written out.
        ("x", "[a, b]", True),
        ("x", "(a,)", True),
        ("x", "{a}", True),
        ("x", "{1: a}", True),
        ("x", "{'half': 1}", True),
        ("x", "{1: 2, **{3: 4}}", True),
        ("x", "zip([1, 2], range(3))", False),
        ("x", "zip([1, 2], [True])", True),
        ("x", "[1, 2, 3]", False),
        ("x", "[-1, -2]", False),
        ("x", "[8]", True),
        ("x", "[16]", True),
        ("x", "[32]", True),
        ("x", "[64]", True),
        ("x", "[128]", True),
        ("x", "['train', 'test']", False),
        ("x", "['float16']", True),
        ("x", "[(1, 'bf16')]", True),
        ("x", "[[1], [2]]", False),
        ("x", "[1.5]", False),
        # By the value of a variable.
        ("x", "options", True),
        ("x", "numbers", False),
        ("x", "enumerate(options)", True),
        ("x", "unknown", False),
        ("x", "twice", False),
        ("x", "[g(c) for c in options]", True),
        ("x", "[g(c) for c in numbers]", False),
        ("x", "(g(c) for c in range(3) for d in options)", True),
    ],
)
def test_loops_that_choose(target, source, expected, at):
    line = at(
        "options = [a, b]\nnumbers = [1, 2]\ntwice = other = [a, b]\nz, w = [a, b]\n"
        + FOR.format(target, source)
    )
    assert _intent._compares(line) is expected
    # In a function, with its own variables.
    text = f"def g():\n    numbers = [a]\n    {FOR.format('x', 'numbers')}"
    line = at(text.replace("\n    f(x)", "\n        f(x)"))
    assert _intent._compares(line)


def test_options_of_the_module(at):
    text = "{} = [a, b]\ndef g():\n    for x in options:\n        f(x)  # here"
    assert _intent._compares(at(text.format("options")))
    assert not _intent._compares(at(text.format("other")))
    assert not _intent._compares(at(text.format("options, other")))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("f(x.astype(int) if x else x)  # here", True),
        ("f(g(x) if x else x)  # here", False),
        ("if x:\n        x = jnp.float16(x)\n    f(x)  # here", True),
        ("if x:\n        x = g(x)\n    f(x)  # here", False),
        ("if x:\n        print('float16')\n    f(x)  # here", False),
        ("x = jnp.float16(x)\n    f(x)  # here", False),
        (
            "if x:\n        1\n    elif y:\n        x = half(x, 8)\n    f(x)  # here",
            0,
        ),
        (
            "if x:\n        1\n    else:\n        x = u(x, 'int8')\n    f(x)  # here",
            1,
        ),
    ],
)
def test_branches_that_choose(body, expected, at):
    assert _intent._compares(at(f"while True:\n    {body}")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(t, True) for t in ("DTYPE", "x.astype", "precision", "quantized", "bits")],
        *[(t, True) for t in ("float16", "fp8", "bf16", "int64", "complex128")],
        *[(t, True) for t in ("x32", "f32", "half", "is_single", "Double", "full")],
        *[(t, True) for t in ("mixed", "cast", "low", "high")],
        *[(t, False) for t in ("flow", "lowest", "highway", "broadcast", "orbitsx")],
        *[(t, False) for t in ("float", "int", "x3", "float160", "x12")],
    ],
)
def test_names_of_choices(text, expected):
    assert _intent._names_choice(text) is expected


# --- what comes back -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "leaf", "expected"),
    [
        ("s = f(s)  # here", "x", {"s"}),
        ("s = f(s)  # here", "x.w", {"s"}),
        ("s = f(a, s)  # here", "y", {"s"}),
        ("s = f(a, s)  # here", "x", set()),
        ("s = f(a, y=s)  # here", "y", {"s"}),
        ("s, t = f(s)  # here", "x", {"s"}),
        ("[t, (u, *s)] = f(s)  # here", "x", {"s"}),
        ("s: int = f(s)  # here", "x", {"s"}),
        ("s: int  # here", "x", set()),
        ("m.s = f(m.s)  # here", "x", {"m.s"}),
        ("s = t = f(s)  # here", "x", {"s"}),
        ("s = f(t)  # here", "x", set()),
        ("f(s)  # here", "x", set()),
        ("s = f(s)\nt = f(s)  # here", "x", set()),
        # A function that is not known: any argument of any call.
        ("s = g(t, s)  # here", "x", {"s"}),
        ("s = g(a=h(k=s))  # here", "x", {"s"}),
        ("s, t = g(s, t)  # here", "x", {"s", "t"}),
        ("s = s + 1  # here", "x", set()),
    ],
)
def test_variables_that_are_carried(text, leaf, expected, at):
    line = at(text)
    seen = seen_of(place=DEFINED._replace(file=line.file, line=1))
    assert _intent._carried(seen, line, leaf) == expected
    seen = seen_of(place=None)
    if expected and "g(" in text:
        assert _intent._carried(seen, line, leaf) == expected


def different(path="x", old="float16", new="float32", what="dtype"):
    return Difference(path, what, old, new)


def fed_back(line, *more, results=(("float32", "(2,)"),), **options):
    """Whether a call at a line gets what the function has returned."""
    place = DEFINED._replace(file=line.file, line=1)
    old = seen_of(array("x"), place=place, stack=(HERE,), results=results)
    new = seen_of(array("x"), place=place, stack=(*more, line), **options)
    return _intent._is_fed_back(old, new, different())


def test_what_a_function_has_returned(at):
    line = at("while True:\n    s = f(s)  # here")
    assert fed_back(line)
    assert not fed_back(line, results=[("float32", "(3,)"), ("float16", "(2,)")])
    assert not fed_back(line, results=())
    # Another frame, of the innermost three.
    assert fed_back(line, HERE, HERE) and not fed_back(line, HERE, HERE, HERE)
    assert not fed_back(at("s = f(t)  # here"))
    # The loop itself provides a new one.
    assert not fed_back(at("for s in data:\n    s = f(s)  # here"))
    assert not fed_back(at("for i, (s, t) in data:\n    s = f(s)  # here"))
    assert not fed_back(at("for s in x:\n    for t in y:\n        s = f(s)  # here"))
    assert fed_back(at("for t in data:\n    s = f(s)  # here"))
    # The earlier call was in such a statement.
    place = DEFINED._replace(file=line.file, line=1)
    results = [("float32", "(2,)")]
    old = seen_of(array("x"), place=place, stack=(line,), results=results)
    new = seen_of(array("x"), place=place)
    assert _intent._is_fed_back(old, new, different())


# --- data ----------------------------------------------------------------------------

W, X, Y, Z = (array(name) for name in ("w", "x", "y", "z"))


@pytest.mark.parametrize(
    ("entries", "paths", "expected"),
    [
        ([W, X], ["x"], True),
        ([X], ["x"], False),
        ([array("w", dtype="int32"), X], ["x"], False),
        ([array("w", dtype="complex64"), X], ["x"], True),
        ([static("w", "1"), X], ["x"], False),
        ([W, X, Y], ["x", "y"], False),
        ([W, node("x", "dict", 3), array("x.a")], ["x.a"], True),
        ([W, *[array(f"x.{n}") for n in "abc"]], ["x.a", "x.b", "x.c"], True),
        ([W, *[array(f"x.{n}") for n in "abcd"]], [f"x.{n}" for n in "abcd"], False),
        ([W, node("x", "a.Model", 3), array("x.a")], ["x.a"], False),
    ],
)
def test_data_that_changes(entries, paths, expected, at):
    line = at("for x in data:\n    f(w, x)  # here")
    changed = [different(path) for path in paths]
    for stack in ((line,), (HERE, line)):
        assert _intent._is_data(seen_of(*entries, stack=stack), changed) is expected
    assert not _intent._is_data(seen_of(*entries), changed)


def test_what_is_trained_is_no_data(at):
    line = at("while True:\n    x = g(w, x)  # here")
    changed = [different()]
    assert not _intent._is_data(seen_of(W, X, stack=(line,)), changed)
    assert not _intent._is_data(seen_of(W, X, stack=(HERE, HERE, line)), changed)
    assert _intent._is_data(seen_of(W, X, stack=(HERE, HERE, HERE, line)), changed)


# --- all of it -----------------------------------------------------------------------


def test_intents(at):
    data = at("for x in data:\n    f(w, x)  # here")
    meant = at("for dtype in data:\n    f(w, x)  # here")
    carry = at("while True:\n    x = f(x)  # here")
    changed = different()

    def intent(line, *differing, before=None, **options):
        place = DEFINED._replace(file=line.file, line=1)
        old = seen_of(W, X, place=place, stack=before or (line,), **options)
        new = seen_of(W, X, place=place, stack=(line,))
        return _intent.intent(old, new, list(differing or [changed]))

    assert intent(data) == "data"
    assert intent(meant) == "meant"
    assert intent(meant, different(old="key<fry>", new="uint32")) == ""
    assert intent(meant, different(old="uint32", new="key<fry>")) == ""
    assert intent(carry) == ""
    assert intent(carry, results=[("float32", "(2,)")]) == "fed back"
    assert intent(data, before=(HERE,)) == "elsewhere"
    reshaped = different("x", "(2,)", "(3,)", "shape")
    assert intent(data, reshaped, changed) == "elsewhere"
    assert intent(data, reshaped._replace(path="w"), changed) == "data"
    # The first one counts.
    results = [("float32", "(2,)")]
    more = different("w", new="int32"), different("z", new="int32")
    assert intent(carry, changed, *more, results=results) == "fed back"
    assert intent(carry, more[0], changed, more[1], results=results) == ""
    shape = reshaped._replace(path="w")
    assert intent(data, changed, *more, shape, reshaped) == "elsewhere"
    assert intent(data, more[0], changed, shape) == "elsewhere"
    # Several of several arguments are no data.
    both = (changed, different("w"))
    assert intent(data, *both) == ""
    shape = reshaped._replace(path="w")
    assert intent(data, different("x"), shape, different("w", what="static")) == "data"


def test_intents_of_plain_jit(at):
    meant = at("for dtype in data:\n    f(w, x)  # here")
    other = at("f(x)  # here")
    assert _intent.plain_intent(None, (other, meant)) == "meant"
    assert _intent.plain_intent(None, (other,)) == ""
    assert _intent.plain_intent((other,), (other,)) == ""
    assert _intent.plain_intent((HERE,), (other,)) == "elsewhere"
