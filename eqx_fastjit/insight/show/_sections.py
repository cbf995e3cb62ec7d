"""The section of a rule in the page `docs/rules.md`, a copy of which is installed."""

import functools
import importlib.resources
import re


@functools.cache
def sections() -> dict[str, str]:
    """The sections of the page by rule, in its order, without their headings."""
    file = importlib.resources.files("eqx_fastjit.insight") / "rules.md"
    text = file.read_text(encoding="utf-8")
    parts = re.split(r"^## (?:.*\n)|^### (.+)\n", text, flags=re.M)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name.strip("`"): body.strip() for name, body in pairs if name}
