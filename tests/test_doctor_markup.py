"""The markup of the doctor's page, and its lines of text, piece by piece."""

import base64
import hashlib
import html
import io
import re

import pytest

from eqx_fastjit.doctor import _page, _page_compilations, _page_parts, _text
from eqx_fastjit.doctor._page_parts import Cell
from eqx_fastjit.doctor._report import (
    Change,
    Compilation,
    Finding,
    FunctionRow,
    Hint,
    LineTime,
    Program,
    Report,
    TimePart,
    TimeSpent,
)


pytestmark = pytest.mark.one_engine


def compilation(number=1, function="f", start=0.0, parts=(1.0, 0.0, 2.0, 0.5), **more):
    more = {"cause": "first-call", "jit": "filter_jit", **more}
    names = ("trace", "lower", "compile", "first_run")
    parts = dict(zip(names, parts, strict=True))
    return Compilation(number=number, function=function, start=start, **parts, **more)


def row(name="f", seconds=1.0, objects=1, calls=(), file=None, **more):
    parts = {"trace": 0.25, "lower": 0.5, "compile": 0.125, "first_run": 9.0, **more}
    parts = {"traces": 3, "compiles": 2, "line": 7, "causes": {"why": 2}, **parts}
    return FunctionRow(
        function=name, file=file, jit="jax", objects=objects, seconds=seconds,
        calls=calls, **parts,
    )  # fmt: skip


def report(**parts):
    parts = {"findings": (), "functions": (), "notes": (), "compilations": (), **parts}
    return Report(**{"program": "<a>.py", "exit_code": 0, "seconds": 4.0, **parts})


def finding(seconds=1.5, **parts):
    parts = {"file": "/b/a.py", "line": 2, "severity": "high", "leaf": "n", **parts}
    return Finding(
        kind="static-churn", function="f", seconds=seconds, count=3,
        message="It <is> `x`", fix="Do `y`.", **parts,
    )  # fmt: skip


def hint(**parts):
    parts = {"file": "/b/a.py", "line": 2, **parts}
    return Hint(kind="export", function="f", seconds=2.5, message="`m`", fix="`f`.",
                **parts)  # fmt: skip


# --- parts ---------------------------------------------------------------------------


def test_text_and_cells():
    assert _page_parts.e("<a href='b'>&") == "&lt;a href=&#x27;b&#x27;&gt;&amp;"
    assert _page_parts.prose("a `<b>` & `c` d") == (
        "a <code>&lt;b&gt;</code> &amp; <code>c</code> d"
    )
    assert Cell("<a>").html() == '<td class="">&lt;a&gt;</td>'
    cell = Cell("a", "number", 1234567.5, "to<")
    assert cell.html() == (
        '<td class="number" data-value="1.23457e+06"><a href="#to&lt;">a</a></td>'
    )
    assert Cell("a", value=0.0).html() == '<td class="" data-value="0">a</td>'


def test_a_table():
    columns, rows = (("a<", "x"), ("b", "")), [(Cell("1"), Cell("2")), (Cell("3"),)]
    lines = list(_page_parts.table("La<bel", columns, rows))
    assert lines == [
        '<div class="scroll " tabindex="0" role="region" aria-label="La&lt;bel"><table>'
        "<thead><tr>",
        '<th scope="col" class="x">a&lt;</th>',
        '<th scope="col" class="">b</th>',
        "</tr></thead><tbody>",
        '<tr><td class="">1</td><td class="">2</td></tr>',
        '<tr><td class="">3</td></tr>',
        "</tbody></table></div>",
    ]
    lines = list(_page_parts.table("L", columns, rows, name="n<", cls="tall"))
    assert lines[:3] == [
        '<p class="search"><label>Search: <input type="search" data-table="n&lt;">'
        '</label> <output class="dim"></output></p>',
        '<div class="scroll tall" tabindex="0" role="region" aria-label="L"><table '
        'id="n&lt;"><thead><tr>',
        '<th scope="col" class="x"><button type="button">a&lt;</button></th>',
    ]


