"""Findings of the doctor, in full: figures, names, lines and what is to be done."""

import types

import pytest

from eqx_fastjit.doctor import _find
from eqx_fastjit.doctor._plain import Compile, Miss
from eqx_fastjit.doctor._report import Finding
from eqx_fastjit.doctor._watch import Deviation, Kept
from eqx_fastjit.insight import _snapshots
from tests.doctor_records import (
    F,
    HERE,
    inspected,
    LIBRARY,
    seen_of,
    static,
    THERE,
    trace_of,
    watch_of,
)


pytestmark = pytest.mark.one_engine

SHAPES = [f"({n},)" for n in range(2, 12)]


def findings(watch, kind, **options):
    report = _find.make_report(watch, "a.py", 0, **options)
    return [f for f in report.findings if f.kind == kind]


# --- the report ----------------------------------------------------------------------


def test_order_of_findings():
    def finding(severity, seconds, kind="blocking", file="a.py", line=1):
        return Finding(kind, severity, "f", file, line, "", seconds, 1, "", "")

    expected = [
        finding("high", 2.0),
        finding("high", 1.0, "blocking", None, None),
        finding("high", 1.0, "blocking", "a.py", None),
        finding("high", 1.0, "blocking", "a.py", 2),
        finding("high", 1.0, "blocking", "b.py", 1),
        finding("high", 1.0, "numerics", "a.py", 1),
        finding("medium", 9.0),
        finding("medium", None),
        finding("low", 5.0),
    ]
    for i in range(1, len(expected)):
        mixed = [*expected[i:], *expected[:i]]
        assert sorted(mixed, key=_find._importance) == expected


def test_a_report():
    first = seen_of(static("n", "1"))
    second = seen_of(static("n", "2"))
    late = Compile("g", Miss("g", F, "first-call"), HERE, 950.0, compile=1.0)
    watch = watch_of(second, first, plain=[late], seconds=100.0)
    report = _find.make_report(watch, "a.py", 7)
    assert (report.program, report.exit_code, report.seconds) == ("a.py", 7, 100.0)
    # In the order of the traces, not in that in which they ended.
    assert [c.cause for c in report.compilations] == [
        *("first-call", "static-churn", "first-call")
    ]
    assert [c.start for c in report.compilations] == [0, 0, 50]
    assert [row.function for row in report.functions] == ["f", "g"]
    assert report.time.seconds == 100
    assert report.notes == ("The program did not import JAX.",)
    assert _find.make_report(watch_of(), "a.py", None).compilations == ()


def test_a_loop_is_a_finding_or_a_hint():
    def loop(iterations):
        return types.SimpleNamespace(
            iterations=iterations,
            equations=320,
            scan_equations=20,
            uniform=True,
            file="a.py",
            line=5,
        )

    for iterations, kinds in ((20, ["unrolled-loop"]), (19, ["scan-layers"])):
        inspection = inspected(400, loops=(loop(iterations),))
        seen = seen_of(seconds=(10.0, 20.0, 10.0, 8.0), inspection=inspection)
        report = _find.make_report(watch_of(seen, seconds=60.0), "a.py", 0)
        found = [*report.findings, *report.hints]
        found = [x for x in found if x.kind not in ("persistent-cache", "export")]
        assert [x.kind for x in found] == kinds
        assert (found[0].line, found[0].seconds) == (5, 30)


# --- first calls ---------------------------------------------------------------------

FEWER = (
    "Fewer equations take less time: use `jax.lax.scan` for repeated layers and "
    "steps, and one call under `jax.vmap` in place of many."
)
PYTHON = " Most of it was Python: look for other work in the function, too."


@pytest.mark.parametrize(
    ("parts", "fix"),
    [
        ((4.0, 3.0, 1.0), FEWER + PYTHON),
        ((3.9, 3.0, 1.0), FEWER),
        ((0.0, 4.0, 4.0), "set `jax_compilation_cache_dir` (`eqx-fastjit lock --pre"),
        ((0.0, 4.0, 3.9), FEWER),
        ((4.0, 0.0, 4.0), FEWER + PYTHON),
    ],
)
def test_what_helps_a_slow_first_call(parts, fix):
    seen = seen_of(seconds=(*parts, 0.0))
    (finding,) = findings(watch_of(seen, seconds=10.0), "slow-first-call", slow=7.0)
    assert finding.fix == fix or (fix in finding.fix and PYTHON not in finding.fix)
    assert (fix == FEWER) == (finding.fix == FEWER)


