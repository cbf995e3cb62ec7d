"""Tables, pages and comparisons of results made by hand, word for word."""

import io
import json
import re

import pytest
from rich.console import Console

from eqx_fastjit.bench import (
    _compare,
    _grids,
    _markdown,
    _page,
    _results,
    _table,
    Tables,
)
from eqx_fastjit.bench._grids import Cell, Grid, number
from tests.bench_entries import CASES, entry, results


pytestmark = pytest.mark.one_engine


def printed(do, width=200):
    file = io.StringIO()
    do(Console(file=file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


# --- tables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0.00"),
        (9.994, "9.99"),
        (9.995, "10.0"),
        (99.94, "99.9"),
        (99.95, "100"),
        (12345.6, "12346"),
    ],
)
def test_three_digits(x, text):
    assert number(x) == text


def test_all_tables():
    found = [
        (g.title, g.columns, [[c.text for c in row] for row in g.rows])
        for g in _grids.grids(results(*CASES, CASES[0] | {"device": "gpu"}))
    ]
    assert found == [
        (
            "Dispatch only: until the call returns (cpu, microseconds a call)",
            ["case", "ours", "jit", "ours/jit"],
            [["mlp_8", "6.00 ±8%", "12.0 ±8%", "0.50"]],
        ),
        (
            "Blocked: until the result is ready (cpu, microseconds a call)",
            ["case", "ours", "jit", "eqx", "ours/jit", "ours/eqx"],
            [
                ["mlp_8", "30.0 ±0%", "20.0 ±0%", "", "1.50", ""],
                ["batch_4", "8.00 ±6%", "", "8.00 ±0%", "", "~1.00"],
            ],
        ),
        (
            "Studies (cpu)",
            ["case", "ours", "jit", "ours/jit"],
            [["loop_10: trace, ms", "0.00 ±0%", "100 ±0%", "0.00"]],
        ),
        (
            "Blocked, microseconds a sample: overhead is shared by the batch (cpu)",
            ["case", "ours", "eqx"],
            [["batch_4", "2.00", "2.00"]],
        ),
        (
            "Dispatch only: until the call returns (gpu, microseconds a call)",
            ["case", "ours", "jit", "ours/jit"],
            [["mlp_8", "6.00 ±8%", "12.0 ±8%", "0.50"]],
        ),
        (
            "Blocked: until the result is ready (gpu, microseconds a call)",
            ["case", "ours", "jit", "ours/jit"],
            [["mlp_8", "30.0 ±0%", "20.0 ±0%", "1.50"]],
        ),
    ]


def test_a_sample_of_contenders_that_differ():
    other = entry("batch_2", {"blocked": {"jit": [3.0]}}, group="batch", batch=2)
    mlp = entry("mlp_8", {"blocked": {"jit": [3.0]}})
    study = entry("batch_8", {"x": {"flat": [3.0]}}, group="batch", batch=8)
    grid = _grids.grids(results(CASES[1], other, mlp, study))[-1]
    assert "a sample" in grid.title
    assert grid.columns == ["case", "ours", "jit", "eqx"]
    assert [[c.text for c in row] for row in grid.rows] == [
        ["batch_4", "2.00", "", "2.00"],
        ["batch_2", "", "1.50", ""],
    ]


def test_a_wide_table_in_two():
    rows = [[Cell("a"), Cell("1"), Cell("2"), Cell("0.5", "win")]]
    grid = Grid("title", ["case", "ours", "jit", "ours/jit"], rows)
    assert _grids.times_and_ratios(grid) == [
        Grid("title", ["case", "ours", "jit"], [rows[0][:3]]),
        Grid("The ratios of these", ["case", "ours/jit"], [[rows[0][0], rows[0][3]]]),
    ]
    grid = Grid("title", ["case", "ours"], [rows[0][:2]])
    assert _grids.times_and_ratios(grid) == [grid]


