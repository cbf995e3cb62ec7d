"""The doctor's report on event files: as text, page and JSON."""

import html
import itertools
import re
from typing import Any, NamedTuple

import pytest

from tests.support.event_file import report_on, write


def number(path, value):
    of_static = {"text": f"{value}", "value": value, "type": "int"}
    return {"path": path, "kind": "static", "category": "number", **of_static}


def label(path, text):
    return {"path": path, "kind": "static", "category": "label", "text": text}


def array(path, *shape):
    text = f"float32[{','.join(map(str, shape))}]"
    leaf = {"path": path, "kind": "array", "category": "array", "text": text}
    return {**leaf, "shape": shape, "dtype": "float32"}


_counter = itertools.count(1)


def event(*leaves, name="step", program="a", seconds=1.0, **fields):
    """A compilation of a function, for a program with this name."""
    count = next(_counter)
    place = ["a.py", 1, name]
    return {
        "type": "compile",
        "function": {"name": name, "qualname": name, "place": place, "number": 1},
        "frames": [["a.py", 10, name]],
        "number": count,
        "started": 1000.0 + count,
        "thread": "MainThread",
        "traced": True,
        "trace": seconds / 4,
        "lower": seconds / 4,
        "compile": seconds / 2,
        "signature": leaves,
        "program": {"same": f"{name} {program}", "kinds": name, "size": 1},
        **fields,
    }


def numbers(*values, **fields):
    """Compilations of one program for several numbers `n`, of 4 seconds each."""
    return [event(number("n", x), **{"seconds": 4.0, **fields}) for x in values]


class Report(NamedTuple):
    rows: list[dict[str, Any]]
    json: dict[str, Any]
    page: str
    text: str

    @property
    def words(self):
        return " ".join(self.text.split())


@pytest.fixture
def report(tmp_path, capsys, monkeypatch):
    """Writes a file of events, and gives the doctor's report on it."""

    def report(*events, options=(), columns=100, **run):
        monkeypatch.setenv("COLUMNS", f"{columns}")
        file = write(tmp_path / "run.jsonl", events, **run)
        data, page = report_on(file, *options)
        return Report(data["rows"], data, page, capsys.readouterr().err.strip())

    return report


# --- rows ---


@pytest.mark.parametrize(
    ("saves", "run", "has_row"),
    [(1.0, 100.0, True), (0.9, 100.0, False), (0.1, 5.0, True), (0.09, 5.0, False)],
)
def test_what_saves_less_has_no_row(report, saves, run, has_row):
    """Than a hundredth of the run, or a tenth of a second."""
    found = report(*numbers(1, 2, seconds=saves), seconds=run)
    assert len(found.rows) == has_row


def test_rows_are_by_what_is_saved(report):
    """What later runs save comes after it, and what is only a price is last."""
    kinds = {"name": "other", "seconds": 30.0}
    found = report(
        *[event(label("kind", x), program=x, **kinds) for x in "ab"],
        *numbers(1, 2, name="less"),
        *numbers(1, 2, 3, name="more"),
        cache=None,
    )
    names = [row["function"] for row in found.rows]
    assert names == ["more", "less", "the program", "other"]
    more, _, cache, other = found.rows
    assert (more["saves"], more["seconds"], more["compilations"]) == (8, 12, 3)
    # What an edit spares is not in the cache's row: of `more` and `less` once each.
    assert cache["saves"] == cache["later"] == pytest.approx(34, abs=0.1)
    assert other["wanted"] == 30 and "saves" not in other
    assert [part["rule"] for part in other["parts"]] == ["other-program"]


def test_a_cache_that_is_set_has_no_row(report):
    price = event(seconds=40.0)
    (row,) = report(price, cache=None).rows
    assert row["later"] > 19
    assert report(price).rows == []
    kept = event(seconds=40.0, cached=True)  # by what the program has set
    assert report(kept, event(name="other", seconds=40.0), cache=None).rows == []


def test_seconds_of_functions_inside_are_those_of_the_outermost(report):
    """They are told once, and it is not the function inside that has a row."""
    inside = {"name": "inner", "trace": 1.0, "lower": 0.0, "compile": 0.0}
    events = []
    for n in (1, 2):
        outer = event(number("n", n), seconds=8.0, nested=1.0)
        events += outer, event(number("k", n), inside=outer["number"], **inside)
    found = report(*events)
    (row,) = found.rows
    assert (row["function"], row["seconds"], row["saves"]) == ("step", 16, 8)
    times = {part["name"]: part["seconds"] for part in found.json["time"]}
    assert sum(times.values()) - times["python"] == 16


