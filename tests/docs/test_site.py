"""What the site shows is what its source says: numbers of lists, files in pictures.

`.ci/run` runs this where the extra `docs` is; `mkdocs build --strict` checks links.
"""

import re
from html.parser import HTMLParser

import pytest

from .pages import ROOT, text_of


pytestmark = pytest.mark.one_engine


class _Numbers(HTMLParser):
    """The number of each point of the numbered lists of a page, as a browser counts."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self._lists: list[int | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("ol", "ul"):
            start = int(dict(attrs).get("start") or 1)
            self._lists.append(start if tag == "ol" else None)
        elif tag == "li" and (number := self._lists[-1]) is not None:
            self.numbers.append(number)
            self._lists[-1] = number + 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("ol", "ul"):
            self._lists.pop()


def test_lists_have_the_numbers_of_their_source():
    """Markdown could begin again at 1 after a paragraph."""
    page = "docs/how-it-works.md"
    reason = "needs the extra docs"
    markdown = pytest.importorskip("markdown", reason=reason)
    config = pytest.importorskip("mkdocs.config", reason=reason)
    site = config.load_config(str(ROOT / "mkdocs.yml"))
    extensions = {
        "extensions": site.markdown_extensions,
        "extension_configs": site.mdx_configs,
    }
    html = _Numbers()
    html.feed(markdown.markdown(text_of(page), **extensions))
    source = re.findall(r"^(\d+)\. ", text_of(page), re.MULTILINE)
    assert source and html.numbers == [int(x) for x in source]


PICTURES = sorted((ROOT / "docs" / "assets").glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda x: x.name)
def test_a_picture_names_files_that_exist(picture):
    """`read.c` and `_statics` are files of the package."""
    package = ROOT / "eqx_fastjit"
    files = {file.stem for file in package.rglob("*.py")}
    files |= {file.name for file in package.rglob("*.c")}
    text = re.sub(r"<[^>]*>", " ", picture.read_text(encoding="utf-8"))
    named = re.findall(r"(?<!\S)(_\w+|\w+\.c)\b", text)
    assert [name for name in named if name not in files] == []
    assert named or picture.name != "layers.svg"
