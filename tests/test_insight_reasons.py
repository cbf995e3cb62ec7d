"""Differences, explanations and guards of hand-made traces, word for word."""

import pytest

from eqx_fastjit import _record
from eqx_fastjit._describe import Entry
from eqx_fastjit._place import Place
from eqx_fastjit.insight import _differences, _explain, _guard, guard


pytestmark = pytest.mark.one_engine


# --- differences ---------------------------------------------------------------------


def array(path, shape="(2,)", dtype="float32", weak="False", **more):
    facets = {"shape": shape, "dtype": dtype, "weak_type": weak, **more}
    return Entry(path, "array", tuple(facets.items()))


def static(path, value, cls="int", identity=""):
    identity = identity or value
    facets = (("type", cls), ("value", value), ("identity", identity))
    return Entry(path, "static", facets)


def node(path, cls="list", size="1"):
    return Entry(path, "node", (("type", cls), ("size", size)))


def trace(*entries, function=None, config=(), **changes):
    if function is None:
        function = _record.FunctionInfo(1, "f", "f", Place("a.py", 3, "f"))
    made = _record.Trace(function, entries, ahead=False)
    made.config, made.site, made.retraced = config, Place("a.py", 9, "main"), True
    made.trace, made.lower, made.compile, made.first_run = 1.0, 2.0, 4.0, 8.0
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            [array("x")],
            [array("x", "(3,)", "int32", "True")],
            [
                "`x`: shape (2,) -> (3,)",
                "`x`: dtype float32 -> int32",
                "`x`: weakly typed False -> True",
            ],
        ),
        ([array("x")], [static("x", "1")], ["`x`: static float32(2,) -> 1 (int)"]),
        (
            [node("x", "NoneType", "0")],
            [static("x", "1")],
            ["`x`: static None -> 1 (int)"],
        ),
        (
            [node("x", "NoneType", "0")],
            [array("x")],
            ["`x`: structure None -> float32(2,)"],
        ),
        ([array("x")], [], ["`x`: structure float32(2,) -> nothing"]),
        ([], [static("x", "1")], ["`x`: structure nothing -> 1 (int)"]),
        (
            [static("x", "1")],
            [static("x", "1", "bool")],
            ["`x`: static 1 (int) -> 1 (bool)"],
        ),
        (
            [static("x", "f (a.py:1)", "function", "1")],
            [static("x", "f (a.py:1)", "function", "2")],
            ["`x`: another function that looks the same, f (a.py:1) (function)"],
        ),
        (
            [static("x", "a C", "C", "1")],
            [static("x", "a C", "C", "2")],
            ["`x`: another object that looks the same, a C (C)"],
        ),
        # Nothing is said of what is below a node that has changed, but the number.
        (
            [node("x", size="2"), array("x[0]"), static("x[1]", "1"), array("z")],
            [
                node("x", size="4"),
                array("x[0]", "()"),
                node("x[2]"),
                array("x[2].a"),
                array("x[3]"),
                array("y"),
            ],
            [
                (
                    "`x`: structure list of 2 -> list of 4 (new: `x[2]` and 1 more; "
                    "gone: `x[1]`)"
                ),
                "`y`: structure nothing -> float32(2,)",
                "`z`: structure float32(2,) -> nothing",
            ],
        ),
        ([node("x")], [node("x", "tuple")], ["`x`: structure list of 1 -> tuple of 1"]),
        (
            [array("x", sharding="a", committed="False")],
            [array("x", sharding="b", committed="True")],
            ["`x`: sharding a -> b", "`x`: committed False -> True"],
        ),
        (
            [array("x")],
            [array("x", sharding="b", committed="True")],
            ["`x`: committed False -> True"],
        ),
        (
            [array("x", sharding="traced")],
            [array("x", sharding="b", committed="True")],
            [],
        ),
        (
            [array("x", sharding="b", committed="True")],
            [array("x", sharding="traced")],
            [],
        ),
    ],
)
def test_differences(old, new, said):
    found = _differences.differences(trace(*old), trace(*new))
    assert [str(d) for d in found] == said


def test_settings_that_differ():
    old = trace(config=(("a", "1"), ("b", "1"), ("c", "1")))
    new = trace(config=(("b", "2"), ("c", "1"), ("d", "4")))
    found = [str(d) for d in _differences.differences(old, new)]
    assert found == ["`a`: 1 -> unset", "`b`: 1 -> 2", "`d`: unset -> 4"]


def kind_of(found):
    main = _differences.main_difference(found)
    return _explain.Compared(trace(), found, main).kind


def test_the_nearest_trace_and_the_most_important_difference():
    new = trace(array("x", "(9,)"), static("n", "1"))
    near, far = trace(array("x"), static("n", "1")), trace(array("x"), static("n", "2"))
    later = trace(array("x", "(8,)"), static("n", "1"))
    failed = trace(array("x", "(9,)"), static("n", "1"), failed=True)
    assert _differences.nearest(new, [near, later, far, failed, new])[0] is later
    assert _differences.nearest(new, [far, failed]) == (
        far,
        _differences.differences(far, new),
    )
    assert _differences.nearest(new, [failed, new]) is None
    found = _differences.differences(far, new)
    assert [d.what for d in found] == ["shape", "static"]
    assert _differences.main_difference(found) is found[1]
    assert kind_of(found) == "static-churn"
    assert kind_of([]) == "cache-cleared"


