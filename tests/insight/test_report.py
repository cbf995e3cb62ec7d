"""The doctor's report: one data structure, as text, page and JSON."""

import html
import io
import json
import os
import re
import types

import pytest

from eqx_fastjit._facts import Fact, FunctionInfo, Place
from eqx_fastjit._texts import show_array
from eqx_fastjit.insight.record._calls import CallSeconds, Use
from eqx_fastjit.insight.record._events import Event
from eqx_fastjit.insight.record._file import as_json
from eqx_fastjit.insight.record._leaves import Leaf
from eqx_fastjit.insight.record._programs import Program
from eqx_fastjit.insight.record._run import Run
from eqx_fastjit.insight.record._stale import Stale
from eqx_fastjit.insight.record._waits import Wait
from eqx_fastjit.insight.show._page import page
from eqx_fastjit.insight.show._report import headline, make_report
from eqx_fastjit.insight.show._text import write_text


LINE = Place("a.py", 10, "<module>")


def array(path, shape=(), dtype="float32", **fields):
    text = show_array(shape, dtype)
    return Leaf(path, "array", text, "array", shape=shape, dtype=dtype, **fields)


def static(path, value):
    is_number = isinstance(value, int)
    return Leaf(
        path,
        "static",
        str(value),
        "number" if is_number else "label",
        value if is_number else None,
        type=type(value).__name__,
    )


def event(number, *leaves, name="step", program="a", seconds=1.0, **fields):
    """A compilation of a function, for a program with this name."""
    place = Place("a.py", 1 + sum(map(ord, name)), name)
    is_outside = fields.pop("is_outside", False)
    stages = {"trace": seconds / 4, "lower": seconds / 4, "compile": seconds / 2}
    fact = Fact(
        FunctionInfo(name, name, None if is_outside else place, int(not is_outside)),
        **{
            "number": number,
            "frames": (LINE._replace(function=name),),
            "started": 1000.0 + number,
            "traced": True,
            **stages,
            **fields,
        },
    )
    return Event(fact, leaves, Program(f"{name} {program}", f"kinds of {name}", 1))


def numbers(*values, first=1, **fields):
    """Compilations of one program for several numbers `n`."""
    fields = {"seconds": 4.0, **fields}
    return [event(i, static("n", x), **fields) for i, x in enumerate(values, first)]


def report_of(*events, seconds=100.0, cache="/tmp/x", least=None, **options):
    run = Run("a.py", 1000.0, seconds, 0, cache, events, **options)
    return make_report(run, least)


def text_of(report, columns=100, verbose=False):
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", f"{columns}")
        write_text(report, stream, verbose)
    return stream.getvalue()


# --- rows ---


@pytest.mark.parametrize(
    ("cost", "run", "least", "has_row"),
    [
        (1.0, 100, None, True),  # a hundredth
        (0.9, 100, None, False),
        (0.1, 5, None, True),  # or a tenth of a second
        (0.09, 5, None, False),
        (0.01, 100, 0.0, True),
        (5.0, 100, 6.0, False),
    ],
)
def test_what_costs_less_has_no_row(cost, run, least, has_row):
    first, again = numbers(1, 2, seconds=cost)
    found = report_of(first, again, seconds=run, least=least)
    assert len(found.rows) == len(found.findings) == has_row


def test_rows_are_by_what_is_saved():
    """What makes results wrong comes first, and what is only a price last."""
    read = types.SimpleNamespace(path="x", place=LINE)
    wrong = Stale(event(0, name="f"), read, "1", "2")
    needed = [
        event(i, static("kind", text), name="other", program=text, seconds=30.0)
        for i, text in enumerate("ab")
    ]
    found = report_of(
        *needed,
        *numbers(1, 2, first=2, name="less"),
        *numbers(1, 2, 3, first=4, name="more"),
        stale=[wrong],
        cache=None,
    )
    names = [x.function for x in found.rows]
    assert names == ["f", "more", "less", "the program", "other"]
    # What is saved in later runs, or not at all, is no finding.
    assert [x.function for x in found.findings] == ["f", "more", "less"]
    cache, other = found.rows[-2:]
    assert cache.saves == cache.later > 0 == other.saves and other.wanted == 30
    assert [x.rule for x in other.parts] == ["other-program"]


