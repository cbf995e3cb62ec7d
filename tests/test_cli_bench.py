"""`eqx-fastjit bench` in this process: what is chosen, run, written and returned."""

import argparse
import functools
import json

import pytest
from rich.console import Console

from eqx_fastjit import bench, cli
from eqx_fastjit.bench import _page, _plots, _results, _run, _session, _table
from eqx_fastjit.cli import _bench, _common
from eqx_fastjit.cli._common import CommandError


pytestmark = pytest.mark.one_engine


def parse(*argv):
    parser = argparse.ArgumentParser()
    _bench.declare(parser)
    return parser.parse_args(argv)


def test_defaults():
    assert vars(parse()) == {
        **dict.fromkeys(("contenders", "device", "rounds", "json", "html", "plot")),
        **dict.fromkeys(("compare", "fail_above")),
        **dict.fromkeys(("quick", "list", "ratios"), False),
        "cases": "table",
    }
    assert vars(parse("--quick", "--list", "--ratios"))["ratios"] is True


@pytest.mark.parametrize(
    ("argv", "rounds"),
    [
        ([], 25),
        (["--quick"], 5),
        (["--rounds", "1"], 1),
        (["--rounds", "7", "--quick"], 7),
    ],
)
def test_rounds(argv, rounds):
    assert _bench._rounds(parse(*argv)) == rounds


@pytest.mark.parametrize("rounds", [0, -1])
def test_bad_rounds(rounds):
    with pytest.raises(CommandError, match=f"--rounds {rounds}: expected at least 1"):
        _bench._rounds(parse("--rounds", str(rounds)))


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], ""),
        (["--cases", "table"], ""),
        (["--device", "cpu", "--quick"], " --device cpu --quick"),
        (["--cases", "a b", "--rounds", "3"], " --cases 'a b' --rounds 3"),
        (["--contenders", "jit", "--json", "x"], " --contenders jit"),
    ],
)
def test_the_command_that_is_recorded(argv, command):
    assert _bench._command(parse(*argv)) == "eqx-fastjit bench" + command


def test_chosen_cases():
    chosen = _bench._chosen_cases
    assert chosen("table") == ["identity", *(f"mlp_{2**n}" for n in range(3, 11))]
    # A name that is that of a case and of a group is that of the case.
    assert chosen("identity") == ["identity"]
    assert chosen(" batch_4 , identity,batch_4") == ["batch_4", "identity"]
    assert chosen("wrapping,identity") == [
        "lambda_in_loop",
        "named_in_loop",
        "identity",
    ]
    with pytest.raises(CommandError) as e:
        chosen("wrappings")
    assert str(e.value) == (
        "no case or group 'wrappings'; did you mean 'wrapping'? (--list shows all)"
    )
    with pytest.raises(CommandError, match=r"^--cases: expected at least one name$"):
        chosen(" ,")


def test_chosen_contenders(monkeypatch):
    chosen = _bench._chosen_contenders
    cases = ["mlp_8", "method", "selu"]
    assert chosen(None, ["method"]) == {"method": ("jit", "eqx", "ours")}
    assert chosen("ours,eager,flat", cases) == {
        "mlp_8": ("flat", "ours"),
        "method": ("ours",),
        "selu": ("eager", "ours"),
    }
    assert chosen("flat", cases) == {"mlp_8": ("flat",)}
    for text, message in (
        (
            "x",
            "no contender 'x'; expected one of eager, jit, flat, aot, eqx, ours, nnx",
        ),
        ("jit,nnx_jit", "no chosen case has the contender 'nnx_jit'"),
    ):
        with pytest.raises(CommandError) as e:
            chosen(text, cases[1:])
        assert str(e.value).startswith(message)
    needed = []
    monkeypatch.setattr(_bench, "need", lambda *names: needed.append(names))
    chosen("jit,nnx_jit", ["mlp_8"])
    assert needed == [("flax",)]


def test_cases_that_need_what_is_missing(monkeypatch):
    missing = {"mlp_8": (), "method": ("abc", "de"), "selu": ("x",)}

    class Info:
        def __init__(self, name):
            self.missing = missing[name]

    monkeypatch.setattr(bench, "case_info", Info)
    lines = [
        "Skipped method, which needs abc and de: pip install abc de",
        "Skipped selu, which needs x: pip install x",
    ]
    assert _bench._without_missing([*missing]) == (["mlp_8"], lines)
    with pytest.raises(CommandError) as e:
        _bench._without_missing(["method", "selu"])
    assert str(e.value) == "; ".join(lines)


def test_packages_that_are_needed():
    _common.need("json", "rich")
    with pytest.raises(CommandError) as e:
        _common.need("no_such", "json", "nor_this")
    assert str(e.value) == (
        "this command needs no_such and nor_this: pip install no_such nor_this"
    )


CPU = {"device": "cpu", "device_kind": "cpu", "engine": "native"}
GPU = {"device": "gpu", "device_kind": "fast", "engine": "native"}


