import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import eqx_fastjit


_ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.one_engine


def _pyright(*args: str) -> dict:
    here = ["--pythonpath", sys.executable, "--outputjson"]
    command = [sys.executable, "-m", "pyright", *here, *args]
    # pyright cannot follow the import hook of an editable install.
    env = os.environ | {"PYTHONPATH": str(_ROOT)}
    out = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True)
    return json.loads(out.stdout)


def test_every_calling_form_has_its_types():
    report = _pyright("tests/typing")
    assert report["summary"]["filesAnalyzed"] >= 2
    assert [d["message"] for d in report["generalDiagnostics"]] == []


def test_files_with_public_names_are_checked_strictly():
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    strict = project["tool"]["pyright"]["strict"]
    homes = {
        f"eqx_fastjit/{home.replace('.', '/')}.py"
        for home in eqx_fastjit._HOMES.values()
    }
    # `_engine` has one public name, `engine`. The rest of it deals with JAX's
    # internals.
    assert homes - {"eqx_fastjit/_engine.py"} <= set(strict)
    assert "eqx_fastjit/insight" in strict
    for path in (_ROOT / "eqx_fastjit").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        off = [x for x in lines if x.startswith("# pyright:")]
        assert not [x for x in off if re.search(r"basic|standard|off\b", x)], path


def test_no_public_name_has_an_unknown_type():
    report = _pyright("--verifytypes", "eqx_fastjit", "--ignoreexternal")
    found = report["typeCompleteness"]
    assert found["pyTypedPath"]
    assert "eqx_fastjit.insight" in [m["name"] for m in found["modules"]]
    assert [s["name"] for s in found["symbols"] if not s["isTypeKnown"]] == []