def test_nothing_is_saved_twice():
    """What an edit spares is not in the cache's row, too."""
    found = report_of(*numbers(1, 2, 3), cache=None)
    edit, cache = found.rows
    assert (edit.saves, edit.seconds, edit.compilations) == (8, 12, 3)
    assert cache.saves == pytest.approx(2, abs=0.01)  # the first one's, of XLA
    assert sum(x.saves for x in found.rows) < sum(e.seconds for e in found.run.events)


def test_a_cache_that_is_set_has_no_row():
    assert report_of(event(1, seconds=40.0), cache=None).rows[0].later > 19
    assert report_of(event(1, seconds=40.0), cache="/tmp/x").rows == ()
    (price,) = report_of(event(1, seconds=40.0, is_outside=True)).rows  # no cache's
    assert (price.saves, price.wanted) == (0, 40)
    kept = event(1, seconds=40.0, cached=True)  # by what the program has set
    assert report_of(kept, event(2, name="other"), cache=None).rows == ()


def test_seconds_of_functions_inside_are_those_of_the_outermost():
    """They are told once, and it is not the function inside that has a row."""
    inside = {"name": "inner", "trace": 1.0, "lower": 0.0, "compile": 0.0}
    events = [
        event(1, static("n", 1), seconds=8.0, nested=1.0),
        event(2, inside=1, **inside),
        event(3, static("n", 2), seconds=8.0, nested=1.0),
        event(4, static("k", 2), inside=3, **inside),
    ]
    found = report_of(*events)
    (row,) = found.rows
    assert (row.function, row.seconds, row.saves) == ("step", 16, 8)
    assert sum(part.seconds for part in found.time if part.name != "python") == 16


# --- the head, and where the time went ---


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (
            [event(1, static("n", 1))],
            "1 compilation of 1 program took 1 s, none of that",
        ),
        (numbers(1, 2, 3), "3 compilations of 1 program took 12 s, 8 s of that"),
    ],
)
def test_the_headline_counts_programs(events, says):
    found = headline(report_of(*events, cpu_seconds=90.0))
    assert (
        found.startswith("ran for 1 min 40 s (1 min 30 s of CPU); ") and says in found
    )


def test_the_parts_of_the_time_add_up():
    """The rest is other Python. Other threads compile at the same time."""
    found = report_of(
        event(1, seconds=10.0, first_run=1.0),
        event(2, seconds=5.0, thread="Thread-1"),
        calls=CallSeconds(dispatch=0.5, device=2.0, transfers=0.25, doctor=0.25),
        seconds=30.0,
    )
    parts = {part.name: part.seconds for part in found.time}
    assert parts["device"] == 3 and parts["compile"] == 5 and parts["transfers"] == 0.25
    assert sum(parts.values()) == pytest.approx(30)
    assert parts["python"] == pytest.approx(16)
    assert [*parts.values()] == sorted(parts.values(), reverse=True)
    assert "the device 3 s (10%)" in " ".join(text_of(found).split())
    of_threads = CallSeconds(dispatch=0.0, device=200.0, transfers=0.0, doctor=0.0)
    found = report_of(event(1, seconds=10.0), calls=of_threads, seconds=30.0)
    assert sum(part.seconds for part in found.time) == pytest.approx(30)


