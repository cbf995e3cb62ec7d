"""The programs in examples/ run, and the doctor says of them what they say."""

import pytest

from tests.support.commands import doctor, ROOT


EXAMPLES = ROOT / "examples"
# They compile more quickly, and that the same programs.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.mark.parametrize("name", ["train_mlp", "act_loop"])
def test_an_example_is_faultless(name, tmp_path):
    options = "--fail-on", "any"
    report, run = doctor(EXAMPLES / f"{name}.py", tmp_path, *options, **QUICK)
    assert run.stdout and all("later" in x or "saves" not in x for x in report["rows"])


def test_the_faulty_example_has_its_faults(tmp_path):
    report, _ = doctor(EXAMPLES / "faulty_train.py", tmp_path, **QUICK)
    (found,) = (x for x in report["rows"] if "saves" in x and "later" not in x)
    assert [x["rule"] for x in found["parts"]] == ["number", "batch"]
    assert [found["compilations"], found["programs"]] == [8, 2]
