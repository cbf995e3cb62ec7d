"""Each threshold of the doctor, tested just above and just below its value."""

import types

import numpy as np
import pytest

from eqx_fastjit.doctor import (
    _blocked,
    _causes,
    _find,
    _hints,
    _machine,
    _outside,
    _program,
    _watch,
)
from eqx_fastjit.doctor._causes import Cause, churn
from eqx_fastjit.doctor._plain import Compile
from eqx_fastjit.doctor._report import TimePart, TimeSpent
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._waits import Waiting
from eqx_fastjit.doctor._watch import Deviation, Seen, Watch


pytestmark = pytest.mark.one_engine


HERE = Line("a.py", 1, "main")


# --- recompilation -------------------------------------------------------------------


def cause(kind, old="1 (str)", new="2 (str)", site=HERE, file="a.py"):
    place = Line(file, 9, "f")
    return Cause("f", "f", place, site, kind, "x", old, new, 1.0, "advice")


@pytest.mark.parametrize(
    ("enough", "texts"),
    [
        (4, ("shape-churn", "(1,)", "(2,)")),
        (5, ("static-churn", "'a' (str)", "'b' (str)")),
        (3, ("static-churn", "1 (int)", "2 (int)")),
        (3, ("static-churn", "0.1 (float)", "0.2 (float)")),
        (3, ("static-churn", "1j (complex)", "2j (complex)")),
        (5, ("static-churn", "True (bool)", "False (bool)")),
        (4, ("structure-churn", "list of 1", "list of 2")),
        (4, ("fresh-function", "", "")),
        (3, ("dtype-churn", "float16", "float32")),
        (1, ("dtype-churn", "int32", "float32")),
        (3, ("dtype-churn", "float32", "int32")),
        (1, ("weak-type", "True", "False")),
        (3, ("sharding-churn", "cpu:0", "cpu:1")),
        (3, ("config-churn", "a", "b")),
    ],
)
def test_occurrences(enough, texts):
    (finding,) = churn([cause(*texts)] * enough, 100.0)
    assert (finding.kind, finding.count) == (texts[0], enough)
    assert finding.seconds == enough
    assert list(churn([cause(*texts)] * (enough - 1), 100.0)) == []


def test_other_values_than_numbers_do_not_hide_these():
    numbers = [cause("static-churn", "1 (int)", "2 (int)")] * 3
    others = [cause("static-churn")] * 3
    assert len(list(churn(numbers, 100.0))) == 1
    assert len(list(churn([*numbers, *others[:1]], 100.0))) == 1
    assert list(churn([*numbers[:1], *others], 100.0)) == []


def test_each_line_and_each_cause_is_counted_by_itself():
    lines = [cause("shape-churn", site=Line("a.py", n)) for n in (1, 1, 1, 2)]
    assert list(churn(lines, 100.0)) == []
    kinds = [cause(kind) for kind in ("shape-churn", "structure-churn") * 3]
    assert list(churn(kinds, 100.0)) == []


def test_a_librarys_own_state_is_not_the_programs():
    library = types.__file__
    assert list(churn([cause("weak-type", "False", "True", file=library)], 9.0)) == []
    assert len(list(churn([cause("weak-type", "True", "False", file=library)], 9.0)))
    assert len(list(churn([cause("weak-type", "False", "True")], 9.0)))


@pytest.mark.parametrize(
    ("seconds", "total", "expected"),
    [
        (1.0, 1.0, "low"),
        (1.01, 1.0, "high"),
        (2.5, 10.0, "high"),
        (2.4, 10.0, "medium"),
        (1.5, 30.0, "medium"),
        (1.5, 30.1, "low"),
        (3.0, 1e6, "medium"),
        (2.9, 1e6, "low"),
        (30.0, 1e6, "high"),
        (29.9, 1e6, "medium"),
        (2.0, 0.0, "low"),
    ],
)
def test_severity(seconds, total, expected):
    assert _causes.severity(seconds, total) == expected


# --- a machine that is busy ----------------------------------------------------------


def test_a_machine_that_is_busy(tmp_path, monkeypatch):
    file = tmp_path / "schedstat"
    monkeypatch.setattr(_machine, "_FILE", file)
    assert _machine.Processor().share() == 1  # the file does not exist
    file.write_text("1000000000 2000000000 5\n")
    processor = _machine.Processor()
    file.write_text("1200000000 2700000000 5\n")
    assert processor.share() == 1  # the interval is too short
    file.write_text("1500000000 2500000000 5\n")
    assert processor.share() == 0.5
    file.write_text("1500000000 4000000000 9\n")
    assert processor.share() == 0.2
    file.write_text("what is this\n")
    assert processor.share() == 1


