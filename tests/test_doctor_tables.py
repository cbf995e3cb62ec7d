"""The doctor's tables, parts of the time, and timeline, in full."""

import json
import types

import pytest

from eqx_fastjit.doctor import _report, _time, _timeline
from eqx_fastjit.doctor._report import Change, Hint, LineTime, TimePart, TimeSpent
from eqx_fastjit.doctor._rows import make_compilations, rows
from eqx_fastjit.doctor._sampler import Sampler, Where
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._waits import Waiting
from eqx_fastjit.insight._differences import Difference
from tests.doctor_records import (
    array,
    DEFINED,
    F,
    HERE,
    inspected,
    LIBRARY,
    node,
    plain,
    seen_of,
    static,
    THERE,
    trace_of,
    watch_of,
)


pytestmark = pytest.mark.one_engine


# --- functions -----------------------------------------------------------------------


def test_rows_of_functions():
    many = [
        seen_of(static("n", "1"), number=1),
        seen_of(static("n", "2"), number=2, site=None, retraced=False),
        seen_of(static("n", "3"), number=2, failed=True, seconds=(16.0, 0, 0, 0)),
        seen_of(static("n", "4"), number=2, site=None, seconds=(1.0, 0, 0, 0)),
        seen_of(name="g", place=None, seconds=(100.0, 0, 0, 0), retraced=False),
    ]
    many[1].trace.site = many[3].trace.site = DEFINED
    many[1].explanation = types.SimpleNamespace(kind="static-churn")
    g, f = rows(many, [])
    assert (g.function, g.file, g.line, g.seconds) == ("g", None, None, 100)
    assert (g.traces, g.compiles, g.objects) == (0, 0, 1)
    assert (f.function, f.file, f.line, f.jit) == ("f", "a.py", 9, "filter_jit")
    assert (f.traces, f.compiles, f.objects) == (2, 2, 2)
    assert (f.trace, f.lower, f.compile, f.first_run) == (19, 4, 8, 16)
    assert f.seconds == 15 + 15 + 16 + 1
    assert list(f.causes.items()) == [
        *(("first-call", 2), ("static-churn", 1), ("failed", 1))
    ]
    assert f.calls == (("a.py:1", 2), ("a.py:9", 2))


def test_rows_of_plain_jit_and_operations():
    many = [
        plain("f", ["first-call"]),
        plain("f", ["shape-churn"], site=THERE),
        plain("f", ["fresh-function"]),
        plain("f", ["fresh-function"]),
        # Operations with a row of their own, as they take a second in total.
        plain("sin", parts=(0.25, 0.125, 0.125)),
        plain("sin", parts=(0.25, 0.125, 0.125)),
        # The others are summed up.
        plain("cos", parts=(0.5, 0.25, 0.125)),
        plain("cos", site=THERE, parts=(0.5, 0.25, 0.125)),
        plain("tan", site=None, parts=(0.125, 0, 0)),
    ]
    f, others, sin = rows([], many)
    assert (f.function, f.file, f.line, f.jit) == ("f", "a.py", 9, "jax.jit")
    assert (f.objects, f.traces, f.compiles) == (3, 4, 4)
    assert (f.seconds, f.trace, f.lower, f.compile) == (4, 2, 1, 1)
    assert f.first_run == 0
    assert list(f.causes.items()) == [
        *(("fresh-function", 2), ("first-call", 1), ("shape-churn", 1))
    ]
    assert f.calls == (("a.py:1", 3), ("b.py:20", 1))
    assert (others.function, others.file, others.line, others.jit) == (
        *("2 operations outside of jit", None, None, "jax"),
    )
    assert (others.objects, others.traces, others.seconds) == (1, 3, 1.875)
    assert others.calls == (("a.py:1", 1), ("b.py:20", 1), ("?", 1))
    assert (sin.function, sin.file, sin.line, sin.jit) == ("sin", "a.py", 1, "jax")
    assert (sin.traces, sin.seconds, sin.causes) == (2, 1, {})
    (row,) = rows([], [plain("tan", parts=(0.125, 0, 0))])
    assert row.function == "1 operation outside of jit"
    # Functions of one name that are defined at different lines are two.
    other = plain("f", ["first-call"])
    other.miss.place = THERE
    assert len(rows([], [plain("f", ["first-call"]), other])) == 2


