"""The table of first results: measured in fresh processes, and put into a page."""

import json

import pytest

import eqx_fastjit
from benchmarks import render, startup
from eqx_fastjit.bench._results import new_results
from scripts import generate_docs


pytestmark = pytest.mark.one_engine


def _entry(name, compiled, reason=None):
    seconds = {"anew": [2.0, 2.0, 4.0], "cached": [1.0, 1.0, 1.0]}
    forms = {"portable": {"bytes": 1000}, "compiled": {"bytes": 3000}}
    if reason is not None:
        forms = {form: {"reason": reason} for form in forms}
        return {"name": name, "forms": forms, "seconds": seconds, "calls": {}}
    seconds |= {"portable": [0.5, 0.5, 0.5], "compiled": compiled}
    calls = {"loaded": [10.0, 11.0], "filter_jit": [10.0, 10.0]}
    return {"name": name, "forms": forms, "seconds": seconds, "calls": calls}


def test_tables():
    programs = [
        _entry("fast", [0.2, 0.2, 0.2]),
        _entry("slow", [2.0, 3.0, 4.0]),
        _entry("none", None, "`model.fn` cannot be exported"),
    ]
    results = new_results("python -m benchmarks.startup", "native")
    text = render.startup_tables(results | {"programs": programs, "imports": [1.0]})
    text = text.replace("\u00a0", " ")
    assert "eqx_fastjit took 1.00 s" in text
    assert "| compiled form | 2 | 0.15 | 0.55 | 0.10 to 1.00 |" in text
    assert "| 0.10 | 1.00 | **no** |" in text
    assert "| portable form, warm persistent cache | 2 | 0.4 | 0.25 |" in text
    assert "| no export, warm persistent cache | 3 |  | 0.50 |" in text
    assert "| 1.05 | 1.05 | yes |" in text
    assert "| `slow` | 2 s | 1.00 (1.00 to 1.50) | 0.25 (0.12 to 0.25) |" in text
    assert "| `none` | 2 s |  |  | 0.50 (0.25 to 0.50) |  |  |" in text
    # Only once, although both forms have this reason.
    assert text.count("- `none`, portable: `model.fn` cannot be exported") == 1


def test_the_interval_of_a_median():
    assert render._median_interval([3.0]) == (3.0, 3.0)
    # Ranks 2 and 9 of 10, and 15 and 29 of 43, as in tables of the sign test.
    assert render._median_interval(list(range(1, 11))) == (2, 9)
    assert render._median_interval(list(range(1, 44))) == (15, 29)


def test_programs_that_are_not_measured_again():
    before = new_results("first", "native")
    before["programs"] = [{"name": "flow"}, {"name": "vit"}]
    before["problems"] = ["flow: slow", "gpt: needs rain"]
    now = new_results("second", "native")
    startup._keep_others(now, before, ["flow"])
    assert now["programs"] == [{"name": "vit"}]
    assert now["problems"] == ["gpt: needs rain"]
    assert now["command"] == "first && second"
    with pytest.raises(SystemExit, match="of another machine"):
        startup._keep_others(now, before | {"engine": "python"}, ["flow"])


def test_the_function_of_a_program_and_its_calls():
    function, args = startup._program("particles")
    assert isinstance(function, eqx_fastjit.JitWrapped)
    assert args[1:] == (0.01, 2.0, "leapfrog")
    times = []

    def change(function, args):
        assert not times
        return lambda *args: times.append(args[0].time) or function(*args)

    call = startup._call("particles", change)
    call(), call()
    assert times == [0.0, pytest.approx(0.01)]


def test_from_a_program_to_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("flatbuffers", reason="the portable form needs it")
    pytest.importorskip("optax")
    out = tmp_path / "startup.json"
    command = ["--json", str(out), "--quick", "--cases", "flow"]
    # In a subprocess that has not used JAX, because it forks.
    run = startup.subprocess.run(
        [startup.sys.executable, "-m", "benchmarks.startup", *command],
        cwd=generate_docs.ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(out.read_text())
    (program,) = results["programs"]
    assert set(program["seconds"]) == set(startup.WAYS)
    assert program["called"] == "compiled" and len(program["calls"]["loaded"]) == 3
    monkeypatch.setattr(generate_docs, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- generated:startup-startup -->\n<!-- /generated:startup-startup -->"
    )
    text, differing = generate_docs.generated(page, ["startup-*"])
    assert differing == ["startup-startup"] and "| `flow` | " in text
    with pytest.raises(SystemExit, match="no program of the zoo: nothing"):
        startup.main([*command[:-1], "nothing"])
