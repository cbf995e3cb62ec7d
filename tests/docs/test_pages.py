"""Links lead somewhere, and public names have a page."""

import ast
import re
import textwrap

import pytest

import eqx_fastjit
from eqx_fastjit import _statics, insight
from scripts import generate_docs

from .pages import anchors_of, links_of, PAGES, ROOT, text_of


pytestmark = pytest.mark.one_engine

_DOCS = [page for page in PAGES if page.startswith("docs/")]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    """Links to other sites are for linkchecker."""
    broken = []
    for link in links_of(page):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:|.*/asv/$", link) or anchor.startswith("only-"):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists():
            broken.append(link)
        elif anchor and path.suffix == ".md":
            known = anchors_of(str(path.resolve().relative_to(ROOT)))
            if path.name == "contributing.md":
                known = anchors_of("CONTRIBUTING.md")
            if anchor not in known:
                broken.append(link)
    assert broken == []


def test_each_page_is_in_the_navigation():
    """The site has no page that no menu shows, and no menu without a page."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    named = set(re.findall(r": ([\w/-]+\.(?:md|ipynb))$", nav, re.MULTILINE))
    pages = {page.removeprefix("docs/") for page in _DOCS}
    notebooks = {
        str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.ipynb")
    }
    assert named == pages | notebooks


@pytest.mark.parametrize("module", [eqx_fastjit, insight])
def test_public_names_are_documented(module):
    """Each has an entry in the reference, or is named there as another's synonym."""
    reference = text_of("docs/api/eqx_fastjit.md") + text_of("docs/api/insight.md")
    for name in module.__all__:
        entry = rf"^::: {module.__name__}\.{name}$|^`{name}` is another name"
        assert re.search(entry, reference, re.MULTILINE), name
    entries = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", reference, re.M)
    assert set(entries) <= set(module.__all__)


def test_the_contract_is_that_of_the_code():
    """The page has the docstring's words."""

    def words(text: str) -> list[str]:
        return re.sub(r"^> ?", "", text, flags=re.MULTILINE).split()

    contract = (_statics.__doc__ or "").partition("\n\n")[2]
    contract = textwrap.dedent(contract).partition("\n\nThis file says")[0]
    assert " ".join(words(contract)) in " ".join(words(text_of("docs/contract.md")))


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


def test_promises_are_numbered_in_order():
    """The list of promises has no gap."""
    text = text_of("docs/reliability.md").partition("## The long runs")[0]
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


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