# --- compilations --------------------------------------------------------------------


def test_a_compilation_of_ours():
    entries = [
        node("m", "a.Model", 2),
        array("m.w", "(2, 3)", "float16"),
        array("m.mask", "(5,)", "bool"),
        array("key", "()", "key<fry>"),
        array("x", "(4,)", "int4"),
        array("c", "(2,)", "complex128"),
        array("y", "(3,)", "odd"),
        static("n", "1"),
    ]
    seen = seen_of(
        *entries,
        site=None,
        inspection=inspected(7),
        cached=True,
        inside=3,
        thread=5,
        started=902.5,
    )
    different = [Difference(f"n{i}", "static", "1", "2") for i in range(101)]
    seen.explanation = types.SimpleNamespace(
        kind="static-churn", differences=different, old=trace_of(site=DEFINED)
    )
    (found,) = make_compilations([seen], [], 900.0)
    assert found.changes[:2] == (
        Change("n0", "static", "1", "2"),
        Change("n1", "static", "1", "2"),
    )
    assert len(found.changes) == 100
    shown = "m: Model of 2 arrays, key: key<fry>(), x: int4(4,), c: complex128(2,), y: "
    assert found.signature == f"{shown}odd(3,), n: 1"
    # Half of a byte counts as one.
    assert found.argument_bytes == 6 * 2 + 5 + 8 + 4 + 2 * 16 + 3 * 8
    assert (found.function, found.file, found.line) == ("f", "a.py", 9)
    assert (found.site, found.earlier, found.jit) == ("", "a.py:9", "filter_jit")
    assert (found.start, found.seconds, found.equations) == (2.5, 15, 7)
    assert (found.cause, found.cached, found.inside) == ("static-churn", True, True)
    assert (found.thread, found.program) == (5, None)


def test_other_compilations_of_ours():
    func = static("f.func", "act (a.py:3)", "function")
    many = [
        seen_of(node("f", "Partial", 1), func, started=903.0, site=None),
        seen_of(place=None, started=901.0, failed=True),
        seen_of(started=902.0),
    ]
    many[0].trace.site = DEFINED
    many[2].program = "program"
    failed, first, partial = make_compilations(many, [], 900.0)
    assert [c.number for c in (failed, first, partial)] == [1, 2, 3]
    assert (failed.cause, failed.file, failed.line) == ("failed", None, None)
    assert (first.cause, first.changes, first.earlier) == ("first-call", (), "")
    assert (first.site, first.equations, first.program) == ("a.py:1", None, "program")
    assert (partial.function, partial.file) == ("f of act (a.py:3)", None)
    assert (partial.line, partial.site) == (None, "a.py:9")
    long = seen_of(*[static(f"argument{i:03}", "1") for i in range(200)])
    (found,) = make_compilations([long], [], 900.0)
    assert len(found.signature) == 2000


def test_compilations_of_plain_jit():
    shape = ["shape-churn", "x", "[2]", "[3]"]
    many = [
        plain("g", shape, started=903.0, thread=5, cached=True),
        plain("sin", site=None, started=901.0),
        plain("f", ["first-call"], started=902.0),
        plain("h", ["static-churn", "x", "", "2"], started=904.0),
        plain("h", ["static-churn", "x", "2", ""], started=905.0),
    ]
    sin, first, second, third, fourth = make_compilations([], many, 900.0)
    assert second == _report.Compilation(
        number=3,
        function="g",
        jit="jax.jit",
        start=3.0,
        trace=0.5,
        lower=0.25,
        compile=0.25,
        first_run=0.0,
        cause="shape-churn",
        site="a.py:1",
        file="a.py",
        line=9,
        thread=5,
        cached=True,
        changes=(Change("x", "shape-churn", "[2]", "[3]"),),
    )
    assert second.seconds == 1 and not second.inside
    assert (sin.number, sin.function, sin.jit, sin.cause) == (
        *(1, "sin", "jax", "outside of jit"),
    )
    assert (sin.file, sin.line, sin.site, sin.changes) == (None, None, "", ())
    assert (first.cause, first.changes, first.cached) == ("first-call", (), False)
    assert [len(c.changes) for c in (third, fourth)] == [1, 1]


