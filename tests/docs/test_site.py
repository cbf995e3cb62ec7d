"""What the site shows is what its source says: numbers of lists, files in pictures.

`.ci/run` runs this where the extra `docs` is; `mkdocs build --strict` checks links.
"""

import html.parser
import re

import pytest

from .pages import ROOT, text_of


pytestmark = pytest.mark.one_engine


class _Numbers(html.parser.HTMLParser):
    """The number of each point of the numbered lists of a page, as a browser counts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []
        self._lists: list[int | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("ol", "ul"):
            start = int(dict(attrs).get("start") or 1)
            self._lists.append(start if tag == "ol" else None)
        elif tag == "li" and (number := self._lists[-1]) is not None:
            self.found.append(number)
            self._lists[-1] = number + 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("ol", "ul"):
            self._lists.pop()


@pytest.mark.parametrize("page", ["docs/reliability.md", "docs/how-it-works.md"])
def test_lists_have_the_numbers_of_their_source(page):
    """Test modules, and other pages, name promises by them."""
    reason = "needs the extra docs"
    markdown = pytest.importorskip("markdown", reason=reason)
    config = pytest.importorskip("mkdocs.config", reason=reason)
    site = config.load_config(str(ROOT / "mkdocs.yml"))
    numbers = _Numbers()
    numbers.feed(
        markdown.markdown(
            text_of(page),
            extensions=site.markdown_extensions,
            extension_configs=site.mdx_configs,
        )
    )
    source = re.findall(r"^(\d+)\. ", text_of(page), re.MULTILINE)
    assert source and numbers.found == [int(x) for x in source]


PICTURES = sorted((ROOT / "docs" / "assets").glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda x: x.name)
def test_a_picture_names_files_that_exist(picture):
    """`read.c` and `_statics` are files of the package."""
    text = re.sub(r"<[^>]*>", " ", picture.read_text())
    package = {x.stem: x for x in (ROOT / "eqx_fastjit").rglob("*.py")}
    package |= {x.name: x for x in (ROOT / "eqx_fastjit").rglob("*.c")}
    named = re.findall(r"(?<!\S)(_\w+|\w+\.c)\b", text)
    assert [x for x in named if x not in package] == []
    assert named or picture.name != "layers.svg"
