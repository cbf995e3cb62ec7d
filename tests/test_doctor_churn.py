"""Why functions were compiled again, in full: figures, names and lines."""

import itertools

import pytest

from eqx_fastjit.doctor import _causes
from eqx_fastjit.doctor._causes import Cause
from eqx_fastjit.doctor._plain import Compile, Miss
from eqx_fastjit.doctor._report import Finding
from tests.doctor_records import (
    array,
    F,
    HERE,
    node,
    seen_of,
    static,
    THERE,
    trace_of,
)


pytestmark = pytest.mark.one_engine

SHAPES = [f"({n},)" for n in range(2, 12)]


def cause(kind="shape-churn", leaf="x", old="a", new="b", **options):
    options = {"site": HERE, "place": F, "seconds": 2.0, **options}
    shapes = options.pop("shapes", ())
    place, site, seconds = map(options.pop, ("place", "site", "seconds"))
    advice = f"Change {leaf}."
    return Cause(
        *("f", "f", place, site, kind, leaf, old, new, seconds, advice, shapes),
        **options,
    )


def test_what_churns():
    steps = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("d", "e")]
    causes = [cause("structure-churn", "x", *step) for step in steps]
    causes.insert(0, cause("structure-churn", "y", "1", "2"))
    (finding,) = _causes.churn(causes, 100.0)
    assert finding == Finding(
        kind="structure-churn",
        severity="medium",
        function="f",
        file="a.py",
        line=1,
        leaf="x",
        seconds=12.0,
        count=6,
        message="f was compiled 6 more times by the call at a.py:1: `x` changed, "
        "a -> b -> c -> d -> e; once, `y` changed, 1 -> 2",
        fix="Change x.",
    )


@pytest.mark.parametrize(
    ("causes", "message"),
    [
        ([cause("weak-type", "s", "True", "False")], "once more by the call at a.py:1: "
            "`s` changed, weak -> strong"),
        ([cause("weak-type", "s", "strong", "weak")], "once more by the call at a.py:1:"
            " `s` changed, strong -> weak"),
        ([cause("dtype-churn", "s", "int32", "float32")], "once more by the call at "
            "a.py:1: `s` changed, dtype int32 -> float32"),
        (3 * [cause("sharding-churn", "", "", "")], "3 more times by the call "
            "at a.py:1"),
        (3 * [cause("sharding-churn", "x", "", "b")], "3 more times by the call at "
            "a.py:1: `x` changed,  -> b"),
        (4 * [cause("fresh-function", "x", "")], "4 more times by the call at a.py:1, "
            "for a new function each time"),
        (4 * [cause(leaf="x", old="(2,)", new="(3,)", site=None)], "4 more times by "
            "the call at ?: `x` had the shapes (2,), (3,) (4 times)"),
        ([cause("structure-churn", "x", f"{n}", f"{n + 1}") for n in range(4)],
            "4 more times by the call at a.py:1: `x` changed, 0 -> 1 -> 2 -> 3 -> 4"),
        ([cause("structure-churn", "x", f"{n}", f"{n + 1}") for n in range(5)],
            "5 more times by the call at a.py:1: `x` changed, 0 -> 1 -> 2 -> 3 -> 4 and"
            " so on"),
    ],
)  # fmt: skip
def test_churn_in_words(causes, message):
    (finding,) = _causes.churn(causes, 100.0)
    assert finding.message == f"f was compiled {message}"


@pytest.mark.parametrize(
    ("needed", "seconds", "more"),
    [
        ((False,) * 6, 21.0, ""),
        (
            (False, True, False, False, True, False),
            14.0,
            "; 2 of these had a new shape or structure as well, so their time is "
            "not counted",
        ),
        # It takes two edits to save any.
        ((True,) * 6, 21.0, "; each time with a new shape or structure as well"),
    ],
)
def test_compilations_that_were_needed_anyway(needed, seconds, more):
    values = [f"{i}.0 (float)" for i in range(7)]
    causes = [
        cause("static-churn", "lr", *step, seconds=float(i + 1), needed=needed[i])
        for i, step in enumerate(itertools.pairwise(values))
    ]
    (finding,) = _causes.churn(causes, 100.0)
    assert (finding.seconds, finding.count) == (seconds, 6)
    assert finding.message == (
        "f was compiled 6 more times by the call at a.py:1: `lr` changed, "
        + " -> ".join(values[:5])
        + " and so on"
        + more
    )