def test_nothing_else_runs_on_the_page():
    head = _page_parts.html_document("<t>", "").partition("<body>")[0]
    assert head.startswith('<!doctype html>\n<html lang="en">\n<head>\n')
    assert "<title>&lt;t&gt;</title>" in head and head.endswith("</style>\n</head>\n")
    digest = hashlib.sha256(_page_parts.SCRIPT.encode()).digest()
    allowed = f"'sha256-{base64.b64encode(digest).decode()}'"
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}" in head
    )
    text = _page.page(report())
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script == _page_parts.SCRIPT


# --- the page ------------------------------------------------------------------------


def body(of):
    text = _page.page(of)
    assert text.endswith("</main>\n" + text[text.index("<script>") :])
    assert text.endswith("</script>\n</body>\n</html>\n")
    return text[text.index("<body>\n") : text.index("</main>")].splitlines()


def test_a_page_of_nothing():
    assert body(report()) == [
        "<body>",
        "<header>",
        "<h1>&lt;a&gt;.py</h1>",
        '<p><span class="good">Nothing found.</span></p>',
        '<p class="dim">ran for 4 s, of which 0 us to trace, lower and compile 0 '
        "programs</p>",
        "</header>",
        "<main>",
    ]
    assert "<title>&lt;a&gt;.py: nothing found</title>" in _page.page(report())


def test_the_head_of_a_page():
    many = report(
        findings=(finding(), finding(None), finding(0.25)),
        functions=(row(), row()),
        exit_code=3,
    )
    assert body(many)[3:5] == [
        "<p><strong>3 findings</strong>, about 1.75 s lost</p>",
        '<p class="dim">ran for 4 s, of which 1.75 s to trace, lower and compile 4 '
        "programs; it ended with exit code 3</p>",
    ]
    assert body(report(hints=(hint(),)))[3] == "<p><strong>1 hint</strong></p>"


def test_sections_of_a_page():
    everything = report(
        findings=(finding(),),
        hints=(hint(),),
        functions=(row(),),
        compilations=(compilation(),),
        notes=("n",),
        time=TimeSpent(4.0, (TimePart("trace", "t", 4.0, ()),)),
    )
    text = "\n".join(body(everything))
    titles = re.findall(
        r'<section aria-labelledby="(.*)"><h2 id="(.*)">(.*)$', text, re.M
    )
    assert titles == [
        ("time", "time", "Where the time went</h2>"),
        ("findings", "findings", "Findings</h2>"),
        ("hints", "hints", "What would help</h2>"),
        ("ledger", "ledger", "Functions, by cost</h2>"),
        ("timeline", "timeline", "When it compiled</h2>"),
        ("compilations", "compilations", "1 compilation</h2>"),
        ("each", "each", "Each compilation of a function</h2>"),
        ("notes", "notes", "Not covered</h2>"),
    ]
    assert text.count("</section>") == text.count("<section") == 8


def test_a_finding(tmp_path):
    path = tmp_path / "<a>.py"
    path.write_text("".join(f"line <{n}>\n" for n in range(1, 10)) + "\n")
    where = html.escape(str(path))
    lines = list(_page._finding(finding(file=str(path), line=5)))
    assert lines[0] == (
        '<article class="card high"><h3><span>static-churn</span><span class="'
        f'severity">high</span><span class="where mono">{where}:5</span><span class="'
        'lost">1.5 s '
        "lost</span></h3>"
    )
    assert lines[1] == '<p class="dim">A static argument keeps changing its value.</p>'
    assert lines[2] == "<p>It &lt;is&gt; <code>x</code>.</p>"
    assert lines[4] == "<p><strong>Fix:</strong> Do <code>y</code>.</p></article>"
    assert lines[3].startswith(
        f'<pre tabindex="0" role="region" aria-label="Source of {where}, line 5"><code>'
        "<span><i>2</i>line &lt;2&gt;</span>"
    )
    assert lines[3].endswith("<span><i>8</i>line &lt;8&gt;</span></code></pre>")
    assert '<span class="hit"><i>5</i>line &lt;5&gt;</span><span><i>6</i>' in lines[3]
    for line, shown in ((1, "1234"), (2, "12345"), (9, "6789X"), (10, "789X")):
        text = _page._source(finding(file=str(path), line=line))
        numbers = re.findall(r"<i>(\d+)</i>", text)
        assert numbers == [n.replace("X", "10") for n in shown]
        assert f'<span class="hit"><i>{line}</i>' in text
    # An empty line is as high as the others.
    assert "<i>10</i> </span>" in text
    for line in (0, 11, None):
        assert _page._source(finding(file=str(path), line=line)) == ""
    assert _page._source(finding(file=None)) == ""
    assert '</span><span class="lost"></span>' in next(_page._finding(finding(None)))
    assert '<span class="where mono">?</span>' in next(
        _page._finding(finding(file=None))
    )


