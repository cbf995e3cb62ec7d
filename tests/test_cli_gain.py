"""`eqx-fastjit gain` in this process: its runs, its children, what it writes."""

import json
import math
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _record, cli
from eqx_fastjit.cli import (
    _gain,
    _gain_child,
)
from eqx_fastjit.cli._script import Program
from tests.clock import Clock


pytestmark = [pytest.mark.one_engine, pytest.mark.usefixtures("kept_excepthook")]


FUNCTION = {
    "name": "step",
    "file": "/elsewhere/a.py",
    "line": 7,
    "calls": 9,
    "costs": None,
    "reason": "too long",
}
COUNTED = {
    "engine": "native",
    "compiling": 2.0,
    "caches": False,
    "functions": [FUNCTION, FUNCTION | {"file": None, "line": None}],
}


@pytest.fixture
def gained(program, monkeypatch):
    """Runs of `eqx-fastjit gain`: which, and what they count."""
    state = types.SimpleNamespace(runs=[], found=dict(COUNTED), fail={}, stages=[])

    def seconds(program, out, replay, how):
        state.runs.append(how)
        if how in state.fail:
            raise state.fail[how]
        if how == "count" and state.found is not None:
            with open(out, "w") as file:
                json.dump(state.found, file)
        return {"count": 4.0, "equinox": 3.0, "ours": 1.5}[how]

    class Progress:
        def __init__(self, title):
            assert title == "eqx-fastjit gain"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def stage(self, text, seconds=0.0):
            state.stages.append((text, seconds))

    monkeypatch.setattr(_gain, "_seconds", seconds)
    monkeypatch.setattr("eqx_fastjit._progress.Progress", Progress)
    return state


def test_gain(gained, capsys, tmp_path):
    argv = ["gain", "--json", "a.json", "--html", "a.html", "--pairs", "2", "a.py"]
    assert cli.main(argv) == 0
    assert gained.runs == ["count", "equinox", "ours", "ours", "equinox"]
    assert gained.stages == [
        *[("counting calls", 0), ("pair 1 of runs", 8.0), ("pair 2 of runs", 8.0)]
    ]
    text = (tmp_path / "a.json").read_text()
    assert text.startswith('{\n  "') and text.endswith("}\n")
    found = json.loads(text)
    assert found["wall"]["equinox"] == [3.0, 3.0] and found["wall"]["ours"] == [
        1.5,
        1.5,
    ]
    assert found["program"] == "a.py" and found["engine"] == "native"
    first, second = found["functions"]
    assert (first["name"], first["calls"], first["file"], first["line"]) == (
        *("step", 9),
        *("/elsewhere/a.py", 7),
    )
    out = capsys.readouterr().out
    assert "step (/elsewhere/a.py:7)" in out and "a.py" in out
    assert second["file"] is None and "too long" in out
    assert "<table>" in (tmp_path / "a.html").read_text()


def test_a_report_without_a_number_is_no_json(program, monkeypatch):
    report = types.SimpleNamespace(as_json=lambda: {"x": float("nan")})
    monkeypatch.setattr(_gain, "_compare", lambda *_: (report, False))
    with pytest.raises(ValueError, match="not JSON compliant"):
        cli.main(["gain", "--json", "x", "a.py"])


def test_gain_with_a_persistent_cache(gained):
    gained.found["caches"] = True
    assert cli.main(["gain", "--pairs", "1", "a.py"]) == 0
    assert gained.runs == ["count", "equinox", "equinox", "ours"]


def test_gain_stops_once_it_is_conclusive(gained):
    assert cli.main(["gain", "a.py"]) == 0
    assert len(gained.runs) == 1 + 2 * 3


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "the program ended with `os._exit`, so its calls could not be counted"),
        (
            {"functions": []},
            "the program called no function under equinox.filter_jit, so there is "
            "nothing to gain",
        ),
    ],
)
def test_nothing_to_gain(found, message, gained, capsys):
    gained.found = found
    assert cli.main(["gain", "a.py"]) == 2
    assert capsys.readouterr().err == f"eqx-fastjit: {message}\n"
    assert gained.runs == ["count"]


