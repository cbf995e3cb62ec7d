"""The doctor's report: one data structure, as text, page and JSON."""

import io
import json
import re

import pytest

from eqx_fastjit._facts import FunctionInfo, Place
from eqx_fastjit._texts import show_array
from eqx_fastjit.insight._describe import Cause, Difference, Leaf, Reason
from eqx_fastjit.insight._events import Event
from eqx_fastjit.insight._file import as_json, Run
from eqx_fastjit.insight._groups import group
from eqx_fastjit.insight._page import page
from eqx_fastjit.insight._report import headline, make_report
from eqx_fastjit.insight._text import write_text
from eqx_fastjit.insight._waits import Wait
from eqx_fastjit.insight._watch import Import
from eqx_fastjit.insight._why import show_difference


LINE = Place("a.py", 10, "<module>")
DEFINED = Place("a.py", 1, "step")


def event(number, *differences, seconds=1.0, is_outside=False, **fields):
    name, place = fields.pop("name", "step"), fields.pop("place", DEFINED)
    reason = (
        Reason(differences[0].cause, differences, (LINE,)) if differences else Reason()
    )
    fields = {
        "number": number,
        "signature": tuple(d.new for d in differences if d.new is not None),
        "reason": reason,
        "frames": (LINE,),
        "started": 1000.0 + number,
        "traced": True,
        "trace": seconds / 4,
        "lower": seconds / 4,
        "compile": seconds / 2,
        **fields,
    }
    return Event(FunctionInfo(name, name, place, number=not is_outside), **fields)


def first(*differences, **fields):
    """The first call of a function, before these differences."""
    return event(1, signature=tuple(d.old for d in differences), **fields)


def inlined(number, *differences, seconds=1.0, **fields):
    """An event of a function that is a part of another one."""
    times = {"trace": seconds, "lower": 0.0, "compile": 0.0}
    return event(number, *differences, name="inner", **times, **fields)


def static(path, old, new):
    a, b = (Leaf(path, "static", str(x), type="int") for x in (old, new))
    return Difference(path, Cause.STATIC, a, b)


def shape(path, old, new):
    a, b = (array(path, x) for x in (old, new))
    return Difference(path, Cause.SHAPE, a, b)


def array(path, shape=(), dtype="float32", **fields):
    return Leaf(path, "array", show_array(shape, dtype), shape, dtype, **fields)


def report_of(*events, seconds=100.0, cache=None, **options):
    return make_report(Run("a.py", 1000.0, seconds, 0, cache, events, **options))


def text_of(report, verbose=True):
    stream = io.StringIO()
    write_text(report, stream, verbose)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("cost", "run", "is_finding"),
    [(1.0, 100, True), (0.9, 100, False), (0.5, 10, True), (0.4, 10, False)],
)
def test_cost_alone_makes_a_finding(cost, run, is_finding):
    d = static("n", 1, 2)
    found = report_of(first(d), event(2, d, seconds=cost), seconds=run)
    assert bool(found.findings) == is_finding
    assert len(found.findings) + len(found.others) == 2
    limit = min(1.0, 0.05 * run)
    assert f"here {limit * 1000:.3g} ms" in text_of(found) or "here 1 s" in text_of(
        found
    )


def test_a_first_call_is_no_finding():
    found = report_of(event(1, seconds=50.0))
    assert found.findings == () and "no finding" in headline(found)


def test_the_parts_of_the_time_add_up():
    found = report_of(
        event(1, seconds=10.0),
        event(2, seconds=5.0, thread="Thread-1"),
        imports=[Import("jax", 1000.0, 3.0)],
        waits=[Wait(LINE._replace(line=12), "float(x)", 3, 2.0)],
        seconds=30.0,
    )
    parts = {part.name: part.seconds for part in found.time}
    assert parts["import"] == 3 and parts["wait"] == 2 and parts["compile"] == 5
    assert sum(parts.values()) == pytest.approx(30)
    assert parts["rest"] == pytest.approx(15)
    assert "a.py:12 float(x)" in text_of(found)


def test_seconds_of_functions_inside_are_told_once():
    outer = event(1, seconds=8.0, nested=1.0)
    inner = inlined(2, inside=1)
    found = report_of(outer, inner)
    assert {f.function: f.seconds for f in found.functions} == {"step": 7, "inner": 1}


def test_a_function_inside_is_not_blamed():
    d = shape("x", (5,), (4,))
    events = [
        first(d),
        inlined(2, inside=1),
        event(3, d, seconds=3.0, nested=1.0),
        inlined(4, static("f", 1, 2), inside=3),
    ]
    found = report_of(*events)
    (finding,) = found.findings
    assert (finding.cause, finding.functions, finding.count) == (
        "shape",
        {"step": 1},
        1,
    )
    assert finding.seconds == pytest.approx(3)
    causes = {f.function: f.causes for f in found.functions}
    assert causes == {"step": {"shape": 1, "first call": 1}, "inner": {"inlined": 2}}