@pytest.mark.parametrize(
    ("there", "option", "devices"),
    [
        (CPU, None, [CPU]),
        (GPU, None, [GPU]),
        (GPU, "cpu", [CPU]),
        (GPU, "gpu", [GPU]),
        (GPU, "all", [CPU, GPU]),
        (CPU, "all", [CPU]),
        (CPU, "gpu", "--device gpu: JAX sees no GPU here; it runs on cpu"),
        (None, None, "JAX does not start: why"),
    ],
)
def test_devices(there, option, devices, monkeypatch):
    def describe(device):
        if there is None:
            raise _session.Refused("why")
        return CPU if device == "cpu" else there

    monkeypatch.setattr(_session, "describe_device", describe)
    if isinstance(devices, list):
        assert _bench._devices(option) == devices
    else:
        with pytest.raises(CommandError) as e:
            _bench._devices(option)
        assert str(e.value) == devices


def a_result(name="identity"):
    times = {"ours": [1.0, 1.0], "jit": [2.0, 2.0]}
    return {
        "name": name,
        "group": "identity",
        "title": "",
        "unit": "us",
        "size": {},
        "device": "cpu",
        "device_kind": "cpu",
        "times": {"dispatch": times, "blocked": times},
    }


@pytest.fixture
def ran(monkeypatch):
    """The jobs that the command runs; they find what is in `outcome`."""
    jobs, outcome, devices = [], {"cases": [a_result()]}, [CPU]

    def run_jobs(console, given, results):
        jobs.extend(given)
        results.update(outcome)

    monkeypatch.setattr(_run, "run_jobs", run_jobs)
    monkeypatch.setattr(_bench, "_devices", lambda option: devices)
    return argparse.Namespace(jobs=jobs, outcome=outcome, devices=devices)


def test_jobs(ran, capsys):
    assert cli.main(["bench", "--cases", "identity,selu,sharded"]) == 0
    assert [(j.case.name, j.rounds, j.device) for j in ran.jobs] == [
        ("identity", 25, CPU),
        ("selu", 10, CPU),
        ("sharded", 25, CPU),
    ]
    assert ran.jobs[1].contenders == ("eager", "jit", "eqx", "ours")
    out = capsys.readouterr().out
    assert "using the CPU only" not in out and "Interrupted" not in out


def test_jobs_on_two_devices(ran, capsys):
    ran.devices.append(GPU)
    argv = ["bench", "--cases", "sharded,selu", "--device", "all", "--rounds", "3"]
    assert cli.main([*argv, "--contenders", "ours"]) == 0
    assert [(j.case.name, j.device["device"], j.rounds) for j in ran.jobs] == [
        ("sharded", "cpu", 3),
        ("selu", "cpu", 3),
        ("selu", "gpu", 3),
    ]
    assert "using the CPU only" not in capsys.readouterr().out
    del ran.devices[1]
    assert cli.main(argv) == 0
    assert "JAX sees no GPU here: using the CPU only." in capsys.readouterr().out
    ran.devices[:] = [GPU]
    assert cli.main(["bench", "--cases", "sharded"]) == 2
    assert capsys.readouterr().err == (
        "eqx-fastjit: none of these cases runs on a GPU\n"
    )


def test_cases_are_skipped_with_a_line(ran, capsys, monkeypatch):
    line = "Skipped selu, which needs [x]"
    monkeypatch.setattr(_bench, "_without_missing", lambda c: (["identity"], [line]))
    assert cli.main(["bench", "--cases", "identity,selu"]) == 0
    assert capsys.readouterr().out.startswith(line + "\n")
    assert [j.case.name for j in ran.jobs] == ["identity"]


@pytest.mark.parametrize(
    ("outcome", "code", "written"),
    [
        ({"problems": ["x"]}, 1, True),
        ({"problems": ["x"], "interrupted": True}, 130, True),
        ({"interrupted": True, "cases": []}, 130, False),
        ({"problems": ["x"], "cases": []}, 1, False),
        ({}, 0, True),
    ],
)
def test_exit_codes(outcome, code, written, ran, tmp_path, capsys):
    ran.outcome.update(outcome)
    path = tmp_path / "a.json"
    argv = ["bench", "--cases", "identity", "--json", str(path)]
    assert cli.main(argv) == code
    out = capsys.readouterr().out
    assert out.count("Interrupted. The results so far are shown above.") == (
        code == 130
    )
    assert path.exists() == written
    if written:
        found = json.loads(path.read_text())
        assert found["cases"] == [a_result()]
        assert found["command"] == "eqx-fastjit bench --cases identity"


def test_interrupted_before_anything_is_run(monkeypatch):
    def interrupt(option):
        raise KeyboardInterrupt

    monkeypatch.setattr(_bench, "_devices", interrupt)
    assert cli.main(["bench", "--cases", "identity"]) == 130


