"""Mutation testing: which mutants there are, and what is made of them."""

import json
import textwrap
from pathlib import Path

import pytest

from scripts import generate_docs
from tests.mutation import __main__ as command, _areas, _c, _mutants, _run
from tests.mutation._areas import Area
from tests.mutation._mutants import in_seeded_order, Mutant
from tests.mutation._run import INVALID, KILLED, Outcome, SURVIVED, TIMEOUT


pytestmark = pytest.mark.one_engine


FILE = Path("a.py")
C = r"""
/* a == b && c */
#define MORE(x) ((x) + \
                 1)
static int f(PyObject *x, int n) {
    // n < 0
    char c = '"', *s = "a == \"b\" + 1";
    for (int i = 0; i < n; i++) {
        if (!x || i == 10)
            break;
    }
    Py_INCREF(x);
    return n - 1;
}
"""


def test_mutants_of_c_are_in_code_alone():
    found = {(m.line, m.operator): m for m in _c.c_mutants(FILE, C)}
    assert {line for line, _ in found} == {8, 9, 10, 12, 13}
    changed = {
        (line, name): _mutants.changed_lines(C, _c.mutate_c(C, mutant))
        for (line, name), mutant in found.items()
    }
    assert changed[8, "less"][1] == "for (int i = 0; i <= n; i++) {"
    assert changed[8, "zero"][1] == "for (int i = 1; i < n; i++) {"
    assert changed[8, "increment"][1] == "for (int i = 0; i < n; i--) {"
    assert changed[9, "not"] == ("if (!x || i == 10)", "if (x || i == 10)")
    assert changed[9, "or"][1] == "if (!x && i == 10)"
    assert changed[9, "equal"][1] == "if (!x || i != 10)"
    assert changed[10, "goes on"] == ("break;", ";")
    assert changed[12, "no reference taken"] == ("Py_INCREF(x);", ";")
    assert changed[13, "minus"][1] == "return n + 1;"
    assert changed[13, "one"][1] == "return n - 2;"
    assert len(found) == 10


def test_the_extension_has_mutants_of_each_kind():
    source = (_areas.ROOT / "eqx_fastjit" / "_native.c").read_text(encoding="utf-8")
    mutants = list(_c.c_mutants(FILE, source))
    assert {m.operator for m in mutants} == _c._OPERATORS.keys()
    for mutant in in_seeded_order(mutants, 1)[:20]:
        before, after = _mutants.changed_lines(source, _c.mutate_c(source, mutant))
        assert before != after
        assert source.splitlines()[mutant.line - 1].strip() in before


PYTHON = '''
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    LIMIT = 1 + 1

@overload
def f(x: int) -> int: ...

def f(x: int | None = 1) -> int | None:
    """Not 1 + 1."""
    y: dict[str, int | None] = {}
    return x < 2
'''


def test_mutants_of_python_are_not_in_annotations():
    pytest.importorskip("cosmic_ray", reason="only nox -s mutation has it")
    mutants = list(_mutants.python_mutants(FILE, PYTHON))
    assert {m.line for m in mutants} == {10, 13}
    changed = {
        _mutants.changed_lines(PYTHON, _mutants.mutate_python(PYTHON, mutant))
        for mutant in mutants
    }
    assert ("return x < 2", "return x <= 2") in changed
    assert all(before != after for before, after in changed)


def test_spans_of_annotations():
    spans = _mutants.annotations(PYTHON)
    lines = PYTHON.splitlines()
    texts = {lines[a - 1][b:d] for (a, b), (c, d) in spans if a == c}
    optional = {"int", "int | None", "dict[str, int | None]"}
    assert texts == {"TYPE_CHECKING", "LIMIT = 1 + 1", "@overload", *optional}


def test_the_sample_depends_on_the_seed_alone():
    places = [Mutant(FILE, n, 0, op, 0) for n in range(50) for op in ("a", "b", "c")]
    first = in_seeded_order(places, 1)
    assert first == in_seeded_order(list(reversed(places)), 1)
    assert first != in_seeded_order(places, 2)
    # One for each place, of any kind.
    assert sorted(m.line for m in first) == list(range(50))
    assert {m.operator for m in first} == {"a", "b", "c"}


def test_every_area_has_its_files_and_tests():
    for area in _areas.AREAS:
        assert len(area.files()) >= 1
        for test in area.tests:
            assert (_areas.ROOT / "tests" / f"test_{test}.py").exists(), test
    (engine,) = [a for a in _areas.AREAS if a.name == "engine"]
    tests = engine.tests_of(Path("eqx_fastjit/_stages.py"))
    assert tests[0] == "tests/test_stages.py" and len(tests) == len(engine.tests)
    assert sum(area.weight for area in _areas.AREAS) == pytest.approx(1)


