"""`profile`: the function and the command."""

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
from eqx_fastjit.insight import _profile, Part, profile, WarmCall
from eqx_fastjit.insight._profile import Contender, Profile
from eqx_fastjit.insight._profile_tree import make_tree, Node, tree_html, tree_text


pytestmark = pytest.mark.one_engine


def frame(file, function, own, *children):
    return types.SimpleNamespace(
        file_path=file,
        function=function,
        time=own + sum(c.time for c in children),
        children=children,
    )


def in_library(name):
    return f"{sys.prefix}/lib/site-packages/{name}"


EQUINOX = frame(
    in_library("insight/_profile.py"),
    "run_calls",
    0.0,
    frame(
        in_library("equinox/_jit.py"),
        "_call",
        6.0,
        frame("", "[self]", 0.0),
        frame(
            in_library("equinox/_jit.py"),
            "_preprocess",
            1.0,
            frame(in_library("equinox/_filters.py"), "is_array", 0.5),
        ),
        frame("/home/me/<mine>.py", "flatten_mine", 2.0),
        frame(in_library("equinox/_jit.py"), "rare", 0.01),
    ),
)
PARTS = [
    Part("partition", 5.0, True),  # runs in Python, so it is in the tree already
    Part("execute", 2.0, True),
    Part("wait", 1.0, False, "until the device is done"),
]


def test_compiled_code_is_split_by_what_was_timed():
    root = frame("/somewhere.py", "main", 1.0, EQUINOX)
    tree = make_tree(root, 10, PARTS)
    assert (tree.name, tree.seconds) == ("the calls", pytest.approx(0.951))
    (call,) = tree.children
    assert call.name == "_call" and call.own == 0 and call.kind == "library"
    compiled, mine, partition = call.children
    assert (compiled.name, compiled.seconds) == ("compiled code", pytest.approx(0.6))
    parts = [(p.name, pytest.approx(p.seconds)) for p in compiled.children]
    assert parts == [("execute", 0.4), ("wait", 0.2)]
    assert (mine.name, mine.kind) == ("flatten_mine", "yours")
    assert partition.name == "_preprocess (partition)" and not partition.is_open
    assert tree.is_open and call.is_open and compiled.is_open


def test_a_call_in_compiled_code_alone():
    root = frame(in_library("insight/_profile.py"), "run_calls", 3.0)
    (compiled,) = make_tree(root, 3, PARTS[1:]).children
    assert [p.name for p in compiled.children] == ["execute", "wait"]
    (compiled,) = make_tree(root, 3, []).children
    assert not compiled.children and compiled.seconds == 1


def test_what_libraries_do_is_folded_and_the_rest_open():
    tree = make_tree(EQUINOX, 10, PARTS)
    lines = tree_text(tree).splitlines()
    assert any("_preprocess (partition)" in x and "[1 folded]" in x for x in lines)
    assert not any("is_array" in line for line in lines)
    assert any("flatten_mine" in line for line in lines)
    html = tree_html(tree)
    assert "&lt;mine&gt;.py" in html and "<mine>" not in html
    folded = html.index("<details><summary>")
    assert html.index("_preprocess") > folded and "is_array" in html[folded:]
    assert html.count("<details open>") == 3  # the calls, `_call` and compiled code


def test_the_tables():
    """Functions are listed by share of a call, the user's before those of libraries."""
    leaf = ("flatten_mine", "a.py", 0.25, 0.25, "yours")
    library = Node("is_array", "equinox", 0.5, 0.5, "library")
    tree = Node("", "", 1.0, 0.1, "library", (Node(*leaf), library, Node(*leaf)))
    steady = (Part("partition", 3e-6, True), Part("execute", 1e-6, True, "XLA"))
    found = WarmCall(3e-6, 4e-6, steady)
    other = WarmCall(1e-6, 1e-6, steady[1:])
    rare = Node("rare", "b.py", 0.009, 0.009, "yours")
    both = (
        Contender("equinox", 7, 1.0, tree, found),
        Contender("ours", 7, 1.0, Node("", "", 1.0, 0.1, "library", (rare,)), other),
    )
    parts, functions = Profile("f", both).tables()
    assert [row[:5] for row in parts.rows] == [
        ("partition", "3 us", "75%", "-", "-"),
        ("execute", "1 us", "25%", "1 us", "100%"),
        ("returns", "3 us", "", "1 us", ""),
        ("is ready", "4 us", "", "1 us", ""),
    ]
    assert [tuple(row) for row in functions.rows] == [
        ("equinox", "50%", "500 ms", "flatten_mine", "a.py"),
        ("equinox", "50%", "500 ms", "is_array", "equinox"),
    ]
    assert "f: 7 warm calls each" in Profile("f", both).title()


def test_profile(tmp_path):
    model = eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))
    page = tmp_path / "page.html"

    def f(model, x, n):
        return model(x) * n, "<b>static</b>"

    with eqx_fastjit.installed():  # "equinox" still means Equinox's own `filter_jit`
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
    timed = {part.name for c in out.contenders for part in c.warm.parts}
    rows = {row[0] for row in out.tables()[0].rows}
    assert rows == {*timed, "returns", "is ready"}
    assert {"bind", "partition", "execute"} <= timed
    assert "--- equinox ---" in out.full_text() and "the calls" in out.full_text()
    assert ours.calls == theirs.calls == jit.calls == 1000
    html = page.read_text()
    assert "Content-Security-Policy" in html
    # The table precedes the trees, and the page loads nothing from elsewhere.
    assert 0 < html.index("<table>") < html.index('class="scroll tree"')
    assert html.count('class="scroll tree"') == 3 and "<b>static" not in html
    assert 'src="' not in html and 'href="' not in html and "<iframe" not in html


def test_so_many_calls_as_take_half_a_second():
    out = profile(lambda x: x + 1, jnp.ones(2))
    assert all(c.calls >= 20 for c in out.contenders)
    counts = [f"{c.calls:,} under {c.name}" for c in out.contenders]
    if len({c.calls for c in out.contenders}) > 1:
        assert ", ".join(counts) in out.title()


@pytest.mark.parametrize(
    ("dispatch", "blocked", "calls"),
    # Half a second of dispatch, at most two seconds until the results are ready, and at
    # least 20 calls.
    [(1e-3, 2e-3, 500), (1e-3, 1e-2, 200), (1e-3, 1.0, 20), (0.0, 1e-3, 2000)],
)
def test_how_many_calls_are_sampled(dispatch, blocked, calls):
    assert _profile._calls(WarmCall(dispatch, blocked, ())) == calls


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
    assert "_script.py" not in out.stderr and "_samples.py" not in out.stderr
    assert out.stdout.startswith("of the script ['--html', 'x']\n")
    for text in ("5  often", "1  rarely", "often: 50 warm calls each", "--- equinox"):
        assert text in out.stdout
    assert "inner" not in out.stdout  # traced as part of `often`, not called
    assert "compiled code" in (tmp_path / "out.html").read_text()


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


def test_help_has_the_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["profile", "--help"])
    assert capsys.readouterr().out.count("(default:") == 2


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
