"""The pages say what the code says. (`mkdocs build --strict` checks their links.)"""

import ast
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
    shown, current = page.read_text(), generate_docs.generated(page)
    assert {*re.findall(r"\w+", shown)} == {*re.findall(r"\w+", current)}


def test_environment_variables_are_documented():
    """Each that the package or its build reads has a row."""
    files = [*ROOT.glob("eqx_fastjit/**/*.py"), ROOT / "setup.py"]
    read = {
        name
        for path in files
        for name in re.findall(r"\"(EQX_FASTJIT_[A-Z_]+)\"", path.read_text())
    }
    internal = {"EQX_FASTJIT_LOG_OWNER"}
    page = text_of("docs/environment.md")
    assert [name for name in sorted(read - internal) if f"`{name}`" not in page] == []


def test_a_test_module_stands_for_each_promise():
    """Each number in docs/reliability.md is in the docstring of a test module."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    promised = {int(n) for n in re.findall(r"^(\d+)\. ", page, re.MULTILINE)}
    named: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in re.findall(
            r"^Promises? ([\d, ]+) of docs", docstring, re.MULTILINE
        ):
            named |= {int(n) for n in line.split(",")}
    assert promised == named
