"""Checks the documentation: its code prints what it says, and its commands exist.

The `python` blocks of each page in README.md and docs/**/*.md run in order in one fresh
process, with warnings as errors. A `text` block directly after one is its expected
output, where `...` stands for any text. Tests in these blocks are run by pytest. The
commands in `sh` blocks, and the options of our own commands, must exist; this includes
benchmarks/README.md. A block below `<!-- not run: REASON -->` is skipped.
"""

import doctest
import functools
import http.server
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from eqx_fastjit import cli
from eqx_fastjit.doctor._report import KINDS
from scripts import generate_docs


_ROOT = Path(__file__).parent.parent
_PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(p.relative_to(_ROOT)) for p in (_ROOT / "docs").rglob("*.md")),
]
_WITH_COMMANDS = [*_PAGES, "benchmarks/README.md"]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = re.compile(r"<!-- not run: \S[^>]* -->\s*\Z")
_ELLIPSIS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


pytestmark = pytest.mark.one_engine


class _Block(NamedTuple):
    language: str
    source: str
    # The line of the page with the first line of the code.
    line: int
    # Whether only blank lines separate this block from the one before.
    follows: bool


def _blocks(page: str) -> list[_Block]:
    text = (_ROOT / page).read_text(encoding="utf-8")
    out, end = [], 0
    for match in _FENCE.finditer(text):
        before = text[end : match.start()]
        end = match.end()
        if _NOT_RUN.search(before):
            continue
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["body"].splitlines()]
        line = text.count("\n", 0, match.start("body")) + 1
        source = "\n".join(lines) + "\n"
        out.append(_Block(match["language"], source, line, not before.strip()))
    return out


# Runs the blocks on stdin, `[[line, source], ...]`, as one `__main__`, and prints the
# output of each as JSON. Line numbers are those of the page, for tracebacks and
# `explain`.
_RUNNER = """
import contextlib, io, json, linecache, sys, types
page, blocks = sys.argv[1], json.load(sys.stdin)
# The code alone, so that `explain` can parse what it quotes.
code = "".join("\\n" * (line - 1) + source for line, source in blocks[:1])
for line, source in blocks[1:]:
    code += "\\n" * (line - 1 - code.count("\\n")) + source
lines = code.splitlines(keepends=True)
linecache.cache[page] = (len(code), None, lines, page)
runner, main = sys.modules["__main__"], types.ModuleType("__main__")
main.__file__ = page
sys.modules["__main__"] = main
printed = []
for line, source in blocks:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\\n" * (line - 1) + source, page, "exec"), main.__dict__)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def _run(page: str, blocks: list[_Block], folder: Path) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EQX_")}
    environment["PYTHONPATH"] = str(_ROOT)
    shutil.copytree(_ROOT / "docs", folder / "docs")
    shutil.copy(_ROOT / "README.md", folder)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUNNER, page],
        input=json.dumps([[b.line, b.source] for b in blocks]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def _with_python() -> list[str]:
    return [p for p in _PAGES if any(b.language == "python" for b in _blocks(p))]


@pytest.mark.parametrize("page", _with_python())
def test_code_runs_and_prints_what_the_page_says(page, tmp_path):
    blocks = _blocks(page)
    code = [b for b in blocks if b.language == "python"]
    printed = dict(zip(code, _run(page, code, tmp_path), strict=True))
    checker, wrong = doctest.OutputChecker(), []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block not in printed:
            continue
        shown = after is not None and after.language == "text" and after.follows
        wanted, got = after.source if shown else "", printed[block]
        if not checker.check_output(wanted, got, _ELLIPSIS):
            wrong.append(f"{page}:{block.line} prints\n{got}\nnot\n{wanted}")
    assert not wrong, "\n\n".join(wrong)


def _with_tests() -> list[str]:
    return [
        p for p in _with_python() if any(_TEST.search(b.source) for b in _blocks(p))
    ]


_TEST = re.compile(r"^def test_\w+", re.MULTILINE)


def test_some_page_shows_a_test():
    assert "docs/api/insight.md" in _with_tests()


@pytest.mark.parametrize("page", _with_tests())
def test_tests_that_are_shown_pass(page, tmp_path):
    shown = [b for b in _blocks(page) if b.language == "python"]
    shown = [b.source for b in shown if _TEST.search(b.source)]
    for i, source in enumerate(shown):
        (tmp_path / f"test_{i}.py").write_text(source)
    plugin = "eqx_fastjit.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    if not any(e.value == plugin for e in entry_points(group="pytest11")):
        command += ["-p", plugin]  # needed if the checkout is not installed
    out = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
    )
    n = sum(len(_TEST.findall(source)) for source in shown)
    # With `PYTEST_ADDOPTS=-v` it stands between "===".
    assert re.search(rf"^(=+ )?{n} passed in", out.stdout, re.MULTILINE), out.stdout


def _commands(page: str) -> list[list[str]]:
    out = []
    for block in _blocks(page):
        if block.language == "sh":
            for line in block.source.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while "&&" in words:
                    out.append(words[: words.index("&&")])
                    words = words[words.index("&&") + 1 :]
                out.append(words)
    return [words for words in out if words]


def _options_of(capsys: pytest.CaptureFixture[str], *command: str) -> set[str]:
    """The options of one of our commands. Asserts that the command exists."""
    with pytest.raises(SystemExit) as info:
        cli.main([*command, "--help"])
    assert info.value.code == 0, f"no command eqx-fastjit {' '.join(command)}"
    return set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@functools.cache
def _options_of_ours(*command: str) -> set[str]:
    """The options of a script or module of this checkout."""
    out = subprocess.run(
        [sys.executable, *command, "--help"],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    return set(re.findall(r"--[a-z-]+", out.stdout))


def _options_in(words: list[str]) -> set[str]:
    return {w.partition("=")[0] for w in words if w.startswith("--")}


def _check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    name, rest = words[0], words[1:]
    while name == "python" and rest[0] == "-X":
        rest = rest[2:]
    if name == "eqx-fastjit":
        subcommand = [w for w in rest[:1] if not w.startswith("-")]
        known = _options_of(capsys, *subcommand)
        programs = [i for i, w in enumerate(rest) if w.endswith(".py")]
        ours = rest[: programs[0]] if programs else rest
        assert _options_in(ours) <= known
    elif name == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None, f"no module {rest[1]}"
        if rest[1].startswith(("benchmarks", "tests.")):
            assert _options_in(rest) <= _options_of_ours(*rest[:2])
    elif name == "python":
        assert (_ROOT / rest[0]).exists(), f"no script {rest[0]}"
        assert _options_in(rest) <= _options_of_ours(rest[0])
    elif name not in ("git", "cd", "source"):
        assert _which(name) or (_ROOT / name).exists(), f"no command {name}"


def _which(name: str) -> str | None:
    """The path of a command, in this environment or on the machine."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


