"""Puts results into the README and the documentation.

    python -m benchmarks.render [--check] [--root DIR]

In README.md and docs/**/*.md, what stands between `<!-- bench:NAME -->` and
`<!-- /bench:NAME -->` becomes the tables of benchmarks/results/NAME.json; where NAME
ends with `.brief`, a short form of them. With `--check` nothing is written, and the
exit code is 1 if something would be.
"""

import argparse
import re
import sys
from pathlib import Path


_MARKER = re.compile(r"^<!-- (/?)bench:([\w.-]+) -->$", re.MULTILINE)

# Better than a table from nowhere, and than a gap that nobody can explain.
_MISSING = "*Not measured yet: there is no `benchmarks/results/{}`.*"


class BadMarker(Exception):
    """A marker without its partner."""


def rendered(text: str, results: Path) -> str:
    """The text with what is between markers made anew.

    **Arguments:**

    - `text`: Markdown.
    - `results`: the folder of results files.

    **Returns:** Markdown. Where there is no results file, it says so. Raises
    `BadMarker`, or `BadResults` for a file that is not right.
    """
    # Here: asv imports this module too, on commits that have no such names.
    from eqx_fastjit.bench import load, markdown

    out, position, markers = [], 0, list(_MARKER.finditer(text))
    if len(markers) % 2:
        raise BadMarker(f"{markers[-1].group()} has no partner")
    for begin, end in zip(markers[::2], markers[1::2], strict=True):
        if begin[1] or not end[1] or begin[2] != end[2]:
            raise BadMarker(f"{begin.group()} is followed by {end.group()}")
        name = begin[2].removesuffix(".brief")
        path = results / f"{name}.json"
        tables = _MISSING.format(path.name)
        if path.exists():
            tables = markdown(load(path), brief=name != begin[2])
        out += [text[position : begin.end()], f"\n\n{tables}\n\n"]
        position = end.start()
    return "".join([*out, text[position:]])


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from eqx_fastjit.bench import BadResults

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only tell what differs")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parent.parent, help="the checkout"
    )
    options = parser.parse_args(argv)
    root = options.root
    differ = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        try:
            new = rendered(text, root / "benchmarks" / "results")
        except (BadMarker, BadResults) as e:
            print(f"{path.relative_to(root)}: {e}", file=sys.stderr)
            return 2
        if new != text:
            differ.append(str(path.relative_to(root)))
            if not options.check:
                path.write_text(new, encoding="utf-8")
    if differ:
        what = "differ from the results" if options.check else "rewritten"
        print(f"{what}: {', '.join(differ)}")
    return 1 if differ and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
