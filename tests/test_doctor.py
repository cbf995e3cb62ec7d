"""`eqx-fastjit doctor`: planted faults and their clean twins, the command, the page."""

import html.parser
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest

from eqx_fastjit import cli
from eqx_fastjit.doctor import _causes, _find, _page, _plain, _report, _text
from tests.doctor_reports import reports_of


pytestmark = pytest.mark.one_engine


PLANTED = Path(__file__).parent / "planted"
DOCTOR = [sys.executable, "-m", "eqx_fastjit.cli", "doctor"]


@pytest.fixture(scope="module")
def planted():
    scripts = sorted(map(str, PLANTED.glob("*.py")))
    return reports_of(scripts, XLA_FLAGS="--xla_force_host_platform_device_count=6")


# For each fault: kind, leaf, part of the line at fault, and number of occurrences.
FAULTS = {
    "blocking": [("blocking", "", "losses.append(float(loss))", 25)],
    "blocking_numpy": [("blocking", "x", "make_step(w, x, y)", 25)],
    "closures": [("stale-global", "SCALE", "m * SCALE - y", 1)],
    "config_churn": [
        ("config-churn", "jax_default_matmul_precision", "product(jnp.ones((4, 4)))", 4)
    ],
    "dtype_churn": [("dtype-churn", "state", "state = step(", 1)],
    "dtype_churn_once": [("dtype-churn", "x", "self._step(self.model", 1)],
    "fresh_function": [("fresh-function", "<lambda>", "lambda y: y * 0.5", 5)],
    "inlined_function": [("inlined-function", "", "y = jnp.sin(x + shift)", 24)],
    "kinds_of_keys": [("dtype-churn", "key", "noise(key)", 1)],
    "large_constant": [("large-constant", "float32[1500,1000]", "DATA @ w", 1)],
    "numerics": [("numerics", "result['product']", "@eqx.filter_jit", 1)],
    "outside_jit": [("outside-jit", "scan", "xs = jax.vmap(lambda x", 5)],
    "plain_jit": [
        ("fresh-function", "", "jax.jit(lambda x: x + 1)", 5),
        ("shape-churn", "tokens", "total({", 4),
        ("static-churn", "argument 1", "power(jnp.ones(2), n)", 4),
    ],
    "shape_churn": [("shape-churn", "tokens", "total(params", 4)],
    "sharding_churn": [("sharding-churn", "batch['tokens']", "total({", 5)],
    "slow_first_call": [("slow-first-call", "", "@eqx.filter_jit", 1)],
    "stale_global": [("stale-global", "RATE", "return x - RATE * x", 1)],
    "stale_methods": [
        ("stale-global", "SETTINGS.temperature", "jnp.exp(self.logits", 1),
        ("stale-global", "EPSILON", "return (1 - EPSILON) * x", 1),
    ],
    "static_churn": [("static-churn", "step", "x = decay(x, step)", 4)],
    "structure_churn": [("structure-churn", "history", "mean(history)", 5)],
    "unrolled_loop": [("unrolled-loop", "", "for _ in range(200)", 200)],
    "weak_type": [("weak-type", "carry['loss']", "carry = step(carry", 1)],
}


def test_each_fault_is_planted():
    names = {path.stem for path in PLANTED.glob("*.py")}
    assert names == {*FAULTS, *[f"{name}_clean" for name in FAULTS]}
    kinds = {kind for found in FAULTS.values() for kind, *_ in found}
    assert kinds == _report.KINDS.keys()


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name, planted):
    path = PLANTED / f"{name}.py"
    lines = path.read_text().splitlines()
    found = sorted(planted[name]["findings"], key=lambda f: f["kind"])
    assert len(found) == len(FAULTS[name])
    for finding, (kind, leaf, text, count) in zip(found, FAULTS[name], strict=True):
        assert finding["file"] == str(path)
        assert text in lines[finding["line"] - 1]
        assert (finding["kind"], finding["leaf"]) == (kind, leaf)
        # The result of the first call may be ready before it is asked for.
        assert finding["count"] in (count, count - (name == "blocking_numpy"))
        timeless = ("stale-global", "numerics", "large-constant")
        if kind in timeless:
            assert finding["seconds"] is None
        else:
            assert 0 < finding["seconds"] <= planted[name]["time"]["seconds"]
        assert finding["message"] and finding["fix"]


