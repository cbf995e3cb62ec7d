"""The doctor's report as a page and in a terminal, figure by figure."""

import html.parser
import io
import re

import pytest
import rich.console

from eqx_fastjit.doctor import _page, _sites, _text
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


class _Tables(html.parser.HTMLParser):
    """The cells of each table, by its label; and the attributes of the elements."""

    def __init__(self):
        super().__init__()
        self.tables, self.elements, self._cell = {}, [], None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if "aria-label" in attrs:
            self._label = attrs["aria-label"]
        if tag == "table":
            self._rows = self.tables.setdefault(self._label, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._rows[-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(data)


def _parsed(report):
    text = _page.page(report)
    parser = _Tables()
    parser.feed(text)
    return text, parser


def _compilation(number, function="step", start=0.0, **options):
    options = {"jit": "filter_jit", "cause": "first-call", **options}
    stages = {"trace": 0.1, "lower": 0.2, "compile": 0.4, "first_run": 0.1}
    return Compilation(number, function, start=start, **(stages | options))


def _report(compilations=(), **options):
    options = {"findings": (), "functions": (), "notes": (), **options}
    return Report("a.py", 0, 4.0, compilations=tuple(compilations), **options)


def _drawn(parser, name):
    return [
        (attrs["x"], attrs["y"], attrs["width"])
        for tag, attrs in parser.elements
        if tag == "rect" and attrs["class"] == name and "x" in attrs
    ]


def test_the_timeline_is_to_scale():
    _, parser = _parsed(
        _report(
            [
                _compilation(1, start=0.4),
                _compilation(2, "dear", start=2.0, compile=1.6, first_run=0.0),
                _compilation(3, start=1.2, trace=0.2, lower=0.0),
                _compilation(4, "within", start=0.5, inside=True),
            ]
        )
    )
    # The most expensive function has the first row. 4 s are 100%.
    assert _drawn(parser, "trace") == [
        ("50.000%", "19", "2.500%"),
        ("10.000%", "65", "2.500%"),
        ("30.000%", "65", "5.000%"),
    ]
    assert _drawn(parser, "lower") == [
        ("52.500%", "19", "5.000%"),
        ("12.500%", "65", "5.000%"),
    ]
    assert _drawn(parser, "compile") == [
        ("57.500%", "19", "40.000%"),
        ("17.500%", "65", "10.000%"),
        ("35.000%", "65", "10.000%"),
    ]
    assert _drawn(parser, "first_run") == [
        ("27.500%", "65", "2.500%"),
        ("45.000%", "65", "2.500%"),
    ]
    ((_, svg),) = [
        (tag, attrs)
        for tag, attrs in parser.elements
        if tag == "svg" and "aria-label" in attrs
    ]
    assert svg["height"] == str(2 * 46 + 24)
    assert svg["aria-label"].startswith("Timeline of 3 compilations;")
    ticks = [a["x1"] for tag, a in parser.elements if tag == "line"]
    assert ticks == ["0.000%", "25.000%", "50.000%", "75.000%", "100.000%"]


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [
        (0.004, ["0", "0.001", "0.002", "0.003", "0.004"]),
        (6.0, ["0", "1", "2", "3", "4", "5", "6"]),
        (6.1, ["0", "2", "4", "6"]),
        (31.0, ["0", "10", "20", "30"]),
    ],
)
def test_marks_of_the_timeline(seconds, marks):
    stages = {"trace": 0.001, "lower": 0.0, "compile": 0.0, "first_run": 0.0}
    report = Report("a.py", 0, seconds, (), (), (_compilation(1, **stages),), ())
    text, _ = _parsed(report)
    assert re.findall(r">([\d.]+) s</text>", text) == marks


def test_labels_of_the_timeline():
    long = "a_function_with_a_name_that_is_much_too_long_to_be_shown"
    lanes = [_compilation(i, f"f{i}", compile=20.0 - i) for i in range(1, 12)]
    more = [_compilation(12, long, compile=30.0), _compilation(13, jit="jax")]
    text, _ = _parsed(_report([*lanes, *more]))
    labels = re.findall(r'<text x="2" y="(\d+)">([^<]*)</text>', text)
    assert len(labels) == 12
    assert labels[0] == ("13", "a_function_with_a_name…to_be_shown — 1 x, 30.4 s")
    assert labels[1] == ("59", "f1 — 1 x, 19.4 s")
    assert labels[-1] == ("519", "2 others — 2 x, 10.2 s")
    text, _ = _parsed(_report(more[1:] * 2))
    assert "operations outside of jit — 2 x, 1.6 s" in text


def test_parts_of_the_run():
    lines = (LineTime("/somewhere/a.py", 7, 2.0),)
    parts = (
        TimePart("compile", "XLA", 3.0, lines),
        TimePart("other", "the rest", 1.0, ()),
    )
    text, parser = _parsed(_report(time=TimeSpent(4.0, parts)))
    assert re.findall(r'<span class="part-(\w+)" style="width:([\d.]+)%"', text) == [
        ("compile", "75.00"),
        ("other", "25.00"),
    ]
    assert parser.tables["Parts of the run"][1:] == [
        ["3 s", "75%", "XLA", "/somewhere/a.py:7 2 s"],
        ["1 s", "25%", "the rest", ""],
    ]
    assert "Where the time went" not in _parsed(_report())[0]


def test_table_of_functions():
    calls = tuple((f"a.py:{i}", i) for i in range(1, 6))
    row = FunctionRow(
        *("step", "/somewhere/a.py", 3, "filter_jit", 2, 5, 4),
        *(1.5, 0.5, 0.25, 0.75, 0.0, {"first-call": 1, "static-churn": 4}, calls),
    )
    _, parser = _parsed(_report(functions=(row,)))
    (cells,) = parser.tables["Functions"][1:]
    assert cells == [
        "step (2 objects)\n/somewhere/a.py:3",
        "1.5 s",
        "5",
        "4",
        "1 first-call, 4 static-churn",
        "a.py:1\na.py:2\xa0(2)\na.py:3\xa0(3)\nand 2 more",
    ]


PROGRAM = Program("JAXPR", "", "HLO", 1234.0, 2048.0, 12, None, 0, None)


def test_a_compilation():
    changes = (Change("n", "static", "1", "2"), Change("x", "shape", "(2,)", "(3,)"))
    first = _compilation(1, site="a.py:9", file="/somewhere/a.py", line=4)
    second = _compilation(
        *(2, "step", 1.0),
        cause="static-churn",
        site="a.py:11",
        changes=changes,
        earlier="a.py:9",
        signature="x: f32[3]",
        equations=1500,
        argument_bytes=4096,
        cached=True,
        inside=True,
    )
    text, parser = _parsed(_report([first, second]))
    assert parser.tables["Compilations"][1:] == [
        ["1", "0.00 s", "800 ms", "step", "first-call", "", "a.py:9"],
        [
            *("2", "1.00 s", "800 ms", "step"),
            *("static-churn (inside of another)", "n", "a.py:11"),
        ],
    ]
    assert parser.tables["What differs in compilation 2"][1:] == [
        ["n", "static", "1", "2"],
        ["x", "shape", "(2,)", "(3,)"],
    ]
    assert "Unlike the nearest earlier call, at a.py:9, it had:" in text
    assert "Defined at /somewhere/a.py:4. Called at a.py:9." in text
    assert (
        "tracing (Python) 100 ms, lowering 200 ms, XLA compile 400 ms, "
        "first run 100 ms, read from the persistent cache." in text
    )
    assert text.count("read from the persistent cache") == 1
    assert text.count("a part of another function\u2019s compilation") == 1
    assert "Arguments: <code>x: f32[3]</code>" in text
    assert parser.tables["Cost and memory of compilation 2"] == [
        ["size", ""],
        ["equations in the jaxpr", "1,500"],
        ["arrays among the arguments", "4.0 KiB"],
    ]
    assert "Cost and memory of compilation 1" not in parser.tables


def test_a_program():
    text, parser = _parsed(_report([_compilation(1, program=PROGRAM, equations=3)]))
    assert parser.tables["Cost and memory of compilation 1"] == [
        ["for one run, estimated by XLA", ""],
        ["equations in the jaxpr", "3"],
        ["floating-point operations", "1,234"],
        ["memory read and written", "2.0 KiB"],
        ["arguments", "12 B"],
        ["temporaries", "0 B"],
    ]
    assert "<summary>jaxpr</summary>" in text and "JAXPR" in text
    assert "StableHLO" not in text and "HLO, as XLA optimized it" in text


def test_an_operation_outside_of_jit_has_no_section():
    text, parser = _parsed(_report([_compilation(1, jit="jax"), _compilation(2)]))
    assert len(parser.tables["Compilations"]) == 3
    assert text.count('<details class="compilation"') == 1
    text, _ = _parsed(_report([_compilation(1, jit="jax")]))
    assert "Each compilation" not in text


def _finding(seconds, line=2, **options):
    defaults = {"kind": "static-churn", "severity": "high", "leaf": "n", "count": 3}
    defaults |= {"message": "It `churns`", "fix": "Do not.", "file": __file__}
    return Finding(function="f", line=line, seconds=seconds, **(defaults | options))


def test_findings_and_hints():
    hint = Hint("export", "f", None, None, 2.5, "It `helps`", "Try it.")
    findings = (_finding(1.5), _finding(None, severity="low", line=None))
    text, parser = _parsed(_report(findings=findings, hints=(hint,)))
    assert "<strong>2 findings, 1 hint</strong>, about 1.5 s lost" in text
    assert re.findall(r'<span class="lost">([^<]*)<', text) == [
        "1.5 s lost",
        "",
        "about 2.5 s",
    ]
    cards = [a["class"] for tag, a in parser.elements if tag == "article"]
    assert cards == ["card high", "card low", "card low"]
    # Three lines around the one at fault, which is marked.
    source = re.findall(r'<span( class="hit")?><i>(\d+)</i>', text)
    assert source == [("", "1"), (' class="hit"', "2"), ("", "3"), ("", "4"), ("", "5")]
    assert '<span class="good">' not in text
    text, _ = _parsed(_report(notes=("One `note`",)))
    assert '<span class="good">Nothing found.</span>' in text
    assert "<li>One <code>note</code></li>" in text


@pytest.mark.parametrize(
    ("code", "text"),
    [(None, "; it is still running<"), (7, "; it ended with exit code 7<")],
)
def test_how_the_program_ended(code, text):
    report = Report("a.py", code, 4.0, (), (), (), ())
    assert text in _page.page(report)
    assert "; it" not in _page.page(_report())


def _in_a_terminal():
    lines = (LineTime("/somewhere/a.py", 7, 2.0), LineTime("/somewhere/a.py", 9, 0.5))
    parts = (
        TimePart("compile", "XLA", 3.0, lines),
        TimePart("other", "the program", 0.95, ()),
        TimePart("wait", "waiting", 0.039, ()),
        TimePart("dispatch", "dispatching", 0.011, ()),
    )
    row = FunctionRow(
        *("step", "/somewhere/a.py", 3, "filter_jit", 2, 5, 4),
        *(1.5, 0.5, 0.25, 0.75, 0.0, {"first-call": 1, "static-churn": 4}, ()),
    )
    short = FunctionRow("g", None, None, "jax", 1, 1, 10, 1e-3, *4 * [0.0], {}, ())
    return _report(
        findings=(_finding(1.5), _finding(None, None, severity="low", file=None)),
        hints=(
            Hint("export", "f", None, None, 2.5, "It `helps`", "Try it."),
            Hint("scan-layers", "f", __file__, 3, 1.0, "More", "Try that."),
        ),
        functions=(row, *[short] * 10),
        notes=("nothing was seen of " + "threads " * 12,),
        time=TimeSpent(4.0, parts),
    )


_PLAIN = """
eqx-fastjit doctor: a.py: 2 findings, 2 hints
ran for 4 s, of which 1.5 s to trace, lower and compile 104 programs
     3 s  75%  XLA:  /somewhere/a.py:7 2 s, /somewhere/a.py:9 500 ms
  950 ms  24%  the program
   50 ms   1%  the rest

static-churn (high)  source.py:2  1.5 s lost
    > second = 2
  It `churns`
  Fix: Do not.

static-churn (low)  ?
  It `churns`
  Fix: Do not.

What would help:

export  about 2.5 s
  It `helps`. Try it.

scan-layers  source.py:3  about 1 s
    > third
  More. Try that.

 time  traces  compiles  function                  why
1.5 s       5         4  step (/somewhere/a.py:3)  1 first-call, 4 static-churn
"""
_RICH = """
eqx-fastjit doctor: a.py: 2 findings, 2 hints
ran for 4 s, of which 1.5 s to trace, lower and compile 104 programs
     3 s  75%  XLA          /somewhere/a.py:7 2 s, /somewhere/a.py:9 500 ms
  950 ms  24%  the program
   50 ms   1%  the rest

static-churn  source.py:2  1.5 s lost
    second = 2
  It `churns`
  Fix: Do not.

static-churn  ?
  It `churns`
  Fix: Do not.

What would help

export    about 2.5 s
  It `helps`. Try it.

scan-layers  source.py:3  about 1 s
    third
  More. Try that.

   time   traces   compiles   function                   why
 ─────────────────────────────────────────────────────────────────────────────────────
  1.5 s        5          4   step (/somewhere/a.py:3)   1 first-call, 4 static-churn
"""
_NOTE = """and 1 more
Note: nothing was seen of threads threads threads threads threads threads threads
threads threads threads threads threads
"""


@pytest.fixture
def in_a_terminal(monkeypatch, tmp_path):
    (tmp_path / "source.py").write_text("first\n    second = 2\nthird\n")
    monkeypatch.setitem(globals(), "__file__", str(tmp_path / "source.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_sites, "_FOLDER", str(tmp_path))
    return _in_a_terminal()


def test_without_rich(in_a_terminal):
    stream = io.StringIO()
    _text.write_text(in_a_terminal, stream)
    # Ten functions are shown.
    assert stream.getvalue() == _PLAIN + " 1 ms       1        10  g\n" * 9 + _NOTE


def test_with_rich(in_a_terminal):
    stream = io.StringIO()
    _text._write_rich(in_a_terminal, rich.console.Console(file=stream, width=88))
    text = "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
    row = "   1 ms        1         10   g\n"
    assert text == _RICH + row * 9 + "\n" + _NOTE