def test_a_hint():
    _, text, _ = _page._hints(report(hints=(hint(),)))
    assert text == (
        '<article class="card low"><h3><span>export</span><span class="where mono">'
        '/b/a.py:2</span><span class="lost">about 2.5 s</span></h3><p class="dim">'
        "A second run would not have to trace.</p><p><code>m</code>.</p><p><code>f"
        "</code>.</p></article>"
    )
    _, text, _ = _page._hints(report(hints=(hint(file=None),)))
    assert '<span class="where mono"></span>' in text


def test_a_row_of_functions():
    calls = (("a.py:1", 1), ("a.py:2", 2), ("a.py:3", 1))
    cells = _page._function_row(row(calls=calls, file="/b/a.py"))
    assert cells == (
        Cell("f\n/b/a.py:7", "name mono"),
        Cell("1 s", "number", 1.0),
        Cell("3", "number", 3),
        Cell("2", "number", 2),
        Cell("2 why", "why"),
        Cell("a.py:1\na.py:2\u00a0(2)\na.py:3", "name mono"),
    )
    cells = _page._function_row(row(objects=2, calls=(*calls, ("a.py:4", 5))))
    assert cells[0].text == "f (2 objects)"
    assert cells[-1].text.endswith("a.py:3\nand 1 more")
    lines = list(_page._functions((row(),)))
    names = re.findall(r'class="(\w*)"><button type="button">([^<]*)<', "".join(lines))
    assert names == [
        *(("", "function"), ("number", "time"), ("number", "traces")),
        *(("number", "compiles"), ("", "why"), ("", "called from")),
    ]
    assert 'data-table="all-functions"' in lines[1]


def test_parts_of_the_time():
    lines = (LineTime("/b/a.py", 7, 2.0), LineTime("/b/a.py", 8, 0.5))
    parts = (TimePart("trace", "t<", 3.0, lines), TimePart("lower", "l", 1.0, ()))
    text = list(_page._time(TimeSpent(4.0, parts)))
    assert text[1:5] == [
        '<div class="parts" aria-hidden="true">',
        '<span class="part-trace" style="width:75.00%"></span>',
        '<span class="part-lower" style="width:25.00%"></span>',
        "</div>",
    ]
    assert (
        '<tr><td class="number">3 s</td><td class="number">75%</td><td class="swatch-'
        'trace">t&lt;</td><td class="name mono">/b/a.py:7 2 s\n/b/a.py:8 500 ms</td>'
        "</tr>"
    ) in text
    columns = re.findall(r'<th scope="col" class="(\w*)">(\w*)</th>', "".join(text))
    assert columns == [
        *(("number", "seconds"), ("number", "share"), ("", "part"), ("", "lines"))
    ]


# --- compilations --------------------------------------------------------------------


def test_bars_of_a_compilation():
    bar = compilation(start=2.0, cause="<why>", site="a.py:3")
    assert list(_page_compilations._rects(bar, 19, 8.0)) == [
        "<g><title>f (&lt;why&gt;) at a.py:3: tracing (Python) 1 s, XLA compile 2 s, "
        "first run 500 ms</title>",
        '<rect class="trace" x="25.000%" y="19" width="12.500%" height="16"/>',
        '<rect class="compile" x="37.500%" y="19" width="25.000%" height="16"/>',
        '<rect class="first_run" x="62.500%" y="19" width="6.250%" height="16"/>',
        "</g>",
    ]
    bar = compilation(parts=(0.0, 1.0, 0.0, 0.0), cause="")
    assert _page_compilations._bar_text(bar) == "f at ?: lowering 1 s"


