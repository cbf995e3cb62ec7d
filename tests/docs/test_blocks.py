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
import tomllib
from typing import Any

import pytest

from tests.support.programs import run_python

from .pages import Block, blocks_of, PAGES, ROOT, text_of


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
    code = [block for block in blocks if block.language == "python"]
    words = ("-W", "error", "-m", "tests.docs.run_blocks", page)
    stdin = json.dumps([[block.line, block.source] for block in code])
    printed = json.loads(_python(*words, stdin=stdin, cwd=tmp_path))

    wrong = []
    for block, got in zip(code, printed, strict=True):
        wanted = _text_after(block, blocks)
        if not doctest.OutputChecker().check_output(wanted, got, _ELLIPSIS):
            wrong.append(f"{page}:{block.line} prints\n{got}\nnot\n{wanted}")
    assert not wrong, "\n\n".join(wrong)


def _text_after(block: Block, blocks: list[Block]) -> str:
    """The text directly after a block of code, if there is one."""
    following = blocks[blocks.index(block) + 1 :]
    if following and following[0].language == "text" and following[0].follows:
        return following[0].source
    return ""


def test_tests_that_are_shown_pass(tmp_path):
    """Tests in blocks are run by pytest."""
    n_tests = 0
    for page in _WITH_PYTHON:
        for block in blocks_of(page, "python"):
            tests = _TEST.findall(block.source)
            if tests:
                (tmp_path / f"test_{n_tests}.py").write_text(block.source)
                n_tests += len(tests)

    words = ("-m", "pytest", "-q", "-W", "error", "--rootdir", ".")
    out = _python(*words, cwd=tmp_path)
    assert f"{n_tests} passed" in out, out


# --- commands -------------------------------------------------------------------------

# Commands of the extras `dev` and `docs`, and of the system.
_OTHERS = {
    *("pre-commit", "ruff", "pyright", "codespell", "mkdocs", "nox", "asv"),
    *("cd", "gdb", "git", "pip", "source", "pytest"),
}


def _commands(page: str) -> list[list[str]]:
    """The commands in `sh` blocks, without environment variables."""
    commands = []
    for block in blocks_of(page, "sh"):
        text = block.source.replace("\\\n", " ").replace("&&", "\n")
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                commands.append(words)
    return commands


@functools.cache
def _options_of(*command: str) -> set[str]:
    """The options that the help of a command shows."""
    out = _python(*command, "--help", cwd=ROOT)
    return set(re.findall(r"--[a-z][a-z-]*", out))


def _check(words: list[str]) -> None:
    """Check that a command exists, its options, and the tests that it names."""
    options = {w.partition("=")[0] for w in words if w.startswith("--")}
    for word in words:
        assert not word.startswith("tests/") or (ROOT / word).exists(), words

    match words:
        case ["eqx-fastjit", *_]:
            _check_options_of_the_command(words)
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, words
            if options and module != "scripts.generate_docs":  # it has no parser
                assert options <= _options_of("-m", module), words
        case [name, *_]:
            assert name in _OTHERS or (ROOT / name).exists(), words


def _check_options_of_the_command(words: list[str]) -> None:
    """Those after a script are the script's."""
    known = _options_of("-m", "eqx_fastjit", *words[1:2])
    for word in words:
        if word.endswith(".py"):
            break
        assert not word.startswith("--") or word in known, words


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)])
def test_commands_and_their_options_exist(page):
    """The help of this project's own shows them (but of generate_docs)."""
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
    requirements = [text for extra in extras.values() for text in extra]
    dependencies = {re.split(r"[^\w-]", text)[0] for text in requirements}

    for line in re.findall(r"pip install [^&`\n]+", text_of(page)):
        if line.strip() in _RELEASED:
            continue
        _, _, *words = shlex.split(line, comments=True)
        for target in words:
            if target.startswith("-"):
                continue
            name, _, extra = target.rstrip("]").partition("[")
            assert name == "." or target in dependencies - {"eqx_fastjit"}, line
            assert not extra or {*extra.split(",")} <= extras.keys(), line
