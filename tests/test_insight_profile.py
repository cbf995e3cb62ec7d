"""`profile`, the function and the command."""

import subprocess
import sys
import textwrap
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import cli
from eqx_fastjit.insight import profile
from eqx_fastjit.insight._profile import stage_shares, STAGES


@pytest.fixture(autouse=True)
def once(engine):
    if engine != "native":
        pytest.skip("the same on both engines")


def frame(file, function, own, *children):
    out = types.SimpleNamespace(
        file_path=file,
        function=function,
        time=own + sum(c.time for c in children),
        children=children,
        parent=None,
    )
    for child in children:
        child.parent = out
    return out


def test_shares_of_a_known_profile():
    root = frame(
        "insight/_profile.py",
        "_run_calls",
        1.0,
        frame(
            "equinox/_jit.py",
            "_call",
            2.0,
            frame("<built-in>", "isinstance", 0.5),
            frame(
                "equinox/_jit.py",
                "_preprocess",
                0.0,
                frame("<generated_flatten_MLP>", "flatten", 0.5),
                frame("equinox/_filters.py", "is_array", 0.5),
            ),
            frame("logging/__init__.py", "getLogger", 0.5),
        ),
        frame("eqx_fastjit/_signature.py:front", "call", 5.0),
    )
    shares = stage_shares(root)
    assert set(shares) == set(STAGES)
    assert {k: v for k, v in shares.items() if v} == {
        "inside C++": 0.8,
        "state check": 0.05,
        "flatten": 0.05,
        "partition": 0.05,
        "other Python": 0.05,
    }


def test_profile(tmp_path):
    model = eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))
    page = tmp_path / "page.html"

    def f(model, x, n):
        return model(x) * n, "<b>static</b>"

    with eqx_fastjit.installed():  # "equinox" is Equinox's own even so
        out = profile(
            eqx_fastjit.filter_jit(f, donate="all"),
            model,
            jnp.ones(4),
            2,
            n=1000,
            html=page,
        )
    ours, theirs, jit = out.contenders
    assert [c.name for c in out.contenders] == ["eqx_fastjit", "equinox", "jax.jit"]
    assert [c.breakdown.kind for c in (ours, theirs, jit)] == [
        "eqx_fastjit",
        "equinox",
        "jax",
    ]
    for c in out.contenders:
        assert sum(c.shares.values()) == pytest.approx(1)
        assert c.text in out.full_text()
    text = str(out)
    assert all(stage in text for stage in STAGES)
    assert "sees Python functions alone" in text
    html = page.read_text()
    assert "Content-Security-Policy" in html  # Pyinstrument's would load fonts
    assert html.count("<iframe") == 3 and "<b>static" not in html
    # Self-contained: nothing is loaded.
    assert 'src="http' not in html and 'href="http' not in html.split("<iframe")[0]


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="n=0: expected at least 1"):
        profile(lambda x: x, 1, n=0)
    with pytest.raises(OSError, match="No such file"):
        profile(lambda x: x, jnp.ones(1), html=tmp_path / "none" / "page.html")


SCRIPT = """
    import sys
    import equinox as eqx, jax, jax.numpy as jnp

    @eqx.filter_jit(donate="all-except-first")
    def often(model, x):
        return inner(model)(x)

    @eqx.filter_jit
    def rarely(x):
        return x

    @eqx.filter_jit
    def inner(model):
        return model

    model = eqx.nn.MLP(4, 4, 4, 1, key=jax.random.key(0))
    x = jnp.ones(4)
    for _ in range(5):
        x = often(model, x)
    rarely(x)
    print("of the script", sys.argv[1:])
    raise ValueError("planted")
"""


def test_the_command(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "eqx_fastjit.cli", "profile", str(script)]
    command += ["--calls", "50", "--html", "out.html", "--", "--html", "x"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 1
    assert out.stderr.endswith("ValueError: planted\n"), out.stderr
    assert "_script.py" not in out.stderr
    assert out.stdout.startswith("of the script ['--html', 'x']\n")
    for text in ("5  often", "1  rarely", "often: 50 warm calls each", "--- equinox"):
        assert text in out.stdout
    assert "<iframe" in (tmp_path / "out.html").read_text()


def test_interrupted_and_without_functions(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(
        "import os, signal; print(1); os.kill(os.getpid(), signal.SIGINT)"
    )
    command = [sys.executable, "-m", "eqx_fastjit.cli", "profile", str(script)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == -2 and "none" in out.stdout
    assert out.stderr.endswith("KeyboardInterrupt\n")
    script.write_text("import sys; sys.exit(3)")
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 3 and "called no function" in out.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nosuch.py"], "cannot open 'nosuch.py': no such file"),
        (["--calls", "0", "a.py"], "--calls 0: expected at least 1"),
        (["--html", "none/out.html", "a.py"], "cannot write 'none/out.html': No such"),
        (["a.py", "--html"], "argument --html: expected one argument"),
        ([], "expected SCRIPT or -m MODULE"),
    ],
)
def test_bad_arguments(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print('ran')")
    try:
        code = cli.main(["profile", *argv])
    except SystemExit as e:
        code = e.code
    assert code == 2
    out, err = capsys.readouterr()
    assert message in err and "ran" not in out