def test_the_drawing():
    bars = (
        compilation(1, "<f>", start=6.0),
        compilation(2, "<f>", start=1.0),
        compilation(3, "g", parts=(0.0, 0.0, 0.5, 0.0)),
    )
    lines = list(_page_compilations._svg(bars, 4.0))
    assert lines[0] == (
        '<svg width="100%" height="116" role="img" aria-label="Timeline of 3 '
        'compilations; the table below has them all">'
    )
    # The last bar ends after 9.5 s. Marks are 2 s apart.
    assert lines[1:3] == [
        '<line x1="0.000%" x2="0.000%" y1="0" y2="98"/><text class="tick" x="0.000%" '
        'y="112" text-anchor="start">0 s</text>',
        '<line x1="21.053%" x2="21.053%" y1="0" y2="98"/><text class="tick" x="21.053'
        '%" y="112" text-anchor="middle">2 s</text>',
    ]
    assert len([x for x in lines if x.startswith("<line")]) == 5
    labels = [x for x in lines if x.startswith("<text")]
    assert labels == [
        '<text x="2" y="13">&lt;f&gt; \u2014 2 x, 7 s</text>',
        '<text x="2" y="59">g \u2014 1 x, 500 ms</text>',
    ]
    # From left to right.
    starts = re.findall(r'<rect class="trace" x="([\d.]+)%" y="(\d+)"', "".join(lines))
    assert starts == [("10.526", "19"), ("63.158", "19")]
    assert re.findall(r'x="0.000%" y="(\d+)" w', "".join(lines)) == ["65"]
    assert lines[-1] == "</svg>"
    text = "".join(_page_compilations._svg(bars[2:], 0.0))
    assert 'width="100.000%"' in text


@pytest.mark.parametrize(
    ("total", "anchors"),
    [
        (4.0, "start middle middle middle end"),
        (4.23, "start middle middle middle end"),
        (5.4, "start" + 5 * " middle"),
    ],
)
def test_anchors_of_marks(total, anchors):
    text = "".join(_page_compilations._svg((compilation(parts=(1, 0, 0, 0)),), total))
    assert re.findall(r'text-anchor="(\w+)"', text) == anchors.split()


@pytest.mark.parametrize(
    ("total", "step"),
    [
        *[(0.001, 0.001), (0.006, 0.001), (0.0061, 0.002), (0.012, 0.002)],
        *[(0.0121, 0.005), (0.03, 0.005), (0.031, 0.01), (3000.0, 500.0)],
    ],
)
def test_steps_of_the_axis(total, step):
    assert _page_compilations._step(total) == pytest.approx(step)


def test_labels_are_cut():
    text = "".join(chr(65 + i) for i in range(49))
    assert _page_compilations._cut(text[:48]) == text[:48]
    assert _page_compilations._cut(text) == f"{text[:22]}\u2026{text[-25:]}"


def test_rows_of_the_timeline():
    bars = [compilation(i, f"f{i}", parts=(20.0 - i, 0, 0, 0)) for i in range(12)]
    assert [name for name, _ in _page_compilations._lanes(tuple(bars))] == [
        f"f{i}" for i in range(12)
    ]
    lanes = _page_compilations._lanes((*bars, *[compilation(12, "f9")] * 3)[-6:])
    assert [name for name, _ in lanes] == ["f9", "f10", "f11"]
    bars += [compilation(12, "f0"), compilation(13, "sin", jit="jax")]
    *most, (name, rest) = _page_compilations._lanes(tuple(bars))
    assert [len(lane) for _, lane in most] == [2, *10 * [1]]
    assert (name, [bar.number for bar in rest]) == ("2 others", [11, 13])
    many = tuple(compilation(i, parts=(i, 0, 0, 0)) for i in range(602))
    ((_, lane),) = _page_compilations._lanes(many)
    assert [bar.number for bar in lane] == [*range(601, 1, -1)]