def test_durations_count_less_on_a_busy_machine(monkeypatch):
    watch = Watch()
    watch.plain.compiles = [Compile("f", None, HERE, 0.0, compile=200.0)]
    for share, expected in ((1.0, 1), (0.4, 1), (0.2, 0)):
        watch._share = share
        report = _find.make_report(watch, "a.py", 0)
        assert len(report.findings) == expected
        # An explicit threshold for slow calls applies on a busy machine, too.
        assert len(_find.make_report(watch, "a.py", 0, slow=100.0).findings) == 1
    watch.watches_jax = True
    for share, expected in ((0.5, []), (0.49, ["for 49%"])):
        watch._share = share
        notes = [n for n in _find._notes(watch) if "was busy" in n]
        assert len(notes) == len(expected) and all(map(str.count, notes, expected))
    compiles = [Compile("scan", None, HERE, 0.0, compile=0.3)] * 3
    assert len(list(_outside.outside_of_jit(compiles, 10.0, 0.6))) == 1
    assert list(_outside.outside_of_jit(compiles, 10.0, 0.5)) == []


# --- operations outside of jit -------------------------------------------------------


def outside(name, n, seconds, total):
    compiles = [Compile(name, None, HERE, 0.0, compile=seconds / n)] * n
    return [(f.leaf, f.count) for f in _outside.outside_of_jit(compiles, total)]


@pytest.mark.parametrize(
    ("name", "enough", "least"), [("scan", 3, 0.5), ("sin", 12, 1.0)]
)
def test_outside_of_jit(name, enough, least):
    assert outside(name, enough, least, 10.0) == [(name, enough)]
    # Too few calls, however long; and calls that are too short, however many.
    assert outside(name, enough - 1, 100.0, 100.0) == []
    assert outside(name, 1000, least - 0.01, 1.0) == []
    # The threshold relative to the run.
    assert outside(name, enough, 5.0, 100.0) == [(name, enough)]
    assert outside(name, enough, 4.9, 100.0) == []


# --- blocking ------------------------------------------------------------------------


def test_each_line_outside_of_jit_is_looked_at():
    few = [Compile("sin", None, HERE, 0.0, compile=1.0)] * 2
    many = [Compile("sin", None, Line("a.py", 2, "main"), 0.0, compile=1.0)] * 12
    (finding,) = _outside.outside_of_jit([*few, *many], 1.0)
    assert (finding.line, finding.count, finding.seconds) == (2, 12, 12)


def blocked(count, lost, span=1.0, total=1.0):
    waiting = Waiting(HERE, "float()", "float(x)", count, 2 * lost, lost, 0.0, span)
    return [(f.count, f.seconds) for f in _blocked.blocking([waiting], [], total)]


def test_waits():
    assert blocked(10, 0.3) == [(10, 0.3)]
    # Too few waits, however long; and waits that are too short, however many.
    assert blocked(9, 100.0) == []
    assert blocked(10_000, 0.29) == []
    # The thresholds: a tenth of the loop, and a fiftieth of the run.
    assert blocked(10, 10.0, span=100.0) == [(10, 10.0)]
    assert blocked(10, 9.9, span=100.0) == []
    assert blocked(10, 20.0, total=1000.0) == [(10, 20.0)]
    assert blocked(10, 19.9, total=1000.0) == []


def test_waits_of_one_line_are_one_finding():
    both = [
        Waiting(HERE, what, what, n, 0.2, 0.15, 0.0, 1.0)
        for what, n in (("float()", 10), (".item()", 3))
    ]
    (finding,) = _blocked.blocking(both, [], 1.0)
    assert (finding.count, finding.seconds) == (10, pytest.approx(0.3))
    assert finding.message.startswith(".item(), float() needs the value of an array")
    assert "blocked here 10 times, for 0.40 s in total" in finding.message


# --- contents of a trace -------------------------------------------------------------


def loop(iterations=20, equations=300, uniform=True, file="a.py"):
    return types.SimpleNamespace(
        iterations=iterations,
        equations=equations,
        uniform=uniform,
        file=file,
        line=1,
        scan_equations=100,
    )


