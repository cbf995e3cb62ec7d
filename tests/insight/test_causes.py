"""What the doctor says of a program that has a fault, and of its twin with the fix.

Promises 36, 37 of docs/reliability.md.

The doctor names cause, attribute, function, leaf, line and fix; the twin has nothing of
that, and prints the same results: an advice keeps them.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from eqx_fastjit.insight._causes import table
from eqx_fastjit.insight._describe import Cause
from tests.support.commands import doctor


PROGRAMS = Path(__file__).parents[1] / "programs" / "causes"
UNAVOIDABLE = ("first call", "inlined", "outside of filter_jit")


class Expected(NamedTuple):
    """What the doctor says of a fault."""

    cause: str
    attribute: str
    leaf: str
    functions: dict[str, int]
    # Fragments of the sentence and of the fix.
    says: str
    fix: str


CASES = {
    "static": Expected(
        "static",
        "number",
        "rate",
        {"step": 2},
        "each new value compiles: 0.1, 0.05, 0.0333",
        "Write `jnp.asarray(rate)` for `rate` in the call at",
    ),
    "ragged_batch": Expected(
        "shape",
        "ragged batch",
        "x",
        {"step": 1, "per_example": 1},
        "A batch is smaller: 8, then 4 along axis 0",
        "Leave the smaller batch out",
    ),
    "outside_jit": Expected(
        "outside of filter_jit",
        "shapes",
        "",
        {"concatenate": 7},
        "(float32[1,3], float32[1,3]), (float32[2,3], float32[1,3]),",
        "Keep what grows in a Python list, and stack it once, after the loop",
    ),
}


def line_of(script):
    lines = script.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith("# finding"))


@pytest.mark.parametrize("name", CASES)
def test_a_fault_and_its_twin(name, tmp_path):
    expected = CASES[name]
    fault, mended = PROGRAMS / name / "fault.py", PROGRAMS / name / "mended.py"
    report, ended = doctor(fault, tmp_path)
    _check_sums(report)
    wanted = expected.cause, expected.attribute
    found = [f for f in _groups(report) if (f["cause"], f["attribute"]) == wanted]
    found = [f for f in found if f["line"] and f["line"][1] == line_of(fault)]
    assert len(found) == 1, report["findings"]
    (finding,) = found
    assert finding["line"][0] == str(fault)
    assert finding["leaf"] == expected.leaf
    assert expected.functions in (finding["functions"], {})
    assert expected.says in finding["says"]
    assert expected.fix in finding["fix"]
    _check_wording(ended.stderr)

    twin, twins_end = doctor(mended, tmp_path)
    _check_sums(twin)
    assert [f for f in _groups(twin) if not _is_unavoidable(f)] == []
    if expected.cause == "outside of filter_jit":
        line = line_of(fault)
        assert [f for f in twin["findings"] if f["line"][1] == line] == []
    assert ended.stdout == twins_end.stdout


def test_a_function_that_is_made_anew_reads_its_globals_anew(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import equinox as eqx, numpy as np\n"
        "for scale in (1.0, 2.0):\n"
        "    print(eqx.filter_jit(lambda x, n: x * n)(np.ones(2), scale))\n"
        "    scaled = eqx.filter_jit(lambda x: x * scale)\n"
        "    print(scaled(np.ones(2)))\n"
    )
    report, _ = doctor(path, tmp_path)
    assert "stale value" not in [f["cause"] for f in report["findings"]]


def test_a_global_that_the_loop_assigns_is_named(tmp_path):
    """Created once, the function would go on with the first value."""
    path = tmp_path / "program.py"
    path.write_text(
        "import equinox as eqx, numpy as np\n"
        "for scale in (1.0, 2.0):\n"
        "    @eqx.filter_jit\n"
        "    def f(x, n=2):\n"
        "        y = x * scale\n"
        "        return y\n"
        "    f(np.ones(2))\n"
    )
    report, _ = doctor(path, tmp_path)
    (found,) = [x for x in _groups(report) if x["attribute"] == "created again"]
    assert "the loop assigns `scale`, which it reads" in found["fix"]


def test_the_table_has_every_cause():
    found = table()
    assert {cause.value for cause in Cause} < set(found)
    for attributes in found.values():
        for text in attributes.values():
            assert {"says", "fix"} <= set(text)
            assert set(text) <= {"says", "fix", "what", "edit", "hint", "note"}
            sentences = (text[name] for name in ("says", "fix", "note") if name in text)
            assert all(value[-1] in ".)}" for value in sentences)


def _groups(report):
    return [*report["findings"], *report["prices"], *report["others"]]


def _is_unavoidable(finding):
    first = finding["attribute"] == "first call"
    return first or finding["cause"] in UNAVOIDABLE


def _check_sums(report):
    """Seconds and counts agree wherever they are told."""
    groups, functions = _groups(report), report["functions"]
    total = sum(f["seconds"] for f in functions)
    assert total == pytest.approx(sum(g["seconds"] for g in groups), abs=1e-3)
    causes = [(k, n) for f in functions for k, n in f["causes"].items()]
    n_causes = sum(n for cause, n in causes if cause != "inlined")
    timed = [g for g in groups if g["cause"] != "stale value"]
    assert n_causes == sum(g["count"] for g in timed)
    parts = sum(part["seconds"] for part in report["time"])
    assert parts == pytest.approx(report["run"]["seconds"], abs=1e-3)


def _check_wording(text):
    assert "array(" not in text.replace("asarray(", "")  # no values of arrays
    assert " 0 us" not in text and "more times" not in text


def test_a_trace_of_plain_jit_is_told_without_what_has_rows_of_its_own(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import equinox as eqx, jax, numpy as np\n"
        "@eqx.filter_jit\n"
        "def jit_inner(x):\n"
        "    return x + 1\n"
        "@jax.jit\n"
        "def outer(x):\n"
        "    return jit_inner(x) * 2\n"
        "print(outer(np.ones(2)))\n"
    )
    report, _ = doctor(path, tmp_path)
    inner, outer = report["run"]["events"]
    names = [x["function"]["name"] for x in (inner, outer)]
    assert names == ["jit_inner", "outer"]
    assert outer["traced"] and outer["trace"] >= outer["nested"] == inner["trace"]