def test_the_longest_compilations(monkeypatch):
    monkeypatch.setattr(_page_compilations, "_MAX_BARS", 3)
    bars = [compilation(i, parts=(i % 4, 0, 0, 0), start=9.0 - i) for i in range(1, 6)]
    lines = list(_page_compilations.compilations(report(compilations=tuple(bars))))
    text = "\n".join(lines)
    assert "The 3 longest of 5 compilations</h2>" in text
    assert re.findall(r'id="compilation-(\d)"', text) == ["1", "2", "3"]
    assert re.findall(r'href="#compilation-(\d)">\1</a>', text) == ["1", "2", "3"]
    lines = list(_page_compilations.compilations(report(compilations=tuple(bars[:3]))))
    assert "All 3 compilations</h2>" in "".join(lines)
    # What is inside of another one is listed, but has no bar.
    inside = [compilation(9, inside=True)]
    lines = list(
        _page_compilations.compilations(report(compilations=(*inside, bars[0])))
    )
    assert "Timeline of 1 compilation;" in "".join(lines)
    assert "All 2 compilations" in "".join(lines)
    assert list(_page_compilations.compilations(report(compilations=inside))) == []
    legend = re.findall(
        r'<rect class="(\w+)" width="11" height="11"/></svg>([^<]*)', text
    )
    assert legend == [
        *(("trace", "tracing (Python)"), ("lower", "lowering")),
        *(("compile", "XLA compile"), ("first_run", "first run")),
    ]


def test_the_table_of_compilations():
    changes = (Change("n<", "static", "1", "2"), Change("x", "shape", "1", "2"))
    bars = [
        compilation(4, start=2.125, inside=True, changes=changes, site="a.py:3"),
        compilation(5, "sin", jit="jax"),
    ]
    lines = list(_page_compilations._all(bars, 2))
    assert lines[-4] == (
        '<tr><td class="number" data-value="4"><a href="#compilation-4">4</a></td><td '
        'class="number" data-value="2.125">2.12 s</td><td class="number" data-value="3'
        '.5">3.5 s</td><td class="name mono">f</td><td class="why">first-call ('
        "inside of another)</td>"
        '<td class="name mono">n&lt;</td><td class="name mono">a.py:3</td>'
        "</tr>"
    )
    assert lines[-3].startswith('<tr><td class="number" data-value="5">5</td><td')
    assert '<td class="why">first-call</td><td class="name mono"></td>' in lines[-3]
    names = re.findall(r'class="(\w*)"><button type="button">([^<]*)<', "".join(lines))
    assert names == [
        *(("number", "#"), ("number", "at"), ("number", "took"), ("", "function")),
        *(("", "why"), ("", "leaf"), ("", "called from")),
    ]
    assert 'class="scroll tall"' in lines[2] and 'id="all-compilations"' in lines[2]


def test_a_section():
    lines = list(_page_compilations._section(compilation(7)))
    assert lines == [
        '<details class="compilation" id="compilation-7"><summary><span class="mono">'
        "#7 f</span> \u2014 3.5 s, first-call</summary>",
        "<p>Called at ?.</p>",
        "<p>tracing (Python) 1 s, XLA compile 2 s, first run 500 ms.</p>",
        "</details>",
    ]
    change = Change("n", "static", "<1>", "2")
    full = compilation(
        changes=(change,),
        site="a.py:3",
        cached=True,
        inside=True,
        signature="<x>",
        file="/b/a.py",
        line=9,
        equations=1234,
        parts=(0.0, 1.0, 0.0, 0.0),
    )
    lines = list(_page_compilations._section(full))
    assert lines[1:3] == [
        "<p>Defined at /b/a.py:9. Called at a.py:3. It is a part of another function"
        "\u2019s compilation.</p>",
        "<p>Unlike the nearest earlier call it had:</p>",
    ]
    assert (
        '<tr><td class="name mono">n</td><td class="">static</td><td class="mono">'
        '&lt;1&gt;</td><td class="mono">2</td></tr>'
    ) in lines
    i = lines.index("<p>lowering 1 s, read from the persistent cache.</p>")
    assert lines[i + 1] == '<p class="dim">Arguments: <code>&lt;x&gt;</code></p>'
    assert 'aria-label="Cost and memory of compilation 1"' in lines[i + 2]
    heads = re.findall(r'<th scope="col" class="(\w*)">([^<]*)</th>', "".join(lines))
    assert heads == [
        *(("", "leaf"), ("", "what"), ("", "before"), ("", "now")),
        *(("", "size"), ("number", "")),
    ]


