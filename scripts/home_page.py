"""The home page of the documentation is the README: a hook of mkdocs.

Links are relative to the root of the repository there, and to `docs/` here.
"""

import re
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
_PICTURE = re.compile(
    r'<picture>.*?srcset="([^"]+).*?alt="([^"]+)" src="([^"]+).*?</picture>', re.DOTALL
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the home page by the README. mkdocs calls this for each page."""
    if page.file.src_uri != "index.md":
        return markdown
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = _PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", text)
    text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md", lambda x: x[0].lower(), text)
    text = text.replace("](docs/", "](")

    # The site has room for the doctor's page, of which the README has the first lines.
    image = "![The doctor's page](assets/doctor-{0}.png#only-{0})\n"
    images = image.format("light") + image.format("dark")
    end = "<!-- /generated:doctor-first -->"
    return text.replace(end, f"{end}\n\n{images}")
