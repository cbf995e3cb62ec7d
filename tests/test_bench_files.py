"""What a results file holds: machine, versions, commit, rounds, and its errors."""

import json
import os
import platform
import re
import subprocess
from importlib.metadata import version

import pytest

import eqx_fastjit
from eqx_fastjit.bench import (
    _results,
    BadResults,
    load,
)


pytestmark = pytest.mark.one_engine


def test_the_machine(monkeypatch):
    assert _results.machine() == {
        "cpu": _results._cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }

    class Info:
        text = "processor : 0\nmodel name\t: A: fast CPU \nmodel name : other\n"

        def __init__(self, path):
            assert path == "/proc/cpuinfo"

        def read_text(self):
            if self.text is None:
                raise FileNotFoundError
            return self.text

    monkeypatch.setattr(_results, "Path", Info)
    monkeypatch.setattr(platform, "processor", lambda: "a processor")
    assert _results._cpu() == "A: fast CPU"
    for Info.text in ("", None):
        assert _results._cpu() == "a processor"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert _results._cpu() == platform.machine()


def test_versions(monkeypatch):
    monkeypatch.setattr(_results, "_PACKAGES", ("no-such-package", "jax"))
    assert _results._versions() == {
        "eqx_fastjit": eqx_fastjit.__version__,
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def test_the_commit(monkeypatch, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "other").touch()
    monkeypatch.setattr(eqx_fastjit, "__file__", str(package / "__init__.py"))

    def git(*args):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *args], cwd=tmp_path, check=True)

    assert _results._commit() is None
    git("init", "-q")
    git("add", "other")
    git("commit", "-qm", "without the package")
    # The package lies in somebody else's checkout.
    assert _results._commit() is None
    git("add", "package")
    git("commit", "-qm", "with it")
    commit = _results._commit()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "other").write_text("changed, but not the package")
    (package / "new").touch()
    assert _results._commit() == commit
    (package / "__init__.py").write_text("changed")
    assert _results._commit() == commit + "+"
    monkeypatch.setenv("PATH", "")
    assert _results._commit() is None


def test_new_results(monkeypatch):
    monkeypatch.setattr(_results, "_commit", lambda: "abc")
    found = _results.new_results("a command", "python")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.pop("date"))
    assert found == {
        "schema": 1,
        "command": "a command",
        "machine": _results.machine(),
        "versions": _results._versions(),
        "engine": "python",
        "interrupted": False,
        "problems": [],
        "cases": [],
        "commit": "abc",
    }
    monkeypatch.setattr(_results, "_commit", lambda: None)
    assert "commit" not in _results.new_results("", "python")


def test_a_short_commit():
    assert _results.short_commit("0123456789abcdef") == "0123456789ab"
    assert _results.short_commit("0123456789abcdef+") == "0123456789ab+"


def test_the_layout_of_a_file():
    found = {"a": [1.0, 2.0], "b": {"c": [{"d": 0.123456}, "e"], "f": []}, "g": {}}
    assert _results.dumps(found) == (
        '{\n "a": [1.0, 2.0],\n "b": {\n  "c": [\n   {\n    "d": 0.1235\n   },\n'
        '   "e"\n  ],\n  "f": []\n },\n "g": {}\n}\n'
    )


@pytest.mark.parametrize(
    ("rounds", "kept"), [([3, 3], 3), ([3, 2], 2), ([1, 1], 1), ([1, 0], 0), ([], 0)]
)
def test_rounds_that_all_have_finished(rounds, kept):
    by = {str(i): [float(x) for x in range(n)] for i, n in enumerate(rounds)}
    times = _results.even({"times": {"x": by, "y": dict(by)}})["times"]
    if kept:
        by = {name: [float(x) for x in range(kept)] for name in by}
    assert times == ({"x": by, "y": by} if kept else {})


def test_files_that_are_no_results(tmp_path):
    path = tmp_path / "a.json"
    for content, message in (
        ("[1]", f"{path} is not a results file: it has no 'schema'"),
        ('"schema"', f"{path} is not a results file: it has no 'schema'"),
        ("{}", f"{path} is not a results file: it has no 'schema'"),
        ('{"schema": "1"}', f"{path} has schema '1'; this version reads 1"),
    ):
        path.write_text(content)
        with pytest.raises(BadResults) as e:
            load(path)
        assert str(e.value) == message
    with pytest.raises(BadResults) as e:
        load(tmp_path / "none")
    assert str(e.value) == f"cannot read {tmp_path / 'none'}: No such file or directory"


@pytest.mark.parametrize("key", ["date", "command", "problems", "interrupted"])
def test_a_file_lacks_what_it_should_have(key, tmp_path):
    found = _results.new_results("", "native")
    del found[key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(found))
    with pytest.raises(BadResults, match=f"complete results file: KeyError: '{key}'"):
        load(path)


def test_ratios_are_of_as_many_rounds():
    entry = {"times": {"x": {"ours": [1.0, 2.0], "jit": [1.0]}}}
    with pytest.raises(ValueError, match="shorter"):
        _results.ratio(entry, "x", "jit")
