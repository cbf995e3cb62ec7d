import json
import subprocess
import sys
from pathlib import Path

import pytest


_ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def once(route):
    if route != "cpp":
        pytest.skip("has no route")


def _pyright(*args: str) -> dict:
    command = [sys.executable, "-m", "pyright", "--outputjson", *args]
    out = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    return json.loads(out.stdout)


def test_every_calling_form_has_its_types():
    report = _pyright("tests/typing")
    assert report["summary"]["filesAnalyzed"] >= 2
    assert [d["message"] for d in report["generalDiagnostics"]] == []


def test_no_public_name_has_an_unknown_type():
    report = _pyright("--verifytypes", "eqx_fastjit", "--ignoreexternal")
    found = report["typeCompleteness"]
    assert found["pyTypedPath"]
    assert "eqx_fastjit.insight" in [m["name"] for m in found["modules"]]
    assert [s["name"] for s in found["symbols"] if not s["isTypeKnown"]] == []