def test_figures_that_are_written(ran, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        _plots, "render", lambda results, suffix: {"ratios_cpu": suffix.encode()}
    )
    monkeypatch.setattr(_page, "page", lambda results: "the page")
    folder = tmp_path / "new" / "plots"
    argv = ["bench", "--cases", "identity", "--plot", str(folder)]
    assert cli.main([*argv, "--html", str(tmp_path / "a.html")]) == 0
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "ratios_cpu.png": "png",
        "ratios_cpu.svg": "svg",
    }
    assert (tmp_path / "a.html").read_text() == "the page"
    lines = capsys.readouterr().out.replace("\n", " ").split("The figure ")[1:]
    assert [line.partition(" was")[0] for line in lines] == ["'width'", "'nodes'"]


def test_a_folder_that_goes_while_cases_run(ran, tmp_path, capsys, monkeypatch):
    path = tmp_path / "sub" / "a.json"
    path.parent.mkdir()
    monkeypatch.setattr(_table, "print_results", lambda *_: path.parent.rmdir())
    assert cli.main(["bench", "--cases", "identity", "--json", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"eqx-fastjit: cannot write {path}: No such file or directory\n"
    )


@pytest.mark.parametrize("option", ["--html", "--plot"])
def test_packages_for_figures(option, ran, monkeypatch, tmp_path):
    needed = []
    monkeypatch.setattr(_bench, "need", lambda *names: needed.append(names))
    monkeypatch.setattr(_bench, "_write", lambda *_: None)
    assert cli.main(["bench", "--cases", "identity", option, str(tmp_path / "a")]) == 0
    assert needed == [("rich",), ("matplotlib",)]


def test_the_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[x.strip() for x in line.split("│")[1:-1]] for line in lines if "│" in line]
    row = next(row for row in rows if row[0] == "selu")
    assert row == ["selu", "eager", "SELU on a million numbers", "eager jit eqx ours"]
    assert len(rows) > 80 and rows[0][0] == "identity"


# --- comparing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cpu"], "--device cannot be used with --compare"),
        (["--rounds", "3"], "--rounds cannot be used with --compare"),
        (["--quick"], "--quick cannot be used with --compare"),
        (["--list"], "--list cannot be used with --compare"),
        (["--html", "x", "--cases", "y"], "--cases cannot be used with --compare"),
        (["--fail-above", "inf"], "--fail-above inf: expected a percentage"),
    ],
)
def test_options_that_are_not_for_comparing(argv, message, capsys):
    assert cli.main(["bench", "--compare", "a", "b", *argv]) == 2
    assert capsys.readouterr().err == f"eqx-fastjit: {message}\n"


@pytest.mark.parametrize(
    ("limit", "code"), [("50", 0), ("49.9", 1), ("-60", 1), ("0", 1)]
)
def test_above_a_limit(limit, code, tmp_path, capsys):
    before = _results.new_results("", "native") | {"cases": [a_result()]}
    after = json.loads(json.dumps(before))
    after["cases"][0]["times"]["blocked"]["ours"] = [1.5, 1.5]
    after["cases"][0]["times"]["dispatch"]["ours"] = [0.5, 0.5]
    paths = []
    for name, found in (("a", before), ("b", after)):
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_text(_results.dumps(found))
    command = ["bench", "--compare", *paths, "--fail-above", limit]
    assert cli.main(command) == code
    out = capsys.readouterr().out
    line = f"identity (cpu), blocked, ours: +50.0% is above {limit}%\n"
    assert (line in out) == bool(code)
    # At -60% all four are above, at 0% one.
    assert out.count("is above") == {"50": 0, "49.9": 1, "-60": 4, "0": 1}[limit]
    assert cli.main(command[:-2]) == 0


def test_lines_in_colour(tmp_path, capsys, monkeypatch, ran):
    """A line is red or yellow as a whole: nothing in it is markup, or highlighted."""
    options = {"force_terminal": True, "color_system": "standard", "width": 300}
    monkeypatch.setattr("rich.console.Console", functools.partial(Console, **options))
    before = _results.new_results("", "native")
    before["cases"] = [a_result("a [b] 1"), a_result("b [b] 2")]
    after = json.loads(json.dumps(before))
    del after["cases"][1]
    after["cases"][0]["times"]["blocked"]["ours"] = [1.5, 1.5]
    for name, found in (("a", before), ("b", after)):
        (tmp_path / name).write_text(_results.dumps(found))
    files = [str(tmp_path / name) for name in "ab"]
    assert cli.main(["bench", "--compare", *files, "--fail-above", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert lines == [
        "\x1b[31ma [b] 1 (cpu), blocked, ours: +50.0% is above 5%\x1b[0m",
        *[
            f"\x1b[31mb [b] 2 (cpu), {mode}, {name}: missing in B\x1b[0m"
            for mode in ("dispatch", "blocked")
            for name in ("ours", "jit")
        ],
    ]
    line = "Skipped [b] 1"
    monkeypatch.setattr(_bench, "_without_missing", lambda c: (["identity"], [line]))
    cli.main(["bench", "--cases", "identity"])
    assert capsys.readouterr().out.startswith(f"\x1b[33m{line}\x1b[0m\n")
