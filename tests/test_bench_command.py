"""`eqx-fastjit bench`, in real processes."""

import os
import signal
import sys
from pathlib import Path

import pytest

import eqx_fastjit
from eqx_fastjit import cli
from eqx_fastjit.bench import _session, case_info, load
from tests import faulty_cases


pytestmark = pytest.mark.one_engine


def test_everything_is_written(tmp_path, capsys):
    argv = ["bench", "--cases", "identity,method", "--rounds", "2", "--device", "cpu"]
    argv += ["--contenders", "jit,eqx,ours", "--json", str(tmp_path / "a.json")]
    argv += ["--html", str(tmp_path / "a.html"), "--plot", str(tmp_path / "plots")]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    for text in ("identity", "method", "Dispatch only", "Blocked", "jaxlib"):
        assert text in out
    assert "The figure 'width' was not drawn" in out
    results = load(tmp_path / "a.json")
    assert [e["name"] for e in results["cases"]] == ["identity", "method"]
    for entry in results["cases"]:
        assert entry["device"] == "cpu"
        for mode in ("dispatch", "blocked"):
            assert set(entry["times"][mode]) == {"jit", "eqx", "ours"}
            assert all(len(v) == 2 for v in entry["times"][mode].values())
    assert "--contenders jit,eqx,ours" in results["command"]
    assert results["interrupted"] is False and results["problems"] == []
    assert "<table>" in (tmp_path / "a.html").read_text()
    plots = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert plots == ["ratios.png", "ratios.svg"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--cases", "nonsense"], "no case or group 'nonsense' (--list shows all)"),
        (["--cases", "identiti"], "did you mean 'identity'? (--list shows all)"),
        (["--cases", ","], "--cases: expected at least one name"),
        (
            ["--contenders", "nonsense"],
            "no contender 'nonsense'; expected one of eager",
        ),
        (["--cases", "method", "--contenders", "flat"], "has the contender 'flat'"),
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--json", "{tmp}/no/a.json"], "--json: cannot write"),
        (["--html", "{tmp}"], "--html: cannot write"),
        (["--plot", "{tmp}/file/plots"], "--plot: cannot write to"),
        (["--compare", "{tmp}/a", "{tmp}/b"], "cannot read"),
        (
            ["--compare", "a", "b", "--json", "c"],
            "--json cannot be used with --compare",
        ),
        (
            ["--compare", "a", "b", "--cases", "c"],
            "--cases cannot be used with --compare",
        ),
        (
            ["--compare", "a", "b", "--fail-above", "nan"],
            "expected a percentage",
        ),
        (["--ratios"], "--ratios can only be used with --compare"),
    ],
)
def test_bad_input_is_refused_before_anything_is_timed(
    argv, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(_session, "run_case", None)
    monkeypatch.setattr(_session, "describe_device", None)
    (tmp_path / "file").write_text("")
    assert cli.main(["bench", *[a.format(tmp=tmp_path) for a in argv]]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_the_environment_is_restored(monkeypatch, tmp_path):
    from eqx_fastjit.bench._worker import in_environment

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    with pytest.raises(KeyError), in_environment():
        assert os.environ == before | {"PYTHONSAFEPATH": "1"}
        raise KeyError
    assert os.environ == before


@pytest.mark.parametrize("device", ["gpu", "all"])
def test_absent_gpu(device, capsys, monkeypatch):
    seen = {"device": "cpu", "device_kind": "cpu", "engine": "native"}
    monkeypatch.setattr(_session, "describe_device", lambda device: seen)
    argv = ["bench", "--cases", "identity", "--contenders", "jit", "--rounds", "1"]
    code = cli.main([*argv, "--device", device])
    if device == "gpu":
        assert code == 2
        assert "JAX sees no GPU here" in capsys.readouterr().err
    else:
        assert code == 0
        assert "using the CPU only" in capsys.readouterr().out


def test_no_file_is_left_by_the_check(tmp_path):
    from eqx_fastjit.cli._common import check_output

    check_output("--json", str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b").write_text("kept")
    check_output("--json", str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "kept"


_JITTED = ("whole", "part", "both")


def test_cases_by_group():
    from eqx_fastjit.cli._bench import _chosen_cases

    firsts = [f"strategy_{n}{s}" for n in _JITTED for s in ("", "_first")]
    assert _chosen_cases("strategies,identity,identity") == [
        *firsts,
        "strategy_none",
        "identity",
    ]
    assert len(_chosen_cases("table")) == 9
    assert set(_chosen_cases("table")) < set(_chosen_cases("all"))


def test_list(capsys):
    assert cli.main(["bench", "--list"]) == 0
    assert "strategy_whole" in capsys.readouterr().out


def _run(case, rounds=1, proved=None):
    times = {}
    proved = {} if proved is None else proved
    _session.run_case(
        case, case.contenders, "cpu", rounds, times, proved, lambda n: None
    )
    return times


@pytest.mark.parametrize(
    ("makers", "message"),
    [
        (faulty_cases.differing, "ours and jit return different results"),
        (faulty_cases.failing, "ours: ValueError: faulty$"),
        (faulty_cases.dying, "ours: its process ended with code 3"),
    ],
)
def test_a_contender_that_is_wrong_is_refused(makers, message):
    with pytest.raises(_session.Refused, match=message):
        _run(faulty_cases.make_case(makers))


_GONE = """
from eqx_fastjit.bench import _session
from tests import faulty_cases

if __name__ == "__main__":
    case = faulty_cases.make_case(faulty_cases.waiting)
    # Closed before the contender is built, before it is warm, before the fault can
    # be reported (it was not warm), and while the worker waits for an order.
    for orders in (None, ["warm"], ["round"], []):
        worker = _session._Process(_session.serve, case, "jit", "cpu")
        if orders is not None:
            worker.answer()
            for order in orders:
                worker._pipe.send(order)
        worker._pipe.close()
        worker._process.join()
        print(worker._process.exitcode)
"""


def test_a_worker_whose_parent_is_gone_ends_quietly(tmp_path, start):
    """Without a parent, as after Ctrl-C, it has nobody to answer and prints nothing."""
    (tmp_path / "gone.py").write_text(_GONE)
    root = str(Path(eqx_fastjit.__file__).parent.parent)
    process = start(
        [sys.executable, "gone.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
    stdout, stderr = process.communicate(timeout=120)
    assert (stdout, stderr) == ("0\n" * 4, "")


def test_cases_that_compute_the_same_are_held_to_it():
    proved = {}
    times = _run(faulty_cases.make_case(faulty_cases.agreeing, computes="x"), 2, proved)
    assert {m: {c: len(v) for c, v in by.items()} for m, by in times.items()} == {
        mode: {"jit": 2, "ours": 2} for mode in ("dispatch", "blocked")
    }
    other = faulty_cases.make_case(faulty_cases.differing, computes="x")
    with pytest.raises(_session.Refused, match="ours and jit return different results"):
        _run(other, proved=proved)


def test_virtual_devices_in_a_process_of_their_own():
    case = case_info("sharded")
    times = {}
    _session.run_case(case, ("ours",), "cpu", 1, times, {}, lambda n: None)
    assert {m: list(by) for m, by in times.items()} == {
        "dispatch": ["ours"],
        "blocked": ["ours"],
    }


def test_import_time_is_of_fresh_processes():
    times = {}
    case = case_info("import_time")
    _session.run_case(case, ("jit",), "cpu", 1, times, {}, lambda n: None)
    assert {m: list(by) for m, by in times.items()} == {"import": ["jit"]}


def test_the_package_of_another_folder_is_not_timed(tmp_path, start):
    """The checkout's package is timed, even if another one is in the current folder."""
    decoy = tmp_path / "eqx_fastjit"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise SystemExit('not this one')\n")
    command = [sys.executable, "-P", "-m", "eqx_fastjit.cli", "bench", "--quick"]
    argv = ["--cases", "identity,import_time", "--contenders", "ours"]
    env = {**os.environ, "PYTHONPATH": str(Path(eqx_fastjit.__file__).parent.parent)}
    process = start([*command, *argv, "--device", "cpu"], cwd=tmp_path, env=env)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "import_time" in stdout and stderr == ""


def test_interrupted(tmp_path, start):
    """Ctrl-C keeps the finished cases: `selu` has few rounds, `identity` goes on
    forever.
    """
    out = tmp_path / "a.json"
    argv = ["--cases", "selu,identity", "--contenders", "ours,jit"]
    argv += ["--rounds", "1000000", "--device", "cpu", "--json", str(out)]
    process = start([sys.executable, "-m", "eqx_fastjit.cli", "bench", *argv])
    for line in process.stdout:
        if line.startswith("Timing identity"):
            break
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole group
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stderr == ""
    results = load(out)
    assert results["interrupted"] is True
    first = results["cases"][0]
    assert first["name"] == "selu" and len(first["times"]["blocked"]["ours"]) == 10
    assert "Interrupted" in stdout and "selu" in stdout