# --- parts of the time ---------------------------------------------------------------


def parts(watch):
    return {part.name: part.seconds for part in _time.time_spent(watch).parts}


def test_what_is_measured(monkeypatch):
    monkeypatch.setattr(_time, "time", types.SimpleNamespace(time=lambda: 1000.0))
    watch = watch_of(
        seen_of(),
        seen_of(seconds=(500.0, 500.0, 500.0, 500.0), inside=1),
        plain=[plain("sin", parts=(16.0, 32.0, 64.0))],
        seconds=300.0,
    )
    watch.own_seconds = 0.5
    # Of those that go on, the outermost alone.
    watch.begun = {
        7: trace_of(started=950.0, inside=8),
        8: trace_of(started=990.0),
        9: trace_of(started=999.0),
    }
    waits = [Waiting(HERE, "float()", waited=3.0), Waiting(THERE, "x", waited=6.0)]
    watch.waits.by_call = dict(enumerate(waits))
    spent = _time.time_spent(watch)
    assert parts(watch) == {
        "compile": 4 + 64 + 10,
        "lower": 2 + 32,
        "trace": 1 + 16,
        "wait": 9,
        "own": 0.5,
        "python": 300 - 138.5,
    }
    assert [part.name for part in spent.parts] == [
        *("python", "compile", "lower", "trace", "wait", "own")
    ]
    assert [part.label for part in spent.parts][:2] == [
        *("Python, outside of JAX", "XLA's compiler")
    ]
    lines = {part.name: part.lines for part in spent.parts}
    assert lines.pop("wait") == (
        LineTime("b.py", 20, 6.0),
        LineTime("a.py", 1, 3.0),
    )
    assert set(lines.values()) == {()}


def test_what_is_sampled():
    """Each kind of sample is a part, in proportion."""
    library = Line("c.py", 3, "g")
    watch = watch_of(
        seen_of(site=HERE, seconds=(10.0, 0, 0, 0)),
        seen_of(site=None, seconds=(0.0, 0, 0, 0)),
        plain=[
            plain("sin", site=THERE, parts=(0, 0, 0)),
            plain("cos", site=HERE, parts=(0, 0, 0)),
            plain("tan", site=None, parts=(0, 0, 0)),
            plain("f", ["first-call"], site=library, parts=(0, 0, 0)),
        ],
        seconds=200.0,
    )
    start = 100.0
    for found, seconds in (
        (Where("import", None), 1.0),
        (Where("wait", HERE), 64.0),
        (Where("own", HERE), 64.0),
        (Where("line", HERE), 2.0),
        (Where("jax", HERE), 4.0),
        (Where("library", HERE), 8.0),
        (Where("line", library), 2.0),
        (Where("jax", None), 16.0),
        (Where("line", THERE), 16.0),
        (Where("library", THERE), 8.0),
        (Where("line", Line("d.py", 3)), 8.0),
        (Where("line", Line("d.py", 4)), 4.0),
        (Where("line", Line("d.py", 5)), 1.0),
    ):
        watch.sampler.add(found, start, start + seconds)
        start += seconds
    spent = _time.time_spent(watch)
    # 190 s that were not measured: 70 samples of a second, without those that were
    # measured as waits, and as the doctor's own.
    factor = 190 / 70
    found = {part.name: part.seconds / factor for part in spent.parts}
    assert found.pop("trace") * factor == pytest.approx(10)
    assert found == pytest.approx(
        {"import": 1.0, "calls": 8.0, "python": 29.0, "eager": 32.0}
    )
    lines = {part.name: part.lines for part in spent.parts}
    assert [(x.file, x.line) for x in lines["python"]] == [
        *(("a.py", 1), ("b.py", 20), ("d.py", 3))
    ]
    assert [x.seconds / factor for x in lines["python"]] == pytest.approx([8, 8, 8])
    assert [(x.file, x.line) for x in lines["calls"]] == [("a.py", 1), ("c.py", 3)]
    assert lines["import"] == lines["trace"] == ()