def test_a_change_of_two_functions_is_one_finding():
    events = [
        event(1, shape("x", (64, 3), (40, 3))),
        event(2, static("n", 64, 40), name="metric", frames=(LINE._replace(line=12),)),
        event(3, static("n", 1, 2), name="other", frames=(LINE._replace(line=14),)),
    ]
    first, second = group(events)
    assert first.functions == {"step": 1, "metric": 1}
    assert second.functions == {"other": 1}


def test_a_trace_that_failed_is_told_apart_from_those_of_other_lengths():
    longer = event(1, shape("x", (4,), (5,)))
    failed = event(2, shape("x", (4,), (6,)), failed=True)
    assert [g.events for g in group([longer, failed])] == [[longer], [failed]]


def test_the_first_call_of_a_function_of_plain_jit_is_no_finding():
    """Nothing can spare it."""
    assert report_of(event(1, seconds=4.0, is_outside=True)).findings == ()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ((80, 80 << 10), "keeps all 40 programs in memory, about 40.0 KiB of code."),
        ((80, 0), "keeps all 40 programs in memory."),
        ((8, 0), ""),  # they were dropped
    ],
)
def test_many_retraces_hold_memory(held, says):
    changes = [static("n", i, i + 1) for i in range(2, 42)]
    events = [first(changes[0]), *(event(i, d) for i, d in enumerate(changes, 2))]
    (finding,) = report_of(*events, held=held).findings
    assert finding.count == 40
    assert says in finding.says and ("in memory" in finding.says) == bool(says)


def test_operations_of_an_event_file_are_told_without_their_shapes():
    outside = {"is_outside": True, "name": "concatenate", "place": None}
    (finding,) = report_of(*(event(i, **outside) for i in range(1, 9))).findings
    assert (finding.attribute, finding.count, finding.saves) == ("unseen", 8, 7.0)
    found = report_of(*(event(i, **outside) for i in range(1, 4)))
    assert found.findings == () and "3 operations" in found.others[-1].what


def test_what_the_cache_saves_is_in_no_other_row():
    d = static("n", 1, 2)
    other = event(3, seconds=8.0, name="other", place=DEFINED._replace(line=3))
    found = report_of(first(d), event(2, d, seconds=40.0), other)
    finding, item = found.rows
    saved = "of which 40 s and 4.49 s in later runs can be saved: 1 finding"
    assert saved in headline(found)
    assert finding.saves == 40 and item.seconds == pytest.approx(0.5 + 4)
    assert sum(x.saves for x in found.rows) == found.saves + found.saves_later


def test_a_cache_would_help():
    found = report_of(event(1, seconds=40.0))
    (item,) = found.helps
    says = "of which 20 s in later runs can be saved: no finding, 1 other row"
    assert says in headline(found)
    assert item.saves == pytest.approx(20, abs=0.01)
    assert "a second run would take about 1 min 20 s" in item.says
    assert "`JAX_COMPILATION_CACHE_DIR` to a directory" in item.fix
    assert report_of(event(1, seconds=40.0), cache="/tmp/x").helps == ()


@pytest.mark.parametrize(
    ("cause", "old", "new", "text"),
    [
        ("shape", {"shape": (2,)}, {"shape": (3,)}, "float32[2] -> float32[3]"),
        ("dtype", {"weak_type": True}, {}, "weak float32 -> strong float32"),
        (
            "placement",
            {},
            {"sharding": "cpu:0"},
            "not committed -> cpu:0 (committed)",
        ),
    ],
)
def test_a_difference_in_words(cause, old, new, text):
    a, b = (array("x", **x) for x in (old, new))
    d = Difference("x", Cause(cause), a, b)
    assert show_difference(d) == f"`x`: {text}"
    assert show_difference(d._replace(old=None)).startswith("`x`: nothing -> float32[")


def test_text_page_and_json_say_the_same():
    d = static("n", 1, 2)
    found = report_of(first(d), event(2, d, seconds=4.0))
    text, html, data = text_of(found), page(found), as_json(found)
    assert data["functions"][0]["causes"] == {"static": 1, "first call": 1}
    for fragment in ("1 static, 1 first call", "each new value compiles: 1, 2"):
        assert fragment in " ".join(text.split())
        assert fragment in re.sub(r"</?code>", "", html)
    json.dumps(data, allow_nan=False)


def test_the_page_escapes_and_loads_nothing():
    evil = "<script>alert(1)</script>"
    found = report_of(event(1, static(evil, 1, 2), name=evil))
    html = page(found)
    assert evil not in html and "&lt;script&gt;" in html
    assert not re.search(r"(src|href)=|url\(|@import|https?:", html)