def _documented() -> list[tuple[str, str]]:
    """Each command of each page once, with the page."""
    commands = [
        (page, shlex.join(w)) for page in _WITH_COMMANDS for w in _commands(page)
    ]
    return list(dict.fromkeys(commands))


# The extra that installs a command which users need not have.
_EXTRAS = {
    "linkchecker": "dev",
    "mkdocs": "docs",
    "nox": "dev",
    "pre-commit": "dev",
    "python -m build": "dev",
}


def _missing_extra(words: list[str]) -> str:
    """The extra that must be installed for a command, or "" if none is missing."""
    name = " ".join(words[:3] if words[:2] == ["python", "-m"] else words[:1])
    if name not in _EXTRAS:
        return ""
    module = name.removeprefix("python -m ")
    found = _which(name) if module == name else importlib.util.find_spec(module)
    return "" if found else _EXTRAS[name]


@pytest.mark.parametrize(("page", "command"), _documented())
def test_commands_exist(page, command, capsys):
    words = shlex.split(command)
    if extra := _missing_extra(words):
        pytest.skip(f"needs the extra {extra}")
    _check_command(words, capsys)


def test_many_commands_are_documented():
    commands = [command for _, command in _documented()]
    assert len(commands) > 60
    # Most commands can be checked without the developer tools.
    needed = [c for c in commands if c.startswith(tuple(_EXTRAS))]
    assert 0 < len(needed) < len(commands) / 4