def test_what_is_within_the_noise():
    even = {"ours": [1.0, 3.0], "jit": [2.0, 2.0], "flat": [2.0, 2.0], "eqx": [9.0] * 2}
    found = _grids.noise(
        results(
            entry("a", {"dispatch": even, "blocked": even}),
            entry("b", {"blocked": even}),
            entry("b", {"blocked": even}, device="gpu"),
            entry("c", {"blocked": {"jit": [1.0], "flat": [1.0]}}),
        )
    )
    no = "No clear difference on this machine"
    assert found == [
        f"{no} (cpu, dispatch): a: ours and jit, flat",
        f"{no} (cpu, blocked): a: ours and jit, flat; b: ours and jit, flat",
        f"{no} (gpu, blocked): b: ours and jit, flat",
    ]


def test_printed():
    problem = "case: [red]broken[/]"
    lines = printed(
        lambda c: _table.print_results(c, results(*CASES, problems=[problem]))
    )
    assert lines[0] == (
        "CPU [b]<7>, 4 cores, Linux; cpu (kind of cpu); python 3.11.7, jax 0.10.2; "
        "native engine"
    )
    text = "\n".join(lines)
    first = lines.index(next(line for line in lines if "mlp_8" in line))
    assert [
        re.split(" {2,}", line.strip()) for line in lines[first - 3 : first + 2]
    ] == [
        ["ours/"],
        ["case", "ours", "jit", "jit"],
        ["─" * len(lines[first - 1].strip())],
        ["mlp_8", "6.00", "12.0", "0.50"],
        ["±8%", "±8%"],
    ]
    assert "\njit: jax.jit, statics removed by hand.\neqx: " in text
    assert text.count("Times are medians over rounds") == 1
    assert "(cpu, blocked): batch_4: ours and eqx\n" in text
    assert lines[-1] == f"Not timed: {problem}"
    empty = printed(lambda c: _table.print_results(c, results()))
    assert empty == [
        "CPU [b]<7>, 4 cores, Linux; python 3.11.7, jax 0.10.2; native engine"
    ]


def test_colours_of_what_is_printed():
    """Numbers in text are not coloured."""
    file = io.StringIO()
    console = Console(
        file=file, width=500, force_terminal=True, color_system="standard"
    )
    _table.print_results(console, results(*CASES, problems=["1 [b]"]))
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("CPU [b]<7>, 4 cores")
    assert "ours: eqx_fastjit.filter_jit." in lines
    assert _grids.EXPLANATION in lines
    (noise,) = [line for line in lines if "No clear" in line]
    assert re.fullmatch(r"\x1b\[33m[^\x1b]*\x1b\[0m", noise)
    assert lines[-1] == "\x1b[31mNot timed: 1 [b]\x1b[0m"


def test_a_table_that_is_too_wide_is_printed_in_two():
    times = {name: [1.0] for name in ("jit", "flat", "aot", "eqx", "ours")}
    found = results(entry("a", {"dispatch": times}))
    (grid,) = _grids.grids(found)
    width = Console(width=1000).measure(_table._table(grid)).maximum
    for less, parts in ((0, 1), (1, 2)):
        lines = printed(lambda c: _table.print_results(c, found), width - less)
        assert sum(line.lstrip().startswith("case ") for line in lines) == parts


def test_colours_of_a_printed_table():
    cells = [Cell("a"), Cell("1 ±2%"), Cell("0.5", "win"), Cell("2.0", "loss")]
    grid = Grid("t", ["case", "ours", "nnx_jit", "ours/jit"], [cells])
    table = _table._table(grid)
    assert [c.header for c in table.columns] == [
        "case",
        "ours",
        "nnx_\njit",
        "ours/\njit",
    ]
    assert [c.justify for c in table.columns] == ["left", "right", "right", "right"]
    assert all(c.no_wrap for c in table.columns)
    shown = [next(iter(c.cells)) for c in table.columns]
    assert [str(x) for x in shown] == ["a", "1\n±2%", "0.5", "2.0"]
    assert [x.style for x in shown] == ["", "", "bold green", "bold red"]


# --- Markdown, notebooks, pages ------------------------------------------------------


MARKDOWN = """\
**Dispatch only: until the call returns (cpu, microseconds a call)**

| case | ours | jit | ours/jit |
| --- | ---: | ---: | ---: |
| mlp\\_\u200b8 | 6.00\u00a0±8% | 12.0\u00a0±8% | **0.50** |

- `jit`: jax.jit, statics removed by hand.
- `ours`: eqx_fastjit.filter_jit.

{}

Made by `eqx-fastjit bench` on 2026-01-02. CPU \\[b]\\<7>, 4 cores, Linux; \
cpu (kind of cpu); python 3.11.7, jax 0.10.2; native engine.\
"""