def test_lines_of_churn():
    def line(*args, **options):
        (finding,) = _causes.churn([cause(*args, **options)] * 5, 100.0)
        return finding.file, finding.line

    assert line("structure-churn") == ("a.py", 1)
    assert line("structure-churn", site=None) == ("a.py", 9)
    assert line("structure-churn", site=None, place=None) == (None, None)
    # Where the functions are made; a `Partial` has no place.
    assert line("fresh-function", old="") == ("a.py", 9)
    assert line("fresh-function", old="", place=None) == ("a.py", 1)
    # Where a function that is an argument is passed.
    assert line("fresh-function") == ("a.py", 1)


def test_dtypes_that_are_meant():
    def count(*causes):
        return [f.count for f in _causes.churn([*causes], 100.0)]

    dtype = ("dtype-churn", "x", "float16", "float32")
    whole = ("dtype-churn", "x", "int32", "float32")
    assert count(*3 * [cause(*dtype, intent="meant")]) == []
    assert count(cause(*dtype, intent="fed back")) == [1]
    assert count(cause(*whole, intent="elsewhere")) == []
    assert count(cause(*dtype, intent="data", seconds=0.5)) == [1]
    assert count(cause(*dtype, intent="data", seconds=0.49)) == []
    assert count(cause(*dtype, seconds=0.5)) == []
    # Those that are meant are not counted, and one that is not is enough.
    meant = cause(*dtype, intent="meant")
    assert count(meant, cause(*dtype, intent="fed back"), meant) == [1]
    assert count(cause(*dtype), cause(*whole)) == [2]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("int32", "float32"), True),
        (("uint8", "bfloat16"), True),
        (("bool", "float32"), True),
        (("s32", "f32"), True),
        (("u8", "f32"), True),
        (("i32", "f32"), True),
        (("pred", "f32"), True),
        (("int32", "int64"), False),
        (("float32", "int32"), False),
        (("float16", "float32"), False),
    ],
)
def test_whole_numbers_that_become_floats(dtypes, expected):
    assert _causes._nobody_means(cause("dtype-churn", "x", *dtypes)) is expected


def test_a_fix_for_shapes():
    steps = list(itertools.pairwise(SHAPES))[:4]
    causes = [cause("shape-churn", "x", *s, shapes=[("x", *s)]) for s in steps]
    (finding,) = _causes.churn(causes, 100.0)
    assert finding.fix.startswith("Drop the ragged last batch, or fix the length. Or ")
    assert "BatchNorm, only dropping the batch is right. Axis 0" in finding.fix
    assert finding.fix.endswith(
        "Axis 0 of `x` padded to 3, 6 is 2 programs in place of 5, for 20% more "
        "elements."
    )
    # A dimension that is not a number; or the kind is another one.
    unknown = [("x", "(n,)", "(m,)")]
    causes = 4 * [cause("shape-churn", "x", shapes=unknown)]
    (finding,) = _causes.churn([cause("shape-churn", "z"), *causes], 100.0)
    assert (finding.leaf, finding.fix) == ("x", "Change x.")
    causes = [cause("structure-churn", "x", *s, shapes=[("x", *s)]) for s in steps]
    assert next(_causes.churn(causes, 100.0)).fix == "Change x."


def test_causes_of_traces():
    module = node("m", "a.Model", 2)
    shapes = [
        (module, array("x", "(2,)"), array("y", "(2,)"), static("n", "1")),
        (module, array("x", "(3,)"), array("y", "(4,)"), static("n", "1")),
    ]
    many = [
        seen_of(*shapes[0]),
        seen_of(*shapes[1], failed=True),
        seen_of(*shapes[1], site=None),
        seen_of(*shapes[1], inside=3),
        seen_of(array("x", dtype="int32"), name="g", site=THERE),
    ]
    (found,) = _causes.our_causes(many)
    assert found._replace(advice="") == Cause(
        function="f",
        key=many[0].trace.key(),
        place=F,
        site=None,
        kind="shape-churn",
        leaf="x",
        old="(2,)",
        new="(3,)",
        seconds=15.0,
        advice="",
        shapes=(("x", "(2,)", "(3,)"), ("y", "(2,)", "(4,)")),
        intent="elsewhere",
    )
    assert [s.explanation and s.explanation.kind for s in many] == [
        *(None, None, "shape-churn", None, None)
    ]


def test_causes_of_two_kinds():
    """The main difference counts, wherever it is among the arguments."""
    many = [
        seen_of(array("x", "(2,)"), static("n", "1"), site=THERE),
        seen_of(array("x", "(3,)"), static("n", "2"), site=THERE),
    ]
    (found,) = _causes.our_causes(many)
    assert (found.kind, found.leaf, found.old, found.new) == (
        *("static-churn", "n", "1 (int)", "2 (int)"),
    )
    assert found.shapes == (("x", "(2,)", "(3,)"),)
    assert found.needed
    # Another function of the same line.
    many = [seen_of(static("n", "1")), seen_of(static("n", "2"), number=2)]
    (found,) = _causes.our_causes(many)
    assert (found.kind, found.leaf, found.old) == ("fresh-function", "f", "")
    assert found.new == "created again at a.py:9"
    # Nothing differs: JAX has forgotten.
    many = [seen_of(static("n", "1"), seconds=(0, 0, 4.0, 0)) for _ in range(2)]
    (found,) = _causes.our_causes(many)
    assert (found.kind, found.leaf, found.old, found.new) == (
        *("cache-cleared", "", "", ""),
    )
    assert (found.seconds, found.intent) == (4, "")


