"""What the package and its command must never do."""

import ast
import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import eqx_fastjit


PACKAGE = Path(eqx_fastjit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Reading a file with any of these can execute code that the file contains.
UNSAFE_READERS = {"pickle", "cPickle", "shelve", "dill", "cloudpickle"}
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
# Generates code from the names of parameters, never from data.
GENERATORS = {PACKAGE / "_binding.py"}


pytestmark = pytest.mark.one_engine


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def _calls(tree):
    """The name of each function that is called, `a.b.c` or `c`, and the call."""
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
        # `marshal.dumps` is used to compare statics; its output is never read back.
        assert not name.startswith("marshal.") or name == "marshal.dumps"
        shell = keywords.get("shell")
        assert shell is None or ast.unparse(shell) == "False"
        if name == "numpy.load" or name == "np.load":
            assert "allow_pickle" not in keywords
        if name in ("yaml.load", "torch.load", "joblib.load"):
            raise AssertionError(name)
        if name in ("eval", "exec"):
            assert name == "exec"
            # The command may also run the script that the user gave it.
            assert path in GENERATORS or path.is_relative_to(PACKAGE / "cli")


# Names of these that begin with `_` are private. All names of jaxlib are.
PRIVATE = {"equinox", "jax", "jaxtyping"}


def _private_names(tree):
    """Private modules of other packages that are imported, and names read from them."""
    aliases = {"eqx": "equinox"}
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names += re.findall(r"^[\w.]+$", ast.unparse(node))
    for name in names:
        root, *rest = name.split(".")
        root = aliases.get(root, root)
        private = [r for r in rest if r.startswith("_") and not r.endswith("__")]
        if root == "jaxlib" or (root in PRIVATE and private):
            yield name


# ruff catches some of these imports early, but has no pattern for the others.
def test_private_names_of_others_are_in_one_file():
    folders = ("benchmarks", "eqx_fastjit", "examples", "scripts", "tests")
    root = PACKAGE.parent
    for path in [p for name in folders for p in (root / name).rglob("*.py")]:
        if path != PACKAGE / "_compat.py":
            assert list(_private_names(ast.parse(path.read_text()))) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "import jaxlib",
        "from jaxlib import xla_client",
        "from jax._src import core",
        "from equinox import _jit",
        "import equinox._new_module",
        "eqx._module.Module",
    ],
)
def test_the_ban_on_private_names_sees(source):
    assert list(_private_names(ast.parse(source)))


def test_the_checks_find_what_they_look_for():
    tree = ast.parse(
        "import os.path\nfrom urllib.request import urlopen\nos.system('')"
    )
    assert set(_imported(tree)) == {"os.path", "urllib.request"}
    assert [name for name, _ in _calls(tree)] == ["os.system"]


# An audit hook that sees every file opened, folder created, socket used and process
# started. It is loaded as `sitecustomize`, to watch child processes too.
_WATCH = """
import json, os, sys

_log = os.environ["WATCH_LOG"]
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def _note(kind, what):
    line = json.dumps([kind, what]) + "\\n"
    fd = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)

def _full(path, folder=None):
    path = os.fsdecode(path)
    if folder in (None, -1):
        return os.path.abspath(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)

def _hook(event, args):
    if event == "open":
        path, mode, flags = args
        writes = flags & _WRITE if flags is not None else set(mode or "r") & set("wax+")
        if writes and isinstance(path, (str, bytes)) and os.fsdecode(path) != _log:
            _note("write", _full(path))
    elif event in ("os.mkdir", "os.remove", "os.rmdir"):
        _note("write", _full(args[0], args[-1]))
    elif event == "os.rename":
        _note("write", _full(args[0], args[2]))
        _note("write", _full(args[1], args[3]))
    elif event in ("socket.connect", "socket.bind", "socket.sendto"):
        # Unix sockets, by path or in Linux's abstract namespace, are not the network.
        if not isinstance(args[1], (str, bytes)):
            _note("socket", repr(args[1]))
    elif event == "socket.getaddrinfo":
        _note("socket", repr(args[0]))
    elif event in ("os.system", "subprocess.Popen"):
        _note("process", repr(args[1] if event != "os.system" else args[0]))

sys.addaudithook(_hook)
"""


def _watched(tmp_path, argv):
    """Run the command, and collect what it wrote and what else it did, by kind."""
    # A short path, since sockets of `multiprocessing` allow at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="w") as temporary:
        return _watched_with(tmp_path, argv, temporary)


