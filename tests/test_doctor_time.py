"""Where a run's time went, and hints to save some: scripts with clean twins."""

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from eqx_fastjit.doctor import _report, _sampler, _text, _time
from eqx_fastjit.doctor._sampler import Sampler, Where
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._watch import Watch


pytestmark = pytest.mark.one_engine


PLANTED = Path(__file__).parent / "planted" / "hints"

# Thresholds are lowered for such short programs; the clean ones have no hint even so.
DRIVER = """
import json, os, sys
from eqx_fastjit.cli._script import Program
from eqx_fastjit.cli._script import run_watched
from eqx_fastjit.doctor import _find, _hints
from eqx_fastjit.doctor._watch import Watch

for name in ("_CACHE", "_EXPORT", "_SCAN", "_RAGGED", "_EAGER"):
    setattr(_hints, name, (1e-3, 0.0))
_hints._EAGER = 0.05, 0.1
import equinox
out = {}
for script in sys.argv[1:]:
    watch = Watch()
    code = run_watched(Program(script, (), False), watch)
    name = os.path.basename(script).removesuffix(".py")
    out[name] = _find.make_report(watch, script, code).as_json()
print(json.dumps(out), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def planted():
    # The script that sets a cache directory for the whole process runs last.
    scripts = sorted(PLANTED.glob("*.py"), key=lambda p: p.stem.endswith("cache_clean"))
    out = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, scripts)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert out.returncode == 0, out.stderr
    return json.loads(out.stderr.splitlines()[-1])


# For each hint: its line, if it has one, and part of the message.
HINTS = {
    "persistent_cache": (None, "a second run would take about"),
    "export": ("f(jnp.ones(50))", "tracing and lowering f took"),
    "scan_layers": ("for layer in self.layers:", "iterations of this loop are alike"),
    "ragged_batch": (
        "params = step(params",
        "batches of 8, and one of 6 (`batch['x']`",
    ),
    "eager_operations": (
        "x = jnp.where(x > 1e-3",
        "JAX operations outside of jit took",
    ),
}


def hints(report, name):
    kind = name.removesuffix("_clean").replace("_", "-")
    return [hint for hint in report["hints"] if hint["kind"] == kind]


def test_each_hint_is_planted():
    names = {path.stem for path in PLANTED.glob("*.py")}
    assert names == {*HINTS, *[f"{name}_clean" for name in HINTS]}
    assert {name.replace("_", "-") for name in HINTS} == _report.HINTS.keys()


@pytest.mark.parametrize("name", HINTS)
def test_hint(name, planted):
    (hint,) = hints(planted[name], name)
    text, message = HINTS[name]
    assert message in hint["message"] and hint["fix"] and hint["seconds"] > 0
    if text is None:
        assert hint["line"] is None
    else:
        lines = (PLANTED / f"{name}.py").read_text().splitlines()
        assert text in lines[hint["line"] - 1]


@pytest.mark.parametrize("name", HINTS)
def test_clean_twin_of_a_hint(name, planted):
    assert hints(planted[f"{name}_clean"], name) == []


def test_a_quick_program_hears_nothing(tmp_path):
    path = tmp_path / "quick.py"
    path.write_text((PLANTED / "scan_layers.py").read_text())
    command = [sys.executable, "-m", "eqx_fastjit.cli", "doctor", "quick.py"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "quick.py: nothing found" in out.stderr, out.stderr
    assert "XLA's compiler" in out.stderr and "imports" in out.stderr


def test_the_parts_of_each_run_add_up(planted):
    for report in planted.values():
        spent = report["time"]
        parts = [part["seconds"] for part in spent["parts"]]
        assert sum(parts) == pytest.approx(spent["seconds"])
        assert min(parts) >= 0 and parts == sorted(parts, reverse=True)


# --- parts of the time ---------------------------------------------------------------


def line(number):
    return Line(__file__, number, "f")


def test_samples_while_something_was_compiled_are_not_counted():
    sampler = Sampler(lambda: [(30.0, 40.0), (12.0, 14.0), (13.0, 15.0)])
    a, b = Where("line", line(1)), Where("jax", line(2))
    for found, start, end in ((a, 10, 12), (a, 12, 16), (b, 16, 20), (a, 31, 32)):
        sampler.add(found, float(start), float(end))
    assert sampler.seconds() == {a: 3.0, b: 4.0}


def test_old_samples_are_summed_up(monkeypatch):
    monkeypatch.setattr(_sampler, "_MAX_STRETCHES", 10)
    sampler = Sampler(lambda: [(0.0, 1.0)])
    for i in range(100):
        sampler.add(Where("line", line(i % 2)), float(i), i + 1.0)
    assert len(sampler._stretches) <= 10
    assert sum(sampler.seconds().values()) == 99


def test_where_a_thread_is():
    import jax

    def inner():
        return _sampler.where(sys._getframe())

    assert inner().kind == "line" and inner().line.file == __file__
    found = jax.tree.map(lambda _: _sampler.where(sys._getframe(1)), 1)
    assert (found.kind, found.line.file) == ("jax", __file__)
    found = [textwrap.wrap("a"), max([1], key=lambda _: 0)] and _in_library()
    assert (found.kind, found.line.file) == ("library", __file__)


def _in_library():
    import functools

    seen = []

    @functools.singledispatch
    def call(x):
        seen.append(_sampler.where(sys._getframe(1)))

    call(1)
    return seen[0]


def test_parts_and_lines():
    watch = Watch()
    watch.started, watch.seconds, watch.own_seconds = 0.0, 100.0, 10.0
    watch.sampler.add(Where("line", line(1)), 0.0, 30.0)
    watch.sampler.add(Where("library", line(2)), 30.0, 31.0)
    watch.sampler.add(Where("jax", line(3)), 31.0, 45.0)
    watch.sampler.add(Where("own", None), 45.0, 50.0)
    spent = _time.time_spent(watch)
    # Measured time is kept, and only the rest is divided by samples.
    assert {part.name: part.seconds for part in spent.parts} == pytest.approx(
        {"python": 62.0, "eager": 28.0, "own": 10.0}
    )
    assert [x.line for x in spent.parts[0].lines] == [1, 2]
    rows = _text.time_rows(spent)
    assert rows[0][:4] == ("python", "1 min 2 s", "62%", "Python, outside of JAX")
    assert rows[0].lines[1].endswith("test_doctor_time.py:2 2 s")


def test_more_was_measured_than_there_was_time():
    """Several threads can add up to more than the time of the run."""
    watch = Watch()
    watch.started, watch.seconds, watch.own_seconds = 0.0, 1.0, 10.0
    spent = _time.time_spent(watch)
    assert [part.seconds for part in spent.parts] == [1.0]


def test_the_sampler_looks_and_stops():
    watch = Watch()
    watch.begin()
    while not watch.sampler.seconds():
        time.sleep(0.01)
    watch.stop()
    before = watch.sampler.seconds()
    time.sleep(0.1)
    assert watch.sampler.seconds() == before


def test_no_green_for_a_run_that_compiles():
    part = _report.TimePart("compile", "XLA's compiler", 20.0, ())
    spent = _report.TimeSpent(23.0, (part,))
    report = _report.Report("p", 0, 23.0, (), (), (), (), time=spent)
    headline = _report.headline(report)
    assert headline == "nothing wrong, but 20 s of 23 s were spent compiling"
    assert not _report.is_good(report)
    assert _report.is_good(_report.Report("p", 0, 23.0, (), (), (), ()))
