"""Reports of hand-made results: each figure, row and limit of a table."""

import types

import pytest

from eqx_fastjit.doctor import _page_parts
from eqx_fastjit.insight import (
    _jaxpr_report,
    _memory,
    Breakdown,
    Change,
    Comparison,
    LeafDifference,
    NodeTime,
    Part,
)
from eqx_fastjit.insight._captures import Captures
from eqx_fastjit.insight._jaxpr_report import (
    Buffer,
    Constant,
    Donation,
    Inlined,
    JaxprReport,
    LineCount,
    Memory,
    Residuals,
    UnrolledLoop,
)
from eqx_fastjit.insight._scan import Seconds
from eqx_fastjit.insight._table import nbytes, show_type, Table
from eqx_fastjit.insight._warm_call import waterfall


pytestmark = pytest.mark.one_engine


# --- tables --------------------------------------------------------------------------


def test_a_table_as_text_and_html():
    rows = [(1, "ab", "1.5 ms", ">=4"), (20, "<c>", "-", "~30")]
    table = Table("T", ("n", "name", "x", "more"), rows, ("a & b",))
    assert table.text().splitlines() == [
        "T",
        "   n  name       x  more",
        "   1  ab    1.5 ms   >=4",
        "  20  <c>        -   ~30",
        "  a & b",
    ]
    assert table.html().splitlines() == [
        "<h3>T</h3>",
        '<div><table><thead><tr><th class="number">n</th><th>name</th>'
        '<th class="number">x</th><th class="number">more</th></tr></thead><tbody>',
        '<tr><td class="number">1</td><td>ab</td><td class="number">1.5 ms</td>'
        '<td class="number">&gt;=4</td></tr>',
        '<tr><td class="number">20</td><td>&lt;c&gt;</td><td class="number">-</td>'
        '<td class="number">~30</td></tr>',
        "</tbody></table></div>",
        "<p>a &amp; b</p>",
    ]
    empty = Table("<T>", ("n",), [])
    assert empty.text() == "<T>\n  none"
    assert empty.html() == "<h3>&lt;T&gt;</h3>\n<p>none</p>"


@pytest.mark.parametrize(
    ("shape", "dtype", "size", "shown"),
    [
        ((), "int8", 1, "int8[]"),
        ((2, 3), "float32", 24, "float32[2,3]"),
        ((2, 0), "float32", 0, "float32[2,0]"),
        ((2, "n"), "float32", 0, "float32[2,n]"),
    ],
)
def test_size_and_type_of_an_array(shape, dtype, size, shown):
    class Dtype(str):
        itemsize = {"int8": 1, "float32": 4}[dtype]

    x = types.SimpleNamespace(shape=shape, dtype=Dtype(dtype))
    assert (nbytes(x), show_type(x)) == (size, shown)
    assert (nbytes(3), show_type(3)) == (0, "int[]")


def test_a_page_has_what_it_is_given():
    html = _page_parts.html_document("<a>", "<b>body</b>", ".c {}")
    assert "<title>&lt;a&gt;</title>" in html and ".c {}</style>\n</head>" in html
    assert html.endswith("<body>\n<b>body</b>\n</body>\n</html>\n")


# --- inspect_jaxpr -------------------------------------------------------------------


def buffer(name, size, where=""):
    return Buffer(name, f"float32[{size // 4}]", size, where)


REPORT = {
    "name": "f",
    "equations": 9,
    "trace_seconds": 1.0,
    "lower_seconds": 2.0,
    "compile_seconds": 4.0,
    "lines": tuple(
        LineCount("a.py", i, "g", 20 - i, (("sin", 2), ("add", i))) for i in range(12)
    ),
    "loops": (
        UnrolledLoop("a.py", 3, "g", 7, 2, 28, 5, True, Seconds(0.5, 0.25)),
        UnrolledLoop("a.py", 5, "g", 6, 1, 8, 4, False, None, "no scan"),
    ),
    "inlined": (
        Inlined("h", "a.py", 1, "python", 4, 2, 30),
        Inlined("j", "b.py", 2, "jit", 5, 1, 31),
    ),
    "constants": (
        Constant((2, 3), "float32", 2048, "a.py", 4, "g"),
        Constant((), "int8", 1, "b.py", 5, "h"),
    ),
    "memory": Memory(
        *(1, 2, 4096, None, 0),
        (buffer("x", 8),),
        (buffer("result", 4),),
        (buffer("sin", 12, "a.py:3"),),
    ),
    "donations": tuple(Donation(f"x{i}", "r", "float32[1]", 4) for i in range(6)),
    "residuals": Residuals(3, 4096, (buffer("sin", 12, "a.py:3"),), 0.5, 7, True),
}