@pytest.mark.parametrize(
    ("how", "code", "returned", "said"),
    [
        ("ours", 3, 3, "under eqx_fastjit the program ended with exit code 3"),
        ("count", 1, 1, "under eqx_fastjit the program ended with exit code 1"),
        (
            "equinox",
            -9,
            137,
            "under equinox.filter_jit the program was killed (signal 9)",
        ),
    ],
)
def test_a_run_that_fails(how, code, returned, said, gained, capsys):
    text = "".join(f"line {i}\n" for i in range(30)) + "\n"
    gained.fail[how] = _gain._Failed(how, code, text)
    assert cli.main(["gain", "a.py"]) == returned
    lines = capsys.readouterr().err.splitlines()
    assert lines == [*[f"line {i}" for i in range(10, 30)], f"eqx-fastjit: {said}"]


def test_gain_that_is_interrupted(gained, capsys):
    for gained.fail in ({"count": KeyboardInterrupt()}, {"ours": KeyboardInterrupt()}):
        capsys.readouterr()
        with pytest.raises(KeyboardInterrupt):
            cli.main(["gain", "a.py"])
    assert capsys.readouterr() == (
        "",
        "eqx-fastjit gain: interrupted before the first pair of runs\n",
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_gain, "_compare", lambda *_: ("the report", True))
        with pytest.raises(KeyboardInterrupt):
            cli.main(["gain", "a.py"])
    assert capsys.readouterr().out == "the report\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pairs", "0"], "--pairs 0: expected at least 1"),
        (["--seconds", "-0.5"], "--seconds -0.5: expected 0 or more"),
        (["--replay", "nan"], "--replay nan: expected 0 or more"),
        (["--html", "no/a"], "--html: cannot write 'no/a': No such file or directory"),
        (["--json", "no/a"], "--json: cannot write 'no/a': No such file or directory"),
    ],
)
def test_bad_options_of_gain(argv, message, gained, capsys):
    assert cli.main(["gain", *argv, "a.py"]) == 2
    assert capsys.readouterr().err == f"eqx-fastjit: {message}\n"
    assert gained.runs == []


def test_options_at_their_limit(gained):
    argv = ["gain", "--pairs", "1", "--seconds", "0", "--replay", "0", "a.py"]
    assert cli.main(argv) == 0


def test_a_run_of_the_program(program, monkeypatch):
    clock = Clock(tick=1.0)
    monkeypatch.setattr(_gain, "time", clock)
    seen = []

    def command(*args):
        seen.append(args)
        code = "import sys; sys.stderr.write('w\\xe9' + sys.stdin.read()); sys.exit({})"
        return [sys.executable, "-X", "utf8", "-c", code.format(args[-1].name)]

    monkeypatch.setattr(_gain, "command", command)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert _gain._seconds(Program("0", (), False), "out", 2.0, "ours") == 1.0
    package = os.path.dirname(os.path.dirname(eqx_fastjit.__file__))
    assert seen == [(package, "ours", "out", 2.0, Program("0", (), False))]
    with pytest.raises(_gain._Failed) as e:
        _gain._seconds(Program("4", (), False), "out", 2.0, "equinox")
    assert e.value.args == ("equinox", 4, "wé")


@pytest.mark.parametrize("is_module", [True, False])
def test_the_command_of_a_run(is_module):
    program = Program("a", ("-x", "y"), is_module)
    command = _gain_child.command("/folder", "ours", "out", 1.5, program)
    kind = "module" if is_module else "script"
    own = ["/folder", "ours", "out", "1.5", kind, "a", "-x", "y"]
    i = command.index(_gain_child._BOOTSTRAP)
    flags = subprocess._args_from_interpreter_flags()
    assert command == [sys.executable, *flags, "-c", command[i], *own]


@pytest.fixture
def child(monkeypatch):
    done = []

    def run_script(*args):
        done.append(args)
        return child.code

    def install_on_import(then=None):
        done.append(("install", then is not None))

    child = types.SimpleNamespace(done=done, code=0)
    monkeypatch.setattr(_gain_child, "run_script", run_script)
    monkeypatch.setattr(_gain_child, "install_on_import", install_on_import)
    monkeypatch.setattr(_gain_child, "was_interrupted", lambda code: code == 130)
    monkeypatch.setattr(
        _gain_child._Census, "result", lambda self, seconds: {"seconds": seconds}
    )
    return child