@pytest.mark.parametrize(
    ("found", "total", "expected"),
    [
        (loop(), 300, True),
        (loop(iterations=19, equations=100_000), 100_000, False),
        (loop(iterations=1000, equations=299), 300, False),
        (loop(), 1000, True),
        (loop(), 1001, False),
        (loop(uniform=False), 300, False),
        (loop(file=types.__file__), 300, False),
    ],
)
def test_unrolled_loops(found, total, expected):
    assert _find._is_unrolled(found, total) is expected


@pytest.mark.parametrize(
    ("sites", "equations", "total", "expected"),
    [
        (16, 300, 300, True),
        (15, 100_000, 100_000, False),
        (100, 299, 300, False),
        (16, 300, 1000, True),
        (16, 300, 1001, False),
    ],
)
def test_inlined_functions(sites, equations, total, expected):
    x = types.SimpleNamespace(call_sites=sites, equations=equations, file="a.py")
    assert _find._is_inlined(x, total) is expected


def traced(**parts):
    place = types.SimpleNamespace(qualname="f", place=None, name="f")
    trace = types.SimpleNamespace(
        function=place, trace=1.0, lower=2.0, compile=4.0, wrapped=tuple
    )
    parts = {"loops": (), "inlined": (), "constants": (), "equations": 350, **parts}
    return list(_find._in_trace(Seen(trace, HERE), types.SimpleNamespace(**parts), 100))