def test_causes_of_another_dtype(monkeypatch):
    asked = []

    def intent(*args):
        asked.append(args)
        return "fed back"

    monkeypatch.setattr(_causes, "intent", intent)
    old = seen_of(array("x", dtype="float16"), site=THERE, results=[("a", "b")])
    new = seen_of(array("x"))
    (found,) = _causes.our_causes([old, seen_of(name="g"), new])
    ((first, second, (different,)),) = asked
    assert (first, second, different.what) == (old, new, "dtype")
    assert (found.kind, found.intent, found.site) == ("dtype-churn", "fed back", HERE)
    # The dtype is to be that of the result, in the line of the first call.
    assert "jnp.asarray(x, dtype=jnp.float32)` in line 20." in found.advice
    monkeypatch.setattr(_causes, "intent", lambda *_: "data")
    (found,) = _causes.our_causes([old, new])
    assert found.intent == "data" and "jnp.float32" not in found.advice


@pytest.mark.parametrize(("between", "leaf"), [(31, "n"), (32, "x")])
def test_the_last_32_traces_are_compared(between, leaf):
    """The nearest of them is the first one, from which only `n` differs."""
    same = [static("m", "1"), array("x")]
    nearest = seen_of(static("n", "9"), *same)
    others = [seen_of(static("n", "1"), static("m", "2")) for _ in range(between)]
    *_, last = _causes.our_causes([nearest, *others, seen_of(static("n", "1"), *same)])
    assert last.leaf == leaf


def test_functions_inside_have_no_cause_of_their_own():
    many = [seen_of(static("n", str(n)), inside=9) for n in range(2)]
    assert list(_causes.our_causes(many)) == []
    assert many[0].explanation is None
    assert many[1].explanation.kind == "static-churn"
    # Those that failed are not compared with, and the latest of several alike is.
    failed = seen_of(static("n", "5"), failed=True, site=THERE)
    same = [seen_of(static("n", "1"), site=HERE), seen_of(static("n", "2"))]
    assert [c.old for c in _causes.our_causes([failed, *same])] == ["1 (int)"]


def test_a_partial_is_named_by_its_function():
    func = static("f.func", "act (a.py:3)", "function")
    (trace,) = [trace_of(func, node("f", "Partial", 1))]
    assert _causes.function_name(trace) == "f of act"
    assert _causes.function_place(trace) is None
    assert _causes.function_name(trace_of()) == "f"
    assert _causes.function_place(trace_of()) == F


def compile_of(kind, leaf="x", old="f32", new="bf16", stack=(), **options):
    miss = Miss("f", F, kind, leaf, old, new)
    parts = {"trace": 1.0, "lower": 2.0, "compile": 4.0, "stack": stack, **options}
    return Compile("f", miss, HERE, 900.0, **parts)


def test_causes_of_plain_jit():
    assert list(_causes.plain_causes([Compile("sin", None, HERE, 900.0)], [])) == []
    silent = [compile_of("first-call"), compile_of("other")]
    assert list(_causes.plain_causes(silent, [])) == []
    shape = compile_of("shape-churn", old="[2]", new="[3]")
    (found,) = _causes.plain_causes([*silent, shape], [])
    assert found._replace(advice="") == Cause(
        function="f",
        key=("f", F),
        place=F,
        site=HERE,
        kind="shape-churn",
        leaf="x",
        old="[2]",
        new="[3]",
        seconds=7.0,
        advice="",
        shapes=(("x", "[2]", "[3]"),),
    )
    (found,) = _causes.plain_causes([compile_of("dtype-churn")], [])
    assert (found.shapes, found.intent) == ((), "")
    both = [compile_of("dtype-churn", stack=(line,)) for line in (HERE, THERE, THERE)]
    assert [c.intent for c in _causes.plain_causes(both, [])] == ["", "elsewhere", ""]
    # A static that changes at another line than before is one, too.
    both = [compile_of("first-call", stack=(THERE,)), *both[:1]]
    assert [c.intent for c in _causes.plain_causes(both, [])] == ["elsewhere"]
    both = [compile_of("static-churn", stack=(line,)) for line in (HERE, THERE)]
    assert [c.intent for c in _causes.plain_causes(both, [])] == ["", ""]