@pytest.mark.parametrize("load", [1000.0, 0.0])
def test_a_busy_machine_is_said_to_be(load, monkeypatch):
    """And what is measured has no row then."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0), raising=False)
    use = Use(seconds=50.0, calls=9, busy=1.0, waited=9.0, ahead=9.0, dispatch=0.0)
    known = {"waits": [Wait(LINE, "float(x)", 9, 9.0)], "device": use}
    found = report_of(cpu_seconds=10.0, **known)
    assert ("a load of 1000.0" in headline(found)) == bool(load) != bool(found.findings)
    found = report_of(cpu_seconds=99.0, **known)  # it had the CPU
    assert "load" not in headline(found) and found.findings


# --- as text, page and JSON ---


def rows(n):
    """As many functions with an edit, the first one with two, and the cache's row."""
    events = []
    for i in range(n - 1):
        for k in range(4):
            tag = static("tag", f"run {k}" if i == 0 else "run")
            leaves = static(f"model.rate_{i}", k), tag
            events.append(event(len(events), *leaves, name=f"training_step_{i}"))
    return report_of(*events, cache=None)


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_a_report_fits_a_screen(columns):
    """Ten rows are at most 40 lines, and none is longer than the terminal's."""
    lines = text_of(rows(10), columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 40 or columns == 60
    title = r"^1 +3 s training_step_0: 4 compilations of 1 program\s+a.py:10$"
    assert re.search(title, "\n".join(lines), re.M)
    assert any(line.startswith("10 ") for line in lines)


def test_more_rows_are_counted_unless_verbose():
    found = rows(15)
    assert "5 more rows (18.9 s): --verbose" in text_of(found)
    text = text_of(found, verbose=True)
    assert "more row" not in text and "15 " in text
    assert text.count("training_step_3 (a.py:") == 4  # its compilations


def test_what_a_row_says():
    """What is saved, by rule, with the edit; how, and what is only a price."""
    pairs = [(8, "a"), (8, "b"), (4, "a"), (8, "c")]
    events = [
        event(
            i,
            array("x", (n, 2)),
            static("tag", tag),
            program=f"{n}",
            seconds=8.0 + (n == 8),
        )
        for i, (n, tag) in enumerate(pairs)
    ]
    text = " ".join(text_of(report_of(*events, cache=None)).split())
    assert "1 26 s step: 4 compilations of 2 programs a.py:10" in text
    assert "18 s tag a, b, c [label]: keep it out of the call" in text
    assert "8 s a batch of 4 after 8: x [batch]: leave it out, or pad and" in text
    assert "weight it (other data)" in text
    assert "[run-cache]: eqx-fastjit run --cache" in text
    assert "`eqx-fastjit rule label` explains that rule." in text


def test_text_page_and_json_say_the_same():
    found = report_of(*numbers(1, 2), *numbers(1, 2, first=3, name="other"))
    text, markup = text_of(found, verbose=True), page(found)
    shown = html.unescape(re.sub(r"<[^>]*>", "", markup))
    data = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert (data["compilations"], data["programs"], data["again"]) == (4, 2, 8)
    for fragment in (
        headline(found),
        "2 compilations of 1 program",
        "n 1, 2",
        "jnp.asarray(n)",
        "n 1, 2 [number]",
    ):
        assert fragment in " ".join(text.split())
        assert fragment in " ".join(shown.split())
    # The page explains each rule once, to which its rows have links.
    assert markup.count('<a href="#rule-number">') == 2
    assert markup.count('<pre tabindex="0" id="rule-number">') == 1
    assert "is static, so each value compiles" in markup


def test_what_is_not_known_is_absent_from_the_json():
    found = report_of(*numbers(1, 2), cache=None)
    data = as_json(found)
    assert data["schema"] == 6
    row, cache = data["rows"]
    (part,) = row["parts"]
    names = "function", "parts", "line", "seconds", "saves", "compilations", "programs"
    assert tuple(row) == names and row["line"] == ["a.py", 10, "step"]
    names = "rule", "what", "edit", "path", "values", "count", "saves"
    assert tuple(part) == names and part["values"] == ["1", "2"]
    assert (part["edit"], part["saves"], row["seconds"]) == ("jnp.asarray(n)", 4, 8)
    assert cache.keys() >= {"later", "saves"} and "line" not in cache


def test_the_page_escapes_and_loads_nothing():
    evil = "<script>alert(1)</script>"
    events = [event(i, static(evil, i), name=evil, seconds=9.0) for i in (1, 2)]
    text = page(report_of(*events))
    assert evil not in text and "&lt;script&gt;" in text
    assert not re.search(r"src=|href=\"[^#]|url\(|@import|https?:", text)