@pytest.mark.parametrize("name", FAULTS)
def test_clean_twin(name, planted):
    report = planted[f"{name}_clean"]
    assert report["findings"] == [] and report["exit_code"] == 0
    # The clean program did call jitted functions.
    assert any(row["jit"] != "jax" for row in report["functions"])


# Parts of the message and of the fix.
SAID = {
    "blocking": ["float() needs the value of an array", "every few steps"],
    "blocking_numpy": [
        "Each call of `make_step` here blocks until its result is ready, because `x`, "
        "`y` are NumPy arrays",
        "Write `make_step(w, jnp.asarray(np.array(x)), jnp.asarray(np.array(y)))`",
    ],
    "closures": ["was 0.5 (float32) when", "is 0.0625 (float32) at", "Pass `SCALE`"],
    "config_churn": ["Set `jax_default_matmul_precision` once"],
    "dtype_churn": ["int32 -> float32", "dtype=jnp.float32"],
    "dtype_churn_once": ["float32 -> float16", "x, dtype=jnp.float32)"],
    "kinds_of_keys": ["uint32 -> key<fry>", "typed keys"],
    "outside_jit": ["`eqx.filter_jit(jax.vmap(lambda x: simulate(x, 3)))(xs)`"],
    "plain_jit": ["Write `power(jnp.ones(2), jnp.asarray(n))`"],
    "shape_churn": [
        "(3,), (4,), (5,), (6,), (7,)",
        "Drop the ragged last batch, or fix the length.",
        "Padding keeps results only if you also pass the true length",
        "Axis 0 of `tokens` padded to 4, 7 is 2 programs in",
    ],
    "sharding_churn": ["jax.device_put"],
    "stale_global": ["`step.clear_cache()`"],
    "static_churn": ["Write `decay(x, jnp.asarray(step))`"],
    "unrolled_loop": ["Write `for _ in range(200):` as", "fori_loop(0, 200, ...)"],
    "weak_type": ["`'loss': jnp.asarray(0.0, dtype=jnp.float32)` in line 12."],
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said(name, planted):
    text = " ".join(f"{f['message']} {f['fix']}" for f in planted[name]["findings"])
    for part in SAID[name]:
        assert part in text, text


def test_why_a_call_blocks():
    """A program with a host callback has finished when the call returns on the CPU."""
    import equinox as eqx
    import jax.numpy as jnp

    import eqx_fastjit
    from eqx_fastjit.doctor._blocked import blocking
    from eqx_fastjit.doctor._sites import Line
    from eqx_fastjit.doctor._waits import CALL, Waiting
    from eqx_fastjit.doctor._watch import Watch

    @eqx_fastjit.filter_jit
    def update(x):
        return eqx.error_if(x, jnp.any(jnp.isnan(x)), "a NaN")

    watch = Watch()
    watch.jax_imported()
    watch.equinox_imported()
    try:
        update(jnp.ones(2))
    finally:
        watch.stop()

    def found(expression, what=CALL):
        waiting = Waiting(Line("a.py", 1), what, expression, 20, 2.0, 1.0, 0.0, 3.0)
        (finding,) = blocking([waiting], list(watch.seen.values()), 4.0)
        return finding.message, finding.fix

    message, fix = found("update(x)")
    assert "Each call of `update` here blocks" in message
    assert "a host callback in it may raise (`return eqx.error_if(" in message
    assert "test_doctor.py:" in message and "EQX_ON_ERROR=off" in fix
    message, fix = found("other(x)")
    assert "it has a host callback, or large NumPy arrays as arguments" in message
    message, fix = found("loss.block_until_ready()", ".block_until_ready()")
    assert message.startswith(".block_until_ready() needs the value")


def test_a_value_that_a_later_trace_has():
    import jax.numpy as jnp

    import eqx_fastjit
    from eqx_fastjit.doctor._watch import Watch

    rate = 0.5

    @eqx_fastjit.filter_jit
    def decay(x):
        return x * rate

    watch = Watch()
    watch.jax_imported()
    watch.equinox_imported()
    try:
        decay(jnp.ones(2))
        rate = 0.25
        (before,) = _find._stale(watch)
        decay(jnp.ones(3))
        after = list(_find._stale(watch))
        rate = 0.125
        (again,) = _find._stale(watch)
    finally:
        watch.stop()
    end = "calls with the same signature still use the old value"
    assert "`rate` was 0.5" in before.message and before.message.endswith(end)
    assert after == []
    assert "`rate` was 0.25" in again.message and again.message.endswith(end)
    assert (before.count, again.count) == (1, 2)


SETTING = 0.5


def test_functions_of_a_function_that_has_returned(monkeypatch):
    import jax.numpy as jnp

    import eqx_fastjit
    from eqx_fastjit.doctor._watch import Watch

    def train(then):
        @eqx_fastjit.filter_jit
        def decay(x):
            return x * SETTING

        for n in range(2, 6):
            decay(jnp.ones(n))
        monkeypatch.setitem(globals(), "SETTING", then)

    watch = Watch()
    watch.jax_imported()
    watch.equinox_imported()
    try:
        train(0.25)
        (first,) = _find._stale(watch)
        train(0.25)
        second = list(_find._stale(watch))
        train(0.125)
        (third,) = _find._stale(watch)
    finally:
        watch.stop()
    assert "`SETTING` was 0.5 " in first.message and second == []
    assert "`SETTING` was 0.5 " in third.message


def test_a_function_that_was_inlined_first(planted):
    """A function that is first inlined and later called has two causes, each counted
    once.

    Its seconds are those of its traces and compilations.
    """
    rows = {r["function"]: r for r in planted["closures_clean"]["functions"]}
    row = rows["forward"]
    assert (row["traces"], row["compiles"]) == (1, 1)
    assert row["causes"] == {"inlined": 1, "first-call": 1}
    for row in rows.values():
        parts = row["trace"] + row["lower"] + row["compile"] + row["first_run"]
        assert row["seconds"] == pytest.approx(parts)
        assert row["jit"] != "filter_jit" or sum(row["causes"].values()) >= max(
            row["traces"], row["compiles"]
        )


def test_what_the_tables_say(planted):
    (row,) = [r for r in planted["shape_churn"]["functions"] if r["jit"] != "jax"]
    assert (row["function"], row["jit"]) == ("total", "filter_jit")
    assert (row["traces"], row["compiles"], row["objects"]) == (5, 5, 1)
    assert row["causes"] == {"shape-churn": 4, "first-call": 1}
    parts = row["trace"] + row["lower"] + row["compile"] + row["first_run"]
    assert abs(row["seconds"] - parts) < 1e-6
    plain = {r["function"]: r for r in planted["plain_jit"]["functions"]}
    assert plain["power"]["jit"] == "jax.jit"
    assert plain["power"]["causes"] == {"static-churn": 4, "first-call": 1}
    assert plain["<lambda>"]["objects"] == 6
    assert any("plain `jax.jit`" in note for note in planted["plain_jit"]["notes"])
    (note,) = planted["numerics_clean"]["notes"]
    assert note == "donates donates its arguments, so it was not compared."


# --- the command ---------------------------------------------------------------------


def run(args, cwd, **env):
    return subprocess.run(
        [*DOCTOR, *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


FAULTY = """
    import sys
    import equinox as eqx
    import jax.numpy as jnp

    @eqx.filter_jit
    def f(x, n):
        return x * n

    for n in range(5):
        f(jnp.ones(2), n)  # <b>&
    print("out", sys.argv[1:], eqx.filter_jit.__module__)
    {end}
"""


def write(tmp_path, text, **parts):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text).format(**parts))
    return path


def test_reports_and_exit_codes(tmp_path):
    write(tmp_path, FAULTY, end="sys.exit(int(sys.argv[2]))")
    options = ["--json", "a.json", "--html=a.html", "--fail-on", "static-churn"]
    out = run([*options, "script.py", "--json", "0"], tmp_path)
    # Options directly after the script are still the doctor's; `--` ends them.
    assert out.returncode == 1 and "IndexError" in out.stderr
    out = run([*options, "script.py", "--", "--json", "0"], tmp_path)
    assert out.returncode == 1, out.stderr
    assert out.stdout == "out ['--json', '0'] eqx_fastjit._jit\n"
    assert "static-churn (low)  script.py:11" in out.stderr
    assert "> f(jnp.ones(2), n)  # <b>&" in out.stderr
    assert "\x1b" not in out.stderr
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["schema"] == 1
    (finding,) = data["findings"]
    assert list(finding) == [
        "kind",
        "severity",
        "function",
        "file",
        "line",
        "leaf",
        "seconds",
        "count",
        "message",
        "fix",
    ]
    assert (finding["kind"], finding["line"], finding["leaf"]) == (
        "static-churn",
        11,
        "n",
    )
    text = (tmp_path / "a.html").read_text()
    assert "static-churn" in text and "<b>&" not in text and "&lt;b&gt;" in text
    check_page(text)


def test_programs_are_kept_if_asked_for(tmp_path):
    program = """
        import equinox as eqx
        import jax.numpy as jnp

        @eqx.filter_jit(donate="all")
        def f(x, n):
            return x @ x * n

        for n in range(2):
            f(jnp.ones((4, 4)), n)
    """
    write(tmp_path, program)
    for options in ([], ["--programs"]):
        out = run(["--json", "a.json", *options, "script.py"], tmp_path)
        assert out.returncode == 0, out.stderr
        compilations = json.loads((tmp_path / "a.json").read_text())["compilations"]
        first, second = [c for c in compilations if c["function"] == "f"]
        assert (first["cause"], second["cause"]) == ("first-call", "static-churn")
        assert first["changes"] == []
        (change,) = second["changes"]
        assert change == {
            "path": "n",
            "what": "static",
            "old": "0 (int)",
            "new": "1 (int)",
        }
        assert second["argument_bytes"] == 64
        assert second["earlier"] == second["site"] == "script.py:10"
        assert (second["program"] is None) == (options == [])
    kept = second["program"]
    assert "dot_general" in kept["jaxpr"] and "module" in kept["stablehlo"]
    assert "HloModule" in kept["hlo"] and "FileNames" not in kept["hlo"]
    assert kept["flops"] >= 4 * 4 * 4 and kept["argument_bytes"] == 64
    # The doctor's own compilations are not listed.
    assert len([c for c in compilations if c["function"] == "f"]) == 2


def test_a_program_that_fails(tmp_path):
    write(tmp_path, FAULTY, end="raise ValueError('own error')")
    out = run(["--json", "a.json", "--fail-on", "any", "script.py"], tmp_path)
    assert out.returncode == 1
    assert 'script.py", line 13, in <module>\n    raise ValueError' in out.stderr
    assert out.stderr.index("own error") < out.stderr.index("1 finding")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["exit_code"] == 1 and len(data["findings"]) == 1


def test_interrupted(tmp_path, start):
    write(tmp_path, FAULTY, end="sys.stdout.flush(); import time; time.sleep(60)")
    process = start([*DOCTOR, "script.py", "--json", "a.json"], cwd=tmp_path)
    assert process.stdout.readline().startswith("out")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err and "1 finding" in err
    assert json.loads((tmp_path / "a.json").read_text())["exit_code"] == 130


def test_a_program_without_equinox(tmp_path):
    write(
        tmp_path,
        """
        import logging, sys
        logging.basicConfig()
        import jax, jax.numpy as jnp
        f = jax.jit(lambda x: x + 1)
        for n in range(1, 6):
            f(jnp.ones(n))
        print("equinox" in sys.modules, jax.config.jax_log_compiles)
        """,
    )
    out = run(["script.py", "--fail-on", "shape-churn"], tmp_path)
    assert (out.returncode, out.stdout) == (1, "False False\n"), out.stderr
    assert "`x` had the shapes [1], [2], [3], [4], [5]" in " ".join(out.stderr.split())
    # The doctor reads JAX's log of cache misses, and does not print it.
    assert "TRACING CACHE MISS" not in out.stderr


def test_a_program_without_jax(tmp_path):
    write(tmp_path, "print(1)")
    out = run(["script.py", "--fail-on", "any"], tmp_path)
    assert (out.returncode, out.stdout) == (0, "1\n")
    assert "nothing found" in out.stderr and "did not import JAX" in out.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["missing.py"], "cannot open 'missing.py': no such file"),
        (
            ["a.py", "--fail-on", "x,any"],
            "no kind 'x'; expected one of any, static-churn",
        ),
        (["a.py", "--json", "no/a.json"], "--json: cannot write"),
        (["a.py", "--html", "."], "Is a directory"),
        (["a.py", "--slow", "-1"], "--slow -1.0: expected 0 or more"),
        (["a.py", "--slow", "nan"], "--slow nan: expected 0 or more"),
    ],
)
def test_bad_input(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("raise SystemExit('was run')")
    assert cli.main(["doctor", *argv]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_an_output_that_can_no_longer_be_written(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path, "import os; os.rmdir('sub')")
    out = run(["script.py", "--json", "sub/a.json"], tmp_path)
    assert out.returncode == 2
    assert "--json: cannot write" in out.stderr and "Traceback" not in out.stderr


@pytest.mark.parametrize(
    ("text", "shell"),
    [
        ("raise SystemExit(3)", "2>&-"),
        ("import time; time.sleep(0.5); raise SystemExit(3)", "2>&1 >/dev/null | true"),
        ("import sys; sys.stderr.close(); sys.exit(3)", ""),
    ],
)
def test_a_report_that_nobody_reads(text, shell, tmp_path):
    """The program ends as without the doctor, and the files are written."""
    write(tmp_path, text)
    command = shlex.join([*DOCTOR, "--json", "a.json", "script.py"])
    script = f"set -o pipefail; {command} {shell}"
    out = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=300
    )
    assert (out.returncode, out.stderr) == (3, b"")
    assert json.loads((tmp_path / "a.json").read_text())["exit_code"] == 3


def test_a_program_that_removes_the_directory_that_it_is_in(tmp_path):
    write(
        tmp_path,
        """
        import os, equinox as eqx, jax.numpy as jnp
        os.mkdir("sub"); os.chdir("sub")
        f = eqx.filter_jit(lambda x, n: x * n)
        for n in range(5): f(jnp.ones(2), n)
        os.rmdir("../sub")
        raise SystemExit(3)
        """,
    )
    out = run(["--json", "a.json", "script.py"], tmp_path)
    assert out.returncode == 3 and "Traceback" not in out.stderr
    # Paths are relative to where the command was run.
    assert "static-churn (low)  script.py:5 " in out.stderr
    assert json.loads((tmp_path / "a.json").read_text())["exit_code"] == 3


# --- overhead and structure ----------------------------------------------------------


def test_a_warm_call_runs_no_more_python_than_otherwise(python_events):
    import jax.numpy as jnp

    import eqx_fastjit
    from eqx_fastjit.doctor._watch import Watch

    f = eqx_fastjit.filter_jit(lambda x: x + 1)
    x = jnp.ones(2)
    for _ in range(3):
        f(x)

    before = python_events(lambda: f(x))
    watch = Watch()
    watch.jax_imported()
    watch.equinox_imported()
    try:
        assert python_events(lambda: f(x)) == before
        assert float(x[0]) == 1 and x.tolist() == [1, 1]
    finally:
        watch.stop()
    assert watch.notes == [] and watch.waits.missing == []
    assert type(x).__float__.__module__ != "eqx_fastjit.doctor._waits"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "TRACING CACHE MISS at a.py:1 (m):\n  for f defined at a.py:9\n"
            "  all previously seen cache keys differ. For the closest previous key:\n"
            "  different input types:\n  * at x['a'], now bf16[4] and before f32[4]",
            ("dtype-churn", "x['a']", "f32", "bf16"),
        ),
        (
            "TRACING CACHE MISS at a.py:1 (m):\n  for f defined at a.py:9\n"
            "  different input pytree:\n  * at input path [1]['n'], now <class 'S'> "
            "with pytree metadata Static(val=<object secret>) and before <class 'S'> "
            "with pytree metadata Static(val='a'), so the metadata does not match",
            ("static-churn", "n", "'a' (str)", "another value"),
        ),
        (
            "TRACING CACHE MISS at a.py:1 (m):\n  for f defined at a.py:9\n"
            "  Tracing context doesn't match, e.g. due to config or context manager.",
            ("config-churn", "", "", ""),
        ),
    ],
)
def test_reading_jaxs_explanations(text, expected):
    miss = _plain.parse(text)
    assert miss is not None and miss.name == "f"
    assert (miss.kind, miss.leaf, miss.old, miss.new) == expected
    assert miss.place is not None and miss.place.line == 9