def _watched_with(tmp_path, argv, temporary):
    watch = tmp_path / "watch"
    work = tmp_path / "work"
    for folder in (watch, work):
        folder.mkdir(exist_ok=True)
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
            TMPDIR=temporary,
            HOME=str(work),
            MPLCONFIGDIR=temporary,
            WATCH_LOG=str(log),
        ),
    )
    done = {"write": set(), "socket": set(), "process": set()}
    if log.exists():
        for line in log.read_text().splitlines():
            kind, what = json.loads(line)
            done[kind].add(what)
    harmless = (temporary, "/dev/", "/proc/")
    done["write"] = {p for p in done["write"] if not p.startswith(harmless)}
    # The files that are left, whichever process wrote them.
    left = {str(p) for p in work.rglob("*") if p.is_file()}
    return out, done, left


_PROGRAM = """
import sys
import equinox as eqx
import jax.numpy as jnp

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\\"'&"

@eqx.filter_jit
def f(x, s):
    return x * len(s)

def g(x):
    return x + 1

g.__name__ = g.__qualname__ = EVIL
g = eqx.filter_jit(g)
for i in range(5):
    f(jnp.ones(3), EVIL + str(i))
    g(jnp.ones(i + 1))
"""
# Every command that runs a program runs this one. Its name contains markup, too.
_PROGRAM_NAME = "<img src=x onerror=alert(3)>.py"

# The arguments of each command, and the files that they tell it to write. Files in the
# temporary folder are not checked.
COMMANDS = [
    (["--version"], []),
    (["run", _PROGRAM_NAME], []),
    (
        [
            *("doctor", "--numerics", "--json", "r.json", "--html", "r.html"),
            _PROGRAM_NAME,
        ],
        ["r.json", "r.html"],
    ),
    (["profile", "--calls", "2", "--html", "p.html", _PROGRAM_NAME], ["p.html"]),
    (["lock", "-o", "the.lock", _PROGRAM_NAME], ["the.lock"]),
]


@pytest.mark.parametrize(("argv", "told"), COMMANDS, ids=lambda x: " ".join(x[:1]))
def test_commands_write_only_where_they_are_told(argv, told, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    program = work / _PROGRAM_NAME
    program.write_text(_PROGRAM)
    out, done, left = _watched(tmp_path, argv)
    assert out.returncode == 0, out.stderr
    told = {str(work / name) for name in told}
    # The file may first be written under a temporary name.
    assert {name for name in done["write"] if not name.startswith(tuple(told))} == set()
    folders = tuple(f"{name}/" for name in told if Path(name).is_dir())
    files = {name for name in told if Path(name).is_file()}
    assert len(files) + len(folders) == len(told)
    assert {name for name in left if not name.startswith(folders)} == (
        files | {str(program)}
    )
    assert done["socket"] == set()
    for name in files:
        if name.endswith(".html"):
            _check_escaped(Path(name).read_text())
        if Path(name).name == "r.html":
            assert "&lt;script&gt;alert(1)" in Path(name).read_text()


@pytest.mark.parametrize("option", ["--check", "--precompile"])
def test_a_lock_file_is_read_and_left_alone(option, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    program = work / _PROGRAM_NAME
    program.write_text(_PROGRAM)
    cache = work / "cache"
    command = ["lock", "-o", "the.lock"]
    assert _watched(tmp_path, [*command, _PROGRAM_NAME])[0].returncode == 0
    lock = (work / "the.lock").read_bytes()
    (tmp_path / "watch" / "log").unlink()
    told = ["--cache-dir", str(cache)] if option == "--precompile" else []
    out, done, left = _watched(tmp_path, [*command, option, *told, _PROGRAM_NAME])
    assert out.returncode == 0, out.stderr
    assert (work / "the.lock").read_bytes() == lock
    assert {name for name in done["write"] if not name.startswith(str(cache))} == set()
    kept = {str(program), str(work / "the.lock")}
    assert {name for name in left if not name.startswith(str(cache))} == kept
    assert done["socket"] == set()


def _check_escaped(page):
    """No text of the program has become an element, and nothing is loaded from
    elsewhere.
    """
    tags = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(dict(attrs))

    Parser().feed(page)
    assert tags
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    for attributes in tags:
        assert "onerror" not in attributes
        for name in ("src", "href"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), target
        if "srcdoc" in attributes:
            _check_escaped(attributes["srcdoc"])


def test_the_watch_sees(tmp_path):
    """The hook reports each action of a program that does all of them."""
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
