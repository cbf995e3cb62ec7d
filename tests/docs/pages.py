"""The pages of the documentation, and their code blocks."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of code."""

    language: str
    source: str
    # The line of the page with the first line of the code.
    line: int
    # Whether only blank lines separate this block from the one before.
    follows: bool


def text_of(page: str) -> str:
    """The source of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page, or those of a language."""
    text = text_of(page)
    blocks, end = [], 0
    for match in _FENCE.finditer(text):
        follows = not text[end : match.start()].strip()
        end = match.end()
        source = textwrap.dedent(match["body"])
        line = text.count("\n", 0, match.start("body")) + 1
        blocks.append(Block(match["language"], source, line, follows))
    return [block for block in blocks if language in (None, block.language)]