def test_lines_of_less_than_a_hundredth_of_the_run():
    lines = {HERE: 2.0, THERE: 1.0, F: 0.5}
    assert _time._lines(lines, 2.0, 200.0) == (
        LineTime("a.py", 1, 4.0),
        LineTime("b.py", 20, 2.0),
    )
    assert _time._lines({F: 0.5}, 1.0, 50.0) == (LineTime("a.py", 9, 0.5),)


def test_a_run_of_which_all_is_measured():
    watch = watch_of(seen_of(seconds=(1.0, 2.0, 1.0, 0.0)), seconds=2.0)
    assert parts(watch) == {"trace": 0.5, "lower": 1.0, "compile": 0.5}
    assert parts(watch_of(seconds=7.0)) == {"python": 7.0}
    assert parts(watch_of(seen_of(), seconds=7.0)) == {
        "trace": 1.0,
        "lower": 2.0,
        "compile": 4.0,
    }


def test_calls_of_jaxs_own_functions_are_no_calls():
    own = plain("where", ["first-call"])
    own.miss.place = Line(LIBRARY, 1, "where")
    watch = watch_of(plain=[own, plain("f", ["first-call"], site=THERE)])
    assert _time.call_sites(watch) == {("b.py", 20)}
    unplaced = plain("g", ["first-call"])
    unplaced.miss.place = None
    assert _time.call_sites(watch_of(seen_of(), plain=[unplaced])) == {("a.py", 1)}


# --- the timeline --------------------------------------------------------------------


def test_a_timeline():
    main = _timeline.threading.main_thread().ident
    bars = [
        _report.Compilation(
            1, "f", "filter_jit", 1.5, 1.0, 0.0, 2.0, 4.0, "first-call"
        ),
        _report.Compilation(2, "g", "jax", -0.5, 0.0, 0.25, 0, 0, "why", "a.py:1"),
        _report.Compilation(3, "h", "jax", 2.0, 0.0, 0.0, 0, 0, "why", thread=78),
    ]
    threads = zip(bars, (main, 77, 78), strict=True)
    bars = tuple(_report.dataclasses.replace(b, thread=t) for b, t in threads)
    watch = watch_of()
    for found, start, end in (
        (Where("line", HERE), 901.0, 902.0),
        (Where("line", HERE), 902.09, 903.0),
        (Where("line", HERE), 903.2, 904.0),
        (Where("import", None), 904.0, 904.5),
    ):
        watch.sampler.add(found, start, end)
    report = _report.Report("a.py", 0, 9.0, (), (), bars, ())
    trace = _timeline.timeline(watch, report)
    assert json.loads(json.dumps(trace)) == trace and trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    assert [(e["name"], e["tid"], e["args"]["name"]) for e in events[:5]] == [
        ("process_name", 0, "a.py"),
        ("thread_name", 1, "main thread"),
        ("thread_name", 2, "where the main thread was (sampled)"),
        ("thread_name", 3, "thread 3"),
        ("thread_name", 4, "thread 4"),
    ]
    assert events[0] == {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "tid": 0,
        "args": {"name": "a.py"},
    }
    keys = ("name", "cat", "tid", "ts", "dur")
    assert [tuple(e[k] for k in keys) for e in events[5:]] == [
        ("f", "compile", 1, 1.5e6, 7e6),
        ("tracing", "trace", 1, 1.5e6, 1e6),
        ("XLA's compiler", "compile", 1, 2.5e6, 2e6),
        ("first run", "first_run", 1, 4.5e6, 4e6),
        ("g", "compile", 3, 0, 0.25e6),
        ("lowering", "lower", 3, 0, 0.25e6),
        ("h", "compile", 4, 2e6, 0),
        ("a.py:1", "line", 2, 1e6, 2e6),
        ("a.py:1", "line", 2, 3.2e6, 0.8e6),
        ("importing", "import", 2, 4e6, 0.5e6),
    ]
    assert {(e["ph"], e["pid"]) for e in events[5:]} == {("X", 1)}
    assert events[5]["args"] == {
        "cause": "first-call",
        "called at": "?",
        "jit": "filter_jit",
    }
    assert events[9]["args"]["called at"] == "a.py:1" and events[6]["args"] == {}
    assert events[-1]["args"] == {"what": "importing"}
    assert events[-2]["args"] == {"what": "at this line"}
    empty = _timeline.timeline(watch_of(), _report.Report("", 0, 0, (), (), (), ()))
    assert len(empty["traceEvents"]) == 3