def test_markdown():
    case = {**CASES[0], "times": {"dispatch": CASES[0]["times"]["dispatch"]}}
    expected = MARKDOWN.format(_grids.EXPLANATION).replace("mlp\\_\u200b8", "mlp\\_8")
    assert _markdown.markdown(results(case)) == expected
    assert _markdown.markdown(results(CASES[0]), brief=True) == expected
    columns = ["case", "nnx_jit", *"abcdef"]
    grid = Grid("a_b", columns, [[Cell("x|y"), Cell("~1", "even")]])
    assert _markdown._table(grid) == (
        "**a\\_b**\n\n| case | nnx\\_\u200bjit | a | b | c | d | e | f |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n| x\\|y | ~1 |"
    )


@pytest.mark.parametrize(
    ("rivals", "parts"),
    [(["jit", "flat", "eqx"], 1), (["jit", "flat", "aot", "eqx"], 2)],
)
def test_a_markdown_table_of_at_most_eight_columns(rivals, parts):
    times = {name: [1.0] for name in ["ours", *rivals]}
    text = _markdown.markdown(results(entry("a", {"dispatch": times})))
    assert text.count("| case |") == parts


def test_a_brief_table_has_four_contenders():
    times = {name: [1.0] for name in ("eager", "jit", "flat", "aot", "eqx", "ours")}
    case = entry("a", {"dispatch": times, "blocked": times})
    assert list(_markdown._brief(case)["times"]["dispatch"]) == [
        *("jit", "flat", "eqx", "ours")
    ]
    assert _markdown._brief(CASES[2])["times"] == {"dispatch": {}}


def test_tables_of_a_notebook():
    tables = Tables(results(CASES[0]))
    assert str(tables) == _markdown.markdown(results(CASES[0]))
    html = tables._repr_html_()
    assert html.count("<table>") == 2
    assert (
        '<thead><tr><th scope="col">case</th><th scope="col">ours</th>'
        '<th scope="col">jit</th><th scope="col">ours/<wbr>jit</th></tr></thead>\n'
        "<tbody>\n<tr><td>mlp_8</td><td>6.00 ±8%</td><td>12.0 ±8%</td>"
        '<td class="win">0.50</td></tr>\n</tbody>'
    ) in html
    assert "<p>CPU [b]&lt;7&gt;, 4 cores, Linux; cpu (kind of cpu); python" in html


def test_page():
    found = results(*CASES, problems=["a <problem>"], commit="0123456789abcdef")
    text = _page.page(found)
    for part in (
        "<dt>Machine</dt><dd>CPU [b]&lt;7&gt;, 4 cores, Linux</dd>",
        "<dt>Device</dt><dd>cpu (kind of cpu)</dd>",
        "<dt>Versions</dt><dd>python 3.11.7, jax 0.10.2</dd>",
        "<dt>Commit</dt><dd>0123456789abcdef</dd>",
        "<dt>Engine</dt><dd>native</dd>",
        "<dt>loop_10</dt><dd>title of loop_10</dd>",
        "<dt>eqx</dt><dd>equinox.filter_jit, which always blocks</dd>",
        '<p class="loss">Not timed: a &lt;problem&gt;</p>',
        '<p class="warn">No clear difference on this machine (cpu, blocked): batch_4: ',
        "<tr><td>mlp_8</td><td>6.00 ±8%</td><td>12.0 ±8%</td>"
        '<td class="win">0.50</td></tr>',
        '<th scope="col">ours/<wbr>jit</th>',
        'alt="Time of ours relative to each rival, with a bar for each case."',
    ):
        assert part in text, part
    assert "<dd>unknown</dd>" in _page.page(results())
    assert '<th scope="col">nnx_<wbr>jit</th>' in Grid("", ["nnx_jit"], []).html()
    # The figure for a dark page differs from the other one.
    (dark, light) = re.findall(
        r'src(?:set)?="data:image/svg\+xml;base64,([^"]*)"', text
    )
    assert dark != light
    assert _page._alt("width_gpu").endswith("for each contender. On gpu.")


