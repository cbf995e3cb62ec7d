"""The command: options, errors, and programs that run as under `python`."""

import json
import platform
import re
from importlib.metadata import version

import pytest

from eqx_fastjit import cli
from tests.support.commands import command, ROOT


PROGRAM = """
import atexit, pickle, sys
import equinox as eqx, numpy as np
print(__name__, sys.argv, sys.modules["__main__"].__dict__ is globals())
class Local: pass
atexit.register(lambda: print(len(pickle.dumps(Local())) > 0, sys.argv[0]))
f = eqx.filter_jit(lambda x: x + 1)
print(type(f).__module__, f(np.ones(2)).tolist())
if "fail" in sys.argv:
    raise ValueError("the program's own")
if "trace" in sys.argv:
    eqx.filter_jit(lambda x: x.missing)(np.ones(2))
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_help_does_not_import_jax():
    """Nor does pytest's plugin."""
    code = (
        "import sys, eqx_fastjit.cli as c, eqx_fastjit.pytest_plugin\n"
        "print(c.main([]), 'jax' in sys.modules)"
    )
    out = command(python=("-c", code)).stdout
    assert out.endswith("2 False\n")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("run", "the following arguments are required: SCRIPT"),
        ("run --wrong a.py", "unrecognized arguments: --wrong"),
        ("doctor --fail-on new a.py", "invalid choice: 'new'"),
        ("doctor --html /missing/x a.py", "cannot write '/missing/x'"),
        ("doctor --html /tmp a.py", "cannot write '/tmp'"),
        ("run missing.py", "No such file or directory: 'missing.py'"),
        ("doctor missing.jsonl", "No such file"),
        ("doctor a.jsonl --verbose", "expected one event file. Options come before it"),
        ("rule nonsense", "no rule 'nonsense': `eqx-fastjit rule` lists them"),
        ("export a:f --args a:b -o c", "No module named 'a'"),
    ],
)
def test_one_clear_error(args, text, capsys):
    try:
        code = cli.main(args.split())
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(("eqx-fastjit: ", "usage: eqx-fastjit"))
    assert text in shown


