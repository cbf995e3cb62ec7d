import subprocess
import sys
from pathlib import Path

import pytest

from eqx_fastjit import cli
from eqx_fastjit._files import check_writable


pytestmark = pytest.mark.one_engine


def test_help(capsys):
    assert cli.main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_an_unknown_flag_shows_the_usage_of_its_command(capsys):
    for argv, usage in (
        (["run", "--wrong", "a.py"], "usage: eqx-fastjit run "),
        (["--wrong"], "usage: eqx-fastjit [-h]"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(argv)
        assert ended.value.code == 2
        err = capsys.readouterr().err
        assert err.startswith(usage) and "arguments: --wrong" in err


def test_version_is_what_a_bug_report_needs(capsys, monkeypatch):
    monkeypatch.setenv("EQX_ON_ERROR", "nan")
    assert cli.main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    for name in ("eqx_fastjit", "python", "platform", "equinox", "jax", "jaxlib"):
        assert names.count(name) == 1
    assert {"numpy", "jaxtyping", "flax", "pyinstrument"} <= {*names, *_absent()}
    assert "EQX_ON_ERROR=nan" in lines
    assert "engine native" in lines
    assert "devices 8 x cpu (cpu)" in lines


def _absent() -> set[str]:
    from importlib.util import find_spec

    return {name for name in ("flax", "pyinstrument") if find_spec(name) is None}


def test_version_does_not_fail_where_jax_does(capsys, monkeypatch):
    import jax

    def no_devices():
        raise RuntimeError("no backend")

    monkeypatch.setattr(jax, "devices", no_devices)
    assert cli.main(["--version"]) == 0
    assert "devices unknown (RuntimeError: no backend)" in capsys.readouterr().out


def test_looking_whether_a_file_can_be_written_leaves_all_as_it_was(tmp_path):
    old, new, link = (tmp_path / name for name in ("old", "new", "link"))
    old.write_text("kept")
    link.symlink_to(new)
    for path in (old, new, link):
        check_writable(path)
    assert old.read_text() == "kept"
    assert not new.exists()
    assert link.is_symlink()
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        check_writable(tmp_path)


def test_peer_suite_script(tmp_path):
    script = Path(__file__).parent.parent / "scripts" / "peer_suite.py"
    suite = tmp_path / "checkout" / "tests"
    suite.mkdir(parents=True)
    (suite / "test_a.py").write_text(
        "import equinox\n"
        "def test_same(): pass\n"
        "def test_differs():\n"
        "    assert 'eqx_fastjit' not in equinox.filter_jit.__module__\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "checkout")]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 1, out.stderr
    assert "test_differs: passed without, failed with" in out.stdout
    assert "1 of 2 tests end differently" in out.stdout
    out = subprocess.run([*command[:2], str(tmp_path)], capture_output=True, text=True)
    assert out.returncode == 2
    assert "has no folder 'tests'" in out.stderr
