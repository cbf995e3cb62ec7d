"""Makes asv's website complete, labelled, and independent of a network.

    asv run --python=same --set-commit-hash=$(git rev-parse HEAD) --bench Ratios
    python -m benchmarks.website

Publishes the results that `asv run` has left. asv's own site lists what was not
measured, labels no commits, and loads libraries from three other sites. Here `npm`
downloads them once, and commits lead to $DOCS_REPOSITORY (https://github.com/OWNER/NAME).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


# For each file that asv's pages load, its package and its path there. asv asks for
# version 1.0.1 of the stupidtable plugin, which is not in npm's registry.
_LIBRARIES = {
    "jquery-3.3.1.min.js": "jquery@3.3.1/dist/jquery.min.js",
    "jquery.flot.min.js": "flot@0.8.3/jquery.flot.js",
    "jquery.flot.time.min.js": "flot@0.8.3/jquery.flot.time.js",
    "jquery.flot.selection.min.js": "flot@0.8.3/jquery.flot.selection.js",
    "jquery.flot.categories.min.js": "flot@0.8.3/jquery.flot.categories.js",
    "jquery.flot.orderBars.js": "flot-orderbars@1.0.0/js/jquery.flot.orderBars.js",
    "stupidtable.min.js": "stupid-table-plugin@1.1.3/stupidtable.min.js",
    "md5.min.js": "blueimp-md5@2.19.0/js/md5.min.js",
    "bootstrap.min.js": "bootstrap@3.1.1/dist/js/bootstrap.min.js",
    "bootstrap.min.css": "bootstrap@3.1.1/dist/css/bootstrap.min.css",
}
_ELSEWHERE = re.compile(r'(src|href)="https://[^"]*/([^"/]+\.(?:js|css))"')
_CHECKS = re.compile(r' (integrity|crossorigin|referrerpolicy)="[^"]*"')
# asv places labels to the right of their commits, where the last one is cut off.
_LABELS = 'div[style*="top: -2ex"] { transform: translateX(-75%); }\n'


def publish(html: Path) -> None:
    """Write the pages, with labelled commits, and a list of what was measured."""
    subprocess.run([sys.executable, "-m", "asv", "publish"], check=True)
    path = html / "index.json"
    index = json.loads(path.read_text())
    commits = index["revision_to_hash"].items()
    index["tags"] |= {commit[:8]: int(revision) for revision, commit in commits}
    if address := os.environ.get("DOCS_REPOSITORY"):
        index |= {"project_url": address, "show_commit_url": f"{address}/commit/"}
    path.write_text(json.dumps(index))
    with (html / "asv.css").open("a") as css:
        css.write(_LABELS)
    for path in html.rglob("summary.json"):
        rows = json.loads(path.read_text())
        path.write_text(json.dumps([x for x in rows if x["last_value"] is not None]))


def vendor(html: Path) -> None:
    """Put the libraries that asv's pages load from other sites beside them.

    Raises `KeyError` for a library that is not in `_LIBRARIES`, of another asv.
    """
    page = html / "index.html"
    text = page.read_text()
    wanted = {file: _LIBRARIES[file] for _, file in _ELSEWHERE.findall(text)}
    packages = {name.partition("/")[0] for name in wanted.values()}
    (html / "vendor").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "install", "--silent", "--no-save", "--ignore-scripts"]
        subprocess.run([*command, "--prefix", folder, *sorted(packages)], check=True)
        for file, name in wanted.items():
            path = re.sub("@[^/]*", "", name)
            shutil.copy(Path(folder) / "node_modules" / path, html / "vendor" / file)
    text = _ELSEWHERE.sub(r'\1="vendor/\2"', text)
    page.write_text(_CHECKS.sub("", text))


def main() -> int:
    """Run the command, in the root of the checkout; returns the exit code."""
    from asv.util import load_json

    if shutil.which("npm") is None:
        sys.exit("npm is needed for the libraries of asv's pages, and is not here")
    found = load_json("asv.conf.json", js_comments=True)
    results, html = Path(found["results_dir"]), Path(found["html_dir"])
    if not (results / "benchmarks.json").exists():
        sys.exit(f"no results in {results}: use asv run first")
    try:
        publish(html)
        vendor(html)
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    print(html / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