def test_the_tables_of_a_jaxpr():
    report = JaxprReport(**REPORT)
    assert report.title() == (
        "f: 9 equations, traced in 1 s, lowered in 2 s, compiled in 4 s"
    )
    lines, loops, inlined, constants, memory, buffers, advice = report.tables()
    assert [tuple(row) for row in lines.rows] == [
        (20 - i, f"a.py:{i}", "g", f"sin 2, add {i}") for i in range(12)
    ]
    assert lines.notes == ()
    assert loops.rows == [
        (7, 2, 28, "a.py:3", "g", "~5", "500 ms", "250 ms"),
        (6, 1, 8, "a.py:5", "g", "shapes differ", "", ""),
    ]
    assert loops.notes[0] == "line 5 was not measured: no scan"
    assert len(loops.notes) == 2
    assert inlined.rows == [
        (">=4", 2, 30, "h", "python", "a.py:1"),
        (5, 1, 31, "j", "jit", "b.py:2"),
    ]
    assert constants.rows == [
        ("2.0 KiB", "float32[2,3]", "a.py:4", "g"),
        ("1 B", "int8[]", "b.py:5", "h"),
    ]
    assert memory.rows == [
        *(("arguments", "1 B"), ("results", "2 B"), ("temporaries", "4.0 KiB")),
        ("program", "0 B"),
    ]
    assert memory.notes == ()
    assert buffers.rows == [
        ("8 B", "argument", "x", "float32[2]", ""),
        ("4 B", "result", "result", "float32[1]", ""),
        ("12 B", "intermediate", "sin", "float32[3]", "a.py:3"),
    ]
    assert [" ".join(row) for row in advice.rows] == [
        "donate 24 B of results could reuse the memory of x0, x1, x2, x3, x4, x5, if "
        "these are not used after the call: filter_jit(donate=...)",
        "checkpoint Before fusion, 3 arrays of 4.0 KiB (50% of the temporaries) are "
        "kept for the backward pass. jax.checkpoint is worth trying: it would run at "
        "most 7 equations twice",
        " kept: 12 B float32[3] by sin, a.py:3",
    ]


def test_where_the_tables_of_a_jaxpr_end():
    many = {name: REPORT[name][:1] * 13 for name in ("lines", "inlined", "constants")}
    seven = (*REPORT["donations"], Donation("x6", "r", "float32[1]", 4))
    loops = REPORT["loops"][1:]
    none = Memory(*[None] * 5, (), (), ())
    kept = Residuals(3, 4096, (), None, 7, False)
    changes = {**many, "loops": loops, "donations": seven, "memory": none}
    changes |= {"residuals": kept, "compile_seconds": None}
    report = JaxprReport(**{**REPORT, **changes})
    assert report.title() == "f: 9 equations, traced in 1 s"
    tables = report.tables()
    for i in (0, 2, 3):
        assert len(tables[i].rows) == 12 and tables[i].notes == ("and 1 more",)
    assert tables[1].notes == ("line 5 was not measured: no scan",)
    assert tables[4].rows == [] and tables[4].notes[0].startswith("No estimate: ")
    assert "28 B of results" in tables[6].rows[0][1]
    assert "x5, ..., if these" in tables[6].rows[0][1]
    said = "Before fusion, 3 arrays of 4.0 KiB are kept for the backward pass. "
    assert tables[6].rows[1][1].startswith(f"{said}jax.checkpoint would save little")
    report = JaxprReport(**{**REPORT, "residuals": kept})
    assert "(4.0 KiB of temporaries after it)" in report.tables()[6].rows[1][1]
    report = JaxprReport(**{**REPORT, "donations": (), "residuals": None})
    assert report.tables()[6].rows == []


# --- breakdown -----------------------------------------------------------------------


def test_a_waterfall():
    parts = [Part("a", 1.0, True, "x"), Part("b", 2.0, False), Part("c", 1.0, True)]
    table = waterfall("W", parts, ("note",))
    assert table.rows == [
        ("a", "1 s", "25%", "#" * 6, "measured", "x"),
        ("b", "2 s", "50%", " " * 6 + "#" * 12, "difference", ""),
        ("c", "1 s", "25%", " " * 18 + "#" * 6, "measured", ""),
    ]
    assert (table.title, table.notes) == ("W", ("note",))
    zero = waterfall("W", [Part("a", 0.0, True)], ())
    assert zero.rows == [("a", "0 us", "0%", "", "measured", "")]


