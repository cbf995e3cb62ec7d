"""Mutation testing: the mutants, the choice of tests, and the outcomes."""

import json
import textwrap
import types
from pathlib import Path

import pytest

from scripts import tables
from tests.mutation import (
    __main__ as command,
    _areas,
    _c,
    _covered,
    _kept,
    _mutants,
    _run,
)
from tests.mutation._areas import Area
from tests.mutation._mutants import in_seeded_order, Mutant
from tests.mutation._run import INVALID, KILLED, Outcome, SURVIVED, TIMEOUT, UNCLEAR


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

    @property
    def size(self) -> int: ...

@overload
def f(x: int) -> int: ...

def f(x: int | None = 1) -> int | None:
    """Not 1 + 1."""
    y: dict[str, int | None] = {}
    return x < 2

try:
    f()
except (ValueError, module.Error):
    pass
'''


def test_mutants_of_python_are_not_in_annotations():
    pytest.importorskip("cosmic_ray", reason="only nox -s mutation has it")
    mutants = list(_mutants.python_mutants(FILE, PYTHON))
    # Including `ValueError`, but not `module.Error`.
    assert {m.line for m in mutants} == {13, 16, 20}
    assert [m.line for m in mutants if "Exception" in m.operator] == [20]
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
    assert texts == {"@overload", *optional}
    assert ((4, 3), (8, 30)) in spans  # from `TYPE_CHECKING` on


def test_the_sample_depends_on_the_seed_alone():
    places = [Mutant(FILE, n, 0, op, 0) for n in range(50) for op in ("a", "b", "c")]
    first = in_seeded_order(places, 1)
    assert first == in_seeded_order(list(reversed(places)), 1)
    assert first != in_seeded_order(places, 2)
    # Exactly one mutant for each place.
    assert sorted(m.line for m in first) == list(range(50))
    assert {m.operator for m in first} == {"a", "b", "c"}


def test_every_area_has_its_files_and_tests():
    for area in _areas.AREAS:
        assert len(area.files()) >= 1
        for test in area.tests:
            assert (_areas.ROOT / "tests" / f"test_{test}.py").exists(), test
    assert sum(area.weight for area in _areas.AREAS) == pytest.approx(1)


# --- which tests run a line ----------------------------------------------------------


STATEMENTS = """\
def f(x,
      y=1):
    if (x
            and y):
        return [
            x,
        ]
    try:
        pass
    except (ValueError,
            TypeError):
        pass
"""


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [(2, 1, 2), (4, 3, 4), (6, 5, 7), (9, 9, 9), (11, 10, 11), (8, 8, 8)],
)
def test_the_lines_of_a_statement(line, first, last):
    """The lines of a block statement are its head; its body has its own tests."""
    assert _covered.statement(STATEMENTS, line) == range(first, last + 1)


CONSTANTS = """\
FEW, _MANY = 4, [
    1 << 20,
]
N: int = 3

class C:
    size = FEW

def f():
    return (_MANY,
            N)
"""


@pytest.mark.parametrize(
    ("line", "lines"),
    [(1, {7, 10, 11}), (2, {7, 10, 11}), (4, {10, 11}), (7, set()), (11, {10, 11})],
)
def test_constants_are_tested_where_they_are_used(line, lines):
    """Other lines that run on import, by the tests of their file."""
    assert _covered.lines_to_run(CONSTANTS, line) == lines


COVERED = _covered.Covered(
    {"test_b.py::slow": 9.0, "test_a.py::quick": 1.0, "test_b.py::middle": 5.0},
    {"a.py": {1: [0, 1], 2: [2]}, "_b.py": {7: [0, 1, 2]}},
)


@pytest.mark.parametrize(
    ("file", "lines", "budget", "tests"),
    [
        ("a.py", [1], 60, ["test_a.py::quick", "test_b.py::slow"]),
        (
            "a.py",
            [1, 2],
            60,
            ["test_a.py::quick", "test_b.py::middle", "test_b.py::slow"],
        ),
        ("a.py", [1, 2], 14, ["test_a.py::quick", "test_b.py::middle"]),
        # At least one test.
        ("a.py", [2], 1, ["test_b.py::middle"]),
        # Line 1 runs on import: tests named after the file come first.
        (
            "_b.py",
            [1],
            60,
            ["test_b.py::middle", "test_b.py::slow", "test_a.py::quick"],
        ),
        ("c.py", [1], 60, []),
    ],
)
def test_the_tests_of_a_line(file, lines, budget, tests):
    assert COVERED.tests_of(Path(file), lines, budget) == tests


def test_a_shared_fixture_is_paid_for_once():
    tests = {f"test_a.py::{name}": 1.0 for name in "abcd"}
    fixture = _covered.Fixture(30.0, ["test_a.py::b", "test_a.py::c"])
    covered = _covered.Covered(tests, {"a.py": {1: [0, 1, 2, 3]}}, [fixture])
    assert covered.cost(tests) == 34
    names = [name[-1] for name in covered.tests_of(Path("a.py"), [1], 34)]
    assert names == ["a", "d", "b", "c"]
    names = [name[-1] for name in covered.tests_of(Path("a.py"), [1], 33)]
    assert names == ["a", "d", "b"]
    names = [name[-1] for name in covered.tests_of(Path("a.py"), [1], 30)]
    assert names == ["a", "d"]
    both = _covered.Covered.of_all([COVERED, covered])
    assert both.cost(["test_a.py::c"]) == 31


def test_what_is_known_of_lines_is_written_and_read(tmp_path):
    COVERED.save(tmp_path / "a" / "b.json")
    assert _covered.Covered.load(tmp_path / "a" / "b.json") == COVERED


def test_what_is_known_of_several_test_files():
    other = _covered.Covered({"test_c.py::c": 2.0}, {"a.py": {1: [0], 5: [0]}})
    both = _covered.Covered.of_all([COVERED, other])
    assert both.tests_of(Path("a.py"), [1], 60) == [
        *("test_a.py::quick", "test_c.py::c", "test_b.py::slow")
    ]
    assert both.tests_of(Path("a.py"), [5], 60) == ["test_c.py::c"]


def test_lines_are_counted_by_test_and_in_processes(tmp_path):
    pytest.importorskip("coverage", reason="only nox -s mutation has it")
    (tmp_path / "eqx_fastjit").mkdir()
    module = "def f():\n    return 1\n\ndef g():\n    return 2\n\n"
    module += "def h():\n    return 3\n"
    (tmp_path / "eqx_fastjit" / "__init__.py").write_text(module)
    (tmp_path / "eqx_fastjit" / "pytest_plugin.py").write_text("")
    test = """
        import subprocess, sys
        import eqx_fastjit, pytest

        @pytest.fixture(scope="module")
        def shared():
            return eqx_fastjit.h()

        def test_here():
            assert eqx_fastjit.f() == 1

        def test_in_a_process():
            code = "import eqx_fastjit; eqx_fastjit.g()"
            subprocess.run([sys.executable, "-c", code], check=True)

        def test_shared(shared):
            pass

        def test_shared_too(shared):
            pass
    """
    (tmp_path / "test_f.py").write_text(textwrap.dedent(test))
    folder = tmp_path / "data"
    folder.mkdir()
    report = folder / "tests.json"
    env = {"MUTATION_RECORD": str(report)}
    env |= _covered.counted_python(tmp_path, folder)
    _run.run_tests(tmp_path, ["test_f.py"], 100, env=env, options=())
    found = json.loads(report.read_text())
    names = {test: x["name"] for test, x in found["tests"].items()}
    (fixture,) = found["fixtures"]
    lines = _covered.python_lines(tmp_path, folder)["eqx_fastjit/__init__.py"]
    assert lines[2] == [names["test_f.py::test_here"]]
    assert lines[5] == [names["test_f.py::test_in_a_process"]]
    assert lines[8] == [fixture]
    users = ["test_f.py::test_shared", "test_f.py::test_shared_too"]
    assert found["fixtures"][fixture]["tests"] == users


# --- running -------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """A project with one function and one test of it."""
    (tmp_path / "f.c").write_text("static int f(void) { return 1 == 2 || 0; }\n")
    test = """
        import pathlib, time

        def test_f():
            text = pathlib.Path("f.c").read_text()
            assert "==" in text
            while "&&" in text:
                time.sleep(0.1)

        def test_left_out():
            assert False
    """
    (tmp_path / "test_f.py").write_text(textwrap.dedent(test))
    return tmp_path


def choice(limit):
    return _run.Choice(["test_f.py"], ["test_f.py::test_f"], limit)


@pytest.mark.parametrize(
    ("operator", "limit", "outcome"),
    [("equal", 100, KILLED), ("zero", 100, SURVIVED), ("or", 20, TIMEOUT)],
)
def test_what_becomes_of_a_mutant(operator, limit, outcome, tree, monkeypatch):
    monkeypatch.setattr(_run, "build", lambda tree: True)
    source = (tree / "f.c").read_text()
    mutants = {m.operator: m for m in _c.c_mutants(Path("f.c"), source)}
    found = _run.run_mutant(tree, mutants[operator], choice(limit))
    assert found.outcome == outcome
    assert found.before == source.strip() != found.after
    assert found.test == ("test_f.py::test_f" if outcome == KILLED else "")
    assert (tree / "f.c").read_text() == source


@pytest.mark.parametrize(
    ("codes", "seconds", "outcome"),
    [
        ([None, 0], 1.0, TIMEOUT),
        # Without the mutant the tests time out as well: the machine is slow.
        ([None, None], 10.0, UNCLEAR),
        ([None, 0], 6.0, UNCLEAR),
        ([None, 1], 1.0, UNCLEAR),
        # The process was killed because the system ran out of memory.
        ([-9], 1.0, UNCLEAR),
        ([-11], 1.0, KILLED),
        ([2], 1.0, KILLED),
        # No test was selected.
        ([5], 1.0, SURVIVED),
    ],
)
def test_a_slow_machine_notices_nothing(codes, seconds, outcome, tree, monkeypatch):
    monkeypatch.setattr(_run, "build", lambda tree: True)
    results = iter([_run.Tested(code, (), seconds) for code in codes])
    monkeypatch.setattr(_run, "run_chosen", lambda tree, choice: next(results))
    mutant = next(_c.c_mutants(Path("f.c"), (tree / "f.c").read_text()))
    assert _run.run_mutant(tree, mutant, choice(10.0)).outcome == outcome
    assert next(results, None) is None


@pytest.mark.parametrize(("code", "outcome"), [(0, UNCLEAR), (1, KILLED)])
def test_a_test_of_processes_has_to_fail_twice(code, outcome, tree, monkeypatch):
    monkeypatch.setattr(_run, "build", lambda tree: True)
    failed = _run.Tested(1, ("test_f.py::test_f",), 1.0)
    monkeypatch.setattr(_run, "run_chosen", lambda *args: failed)
    monkeypatch.setattr(_run, "run_tests", lambda *args: failed._replace(code=code))
    mutant = next(_c.c_mutants(Path("f.c"), (tree / "f.c").read_text()))
    doubtful = choice(10.0)._replace(doubtful=["test_f.py::test_f"])
    assert _run.run_mutant(tree, mutant, doubtful).outcome == outcome
    assert _run.run_mutant(tree, mutant, choice(10.0)).outcome == KILLED


def test_a_mutant_that_does_not_compile(tree):
    """The project has no setup.py, so the extension cannot be built."""
    source = (tree / "f.c").read_text()
    mutant = next(_c.c_mutants(Path("f.c"), source))
    assert _run.run_mutant(tree, mutant, choice(5)).outcome == INVALID
    assert (tree / "f.c").read_text() == source


def test_a_mutant_that_is_no_python(tree):
    pytest.importorskip("cosmic_ray", reason="only nox -s mutation has it")
    source = "def f(*, x): pass\n"
    (tree / "f.py").write_text(source)
    found = list(_mutants.python_mutants(Path("f.py"), source))
    assert found, "cosmic-ray has fixed this: remove _is_python"
    assert _run.run_mutant(tree, found[0], choice(5)).outcome == INVALID


def test_a_later_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(_kept, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    kept = _kept.Kept(tmp_path / "kept")
    (first, one), (second, two) = outcomes(SURVIVED, SURVIVED)
    kept.add(AREA, first, one)
    kept.add(AREA, second, two)
    # A later outcome replaces an earlier one.
    kept.add(AREA, second, two._replace(outcome=KILLED))
    again = _kept.Kept(tmp_path / "kept")
    assert again.outcomes(AREA) == {first: one, second: two._replace(outcome=KILLED)}
    assert again.outcomes(AREA._replace(name="cli")) == {}
    # Outcomes are dropped once the source has changed.
    (tmp_path / "a.py").write_text("2")
    assert again.outcomes(AREA) == {}


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
    found = outcomes(KILLED, TIMEOUT, SURVIVED, SURVIVED, INVALID, UNCLEAR, UNCLEAR)
    summary = command.summary(AREA, 99, found, KNOWN)
    assert (summary["places"], summary["mutants"]) == (99, 4)
    assert (summary["invalid"], summary["unclear"]) == (1, 2)
    assert (summary["killed"], summary["equivalent"]) == (2, 1)
    assert summary["share"] == pytest.approx(2 / 3)
    assert [(x["line"], x.get("equivalent")) for x in summary["survived"]] == [
        (2, None),
        (3, "It is an int."),
    ]
    assert command.summary(AREA, 9, outcomes(INVALID), KNOWN)["share"] is None
    # An entry does not apply to another file or another change.
    other = [{**KNOWN[0], "file": "b.py"}, {**KNOWN[0], "after": "a == 3"}]
    assert command.summary(AREA, 9, found, other)["equivalent"] == 0


def test_equivalent_mutants_are_of_the_source_of_today():
    """Each entry still matches the source, and has a reason."""
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
    text = tables._mutation(results)
    assert "| doctor | 1,234 | 4 | 2 | 1 | 67% (21% to 94%) | 75% |" in text
    assert "- `a.py`: `a < 3` as `a <= 3`. It is an int." in text
    assert "commit `abc`; CPU, 2 cores, Linux; python 3.11." in text


def test_a_large_sample_says_more():
    area = {"share": 0.9, "mutants": 45, "equivalent": 5}
    assert tables._share_with_interval(area) == "90% (77% to 96%)"
    area = {"share": 1.0, "mutants": 400, "equivalent": 0}
    assert tables._share_with_interval(area) == "100% (99% to 100%)"


def test_time_is_divided_and_what_is_left_goes_on(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    areas = [AREA._replace(weight=w) for w in (0.5, 0.25, 0.25)]
    runs = [types.SimpleNamespace(area=area) for area in areas]
    deadlines = command._deadlines(runs, 3600.0)
    assert next(deadlines)[1] == 1800
    now[0] = 600.0
    assert next(deadlines)[1] == 600 + 1500
    now[0] = 3000.0
    assert next(deadlines)[1] == 3600