def test_a_structure_that_differs_hides_what_is_below_it():
    def call(*leaves, size):
        return trace(node("b", "dict", size), *leaves)

    x, y, w = (array(f"b['{name}']") for name in "xyw")
    plain = call(x, y, size="2")
    more = call(x, y, w, size="3")
    narrow = call(array("b['x']", "(9,)"), array("b['y']", "(9,)"), size="2")
    old, found = _differences.nearest(narrow, [plain, more])
    assert old is plain and [d.what for d in found] == ["shape", "shape"]
    # Another structure is the least that differs.
    old, found = _differences.nearest(more, [narrow, plain])
    assert old is plain and [d.what for d in found] == ["structure"]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (("(2, 8)", "8"), ("(2, 9)", "9"), "shape-churn"),
        (("(8,)", "8"), ("(9, 1)", "9"), "shape-churn"),
        (("(2, 8)", "8"), ("(2, 9)", "8"), "shape-churn"),
        # Another number than the length of a single array, or of none that changed.
        (("(2, 8)", "7"), ("(2, 9)", "8"), "static-churn"),
        (("(2, 8)", "8"), ("(2, 9)", "2"), "static-churn"),
        (("(9, 9)", "8"), ("(9, 9)", "9"), "static-churn"),
    ],
)
def test_a_number_that_is_the_length_of_an_array(old, new, kind):
    calls = [trace(static("n", n), array("x", shape)) for shape, n in (old, new)]
    assert kind_of(_differences.differences(*calls)) == kind


# --- explanations --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], ""),
        (
            [array("x"), static("n", "3"), node("m", "NoneType", "0")],
            "x: float32(2,), n: 3, m: None",
        ),
        (
            [
                node("m", "a.b.Net", "3"),
                array("m.w"),
                node("m.l"),
                array("m.l[0]"),
                static("m.n", "3"),
                node("l", size="2"),
                array("l[0]"),
                node("t"),
                static("t<static>", "1"),
                static("mm", "4"),
            ],
            "m: Net of 2 arrays, l: list of 1 array, t: list of 0 arrays, mm: 4",
        ),
    ],
)
def test_arguments_in_a_line(entries, said):
    assert _explain.arguments_text(tuple(entries)) == said


@pytest.mark.parametrize("n", [1, 3, 4, 10, 11, 12])
def test_how_many_differences_are_shown(n):
    old = trace(*[array(f"x{i}") for i in range(n)])
    new = trace(*[array(f"x{i}", "(3,)") for i in range(n)])
    each = [f"`x{i}`: shape (2,) -> (3,)" for i in range(n)]
    text = "; ".join(each[:3]) + (" ..." if n > 3 else "")
    assert _explain._signature_text(new, old) == text
    explanation = _explain.explain_trace(new, [old])
    lines = ["  unlike the call at a.py:9:", *[f"    {x}" for x in each[:10]]]
    lines += [f"    and {n - 10} more"] if n > 10 else []
    assert explanation.reason().splitlines()[1:-1] == lines


def test_an_explanation():
    old, new = trace(array("x")), trace(array("x", "(3,)"))
    old.site, new.retraced = None, False
    explanation = _explain.explain_trace(new, [old])
    assert str(explanation).splitlines() == [
        "f (a.py:3) was compiled (not traced) again by the call at a.py:9",
        "  cost: 15 s (trace 1 s, lower 2 s, compile 4 s, first run 8 s)",
        "  cause: shape-churn",
        "  unlike the call at ?:",
        "    `x`: shape (2,) -> (3,)",
        f"  {_differences.ADVICE['shape-churn']}",
    ]
    new.inside, new.site = 1, None
    old.inside = 2
    text = str(_explain.explain_trace(new, [old]))
    assert "was compiled (not traced) (inlined) again by the call at ?\n" in text
    both = _explain.Explanations([explanation, explanation])
    assert str(both) == f"{explanation}\n{explanation}"


def test_what_is_compared_with_what():
    first = _record.FunctionInfo(1, "f", "f", Place("a.py", 3, "f"))
    second, nowhere = first._replace(number=2), first._replace(number=3, place=None)
    old, same = trace(array("x"), function=first), trace(array("x"), function=first)
    assert _explain.explain_trace(same, []) is None
    assert _explain.explain_trace(same, [old]).kind == "cache-cleared"
    twin = trace(array("x", "()"), function=second)
    explanation = _explain.explain_trace(twin, [old])
    assert explanation.kind == "fresh-function"
    assert [str(d) for d in explanation.differences] == [
        "`f`: another function that looks the same, created again at a.py:3",
        "`x`: shape (2,) -> ()",
    ]
    assert explanation.advice == _differences.ADVICE["fresh-function"]
    assert _explain.explain_trace(trace(function=nowhere), [old]) is None
    # Traces for another purpose are no reason, and none is needed for the same again.
    same.ahead = True
    assert _explain.explain_trace(same, [old]) is None
    assert (
        _explain.explain_trace(twin, [old, trace(function=second, ahead=True)]) is None
    )
    old.ahead = True
    assert _explain.explain_trace(same, [old]) is None
    assert [_differences.origin(t) for t in (same, twin)] == ["ahead", "call"]