def breakdown(eager, *cold, nodes=()):
    names = ("trace", "lower", "compile", "first run")
    parts = [Part(name, x, True) for name, x in zip(names, cold, strict=False)]
    steady = (Part("execute", 0.25, True),)
    return Breakdown(
        "f", "jax", 0.125, 0.25, steady, nodes, tuple(parts), eager, ("n",)
    )


@pytest.mark.parametrize(
    ("eager", "cold", "pays", "said"),
    [
        (0.5, (1.0, 2.0, 4.0), 28, "pays off after 28 calls."),
        (0.5, (0.1,), 1, "pays off after 1 call."),
        (0.5, (0.26,), 2, "pays off after 2 calls."),
        (0.25, (1.0,), None, "never pays off."),
        (None, (1.0,), None, "does not run without jit, so there is no break-even."),
    ],
)
def test_when_compiling_pays_off(eager, cold, pays, said):
    out = breakdown(eager, *cold)
    assert out.break_even == pays
    assert out.tables()[-1].notes[0].endswith(said)
    if eager is not None:
        start = f"Without jit, a call takes {eager * 1e3:g} ms: compiling "
        assert out.tables()[-1].notes[0].startswith(start)


def test_the_tables_of_a_breakdown():
    out = breakdown(0.5, 0.25, 0.125, 0.125, 99.0)
    assert out.export_saves == 0.85 * 0.5
    assert len(out.tables()) == 2 and len(out.tables()[1].notes) == 1
    # From half a second on it is worth a file.
    assert len(breakdown(0.5, 0.5 / 0.85).tables()[1].notes) == 2
    nodes = (NodeTime("dict", 3, 2.0), NodeTime("list", 1, 1e-3))
    out = breakdown(0.5, 1.0, nodes=nodes)
    assert out.title() == (
        "f (jax): a warm call returns after 125 ms, its result is ready after 250 ms"
    )
    warm, flatten, cold = out.tables()
    assert warm.rows[0][:3] == ("execute", "250 ms", "100%") and warm.notes == ("n",)
    assert flatten.rows == [("dict", 3, "2 s"), ("list", 1, "1 ms")]
    assert cold.rows[0][:3] == ("trace", "1 s", "100%")
    assert cold.notes[1].endswith("would save about 850 ms of this in each process.")


# --- comparisons and captures --------------------------------------------------------


def test_the_table_of_a_comparison():
    leaf = LeafDifference("result", "a", "b", 0.5, 0.25, 7, 1, 2, 3)
    same = LeafDifference("result.x", "a", "a")
    out = Comparison("f", (leaf, same), "only")
    (table,) = out.tables()
    assert table.rows == [
        ("result", "a", "b", 3, "0.5", "0.25", 7, 1, 2),
        ("result.x", "a", "a", 0, "", "", "", 0, 0),
    ]
    assert table.notes == ("only",)
    assert out.title() == "f: jitted against eager: different"
    assert Comparison("f", (same,)).tables()[0].notes == ()
    assert (leaf.same, same.same) == (False, True)
    assert not LeafDifference("r", "a", "a", different=1).same
    assert [Comparison("f", (same,), x).same for x in ("", "only")] == [True, False]


def test_the_table_of_captures():
    change = Change("RATE", "global", "a.py", 3, "f", "1", "2")
    out = Captures("f", (change,), 1)
    assert out.title() == "f: 1 value has changed since its trace"
    (table,) = out.tables()
    assert table.rows == [("RATE", "global", "a.py:3", "f", "1", "2")]
    assert len(table.notes) == 1
    out = Captures("f", (change, change), 2)
    assert out.title() == "f: 2 values have changed since its 2 traces"
    out = Captures("f", (), 3)
    assert out.title() == "f: nothing has changed since its 3 traces"
    assert out.tables()[0].notes == () and out.tables()[0].rows == []


# --- memory --------------------------------------------------------------------------


def test_the_largest_buffers():
    buffers = [buffer("x", 4 * i) for i in range(1, 8)]
    assert _memory._largest(buffers) == tuple(buffers[:1:-1])
    assert _jaxpr_report._more(tuple(buffers[:5])) == ()


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [("state.w", "result.w", 2), ("ab", "ab", 2), ("b", "ab", 1), ("a", "b", 0)],
)
def test_names_that_end_alike(a, b, n):
    assert _memory._common_end(a, b) == n
