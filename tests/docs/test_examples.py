"""The programs in examples/ run, and the doctor says of them what they say."""

import pytest

from tests.support.commands import doctor, ROOT


EXAMPLES = ROOT / "examples"
# They compile more quickly, and that the same programs.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.mark.parametrize("name", ["train_mlp", "act_loop"])
def test_an_example_is_faultless(name, tmp_path):
    options = ("--fail-on", "any")
    report, process = doctor(EXAMPLES / f"{name}.py", tmp_path, *options, **QUICK)
    assert process.stdout
    assert not [row for row in report["rows"] if "saves" in row and "later" not in row]


def test_the_faulty_example_has_its_faults(tmp_path):
    """What compiles it again, and what costs time in each step."""
    report, _ = doctor(EXAMPLES / "faulty_train.py", tmp_path, **QUICK)
    saving = [row for row in report["rows"] if "saves" in row and "later" not in row]
    rows = {tuple(part["rule"] for part in row["parts"]): row for row in saving}
    row = rows.pop(("number", "batch"))
    assert (row["compilations"], row["programs"]) == (8, 2)
    assert "eager-calls" in {rule for rules in rows for rule in rules}