def test_first_calls():
    slow = (10.0, 20.0, 40.0, 80.0)
    many = [
        seen_of(name="first", seconds=slow),
        seen_of(name="first", seconds=slow),  # not the first
        seen_of(name="failed", seconds=slow, failed=True),
        seen_of(name="inside", seconds=slow, inside=1),
        seen_of(name="nowhere", seconds=slow, site=None, place=None),
        seen_of(name="unplaced", seconds=slow, place=None, site=THERE),
    ]
    found = findings(watch_of(*many), "slow-first-call", slow=70.0)
    assert [(f.function, f.file, f.line) for f in found] == [
        ("nowhere", None, None),
        ("first", "a.py", 9),
        ("unplaced", "b.py", 20),
    ]
    for finding, site in zip(found, ("?", "a.py:1", "b.py:20"), strict=True):
        assert (finding.severity, finding.seconds, finding.count) == ("high", 70, 1)
        assert finding.leaf == ""
        assert finding.message == (
            f"the first call, at {site}, spent 10.00 s tracing, 20.00 s lowering and "
            "40.00 s in XLA's compiler"
        )


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, 1), (59.9, 0)])
def test_a_minute_is_slow(seconds, expected):
    watch = watch_of(seen_of(seconds=(0, 0, seconds, 0)))
    assert len(findings(watch, "slow-first-call")) == expected


def test_first_calls_of_plain_jit():
    parts = {"trace": 10.0, "lower": 20.0, "compile": 40.0}
    plain = [
        Compile("first", Miss("first", F, "first-call"), HERE, 900.0, **parts),
        Compile("again", Miss("again", F, "shape-churn"), HERE, 900.0, **parts),
        Compile("unplaced", Miss("unplaced", None, "first-call"), THERE, 900, **parts),
        Compile("sin", None, THERE, 900.0, **parts),
        Compile("cos", None, None, 900.0, **parts),
    ]
    found = findings(watch_of(plain=plain), "slow-first-call", slow=70.0)
    assert [(f.function, f.file, f.line) for f in found] == [
        ("cos", None, None),
        ("first", "a.py", 9),
        ("unplaced", "b.py", 20),
        ("sin", "b.py", 20),
    ]
    assert found[1].message.startswith(
        "the first call, at a.py:1, spent 10.00 s tracing, 20.00 s lowering and 40.00"
    )
    assert (found[0].seconds, "at ?, spent" in found[0].message) == (70, True)


# --- what is in a trace --------------------------------------------------------------


