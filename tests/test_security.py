"""What the package and its command must never do."""

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import eqx_fastjit


PACKAGE = Path(eqx_fastjit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Reading any of these can run code that is in the file.
UNSAFE_READERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
NETWORK = {
    "aiohttp",
    "asyncio",
    "ftplib",
    "http",
    "httpx",
    "requests",
    "smtplib",
    "socket",
    "socketserver",
    "telnetlib",
    "urllib",
    "urllib3",
    "webbrowser",
    "websockets",
    "xmlrpc",
}
# The two that generate code: from names of parameters and fields, never from data.
GENERATORS = {PACKAGE / "_signature.py", PACKAGE / "_generate.py"}


@pytest.fixture(autouse=True)
def once(route):
    if route != "cpp":
        pytest.skip("the same on both routes")


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def _calls(tree):
    """The name of what is called, `a.b.c` or `c`, and the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_source(path):
    tree = ast.parse(path.read_text())
    roots = {name.partition(".")[0] for name in _imported(tree)}
    assert not roots & UNSAFE_READERS
    assert not roots & NETWORK
    for name, call in _calls(tree):
        keywords = {k.arg: k.value for k in call.keywords}
        assert name not in ("os.system", "os.popen")
        shell = keywords.get("shell")
        assert shell is None or ast.unparse(shell) == "False"
        if name == "numpy.load" or name == "np.load":
            assert "allow_pickle" not in keywords
        if name in ("yaml.load", "torch.load", "joblib.load"):
            raise AssertionError(name)
        if name in ("eval", "exec"):
            assert name == "exec"
            # Elsewhere only the script that the user has asked to run.
            assert path in GENERATORS or path.is_relative_to(PACKAGE / "cli")


def test_the_checks_find_what_they_look_for():
    tree = ast.parse(
        "import os.path\nfrom urllib.request import urlopen\nos.system('')"
    )
    assert set(_imported(tree)) == {"os.path", "urllib.request"}
    assert [name for name, _ in _calls(tree)] == ["os.system"]


# Told by Python itself of every file opened, folder made, socket used and process
# started. Loaded as `sitecustomize`, so that child processes are watched as well.
_WATCH = """
import json, os, sys

_log = os.environ["WATCH_LOG"]
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def _note(kind, what):
    line = json.dumps([kind, what]) + "\\n"
    fd = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)

def _hook(event, args):
    if event == "open":
        path, mode, flags = args
        writes = flags & _WRITE if flags is not None else set(mode or "r") & set("wax+")
        if writes and isinstance(path, (str, bytes)) and os.fsdecode(path) != _log:
            _note("write", os.path.abspath(os.fsdecode(path)))
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"):
        _note("write", os.path.abspath(os.fsdecode(args[0])))
    elif event in ("socket.connect", "socket.bind", "socket.sendto"):
        _note("socket", repr(args[1]))
    elif event == "socket.getaddrinfo":
        _note("socket", repr(args[0]))
    elif event in ("os.system", "subprocess.Popen"):
        _note("process", repr(args[1] if event != "os.system" else args[0]))

sys.addaudithook(_hook)
"""


def _watched(tmp_path, argv):
    """Run the command; what it wrote to, and what else it did, by kind."""
    watch = tmp_path / "watch"
    work = tmp_path / "work"
    temporary = tmp_path / "tmp"
    for folder in (watch, work, temporary):
        folder.mkdir()
    (watch / "sitecustomize.py").write_text(_WATCH)
    log = watch / "log"
    out = subprocess.run(
        [sys.executable, "-m", "eqx_fastjit.cli", *argv],
        cwd=work,
        capture_output=True,
        text=True,
        env=dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([str(watch), str(PACKAGE.parent)]),
            PYTHONDONTWRITEBYTECODE="1",
            TMPDIR=str(temporary),
            HOME=str(work),
            MPLCONFIGDIR=str(temporary),
            WATCH_LOG=str(log),
        ),
    )
    done = {"write": set(), "socket": set(), "process": set()}
    if log.exists():
        for line in log.read_text().splitlines():
            kind, what = json.loads(line)
            done[kind].add(what)
    harmless = (str(temporary), "/dev/", "/proc/")
    done["write"] = {p for p in done["write"] if not p.startswith(harmless)}
    # What is left behind, whoever wrote it.
    left = {str(p) for p in work.rglob("*") if p.is_file()}
    return out, done, left


# Arguments of a command, and the files that they tell it to write. `{work}` is its
# working folder; what goes into the temporary folder is its own affair.
COMMANDS = [
    (["bench", "--quick", "--rounds", "1", "--cases", "identity"], []),
    (["--version"], []),
]


@pytest.mark.parametrize(("argv", "told"), COMMANDS, ids=lambda x: " ".join(x[:1]))
def test_commands_write_only_where_they_are_told(argv, told, tmp_path):
    work = tmp_path / "work"
    told = {path.format(work=work) for path in told}
    argv = [arg.format(work=work) for arg in argv]
    out, done, left = _watched(tmp_path, argv)
    assert out.returncode == 0, out.stderr
    assert done["write"] <= told
    assert left == told
    assert done["socket"] == set()


def test_the_watch_sees(tmp_path):
    """The hook above, on a program that does all of it."""
    script = tmp_path / "bad.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, socket, subprocess, sys
            open("written", "w").close()
            os.mkdir("folder")
            with socket.socket() as s:
                try:
                    s.connect(("127.0.0.1", 9))
                except OSError:
                    pass
            subprocess.run([sys.executable, "-c", "open('child', 'w').close()"])
            """
        )
    )
    watch = tmp_path / "watch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(_WATCH)
    env = dict(os.environ, PYTHONPATH=str(watch), WATCH_LOG=str(watch / "log"))
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, check=True)
    seen = [json.loads(line) for line in (watch / "log").read_text().splitlines()]
    for kind, what in (
        ("write", str(tmp_path / "written")),
        ("write", str(tmp_path / "folder")),
        ("write", str(tmp_path / "child")),
        ("socket", "('127.0.0.1', 9)"),
    ):
        assert [kind, what] in seen
    assert any(kind == "process" for kind, _ in seen)