@pytest.mark.parametrize(
    "words",
    [
        "eqx-fastjit doctor --nonsense",
        "python -m tests.differential --nonsense 3",
        "python -X dev -m benchmarks.website --nonsense",
        "python scripts/generate_docs.py --nonsense",
        "python -m benchmarks.nonsense",
        "python scripts/nonsense.py",
    ],
)
def test_commands_that_do_not_exist_are_seen(words, capsys):
    with pytest.raises((AssertionError, ModuleNotFoundError), match="nonsense"):
        _check_command(words.split(), capsys)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"]
)
def test_relative_links_lead_somewhere(page):
    text = (_ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s#]+)|(?:src|srcset|href)=\"([^\"#]+)", text)
    targets = [a or b for a, b in links]
    relative = [t for t in targets if not re.match(r"\w+:", t)]
    assert [t for t in relative if not (_ROOT / page).parent.joinpath(t).exists()] == []
    assert relative or page != "README.md"


def test_little_is_left_out():
    texts = {page: (_ROOT / page).read_text(encoding="utf-8") for page in _PAGES}
    left_out = {page: text.count("<!-- not run:") for page, text in texts.items()}
    assert sum(left_out.values()) <= 3, left_out


def test_findings_show_the_scripts_that_the_tests_run():
    text = (_ROOT / "docs" / "why-slow.md").read_text(encoding="utf-8")
    for kind in KINDS:
        assert f"\n## {kind}\n" in text, f"no section on {kind}"
        faulty, clean = generate_docs.planted(kind)
        if (_ROOT / faulty).exists():
            assert generate_docs.shown_source(faulty) in text
            assert generate_docs.shown_source(clean) in text
            assert re.search(rf"^{kind} \(\w+\)  {faulty}:\d+", text, re.MULTILINE)


def test_generated_parts_are_those_of_today():
    # The findings take long, so only one of them is generated again; the test above
    # checks the others. `report-train` runs for a minute, and sorts its rows by time.
    patterns = ["bench-*", "figure-*", "help", "programs-*", "reliability-*"]
    patterns += ["startup-*", "zoo-*", "finding-static-churn"]
    assert list(generate_docs.stale_figures(patterns)) == [], (
        "run python scripts/generate_docs.py"
    )
    for page in generate_docs.pages():
        assert generate_docs.generated(page, patterns)[1] == [], (
            f"{page.name}: run python scripts/generate_docs.py"
        )


def test_layout_names_every_file():
    text = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in (_ROOT / "eqx_fastjit").iterdir():
        if path.name.startswith("__") or path.suffix in {".typed", ".so", ".pyd"}:
            continue
        name = f"`{path.name}{'/' * path.is_dir()}`"
        assert name in text, f"CONTRIBUTING.md does not say what {name} is"


def test_every_public_function_is_in_the_reference():
    import eqx_fastjit
    from eqx_fastjit import insight

    for package in (eqx_fastjit, insight):
        page = _ROOT / "docs" / "api" / f"{package.__name__.rpartition('.')[2]}.md"
        text = page.read_text(encoding="utf-8")
        names = getattr(package, "__all__", [n for n in dir(package) if n[0] != "_"])
        for name in names:
            if not isinstance(getattr(package, name), ModuleType):
                assert re.search(rf"[.`]{name}\b", text), f"{page.name} lacks {name}"


def test_every_page_is_in_the_navigation():
    text = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r": (\S+\.(?:md|ipynb))$", text, re.MULTILINE)
    folder = _ROOT / "docs"
    found = [p for p in folder.rglob("*") if p.suffix in (".md", ".ipynb")]
    assert sorted(nav) == sorted(p.relative_to(folder).as_posix() for p in found)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs_jupyter", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    out = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    return folder


def test_site_loads_nothing_from_elsewhere(site):
    for page in ("", "why-slow/", "api/insight/", "notebook/tour/"):
        page += "index.html"
        html = (site / page).read_text(encoding="utf-8")
        tags = re.findall(r"<(?:script|link|img)[^>]+>", html)
        assert [
            tag for tag in tags if re.search(r'(?:src|href)="(?:http|//)', tag)
        ] == []


def test_site_shows_what_the_notebook_shows(site):
    html = (site / "notebook" / "tour" / "index.html").read_text(encoding="utf-8")
    for shown in ("static-churn", "Flatten by node type"):
        assert shown in html
    assert html.count('class="eqx-fastjit"') >= 3


@pytest.fixture
def site_url(site):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_QuietHandler, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


_CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
_BROWSER_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium")
def test_pages_fit_the_screen_and_have_no_errors(site_url):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=_CHROMIUM, args=list(_BROWSER_OPTIONS)
        )
        errors = []
        for width, scheme in ((390, "dark"), (1280, "light")):
            page = browser.new_page(
                viewport={"width": width, "height": 800}, color_scheme=scheme
            )
            page.on("console", lambda m: errors.append(m.text))
            page.on("pageerror", lambda e: errors.append(str(e)))
            page.on("response", lambda r: r.status < 400 or errors.append(r.url))
            for name in ("how-it-works/", "why-slow/", "notebook/tour/"):
                page.goto(site_url + name, wait_until="networkidle")
                wider = "document.documentElement.scrollWidth > innerWidth"
                assert not page.evaluate(wider), f"{name} is wider than {width} px"
        browser.close()
    assert errors == []
