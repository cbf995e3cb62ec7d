"""The programs in examples/ run, and the doctor says of them what they say."""

import pytest

from tests.support.commands import command, doctor, ROOT


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", ["train_mlp", "act_loop"])
def test_an_example_is_faultless(name, tmp_path):
    report, ended = doctor(EXAMPLES / f"{name}.py", tmp_path, "--fail-on", "any")
    assert report["findings"] == []
    plain = command(python=(str(EXAMPLES / f"{name}.py"),))
    assert ended.stdout == plain.stdout != ""


def test_the_faulty_example_has_its_faults(tmp_path):
    report, _ = doctor(EXAMPLES / "faulty_train.py", tmp_path)
    (found,) = report["findings"]
    assert {x["attribute"] for x in found["parts"]} == {"number", "ragged batch"}
