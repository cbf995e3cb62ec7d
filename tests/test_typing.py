import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_pyright_agrees(route):
    if route != "cpp":
        pytest.skip("has no route")
    root = Path(__file__).parent.parent
    out = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "tests/typing"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    report = json.loads(out.stdout)
    assert report["summary"]["filesAnalyzed"] >= 1
    assert [d["message"] for d in report["generalDiagnostics"]] == []
