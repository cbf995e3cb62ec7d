"""The pages say what the code says. (`mkdocs build --strict` checks their links.)"""

import ast
import functools
import re

import pytest

import eqx_fastjit
from eqx_fastjit import insight
from scripts import generate_docs

from .pages import ROOT, text_of


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize("module", [eqx_fastjit, insight])
def test_public_names_are_documented(module):
    """Each has an entry in the reference, or is named there as another's synonym."""
    reference = text_of("docs/api/eqx_fastjit.md") + text_of("docs/api/insight.md")
    for name in module.__all__:
        entry = rf"^::: {module.__name__}\.{name}$|^`{name}` is another name"
        assert re.search(entry, reference, re.MULTILINE), name
    entries = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", reference, re.M)
    assert set(entries) <= set(module.__all__)


def test_the_help_of_each_command_is_that_of_the_code():
    """Its words are; how they are set depends on the version of Python."""
    page = ROOT / "docs" / "api" / "commands.md"
    words_shown = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    words_generated = set(re.findall(r"\w+", generate_docs.generated(page)))
    assert words_shown == words_generated


def test_environment_variables_are_documented():
    """Each that the package or its build reads has a row."""
    files = [*ROOT.glob("eqx_fastjit/**/*.py"), ROOT / "setup.py"]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    names = set(re.findall(r"\"(EQX_FASTJIT_[A-Z_]+)\"", source))
    internal = {"EQX_FASTJIT_LOG_OWNER"}
    documented = set(
        re.findall(r"`(EQX_FASTJIT_[A-Z_]+)`", text_of("docs/environment.md"))
    )
    assert sorted(names - internal - documented) == []


def test_functions_that_are_named_with_their_file_are_in_it():
    """`read_values` (`csrc/read.c`) is there."""
    page = text_of("docs/how-it-works.md")
    named = re.findall(r"`(\w+)`\s+\(`([\w/]+\.\w+)`\)", page)
    assert len(named) > 10
    for name, file in named:
        source = (ROOT / "eqx_fastjit" / file).read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", source), f"{file} has no {name}"


# --- promises -------------------------------------------------------------------------

_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _promises() -> dict[str, list[tuple[str, str]]]:
    """For each promise of docs/reliability.md, the files and tests that it names."""
    row = re.compile(r"^\| (\d+) \| .* \| (.*) \|$", re.MULTILINE)
    rows = row.findall(text_of("docs/reliability.md"))
    return {number: _NAMED.findall(tests) for number, tests in rows}


@functools.cache
def _tests_of(file: str) -> set[str]:
    """The tests in a file of tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if node.name.startswith("test_")}


@pytest.mark.parametrize("number", _promises())
def test_a_promise_names_tests_that_exist(number):
    named = _promises()[number]
    assert named, f"promise {number} names no test"
    for file, test in named:
        assert test in _tests_of(file), f"promise {number}: {file} has no {test}"