def test_a_program():
    program = Program("<j>", "<s>", "", None, 3e9, 5 << 20, 7 << 30, 0, 11)
    lines = list(_page_compilations._cost(compilation(program=program)))
    cells = re.findall(
        r'<td class="">([^<]*)</td><td class="number">([^<]*)<', "".join(lines)
    )
    assert cells == [
        ("memory read and written", "2.8 GiB"),
        ("arguments", "5.0 MiB"),
        ("results", "7.0 GiB"),
        ("temporaries", "0 B"),
        ("machine code", "11 B"),
    ]
    assert list(_page_compilations._texts(program)) == [
        "<details><summary>jaxpr</summary>"
        '<pre tabindex="0" role="region" aria-label="jaxpr"><code>&lt;j&gt;</code>'
        "</pre></details>",
        "<details><summary>StableHLO, as it was lowered</summary>"
        '<pre tabindex="0" role="region" aria-label="StableHLO, as it was lowered">'
        "<code>&lt;s&gt;</code></pre></details>",
    ]
    nothing = Program("", "", "", *6 * [None])
    assert list(_page_compilations._cost(compilation(program=nothing))) == []
    assert list(_page_compilations._cost(compilation(argument_bytes=0))) != []
    assert list(_page_compilations._cost(compilation(equations=0))) != []
    # XLA's figure counts, if there is one.
    lines = _page_compilations._cost(compilation(program=program, argument_bytes=4096))
    assert "4.0 KiB" not in "".join(lines)


# --- text ----------------------------------------------------------------------------


def test_rows_of_the_time():
    parts = (
        TimePart("a", "A", 98.0, ()),
        TimePart("b", "B", 1.0, ()),
        TimePart("c", "C", 0.75, ()),
        TimePart("d", "D", 0.25, ()),
    )
    rows = _text.time_rows(TimeSpent(100.0, parts))
    assert [tuple(r) for r in rows] == [
        ("a", "1 min 38 s", "98%", "A", ()),
        ("b", "1 s", "1%", "B", ()),
        ("rest", "1 s", "1%", "the rest", ()),
    ]
    rows = _text.time_rows(TimeSpent(100.0, (TimePart("d", "D", 0.0005, ()),)))
    assert rows == [] == _text.time_rows(TimeSpent(0.0, ()))
    rows = _text.time_rows(TimeSpent(100.0, (TimePart("d", "D", 0.00051, ()),)))
    assert [r.name for r in rows] == ["rest"]


def test_a_summary():
    many = report(functions=(row(), row()))
    assert _text.summary(many) == (
        "ran for 4 s, of which 1.75 s to trace, lower and compile 4 programs"
    )
    one = report(functions=(row(compiles=1),))
    assert _text.summary(one).endswith("875 ms to trace, lower and compile 1 program")


def plain(of):
    stream = io.StringIO()
    _text.write_text(of, stream)
    return stream.getvalue().splitlines()


def test_a_text_of_nothing():
    head = "eqx-fastjit doctor: <a>.py: "
    end = "ran for 4 s, of which 0 us to trace, lower and compile 0 programs"
    assert plain(report()) == ["", f"{head}nothing found", end]
    assert plain(report(exit_code=None))[1] == f"{head}so far, nothing found"
    hints = plain(report(hints=(hint(file=None), hint())))
    assert hints[3:] == [
        *("", "What would help:", "", "export  about 2.5 s", "  `m`. `f`."),
        *("", "export  /b/a.py:2  about 2.5 s", "  `m`. `f`."),
    ]


def test_ten_functions_in_text():
    rows = tuple(row(f"f{i}", traces=i) for i in range(11))
    table = plain(report(functions=rows[:10]))[4:]
    assert table[0] == "time  traces  compiles  function  why"
    assert table[1] == " 1 s       0         2  f0        2 why"
    assert len(table) == 11
    assert plain(report(functions=rows))[-1] == "and 1 more"


def test_a_terminal_without_rich(monkeypatch):
    class Terminal(io.StringIO):
        flushed = False

        def isatty(self):
            return True

        def flush(self):
            self.flushed = True

    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    stream = Terminal()
    _text.write_text(report(), stream)
    assert stream.getvalue().startswith("\neqx-fastjit doctor:") and stream.flushed
