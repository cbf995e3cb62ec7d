"""The home page of the documentation is the README: a hook of mkdocs.

Links are relative to the root of the repository there, and to `docs/` here.
"""

from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the home page by the README. mkdocs calls this for each page."""
    if page.file.src_uri != "index.md":
        return markdown
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = text.replace("](docs/", "](")
    for name, target in _PAGES.items():
        text = text.replace(f"]({name}", f"]({target}")
    return text