def test_of_several_traces_the_most_expensive_counts():
    def constant(bytes, line=5):
        shape = (bytes // 8, 2)
        return types.SimpleNamespace(
            bytes=bytes, shape=shape, dtype="float32", file="a.py", line=line
        )

    def loop(equations):
        return types.SimpleNamespace(
            iterations=30,
            equations=equations,
            scan_equations=10,
            uniform=True,
            file="a.py",
            line=5,
        )

    kinds = {"loops": (loop(310),), "constants": (constant(6 << 20),)}
    many = [
        seen_of(),
        seen_of(inspection=inspected(400, **kinds)),
        seen_of(inspection=inspected(800, loops=(loop(610),))),
        seen_of(inspection=inspected(1000, loops=(loop(510),))),
        seen_of(),
    ]
    report = _find.make_report(watch_of(*many, seconds=20.0), "a.py", 0)
    loops, constants = report.findings
    # 7 s, of which 300 / 400, 600 / 800 and 500 / 1000.
    assert (loops.kind, loops.seconds, loops.count) == ("unrolled-loop", 5.25, 30)
    assert (loops.file, loops.line, loops.function) == ("a.py", 5, "f")
    assert (loops.severity, loops.leaf) == ("high", "")
    assert loops.message == (
        "an unrolled Python loop of 30 iterations has 310 of the 400 equations of f; a "
        "scan would have about 10. The time lost is an estimate"
    )
    assert constants == Finding(
        kind="large-constant",
        severity="medium",
        function="f",
        file="a.py",
        line=5,
        leaf="float32[786432,2]",
        seconds=None,
        count=1,
        message="f captured an array of 6.0 MiB (float32[786432,2]), first used here: "
        "it is a constant, copied into each compiled program",
        fix="Pass it as an argument, or as a field of a Module argument.",
    )


def test_a_function_that_is_called_from_many_places():
    inlined = types.SimpleNamespace(
        name="g", call_sites=18, calls=20, equations=400, file="a.py", line=2
    )
    seen = seen_of(inspection=inspected(800, inlined=(inlined,)))
    (finding,) = findings(watch_of(seen, seconds=100.0), "inlined-function")
    assert finding == Finding(
        kind="inlined-function",
        severity="medium",
        function="g",
        file="a.py",
        line=2,
        leaf="",
        seconds=3.325,  # of 7 s, 19 calls of 20 in half of the equations
        count=20,
        message="g is called from 18 places in f, and inlined at each: 400 of 800 "
        "equations. The time lost is an estimate",
        fix="Stack its arguments and call it once: under `jax.vmap` if the calls are "
        "independent, in `jax.lax.scan` if each needs the result of the one before.",
    )
    library = types.SimpleNamespace(call_sites=18, equations=400, file=LIBRARY)
    assert not _find._is_inlined(library, 800)


def test_a_comprehension_is_no_loop_to_scan(tmp_path):
    (tmp_path / "a.py").write_text("ys = [f(x) for x in xs]\nwhile x < 3:  # no\n")
    file = str(tmp_path / "a.py")
    fix = _find._loop_fix(types.SimpleNamespace(file=file, line=1))
    assert fix == (
        "Write the comprehension as one call under `jax.vmap`, or as `jax.lax.map`, "
        "with its items stacked, so that it is compiled once."
    )
    fix = _find._loop_fix(types.SimpleNamespace(file=file, line=2))
    assert fix == (
        "Write `while x < 3:` as `jax.lax.scan`, with the layers or steps stacked, so "
        "that it is compiled once."
    )


# --- stale globals -------------------------------------------------------------------


@pytest.fixture
def stale(monkeypatch):
    """Findings on traces, each with the names that it read and those that changed."""

    def change(name, line, file):
        return _snapshots.Change(name, "global", file, line, "g", "1", "2")

    monkeypatch.setattr("eqx_fastjit.insight.changed", lambda s: s.changes)

    def found(*traces, written=(), file="a.py", gone=()):
        watch = watch_of()
        watch.written = set(written)
        for number, read, changes in traces:
            values = [types.SimpleNamespace(name=n, function=lambda: 1) for n in read]
            changes = [change(name, line, file) for name, line in changes]
            trace = trace_of(number=number)
            snapshot = types.SimpleNamespace(values=values, changes=changes)
            source = (lambda: None) if number in gone else (lambda: 1)
            kept = watch.snapshots.setdefault(number, [])
            kept.append(Kept(trace, snapshot, source))
        return list(_find._stale(watch))

    return found


def test_a_global_that_has_changed(stale):
    (finding,) = stale((1, ["RATE"], [("RATE", 5)]))
    assert finding == Finding(
        kind="stale-global",
        severity="medium",
        function="f",
        file="a.py",
        line=5,
        leaf="RATE",
        seconds=None,
        count=1,
        message="global `RATE` was 1 when f was traced and is 2 at the end of the "
        "program; calls with the same signature still use the old value",
        fix="Pass `RATE` as an argument, or call `f.clear_cache()` after a change.",
    )
    assert stale((1, ["RATE"], [("RATE", 5)]), written=["RATE"]) == []
    assert stale((1, ["RATE"], [("RATE", 5)]), file=LIBRARY) == []
    assert stale() == stale((1, ["RATE"], [])) == []


def test_each_global_is_one_finding(stale):
    both = [("RATE", 5), ("RATE", 6), ("config.lr", 5)]
    # The first name is skipped, and the others are not.
    found = stale((1, ["A", "RATE"], [("A", 1), *both]), written=["A"])
    assert [(f.leaf, f.line, f.count) for f in found] == [
        *(("RATE", 5, 1), ("RATE", 6, 1), ("config.lr", 5, 1))
    ]
    # Two traces of a function, and another function that is of the same line.
    one = (1, ["RATE"], [("RATE", 5)])
    (finding,) = stale(one, one, (2, ["RATE"], [("RATE", 5)]))
    assert finding.count == 3
    # A later trace has read the value that it has now, and a third one has not.
    assert stale(one, (1, ["RATE"], [])) == []
    assert len(stale((1, ["RATE"], []), one)) == 1
    found = stale((1, ["c.x"], [("c.x", 5), ("B", 6)]), (1, ["c"], []))
    assert [f.leaf for f in found] == ["B"]
    # The attribute has changed since the later trace, too.
    (finding,) = stale((1, [], [("c.x", 5)]), (1, ["c"], [("c.x", 5)]))
    assert finding.count == 2


def test_functions_that_are_wrapped_anew(stale):
    first, second = (1, ["RATE"], [("RATE", 5)]), (2, ["RATE"], [])
    # The second has read what it is now: nobody calls the first any more, ...
    assert stale(first, second, gone=[1]) == stale(first, second, gone=[1, 2]) == []
    # ... unless it is still there, or the second has read something else.
    assert len(stale(first, second)) == len(stale(first, second, gone=[2])) == 1
    assert len(stale(first, (2, ["OTHER"], []), gone=[1])) == 1
    # An earlier one says nothing of a later one.
    assert len(stale((1, ["RATE"], []), (2, *first[1:]), gone=[1, 2])) == 1


# --- numerics ------------------------------------------------------------------------


def deviation(path, absolute=0.0, scale=1.0, not_finite=0):
    return Deviation(path, absolute, scale, 1.0, 0.0625, 9, not_finite)


def numerics(*deviations, **options):
    seen = seen_of(**options)
    seen.deviations = list(deviations)
    watch = watch_of(seen_of(name="others"), seen)
    return findings(watch, "numerics")


def test_results_that_differ():
    small = deviation("result[1]", 0.01)
    (finding,) = numerics(
        small, deviation("result[0]", 4.0, 8.0), deviation("result[2]", 3.0, 4.0)
    )
    assert finding == Finding(
        kind="numerics",
        severity="medium",
        function="f",
        file="a.py",
        line=9,
        leaf="result[2]",
        seconds=None,
        count=2,
        message="jitted and eager results of f differ: by up to 3, where values go up "
        "to 4 (9 units in the last place)",
        fix="The compiler may reorder and simplify arithmetic (`x + y - x`). Rewrite "
        "expressions that cancel, or compute them in a wider dtype.",
    )
    assert numerics(small) == numerics() == []
    # Without a scale; and what is not finite is worse than any difference.
    (finding,) = numerics(deviation("a", 2.0, 0.0), deviation("b", 1.5, 1.0))
    assert finding.leaf == "a"
    worst = [deviation("a", 1e6), deviation("b", not_finite=1)]
    (finding,) = numerics(*worst, place=None)
    assert (finding.leaf, finding.file, finding.line) == ("b", "a.py", 1)
    end = "differ: 1 element is NaN or infinite in only one of them"
    assert finding.message.endswith(end)
    (finding,) = numerics(*worst, deviation("c", not_finite=2), place=None, site=None)
    assert (finding.leaf, finding.count, finding.file) == ("c", 3, None)
    end = "differ: 2 elements are NaN or infinite in only one of them"
    assert finding.message.endswith(end) and finding.line is None


# --- notes ---------------------------------------------------------------------------


def test_notes(monkeypatch):
    monkeypatch.setattr(_find, "time", types.SimpleNamespace(time=lambda: 962.0))
    watch = watch_of(plain=[Compile("sin", None, HERE, 900.0)])
    watch.watches_jax, watch.plain.explained = True, True
    assert list(_find._notes(watch)) == []
    watch.notes.append("first")
    watch.waits.missing.append("waits")
    watch.begun = {
        1: trace_of(site=HERE),
        2: trace_of(name="g", started=961.5),
    }
    watch.plain.explained = False
    end = "This version of JAX does not report why `jax.jit` functions compile."
    assert list(_find._notes(watch)) == [
        "first",
        "f was still being traced or compiled, for 1 min 2 s, by the call at a.py:1.",
        "g was still being traced or compiled, for 500 ms, by the call at ?.",
        "Not available with this version of JAX: waits.",
        end,
    ]
    watch.plain.compiles.append(Compile("f", Miss("f", F, "other"), HERE, 900.0))
    *_, plain, last = _find._notes(watch)
    assert plain.startswith("For functions under plain `jax.jit`, JAX reports the arg")
    assert last == end