def test_large_constants():
    def constant(n):
        return types.SimpleNamespace(
            bytes=n, shape=(n // 4,), dtype="float32", file="a.py", line=1
        )

    (finding,) = traced(constants=(constant(4 << 20), constant((4 << 20) - 4)))
    assert (finding.kind, finding.leaf) == ("large-constant", "float32[1048576]")
    assert "4.0 MiB" in finding.message


def test_the_share_of_a_loop():
    (finding,) = traced(loops=(loop(),))
    # The loop would save 200 of 350 equations, hence 4 s of 7 s.
    assert finding.seconds == 4 and finding.count == 20
    assert "20 iterations has 300 of the 350 equations of f" in finding.message
    inlined = types.SimpleNamespace(
        name="g", call_sites=16, calls=16, equations=320, file="a.py", line=2
    )
    (finding,) = traced(inlined=(inlined,))
    assert finding.seconds == 6 and finding.count == 16
    # If the calls are in an unrolled loop, only the loop is reported.
    assert [f.kind for f in traced(loops=(loop(),), inlined=(inlined,))] == [
        "unrolled-loop"
    ]


@pytest.mark.parametrize(
    ("absolute", "scale", "largest", "not_finite", "expected"),
    [
        (0.26, 1.0, 1.0, 0, True),
        (0.25, 1.0, 1.0, 0, False),
        (0.26, 1.0, 5.0, 0, False),  # within rounding error of the larger values
        (0.0, 1.0, 1.0, 1, True),
    ],
)
def test_numerics(absolute, scale, largest, not_finite, expected):
    found = Deviation("x", absolute, scale, largest, 0.0625, 9, not_finite)
    assert _find._is_wrong(found) is expected


# --- hints ---------------------------------------------------------------------------


def test_hints_are_of_so_many_seconds_and_such_a_share():
    least = 5.0, 0.2
    assert _hints._Run(25.0).is_worth(5.0, least)
    assert not _hints._Run(1.0).is_worth(4.9, least)
    assert not _hints._Run(25.1).is_worth(5.0, least)
    # On a busy machine everything takes longer, and its share of the run is the same.
    assert not _hints._Run(25.0, 0.5).is_worth(5.0, least)
    assert _hints._Run(25.0, 0.5).is_worth(10.0, least)
    assert not _hints._Run(50.1, 0.5).is_worth(10.0, least)


def compiled(*seconds, caches=1.0):
    watch = Watch()
    watch.cache_seconds = caches
    watch.plain.compiles = [Compile("f", None, None, 0.0, compile=s) for s in seconds]
    return list(_hints._cache(watch, _hints._Run(20.0)))


def test_what_the_persistent_cache_saves():
    (hint,) = compiled(5.0, 5.0)
    assert hint.seconds == pytest.approx(9)
    assert "ran for 10 s of 20 s" in hint.message
    assert "would take about 11 s" in hint.message
    assert "MIN_COMPILE_TIME" not in hint.fix
    # By default JAX's persistent cache keeps no program that compiles in less than 1 s.
    (hint,) = compiled(*[0.9] * 12)
    assert "took less than 1 s" in hint.fix
    assert "MIN_COMPILE_TIME" not in compiled(*[1.0] * 12)[0].fix
    assert compiled(5.5) == []


def test_what_the_persistent_cache_does_not_keep():
    """All programs of a function of which any trace has host callbacks."""

    def seen(name, calls_host):
        trace = types.SimpleNamespace(key=lambda: name, compile=5.0)
        return types.SimpleNamespace(trace=trace, calls_host=calls_host)

    watch = Watch()
    all_seen = [seen("f", True), seen("f", False), seen("g", False), seen("g", False)]
    watch.seen = dict(enumerate(all_seen))
    (hint,) = _hints._cache(watch, _hints._Run(20.0))
    assert "ran for 10 s of 20 s, programs with host callbacks aside" in hint.message
    watch.seen = dict(enumerate(all_seen[:2]))
    assert list(_hints._cache(watch, _hints._Run(20.0))) == []


def test_operations_outside_of_jit_by_their_share():
    def hints(seconds, total):
        part = TimePart("eager", "", seconds, ())
        return list(_hints._eager(TimeSpent(total, (part,)), _hints._Run(total)))

    assert [h.seconds for h in hints(3.0, 15.0)] == [3]
    assert hints(2.9, 3.0) == hints(3.0, 15.1) == []


def test_layers_that_are_alike():
    def hints(iterations, total=1.0, unrolled=(), equations=350):
        trace = types.SimpleNamespace(
            function=types.SimpleNamespace(qualname="f"),
            trace=1.0,
            lower=2.0,
            compile=4.0,
        )
        inspection = types.SimpleNamespace(
            loops=(loop(iterations=iterations),), equations=equations
        )
        seen = [Seen(trace, HERE, inspection)]
        return [
            h.seconds for h in _hints._layers(seen, _hints._Run(total), set(unrolled))
        ]

    assert hints(4) == [4]
    assert hints(3) == []
    assert hints(4, total=40.0) == [4] and hints(4, total=40.1) == []
    assert hints(4, equations=467) == []  # saves less than 3 s
    assert hints(4, unrolled=[("a.py", 1)]) == []


# --- numerics ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.array([0.25, -0.5]), 0.5),
        (np.array([3 + 4j, 1]), 5.0),
        (np.array([np.nan, -2.0, np.inf, -np.inf]), 2.0),
        (np.array([np.nan]), 0.0),
        (np.zeros((0,)), 0.0),
        (np.array([7]), 0.0),
        (7.0, 0.0),
    ],
)
def test_the_scale_of_a_leaf(x, expected):
    assert _watch._scale(x) == expected


@pytest.mark.parametrize("length", [99_999, 100_000, 100_001, 100_002, 150_003])
def test_long_programs_are_cut_in_the_middle(length):
    text = "".join(chr(97 + i % 26) for i in range(length))
    shown = _program._cut(text)
    if length <= 100_000:
        assert shown == text
        return
    start, said, end = shown.split("\n")
    assert said == f"... {length - 100_000} characters ..."
    assert text.startswith(start) and text.endswith(end)
    assert (len(start), len(end)) == (50_000, 50_000)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"x": (8, 3)}, {"x": (5, 3)}, (8, 5, "x")),
        (
            {"w": (3,), "x": (8, 3), "y": (8,)},
            {"w": (3,), "x": (5, 3), "y": (5,)},
            (8, 5, "x"),
        ),
        # No batch size if another axis changed, the sizes differ, or nothing changed.
        ({"x": (8, 3)}, {"x": (5, 2)}, None),
        ({"x": (8,), "y": (8,)}, {"x": (5,), "y": (4,)}, None),
        ({"x": (8,)}, {"x": (8,)}, None),
        ({"x": ()}, {"x": (5,)}, None),
        ({"x": (8,)}, {"x": ()}, None),
        # A leaf that is new has no old size to compare with.
        ({"x": (8,)}, {"x": (5,), "z": (1, 2)}, (8, 5, "x")),
    ],
)
def test_two_sizes_of_a_batch(old, new, expected):
    assert _hints._batches(old, new) == expected