def test_the_lines_of_a_ledger():
    traces = []
    for i, line in enumerate([5, 6, 7, 8, 8]):
        made = trace(array("x", f"({i},)"), compile=4.0 * (i != 4))
        made.site = Place("a.py", line, "main")
        traces.append(made)
    traces.append(trace(array("x"), failed=True, site=None))
    row = _explain._ledger_row(_explain.explain_all(traces))
    assert (row.functions, row.traces, row.compiles) == (1, 5, 5)
    assert row.seconds == 6 * 15 - 4
    assert row.causes == (("shape-churn", 4), ("first-call", 1), ("failed", 1))
    ledger = _explain.Ledger((row,))
    (table,) = ledger.tables()
    assert table.rows == [
        (
            *("f (a.py:3)", 1, 5, 5, "1 min 26 s"),
            "4 shape-churn, 1 first-call, 1 failed",
            "a.py:8 (2), a.py:5 (1), a.py:6 (1), ...",
        )
    ]
    assert ledger.title() == "1 jitted function, 1 min 26 s"
    row = _explain._ledger_row(_explain.explain_all(traces[:3]))
    assert _explain.Ledger((row, row)).tables()[0].rows[0][6] == (
        "a.py:5 (1), a.py:6 (1), a.py:7 (1)"
    )
    assert _explain.Ledger((row, row)).title() == "2 jitted functions, 1 min 30 s"


# --- guards --------------------------------------------------------------------------


def test_what_a_guard_says(monkeypatch):
    monkeypatch.setattr(_record, "traces", [])
    made = trace(array("x"), static("n", "3"))
    with pytest.raises(_guard.RetraceError) as caught:
        _guard._Guarding(0).before(made)
    assert str(caught.value) == (
        "f (a.py:3) may be traced at most 0 times here.\n  It was called at a.py:9 for "
        "the first time, with x: float32(2,), n: 3. Call it once, or `warmup` it, "
        "before the guard."
    )
    made.site = None
    guarding = _guard._Guarding(None, max_seconds=14.9, warn=True)
    guarding.before(made)
    with pytest.warns(_guard.RetraceWarning) as seen:
        guarding.after(made)
    (warning,) = seen
    assert (warning.filename, warning.lineno) == ("<unknown>", 1)
    assert str(warning.message).startswith(
        "Tracing and compiling may take at most 14.9 s here, and has taken 15 s, "
        "including f (a.py:3).\n  It was called at ? for the first time"
    )
    _record.traces.append(trace(array("x"), static("n", "4")))
    made.nested = 14.0
    guarding = _guard._Guarding(1, max_seconds=1.9, origin="(there)")
    guarding.after(made)  # 1 s of its own
    with pytest.raises(_guard.RetraceError, match="has taken 2 s"):
        guarding.after(made)
    guarding.before(made)
    with pytest.raises(_guard.RetraceError) as caught:
        guarding.before(made)
    assert str(caught.value).splitlines()[:3] == [
        "f (a.py:3) may be traced at most 1 time (there).",
        "  called at ?",
        "  cause: static-churn",
    ]


def test_functions_that_a_guard_is_about():
    info = _record.FunctionInfo(1, "f", "f", Place("a.py", 3, "f"))
    limits = _guard._Guarding(0, function=info)
    assert limits.concerns(trace(function=info._replace(number=2)))
    assert not limits.concerns(trace(function=info._replace(number=2, qualname="g")))
    nowhere = info._replace(place=None)
    limits = _guard._Guarding(0, function=nowhere)
    assert limits.concerns(trace(function=nowhere))
    assert not limits.concerns(trace(function=nowhere._replace(number=2)))


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"max_traces": -1}, "max_traces=-1"),
        ({"max_traces": 3, "max_seconds": "1"}, "max_seconds='1'"),
        ({"max_traces": 3, "max_seconds": -0.5}, "max_seconds=-0.5"),
    ],
)
def test_limits_that_are_none(limits, name):
    with pytest.raises(ValueError) as caught:
        guard(**limits)
    assert str(caught.value) == f"guard({name}): expected 0 or more."
    guard(max_seconds=0), guard(max_traces=0)


@pytest.mark.parametrize("value", ["", "8,", "8,warn,", "-1", "1.5", ",warn"])
def test_a_variable_that_is_no_limit(value, monkeypatch):
    monkeypatch.setenv("EQX_FASTJIT_MAX_TRACES", value)
    monkeypatch.setattr(_record, "before", [])
    with pytest.raises(ValueError, match="expected a number of traces"):
        _guard.guard_from_environment()
    assert _record.before == []