# --- running -------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """A project with one function, tested for one value."""
    (tmp_path / "f.c").write_text("static int f(void) { return 1 == 2 || 0; }\n")
    test = """
        import pathlib, time

        def test_f():
            text = pathlib.Path("f.c").read_text()
            assert "==" in text
            while "&&" in text:
                time.sleep(0.1)
    """
    (tmp_path / "test_f.py").write_text(textwrap.dedent(test))
    return tmp_path


@pytest.mark.parametrize(
    ("operator", "limit", "outcome"),
    [("equal", 100, KILLED), ("zero", 100, SURVIVED), ("or", 5, TIMEOUT)],
)
def test_what_becomes_of_a_mutant(operator, limit, outcome, tree, monkeypatch):
    monkeypatch.setattr(_run, "build", lambda tree: True)
    source = (tree / "f.c").read_text()
    mutants = {m.operator: m for m in _c.c_mutants(Path("f.c"), source)}
    found = _run.run_mutant(tree, mutants[operator], ["test_f.py"], limit)
    assert found.outcome == outcome
    assert found.before == source.strip() != found.after
    assert found.test == ("test_f.py::test_f" if outcome == KILLED else "")
    assert (tree / "f.c").read_text() == source


def test_a_mutant_that_does_not_compile(tree):
    """There is no setup.py."""
    source = (tree / "f.c").read_text()
    mutant = next(_c.c_mutants(Path("f.c"), source))
    assert _run.run_mutant(tree, mutant, ["test_f.py"], 5).outcome == INVALID
    assert (tree / "f.c").read_text() == source


# --- results -------------------------------------------------------------------------


AREA = Area("doctor", (), (), 0.75, 1.0)


def outcomes(*kinds):
    return [
        (Mutant(FILE, n, 0, "less", 0), Outcome(kind, 1.0, f"a < {n}", f"a <= {n}"))
        for n, kind in enumerate(kinds)
    ]


KNOWN = [
    {"file": "a.py", "before": "a < 3", "after": "a <= 3", "reason": "It is an int."}
]


def test_what_is_counted():
    found = outcomes(KILLED, TIMEOUT, SURVIVED, SURVIVED, INVALID)
    summary = command.summary(AREA, 99, found, KNOWN)
    assert (summary["places"], summary["mutants"], summary["invalid"]) == (99, 4, 1)
    assert (summary["killed"], summary["equivalent"]) == (2, 1)
    assert summary["share"] == pytest.approx(2 / 3)
    assert [(x["line"], x.get("equivalent")) for x in summary["survived"]] == [
        (2, None),
        (3, "It is an int."),
    ]
    assert command.summary(AREA, 9, outcomes(INVALID), KNOWN)["share"] is None
    # Of another file, or with another change, it is another mutant.
    other = [{**KNOWN[0], "file": "b.py"}, {**KNOWN[0], "after": "a == 3"}]
    assert command.summary(AREA, 9, found, other)["equivalent"] == 0


def test_equivalent_mutants_are_of_the_source_of_today():
    """And each has a reason."""
    known = json.loads(command.EQUIVALENT.read_text(encoding="utf-8"))
    for entry in known:
        assert entry.keys() == {"file", "before", "after", "reason"}
        source = (_areas.ROOT / entry["file"]).read_text(encoding="utf-8")
        lines = "\n".join(line.strip() for line in source.splitlines())
        assert entry["before"] in lines, entry
        assert entry["after"] not in lines and entry["reason"].endswith("."), entry


def test_the_table():
    found = outcomes(KILLED, KILLED, SURVIVED, SURVIVED)
    results = {
        "areas": [command.summary(AREA, 1234, found, KNOWN)],
        "command": "python -m tests.mutation",
        "commit": "abc",
        "date": "2026-11-21T00:00:00",
        "machine": {"cpu": "CPU", "cores": 2, "system": "Linux"},
        "versions": {"python": "3.11"},
    }
    text = generate_docs._mutation(results)
    assert "| doctor | 1,234 | 4 | 2 | 1 | 67% (21% to 94%) | 75% |" in text
    assert "- `a.py`: `a < 3` as `a <= 3`. It is an int." in text
    assert "commit `abc`; CPU, 2 cores, Linux; python 3.11." in text


def test_a_large_sample_says_more():
    area = {"share": 0.9, "mutants": 45, "equivalent": 5}
    assert generate_docs._share_with_interval(area) == "90% (77% to 96%)"
    area = {"share": 1.0, "mutants": 400, "equivalent": 0}
    assert generate_docs._share_with_interval(area) == "100% (99% to 100%)"


def test_time_is_divided_and_what_is_left_goes_on(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    areas = [AREA._replace(weight=w) for w in (0.5, 0.25, 0.25)]
    deadlines = command._deadlines(areas, 60)
    assert next(deadlines)[1] == 1800
    now[0] = 600.0
    assert next(deadlines)[1] == 600 + 1500
    now[0] = 3000.0
    assert next(deadlines)[1] == 3600
