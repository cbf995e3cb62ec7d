"""The code of each page runs, prints what the page says, and its commands exist.

The `python` blocks of a page run in order, in a fresh process with warnings as errors.
A `text` block directly after one is what it prints, where `...` stands for any text.
"""

import doctest
import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import tomllib
from typing import Any

import pytest

from tests.support.programs import run_python

from .pages import blocks_of, PAGES, ROOT, text_of


pytestmark = pytest.mark.one_engine

_ELLIPSIS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_TEST = re.compile(r"^def test_\w+", re.MULTILINE)
# Programs of rules are run each by itself (test_rules.py).
_WITH_PYTHON = [
    page for page in PAGES if blocks_of(page, "python") and "rules.md" not in page
]


def _python(*words: object, **options: Any) -> str:
    """What Python prints, as a reader runs it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("EQX_")}
    return run_python(*words, env=env, **options).stdout


@pytest.mark.parametrize("page", _WITH_PYTHON)
def test_code_prints_what_the_page_says(page, tmp_path):
    """Where no text follows a block, it prints nothing."""
    blocks = blocks_of(page)
    code = [b for b in blocks if b.language == "python"]
    words = ("-W", "error", "-m", "tests.docs.run_blocks", page)
    given = json.dumps([[b.line, b.source] for b in code])
    shown = json.loads(_python(*words, stdin=given, cwd=tmp_path))
    printed = dict(zip(code, shown, strict=True))
    checker, wrong = doctest.OutputChecker(), []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block not in printed:
            continue
        is_shown = after is not None and after.language == "text" and after.follows
        wanted, got = after.source if is_shown else "", printed[block]
        if not checker.check_output(wanted, got, _ELLIPSIS):
            wrong.append(f"{page}:{block.line} prints\n{got}\nnot\n{wanted}")
    assert not wrong, "\n\n".join(wrong)


def test_tests_that_are_shown_pass(tmp_path):
    """Tests in blocks are run by pytest."""
    shown = [b.source for page in _WITH_PYTHON for b in blocks_of(page, "python")]
    shown = [source for source in shown if _TEST.search(source)]
    for i, source in enumerate(shown):
        (tmp_path / f"test_{i}.py").write_text(source)
    words = ("-m", "pytest", "-q", "-W", "error", "--rootdir", ".")
    out = _python(*words, cwd=tmp_path)
    n = sum(len(_TEST.findall(source)) for source in shown)
    assert n and f"{n} passed" in out, out


# --- commands -------------------------------------------------------------------------

# Commands of the extras `dev` and `docs`, and of the system.
_OTHERS = {
    *("pre-commit", "ruff", "pyright", "codespell", "mkdocs", "nox", "asv"),
    *("cd", "gdb", "git", "pip", "source", "pytest", "linkchecker"),
}


def _commands(page: str) -> list[list[str]]:
    """The commands in `sh` blocks, without environment variables."""
    out = []
    for block in blocks_of(page, "sh"):
        for line in block.source.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                out += [words] if words else []
    return out


@functools.cache
def _options_of(*command: str) -> set[str]:
    """The options that the help of a command shows."""
    out = _python(*command, "--help", cwd=ROOT)
    return set(re.findall(r"--[a-z][a-z-]*", out))


def _check(words: list[str]) -> None:
    options = {w.partition("=")[0] for w in words if w.startswith("--")}
    assert all((ROOT / w).exists() for w in words if w.startswith("tests/")), words
    if words[0] == "eqx-fastjit":
        subcommand = [w for w in words[1:2] if not w.startswith("-")]
        known = _options_of("-m", "eqx_fastjit", *subcommand)
        scripts = [i for i, w in enumerate(words) if w.endswith(".py")]
        own = words[: scripts[0]] if scripts else words
        assert {w for w in own if w.startswith("--")} <= known, words
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None, words
        if options and words[2].startswith("benchmarks"):
            assert options <= _options_of("-m", words[2]), words
    elif words[0] == "python":
        assert options <= _options_of(words[1]), words
    elif words[0] not in _OTHERS:
        assert shutil.which(words[0]) or (ROOT / words[0]).exists(), words


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)])
def test_commands_and_their_options_exist(page):
    """Those of this project show them in their help."""
    for words in _commands(page):
        _check(words)


# A name on an index may be anybody's, until the project has released something there.
# CONTRIBUTING.md checks a release by this.
_RELEASED = {"pip install --pre eqx_fastjit"}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_installed_is_the_checkout_or_a_dependency(page):
    """In each line, also within a sentence. `.ci/run` runs those of the README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = {re.split(r"[^\w-]", x)[0] for y in extras.values() for x in y}
    for line in re.findall(r"pip install [^&`\n]+", text_of(page)):
        words = shlex.split(line.partition("  #")[0])[2:]
        targets = [word for word in words if not word.startswith("-")]
        for target in [] if line.strip() in _RELEASED else targets:
            name, _, wanted = target.rstrip("]").partition("[")
            assert name == "." or target in known - {"eqx_fastjit"}, line
            assert not wanted or {*wanted.split(",")} <= extras.keys(), line