def test_samples_close_to_each_other_are_one_event():
    watch = watch_of()
    for start in (900.0, 901.0625, 902.1875):
        watch.sampler.add(Where("line", HERE), start, start + 1)
    found = [e["dur"] for e in _timeline._samples(watch)]
    assert found == [2062500, 1e6]
    watch.sampler = Sampler(list)
    for start in (1.0, 4.0):
        watch.sampler.add(Where("line", HERE), start, start + 1)
    assert len(list(_timeline._samples(watch))) == 2


# --- the report ----------------------------------------------------------------------


def report_of(*parts, seconds=100.0, findings=(), hints=()):
    parts = [TimePart(name, "", x, ()) for name, x in parts]
    time = TimeSpent(seconds, tuple(parts))
    return _report.Report("a.py", 0, seconds, findings, (), (), (), hints, time)


def test_a_headline():
    parts = [("compile", 10.0), ("trace", 10.0), ("lower", 5.0), ("python", 75.0)]
    report = report_of(*parts)
    assert _report.compiling(report) == 25
    words = "nothing wrong, but 25 s of 1 min 40 s were spent compiling"
    assert _report.headline(report) == words and not _report.is_good(report)
    report = report_of(*parts, hints=("hint",))
    assert _report.headline(report) == f"{words}, 1 hint"
    assert not _report.is_good(report_of(hints=("hint",)))
    report = report_of(*parts, findings=("a", "b"), hints=("hint",))
    assert _report.headline(report) == "2 findings, 1 hint"
    assert not _report.is_good(report_of(findings=("a",)))
    # A quarter of the run, and five seconds.
    assert _report.compiling(report_of(("trace", 24.9))) == 0
    assert _report.compiling(report_of(("trace", 5.0), seconds=6.0)) == 5
    report = report_of(("trace", 4.9), seconds=6.0)
    assert _report.compiling(report) == 0 and _report.is_good(report)
    assert _report.headline(report) == "nothing found"


def test_a_report_as_json():
    (row,) = rows([seen_of(), seen_of(site=THERE)], [])
    (bar,) = make_compilations([seen_of()], [], 900.0)
    hint = Hint("export", "f", None, None, 1.0, "m", "f")
    finding = _report.Finding("k", "low", "f", None, None, "", 1.0, 1, "m", "f")
    time = TimeSpent(2.0, (TimePart("trace", "t", 1.0, (LineTime("a", 1, 1.0),)),))
    report = _report.Report(
        *("a.py", 3, 9.0, (finding,), (row,), (bar,), ("note",), (hint,), time)
    )
    data = report.as_json()
    assert list(data) == [
        *("schema", "program", "exit_code", "seconds", "findings", "hints", "time"),
        *("functions", "compilations", "notes"),
    ]
    assert (data["schema"], data["program"], data["exit_code"]) == (1, "a.py", 3)
    assert (data["seconds"], data["notes"]) == (9, ["note"])
    assert data["findings"][0]["kind"] == "k" and data["hints"][0]["kind"] == "export"
    assert data["time"]["parts"][0]["lines"] == (
        {"file": "a", "line": 1, "seconds": 1.0},
    )
    assert data["functions"][0]["calls"] == {"a.py:1": 1, "b.py:20": 1}
    assert data["functions"][0]["function"] == "f"
    assert data["compilations"][0]["start"] == 0