def test_rules(capsys):
    """All by name, in the order of docs/rules.md; or the section of one."""
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `?([\w-]+)`?$", page, re.MULTILINE)
    assert cli.main(["rule"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == headings
    assert max(map(len, lines)) <= 80

    assert cli.main(["rule", "number"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "A Python number is static, so each value compiles" in out
    assert "step(jnp.ones(3), jnp.asarray(rate))" in out and "module-number" not in out


def test_version():
    lines = command("--version").stdout.splitlines()
    names = [line.split()[0].rstrip(":") for line in lines]
    for name in ("eqx_fastjit", "python", "platform", "equinox", "jax", "engine"):
        assert names.count(name) == 1


@pytest.mark.parametrize("words", ["run", "doctor --", "run -m"])
def test_a_program_runs_as_under_python(words, script, tmp_path):
    """Also afterwards: `atexit` functions still have the `__main__` of a script."""
    program = script.stem if "-m" in words else script
    its_arguments = ["3", "-m", "--json", "--help"]
    process = command(*words.split(), program, *its_arguments, code=3, cwd=tmp_path)
    first, second, *last = process.stdout.splitlines()
    assert first == f"__main__ {[str(script), *its_arguments]} True"
    assert second == "eqx_fastjit._jit [2.0, 2.0]"
    assert "-m" in words or last == [f"True {script}"]


def test_tracebacks(script):
    text = command("run", script, "fail", code=1).stderr
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert str(script) in lines[1] and "eqx_fastjit" not in text
    assert lines[-1] == "ValueError: the program's own"


def test_a_traceback_under_the_doctor_hides_its_frames(script):
    text = command("doctor", script, "trace", code=1).stderr
    traceback, _, report = text.partition("eqx-fastjit doctor:")
    assert "AttributeError" in traceback
    assert "insight" not in traceback
    assert "ran for" in " ".join(report.split())


@pytest.mark.parametrize(
    ("name", "imports"),
    [
        ("run", "importlib.import_module('jax'); from equinox import filter_jit"),
        ("doctor", "filter_jit = importlib.import_module('equinox').filter_jit"),
    ],
)
def test_libraries_that_import_equinox(name, imports, tmp_path):
    """Their decorators get the replacement; a traceback through them is Python's."""
    (tmp_path / "library.py").write_text(
        f"import importlib\n{imports}\n"
        "jitted = filter_jit(lambda x: x)\n"
        "print(type(jitted).__module__)\n"
        "import missing\n"
    )
    path = tmp_path / "program.py"
    path.write_text("import library\n")
    under_python = command(python=(path,), code=1)
    process = command(name, path, code=1)
    assert process.stdout == "eqx_fastjit._jit\n"
    assert process.stderr.startswith(under_python.stderr)


@pytest.mark.parametrize("name", ["run", "doctor"])
def test_the_program_comes_first(name, tmp_path):
    """It sets JAX's variables and devices, as `jax.distributed` needs it."""
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys\n"
        "assert 'jax' not in sys.modules\n"
        "os.environ['JAX_ENABLE_X64'] = '1'\n"
        "import equinox as eqx, jax, numpy as np\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"
        "print(eqx.filter_jit(lambda x: x)(np.ones(1)).dtype, len(jax.devices()))\n"
    )
    assert command(name, path, XLA_FLAGS="").stdout == "float64 3\n"


def test_a_program_that_imports_this_library_first(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import eqx_fastjit, equinox as eqx, numpy as np\n"
        "f = eqx_fastjit.filter_jit(lambda x: x + 1)\n"
        "print(f(np.ones(1)), type(eqx.filter_jit(lambda x: x)).__module__)\n"
    )
    assert command("run", path).stdout == "[2.] eqx_fastjit._jit\n"
    assert "<lambda> (" in command("doctor", "--verbose", path).stderr


def test_a_program_without_equinox(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import jax, jax.numpy as jnp\njax.jit(lambda x: x + 1)(jnp.ones(2))"
    )
    text = " ".join(command("doctor", path).stderr.split())
    assert "3 compilations of 3 programs took" in text


HALF_IMPORTED = """
import signal, sys, types
sys.modules["jax"] = types.ModuleType("jax")
if hasattr(signal, "SIGUSR1"):
    signal.raise_signal(signal.SIGUSR1)
"""


@pytest.mark.parametrize("begin", ["", HALF_IMPORTED])
def test_a_program_without_jax(begin, tmp_path):
    """What the report itself compiles is not the program's. If it is asked for while
    JAX is half imported, the program goes on.
    """
    path = tmp_path / "program.py"
    path.write_text(f"{begin}print('hello')")
    process = command("doctor", path)
    assert process.stdout == "hello\n"
    assert "The program did not import JAX." in process.stderr


def test_the_doctor_writes_only_where_it_is_told_to(script, tmp_path):
    files = {"a.json", "a.html"}
    command("doctor", "--json", "a.json", "--html", "a.html", script, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*files, script.name}
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["run"]["program"] == str(script)


@pytest.mark.parametrize(("second", "code"), [("2.0", 1), ("1.0", 0)])
def test_fail_on_any(second, code, tmp_path):
    """Exit code 1 if anything can be fixed in this run."""
    path = tmp_path / "program.py"
    path.write_text(
        "import equinox as eqx, numpy as np\n"
        "SCALE = 1.0\n"
        "f = eqx.filter_jit(lambda x: x * SCALE)\n"
        "f(np.ones(2, np.float32))\n"
        f"SCALE = {second}\n"
        "f(np.ones(2, np.float32))\n"
    )
    process = command("doctor", "--fail-on", "any", path, code=code)
    assert ("[stale-value]" in process.stderr) == bool(code)


CACHED = """
import os, sys
import equinox as eqx, jax, numpy as np
os.chdir(os.sep)
read = []
jax.monitoring.register_event_listener(lambda name, **_: read.append(name))
eqx.filter_jit(lambda x: x * 3 + 1)(np.ones(2, np.float32))
hits = sum(name.endswith("cache_hits") for name in read)
print(hits > 0, os.environ["JAX_COMPILATION_CACHE_DIR"], sys.argv[1:])
"""


@pytest.fixture
def cached(tmp_path):
    """Run the program. Returns whether it read from the cache, where that is, and
    what it printed to stderr.
    """
    (tmp_path / "cached.py").write_text(CACHED)

    def run(name, *options, **environment):
        home = {"XDG_CACHE_HOME": str(tmp_path / "home"), **environment}
        words = (name, *options, "cached.py", "--cache")
        process = command(*words, cwd=tmp_path, **home)
        read, folder, argv = process.stdout.splitlines()[-1].split(" ", 2)
        assert argv == "['--cache']"
        return read == "True", tmp_path / folder, process.stderr

    return run


def test_a_second_process_reads_from_the_cache(cached, tmp_path):
    """In the user's folder, where there is one for each version and processor."""
    read, folder, _ = cached("run", "--cache")
    assert not read and any(folder.iterdir())
    assert folder.parent == tmp_path / "home" / "eqx_fastjit"
    assert folder.name.startswith(f"jax-{version('jaxlib')}-{platform.machine()}-")

    for name in ("run", "doctor", "profile"):
        read, again, text = cached(name, "--cache")
        assert read and again == folder
        assert "[run-cache]" not in text


def test_a_directory_for_the_cache(cached, tmp_path):
    """One that is not there yet is made. The environment has the last word."""
    assert cached("run", "--cache=kept")[:2] == (False, tmp_path / "kept")
    words = ("doctor", "--verbose", "--cache", "kept")
    assert cached(*words)[:2] == (True, tmp_path / "kept")
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
    assert cached("run", "--cache=other", **own)[:2] == (False, tmp_path / "own")
    assert not (tmp_path / "home").exists() and not (tmp_path / "other").exists()


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(130)"])
def test_interrupts_end_the_program_as_under_python(raised, tmp_path):
    """By the signal, which an exit code is not."""
    path = tmp_path / "program.py"
    path.write_text(f"raise {raised}")
    as_python = command(python=(path,), code=None).returncode
    assert command("run", path, code=None).returncode == as_python


def test_a_program_that_replaces_stderr_has_its_report_there(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, eqx_fastjit, jax.numpy as jnp\n"
        "class Tee:\n"
        "    write, flush = sys.stderr.write, sys.stderr.flush\n"
        "sys.stderr = Tee()\n"
        "eqx_fastjit.filter_jit(lambda x: x)(jnp.ones(2))\n"
        "sys.exit(3)\n"
    )
    assert "eqx-fastjit doctor:" in command("doctor", program, code=3).stderr
