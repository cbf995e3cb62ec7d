"""`eqx-fastjit lock`: the file is stable, `--check` explains, `--precompile` works."""

import json
import os
import subprocess
import sys

import pytest

from eqx_fastjit import cli
from eqx_fastjit.doctor import _lock


pytestmark = pytest.mark.one_engine


SCRIPT = """
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import helper

hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: event.endswith("/cache_hits") and hits.append(event)
)


@eqx.filter_jit
def step(model, x, n, act=jax.nn.relu):
    return helper.inner(jax.vmap(model)(x)) * n


model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
del hits[:]
step(model, jnp.ones((3, 4)), 2, lambda x: x)
step(model, jnp.ones((2, 4), dtype=jnp.bfloat16), 2)
print("end", len(hits))
for _ in sys.argv[1:]:
    step(model, jnp.ones((1, 4)), 3)
"""
HELPER = """
import equinox as eqx

@eqx.filter_jit
def inner(x):
    return x + 1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def run(args, cwd, command="lock", **env):
    return subprocess.run(
        [sys.executable, "-m", "eqx_fastjit.cli", command, *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


def test_written_then_checked(folder):
    path = folder / "fastjit.lock"
    out = run(["script.py"], folder, PYTHONHASHSEED="1")
    assert out.returncode == 0 and out.stdout == "end 0\n", out.stderr
    assert "wrote 2 signatures of 1 function to fastjit.lock" in out.stderr
    text = path.read_text()
    assert str(folder) not in text and "0x" not in text
    data = json.loads(text)
    assert data["schema"] == 1
    # `inner` is compiled as part of `step`, so it has no entry.
    ((name, (first, second)),) = data["functions"].items()
    assert name == "script.py:step"
    assert first["arrays"]["x"] == "bfloat16[2,4]"
    assert second["arrays"] == {
        "model.bias": "float32[2]",
        "model.weight": "float32[2,4]",
        "x": "float32[3,4]",
    }
    assert second["statics"]["n"] == "2 (int)"
    assert second["statics"]["act"] == "<lambda> (script.py) (function)"

    # Other line numbers, another folder and another hash seed give the same text.
    (folder / "script.py").write_text("\n\n" + SCRIPT)
    moved = folder.rename(folder.with_name("moved"))
    out = run(["moved/script.py", "-o", "again.lock"], moved.parent, PYTHONHASHSEED="2")
    assert out.returncode == 0, out.stderr
    assert (moved.parent / "again.lock").read_text() == text

    out = run(["--check", "script.py", "more"], moved)
    assert out.returncode == 1 and out.stdout == "end 0\n"
    assert "script.py:step: a new signature in the call at script.py:29" in out.stderr
    assert "    `x`: bfloat16[2,4] -> float32[1,4]" in out.stderr
    assert "    `n`: 2 (int) -> 3 (int)" in out.stderr
    assert "3 signatures used, 1 not in fastjit.lock" in out.stderr


def test_precompiled(folder):
    # There is neither a lock file nor a cache directory.
    assert run(["--precompile", "script.py"], folder).returncode == 2
    assert run(["script.py"], folder).returncode == 0
    args = ["--precompile", "--cache-dir", "cache", "script.py"]
    out = run(args, folder)
    assert out.returncode == 0, out.stderr
    assert "[1/2] script.py:step\n[2/2] script.py:step\n" in out.stderr
    assert "2 compiled now, 0 in the cache before, 0 not reached" in out.stderr
    # The program was ended after its second signature was compiled.
    assert out.stdout == ""
    setting = f"JAX_COMPILATION_CACHE_DIR={folder / 'cache'}"
    assert f"run it with {setting} eqx-fastjit run\n" in out.stderr
    env = dict([setting.split("=")])
    out = run(["script.py"], folder, "run", **env)
    # At least two programs come from the cache; operations outside of jit may add more.
    assert out.returncode == 0 and int(out.stdout.split()[1]) >= 2, out.stderr

    lock = folder / "fastjit.lock"
    data = json.loads(lock.read_text())
    data["functions"]["script.py:gone"] = [{"arrays": {"x": "float32[]"}}]
    lock.write_text(json.dumps(data))
    out = run(args, folder)
    assert out.returncode == 1 and "not reached: script.py:gone" in out.stderr
    assert "0 compiled now, 2 in the cache before, 1 not reached" in out.stderr
    assert out.stdout.startswith("end")
    out = run(["--precompile", "script.py"], folder)
    assert out.returncode == 2 and "no cache directory" in out.stderr


def test_a_program_that_fails_writes_nothing(folder):
    (folder / "fastjit.lock").write_text("as it was")
    (folder / "script.py").write_text(SCRIPT + "\nsys.exit(3)\n")
    out = run(["script.py"], folder)
    assert out.returncode == 3
    assert "saw 2 signatures of 1 function; not written" in out.stderr
    assert (folder / "fastjit.lock").read_text() == "as it was"


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    [
        (["--check", "a.py"], None, "cannot read 'fastjit.lock'"),
        (["--check", "a.py"], "{", "'fastjit.lock' is not a lock file: not JSON"),
        (["--check", "a.py"], '{"schema": 2}', "expected schema 1, found 2"),
        (["--precompile", "a.py"], '{"schema": 1}', "expected lists of signatures"),
        (["missing.py"], None, "cannot open 'missing.py'"),
        (["-o", "no/a.lock", "a.py"], None, "No such file or directory"),
        (["--cache-dir", "x", "a.py"], None, "only with --precompile"),
    ],
)
def test_bad_input(argv, text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("raise SystemExit('was run')")
    if text is not None:
        (tmp_path / "fastjit.lock").write_text(text)
    assert cli.main(["lock", *argv]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


FAILING = """
import equinox as eqx
import jax.numpy as jnp

@eqx.filter_jit
def f(x, n):
    if n == 1:
        raise ValueError("planted")
    return x * n

for n in range(3):
    try:
        f(jnp.ones(2), n)
    except ValueError:
        print("failed", n)
"""


def test_a_trace_that_fails_is_not_in_the_file(tmp_path):
    (tmp_path / "a.py").write_text(FAILING)
    out = run(["a.py"], tmp_path)
    assert (out.returncode, out.stdout) == (0, "failed 1\n"), out.stderr
    data = json.loads((tmp_path / "fastjit.lock").read_text())
    found = [s["statics"]["n"] for s in data["functions"]["a.py:f"]]
    assert found == ["0 (int)", "2 (int)"]


def test_settings_and_shardings_are_a_part_of_a_signature():
    import jax
    import jax.numpy as jnp

    import eqx_fastjit
    from eqx_fastjit import _record

    mesh = jax.make_mesh((2,), ("a",))
    spec = jax.sharding.PartitionSpec("a")
    x = jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, spec))
    f = eqx_fastjit.filter_jit(lambda x, y: x * y)
    with jax.default_matmul_precision("highest"):
        f(x, jnp.asarray(2.0))
    signature = _lock.signature_of(_record.traces[-1])
    assert signature["settings"] == {
        "jax_default_matmul_precision": "highest",
        "jax_numpy_dtype_promotion": "strict",
    }
    assert signature["arrays"]["x"].startswith("float32[4] P")
    assert signature["arrays"]["x"].endswith(" over {'a': 2}")
    assert signature["arrays"]["y"] == "float32[] weakly typed"
    assert _lock.load(_lock.dump({"f": [signature]})) == {"f": [signature]}


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 signatures"), (1, "1 signature"), (2, "2 signatures")]
)
def test_signatures_are_counted_in_words(n, text):
    from eqx_fastjit.cli import _lock

    assert _lock._count(n) == text