def test_explanations_in_other_words():
    assert _plain.parse("TRACING CACHE MISS: worded anew") is None


class _Check(html.parser.HTMLParser):
    """Checks that tags are closed in order, and that nothing is fetched."""

    VOID = ("meta", "input")

    def __init__(self):
        super().__init__()
        self.open = []
        self.ids = []
        self.labelled = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        # Links stay within the page, and its only script is inline.
        assert "src" not in names and tag != "link"
        assert names.get("href", "#").startswith("#")
        self.ids += [names["id"]] if "id" in names else []
        self.labelled += [names.get("aria-labelledby")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(text):
    checker = _Check()
    checker.feed(text)
    assert checker.open == []
    assert {x for x in checker.labelled if x} <= set(checker.ids)
    assert "url(" not in text and "://" not in text


def make_report(n_bars=700):
    finding = _report.Finding(
        "static-churn",
        "high",
        "<f>",
        __file__,
        3,
        "x['<a>']",
        90.5,
        3,
        "`x` <script>alert(1)</script>",
        "Fix `it`.",
    )
    program = _report.Program("<jax>", "<hlo>", "", 12.0, None, 1, 2, None, None)
    compilation = _report.Compilation(
        number=1,
        function="<gg>",
        jit="filter_jit",
        start=1.0,
        trace=0.1,
        lower=0.2,
        compile=0.3,
        first_run=0.0,
        cause="<why>",
        site="<site>",
        changes=(_report.Change("<leaf>", "static", "<old>", "<new>"),),
        signature="<args>",
        program=program,
    )
    hint = _report.Hint("scan-layers", "", "<file>", 3, 9.0, "`<m>`", "<fix>")
    part = _report.TimePart("compile", "<part>", 1.0, ())
    row = _report.FunctionRow(
        "<gg>", None, None, "jax.jit", 1, 1, 1, 1.0, 0.2, 0.3, 0.5, 0.0, {"<c>": 1}, ()
    )
    return _report.Report(
        "<p>.py",
        3,
        100.0,
        (finding,),
        (row,) * 12,
        (compilation,) * n_bars,
        ("a `note`",),
        (hint,),
        _report.TimeSpent(1.0, (part,)),
    )


def test_the_page_is_escaped_and_stands_alone():
    text = _page.page(make_report())
    check_page(text)
    assert text.count("<script>") == 1
    for raw in ("<script>alert", "<f>", "<gg>", "<p>.py", "<why>", "<c>", "['<a>']"):
        assert raw not in text
    for raw in ("site", "leaf", "old", "new", "args", "jax", "hlo", "part", "file"):
        assert f"<{raw}>" not in text and f"&lt;{raw}&gt;" in text
    assert "The 600 longest of 700 compilations" in text
    assert "exit code 3" in text and "<code>it</code>" in text
    check_page(_page.page(_report.Report("p", 0, 0.0, (), (), (), ())))


def test_colour_on_a_terminal(monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    _text.write_text(make_report(1), stream)
    text = stream.getvalue()
    assert "\x1b[" in text and "static-churn" in text and "and 2 more" in text
    # Rich does not interpret the text of a message as markup.
    assert "`x` <script>alert(1)</script>" in text


def test_severity_goes_by_share_and_seconds():
    severity = _causes.severity
    assert [severity(s, 10.0) for s in (0.9, 1.1, 2.6)] == ["low", "medium", "high"]
    assert [severity(s, 1e6) for s in (2, 4, 40)] == ["low", "medium", "high"]


LOOPS = {
    "for t in range(xs.shape[0]):  # time": "for t in range(xs.shape[0]):` as "
    "`jax.lax.scan`, or as `jax.lax.fori_loop(0, xs.shape[0], ...)`, with",
    "for layer in self.layers:": "for layer in self.layers:` as `jax.lax.scan`, with",
    "for t in range(1, n):": "for t in range(1, n):` as `jax.lax.scan`, with",
}


@pytest.mark.parametrize("line", LOOPS)
def test_how_a_loop_is_written(line, tmp_path):
    """The fix gives no number of iterations, because the first often differs."""
    path = tmp_path / "loop.py"
    path.write_text(line)
    loop = types.SimpleNamespace(file=str(path), line=1, iterations=119)
    fix = _find._loop_fix(loop)
    assert fix.startswith(f"Write `{LOOPS[line]}") and "119" not in fix


def test_calls_by_timeit(tmp_path):
    """The finding names the line of the program that called `timeit`."""
    program = tmp_path / "timed.py"
    program.write_text(
        textwrap.dedent("""
        import timeit
        import equinox as eqx, jax.numpy as jnp

        def run():
            f = eqx.filter_jit(lambda x: jnp.sin(x) + 1)
            timeit.timeit("f(x)", number=1, globals={"f": f, "x": jnp.ones(3)})

        for _ in range(6):
            run()
        """)
    )
    out = subprocess.run(
        [*DOCTOR, "--json", "out.json", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    (finding,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert finding["kind"] == "fresh-function" and "timeit-src" not in out.stderr
    assert "timed.py:7" in finding["message"].replace("\n", "")