# --- comparisons ---------------------------------------------------------------------


def change(before, after, unit="us"):
    spreads = map(_results.spread, (before, after))
    return _compare.Change("a", "cpu", "blocked", "ours", unit, *spreads)


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [(2.0, 3.0, 50.0), (2.0, 1.0, -50.0), (0.0, 0.0, 0.0), (0.0, 1.0, float("inf"))],
)
def test_percent(before, after, percent):
    assert change([before], [after]).percent == percent


def compared(before, after, **options):
    comparison = _compare.compare(before, after, **options)
    return printed(lambda c: _compare.print_comparison(c, before, after, comparison))


def cells(line):
    return [x.strip() for x in line.split("│")[1:-1]]


def test_printed_comparison():
    after = results(*CASES[:1], date="2026-02-03", machine={**results()["machine"]})
    after = json.loads(json.dumps(after))
    times = after["cases"][0]["times"]
    times["dispatch"] = {"ours": [50.0] * 3, "jit": [1.0] * 3, "eqx": [1.0] * 3}
    lines = compared(results(*CASES), after)
    assert lines[0].startswith("A: 2026-01-02T03:04:05+00:00, CPU [b]<7>, 4 cores")
    assert lines[1].startswith("B: 2026-02-03, CPU [b]<7>, 4 cores, Linux; cpu")
    assert [cells(line) for line in lines if line.startswith("│")] == [
        ["mlp_8", "cpu", "dispatch", "ours", "6.00 us", "50.0 us", "+733.3%"],
        ["mlp_8", "cpu", "dispatch", "jit", "12.0 us", "1.00 us", "-91.7%"],
        ["mlp_8", "cpu", "blocked", "jit", "20.0 us", "20.0 us", "+0.0% ~"],
        ["mlp_8", "cpu", "blocked", "ours", "30.0 us", "30.0 us", "+0.0% ~"],
    ]
    assert lines[-3:] == [
        "Only in A: batch_4 (cpu), blocked, eqx; batch_4 (cpu), blocked, ours; "
        "loop_10 (cpu), trace, ours; loop_10 (cpu), trace, jit",
        "Only in B: mlp_8 (cpu), dispatch, eqx",
        "Medians. ~: the quartiles of A and B overlap.",
    ]
    assert not any("different machines" in line for line in lines)
    after["machine"]["cores"] = 5
    assert compared(results(*CASES), after)[2].startswith(
        "These are different machines"
    )
    lines = compared(results(*CASES), after, ratios=True)
    assert not any("different machines" in line for line in lines)
    assert [cells(line) for line in lines if line.startswith("│")] == [
        ["mlp_8", "cpu", "dispatch", "ours/jit", "0.50", "50.0", "+9900.0%"],
        ["mlp_8", "cpu", "blocked", "ours/jit", "1.50", "1.50", "+0.0% ~"],
    ]


@pytest.mark.parametrize(
    ("after", "style"), [(1.0, "32m-50.0%"), (3.0, "31m+50.0%"), (2.0, "2m+0.0% ~")]
)
def test_colours_of_a_comparison(after, style):
    file = io.StringIO()
    console = Console(
        file=file, width=200, force_terminal=True, color_system="standard"
    )
    before, after = (results(entry("a", {"x": {"ours": [t]}})) for t in (2.0, after))
    comparison = _compare.compare(before, after)
    _compare.print_comparison(console, before, after, comparison)
    assert f"\x1b[{style}\x1b[0m" in file.getvalue()


def test_ratios_to_nothing_are_not_compared():
    """A rival's time may be rounded to 0, and ours may be missing."""
    cases = [
        entry("a", {"x": {"ours": [1.0], "jit": [0.0], "eqx": [2.0]}}),
        entry("b", {"x": {"flat": [1.0], "jit": [2.0]}, "y": {"ours": [2.0]}}),
    ]
    found = _compare.compare(results(*cases), results(*cases), ratios=True)
    assert [(c.case, c.mode, c.contender, c.after.median) for c in found.changes] == [
        ("a", "x", "ours/eqx", 0.5)
    ]
    assert found.gone == found.new == []