def test_the_parts_of_the_time_add_up(report):
    """The rest is other Python. Other threads compile at the same time."""
    first = event(seconds=10.0, first_run=1.0)
    found = report(first, event(seconds=5.0, thread="Thread-1"), seconds=30.0)
    parts = {part["name"]: part["seconds"] for part in found.json["time"]}
    once = {"trace": 2.5, "lower": 2.5, "device": 1}
    assert parts == {"compile": 5, **once, "python": pytest.approx(19)}
    assert [*parts.values()] == sorted(parts.values(), reverse=True)
    assert "the device 1 s (3%)" in found.words
    # What is known may be more than the run: then all parts are shorter.
    parts = report(event(seconds=9.0), seconds=3.0).json["time"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(3)


# --- as text, page and JSON ---


def functions(n):
    """Functions for n rows, the first with two edits; the last row is the cache's."""
    for i in range(n - 1):
        for k in range(4):
            tag = label("tag", f"run {k}" if i == 0 else "run")
            rate = number(f"model.rate_{i}", k)
            yield event(rate, tag, name=f"training_step_{i}")


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_a_report_fits_a_screen(report, columns):
    """Ten rows are at most 40 lines in 80 columns; no line is longer than these."""
    found = report(*functions(10), columns=columns, cache=None)
    lines = found.text.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 40 or columns == 60
    title = r"^1 +3 s training_step_0: 4 compilations of 1 program\s+a.py:10$"
    assert re.search(title, found.text, re.M)
    assert any(line.startswith("10 ") for line in lines)


def test_more_rows_are_counted_unless_verbose(report):
    events = [*functions(15)]
    assert "5 more rows (18.9 s): --verbose" in report(*events, cache=None).text
    text = report(*events, cache=None, options=["--verbose"]).text
    assert "more row" not in text and "\n15 " in text
    assert text.count("training_step_3 (a.py:") == 4  # its compilations


def test_what_a_row_says(report):
    """What is saved, by rule, with the edit; how, and what is only a price."""
    prices = [event(label("k", x), name="other", program=x, seconds=5.0) for x in "ab"]
    events = [
        event(array("x", n, 2), label("tag", x), program=f"{n}", seconds=8 + (n == 8))
        for n, x in [(8, "a"), (8, "b"), (4, "a"), (8, "c")]
    ]
    text = report(*events, *prices, cache=None).words
    assert "1 26 s step: 4 compilations of 2 programs a.py:10" in text
    assert "18 s tag a, b, c [label]: keep it out of the call" in text
    edit = "leave it out, or pad and weight it (other data)"
    assert f"8 s a batch of 4 after 8: x [batch]: {edit}" in text
    assert "No row spares the other 5 s of compilations: other (--verbose)." in text
    assert "[run-cache]: eqx-fastjit run --cache" in text
    assert "`eqx-fastjit rule label` explains that rule." in text


def test_text_page_and_json_say_the_same(report):
    """Programs are counted, and what is not known is absent from the JSON."""
    found = report(*numbers(1, 2), *numbers(1, 2, name="other"))
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", "", found.page)).split())
    for fragment in (
        "ran for 1 min 40 s; 4 compilations of 2 programs took 16 s, 8 s of that to",
        "2 compilations of 1 program",
    ):
        assert fragment in found.words
        assert fragment in shown
    assert "n 1, 2 [number]: jnp.asarray(n)" in found.words
    assert "n 1, 2 number: jnp.asarray(n)" in shown
    # The page explains each rule once, to which its rows have links.
    assert found.page.count('<a href="#rule-number">') == 2
    assert found.page.count('<pre tabindex="0" id="rule-number">') == 1
    assert "is static, so each value compiles" in found.page

    data = found.json
    assert (data["compilations"], data["programs"], data["again"]) == (4, 2, 8)
    row = {
        "line": ["a.py", 10, "step"],
        "function": "step",
        "seconds": 8,
        "saves": 4,
        "compilations": 2,
        "programs": 1,
    }
    part = {
        "rule": "number",
        "what": "n 1, 2",
        "edit": "jnp.asarray(n)",
        "path": "n",
        "values": ["1", "2"],
        "count": 1,
        "saves": 4,
    }
    assert (data["schema"], found.rows[0]) == (7, {**row, "parts": [part]})


def test_the_page_escapes_and_loads_nothing(report):
    evil = "<script>alert(1)</script>"
    events = [event(number(evil, i), name=evil, seconds=9.0) for i in (1, 2)]
    page = report(*events).page
    assert evil not in page and "&lt;script&gt;" in page
    assert not re.search(r"src=|href=\"[^#]|url\(|@import|https?:", page)