@pytest.mark.parametrize(
    ("how", "installed"),
    [("count", [("install", True)]), ("ours", [("install", False)]), ("equinox", [])],
)
def test_a_child(how, installed, child, tmp_path):
    out = tmp_path / "out"
    argv = [how, str(out), "1.5", "module", "name", "x", "y"]
    assert _gain_child.main(argv) == 0
    assert child.done == [*installed, ("name", ["x", "y"], True)]
    assert out.exists() == (how == "count")
    if how == "count":
        assert json.loads(out.read_text()) == {"seconds": 1.5}
    out.unlink(missing_ok=True)
    child.code = 3
    assert _gain_child.main([*argv[:3], "script", "name"]) == 3
    assert child.done[-1] == ("name", [], False) and not out.exists()
    child.code = 130
    with pytest.raises(KeyboardInterrupt):
        _gain_child.main(argv)


def test_the_census(monkeypatch):
    census = _gain_child._Census()
    assert census.result(1.0) == {"functions": []}
    heard = []
    monkeypatch.setattr(
        jax.monitoring, "register_event_duration_secs_listener", heard.append
    )
    census.start()
    (listener,) = heard

    @eqx_fastjit.filter_jit
    def inner(x):
        return x + 1

    @eqx_fastjit.filter_jit
    def outer(x):
        return inner(x)

    _record.traces.clear()
    for _ in range(3):
        outer(jnp.ones(2))
    inner(jnp.ones(3))
    jax.vmap(inner)(jnp.ones((2, 3)))
    for event in ("backend_compile", "jaxpr_to_mlir_module", "jaxpr_trace"):
        listener(f"/jax/core/compile/{event}_duration", 100.0, more=1)
    monkeypatch.setattr(
        "eqx_fastjit.insight._gain_costs.function_costs",
        lambda called, until: (
            (None, f"until {until}")
            if "outer" in called.name
            else (types.SimpleNamespace(ours=2.0), "")
        ),
    )
    clock = Clock()
    monkeypatch.setattr(_gain_child, "time", clock)
    monkeypatch.setattr(census, "_has_persistent_cache", lambda: True)
    traced = [t.trace for t in _record.traces if not t.inlined]
    assert len(traced) < len(_record.traces)
    found = census.result(5.0)
    assert found.pop("compiling") == pytest.approx(200 + sum(traced))
    first, second = found.pop("functions")
    assert found == {"engine": "native", "caches": True}
    line = outer.__wrapped__.__code__.co_firstlineno
    assert first["name"].endswith("outer") and second["name"].endswith("inner")
    assert first == {
        "name": first["name"],
        "file": __file__,
        "line": line,
        "calls": 3,
        "costs": None,
        "reason": "until 1005.0",
    }
    assert second["costs"] == {"ours": 2.0}
    assert census.samples.ranked()[1].transformed == 1
    # It has stopped.
    outer(jnp.ones(2))
    assert [c.calls for c in census.samples.ranked()] == [3, 2]


def test_whether_there_is_a_persistent_cache():
    census = _gain_child._Census()
    assert census._has_persistent_cache() is False
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", "folder")
        assert census._has_persistent_cache() is True
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(("most", "pairs"), [(None, 27), (1, 1), (4, 4), (30, 30)])
def test_pairs_that_stay_inconclusive(most, pairs):
    told, ratios = [], iter([0.5, 2.0] * 15)

    def seconds(how):
        return next(ratios) if how == "ours" else 1.0

    found, interrupted = _gain.take_pairs(seconds, told.append, math.inf, most)
    assert len(found) == pairs and not interrupted
    assert told == list(range(1, pairs + 1))


@pytest.mark.parametrize(("limit", "pairs"), [(5.9, 3), (6.0, 4), (0.0, 3), (1.0, 3)])
def test_pairs_until_a_limit(limit, pairs):
    clock, ratios = Clock(), iter([0.5, 2.0] * 15)

    def seconds(how):
        clock.sleep(1.0)
        return next(ratios) if how == "ours" else 1.0

    found, _ = _gain.take_pairs(seconds, lambda n: None, limit, clock=clock.monotonic)
    assert len(found) == pairs
