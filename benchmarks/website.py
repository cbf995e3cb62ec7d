"""Builds asv's website, from runs of some commits in this environment.

    python -m benchmarks.website [COMMIT ...] [--quick] [--bench REGEX]... [--offline]
                                 [--output .asv/website]

Runs the suite on each commit, whose package takes precedence over the installed one,
and publishes the results to OUTPUT/html. Without COMMIT, these are the last three
commits that changed the package. asv's pages load jQuery and other libraries from other
sites. With `--offline`, `npm` downloads them once, and they are stored with the pages.
"""

import argparse
import importlib.util
import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any


TREE = Path(__file__).parent.parent
PACKAGE = "eqx_fastjit"

# For each file that asv's pages load: package and path in npm's registry.
LIBRARIES = {
    "jquery-3.3.1.min.js": ("jquery@3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": ("flot@0.8.3", "jquery.flot.js"),
    "jquery.flot.time.min.js": ("flot@0.8.3", "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": ("flot@0.8.3", "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": ("flot@0.8.3", "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": (
        "flot-orderbars@1.0.0",
        "js/jquery.flot.orderBars.js",
    ),
    # asv asks for version 1.0.1, which is not in the registry.
    "stupidtable.min.js": ("stupid-table-plugin@1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5@2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
}
# Importing JAX takes longer than most benchmarks, so it is imported once before
# forking.
RUN = ("run", "--python=same", "--launch-method=forkserver", "--show-stderr")
_LIBRARY = re.compile(r'(?P<name>src|href)="https://[^"]*/(?P<file>[^"/]+\.(js|css))"')
# asv places labels to the right of their commits, where the last one is cut off.
_LABELS = 'div[style*="top: -2ex"] { transform: translateX(-75%); }\n'
_OF_ELSEWHERE = re.compile(r' (integrity|crossorigin|referrerpolicy)="[^"]*"')


class WebsiteError(Exception):
    """The website cannot be built."""


def _git(*args: str) -> bytes:
    return subprocess.run(
        ["git", *args], cwd=TREE, check=True, stdout=subprocess.PIPE
    ).stdout


def last_commits(n: int) -> list[str]:
    """The last commits that changed the package, oldest first; at most as many as
    exist.
    """
    # asv's charts follow the first parents of commits.
    log = _git("log", "--first-parent", "--format=%H", f"-{n}", "--", PACKAGE)
    return log.decode().split()[::-1]


def _commit(name: str) -> str:
    """The hash of a commit, for argparse."""
    try:
        return (
            _git("rev-parse", "--verify", "-q", f"{name}^{{commit}}").decode().strip()
        )
    except subprocess.CalledProcessError:
        raise argparse.ArgumentTypeError(f"git knows no commit {name!r}") from None


def _check_out(commit: str, folder: Path) -> None:
    """Write the package of a commit; build its extension if this checkout has one
    built.
    """
    archive = _git("archive", "--format=tar", commit)
    with tempfile.TemporaryDirectory() as tree:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(tree, filter="data")
        native = importlib.util.find_spec(f"{PACKAGE}._native")
        if native and (Path(tree) / PACKAGE / "_native.c").exists():
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            env = os.environ | {"EQX_FASTJIT_REQUIRE_NATIVE": "1"}
            subprocess.run(command, cwd=tree, env=env, check=True)
        # Its own benchmarks are not used: those of this checkout time all commits.
        shutil.copytree(Path(tree) / PACKAGE, folder / PACKAGE)


def write_config(output: Path) -> Path:
    """Write a copy of `asv.conf.json` that keeps all of asv's files in `output`.

    **Arguments:**

    - `output`: an existing folder.

    **Returns:** the path of the copy, for `asv --config`.
    """
    from asv.util import load_json

    versions = {name: [version(name)] for name in ("jax", "jaxlib", "equinox")}
    config = load_json(str(TREE / "asv.conf.json"), js_comments=True)
    config |= {
        "repo": str(TREE),
        "benchmark_dir": str(TREE / "benchmarks"),
        "env_dir": str(output / "env"),
        "results_dir": str(output / "results"),
        "html_dir": str(output / "html"),
        # With an existing environment, asv records these versions with the results.
        "matrix": {"req": versions},
        "exclude": [],
    }
    path = output / "asv.conf.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def asv(config: Path, *args: str, package: Path = TREE) -> None:
    """Run an asv command in this environment.

    **Arguments:**

    - `config`: the configuration.
    - `args`: the command and its arguments.
    - `package`: the folder that contains the package to time.

    Raises `subprocess.CalledProcessError`.
    """
    # The first is for the processes that asv starts, the second for their own.
    env = os.environ | {"ASV_PYTHONPATH": str(package), "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "asv", "--config", str(config), *args]
    subprocess.run(command, check=True, env=env)


def run_commit(config: Path, commit: str, *options: str) -> None:
    """Run the suite on a commit, in this environment.

    **Arguments:**

    - `config`: the configuration.
    - `commit`: its hash.
    - `options`: further options of `asv run`.

    Raises `subprocess.CalledProcessError` if a benchmark fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        _check_out(commit, Path(folder))
        asv(config, *RUN, f"--set-commit-hash={commit}", *options, package=Path(folder))


def _of_what_was_measured(results: Path, benchmarks: dict[str, Any]) -> dict[str, Any]:
    """The benchmarks and parameters for which there is a result."""
    from asv.results import iter_results

    measured: dict[str, list[tuple[str, ...]]] = {}
    for result in iter_results(str(results)):
        for name in benchmarks.keys() & result.get_all_result_keys():
            params = benchmarks[name]["params"]
            values = result.get_result_value(name, params)
            cases = zip(itertools.product(*params), values, strict=True)
            found = [case for case, x in cases if x is not None and not math.isnan(x)]
            measured.setdefault(name, []).extend(found)
    out = {"version": benchmarks["version"]}
    for name, cases in measured.items():
        if cases:
            columns = zip(*cases, strict=True)
            params = zip(benchmarks[name]["params"], columns, strict=True)
            kept = [[x for x in values if x in column] for values, column in params]
            out[name] = benchmarks[name] | {"params": kept}
    return out


def publish(config: Path) -> Path:
    """Build asv's pages, without blank charts and rows for what was not measured, and
    with the commits labelled.

    **Arguments:**

    - `config`: the configuration.

    **Returns:** the folder of the pages.
    """
    results, html = config.parent / "results", config.parent / "html"
    benchmarks = results / "benchmarks.json"
    text = benchmarks.read_text()
    measured = _of_what_was_measured(results, json.loads(text))
    benchmarks.write_text(json.dumps(measured))
    try:
        asv(config, "publish")
    finally:
        benchmarks.write_text(text)
    path = html / "index.json"
    index = json.loads(path.read_text())
    commits = index["revision_to_hash"].items()
    index["tags"] |= {commit[:8]: int(revision) for revision, commit in commits}
    path.write_text(json.dumps(index))
    with (html / "asv.css").open("a") as css:
        css.write(_LABELS)
    for path in html.rglob("summary.json"):
        rows = json.loads(path.read_text())
        found = [row for row in rows if row["last_value"] is not None]
        path.write_text(json.dumps(found))
    return html


def vendor(html: Path) -> None:
    """Download the libraries that asv's pages load from other sites, beside the pages.

    **Arguments:**

    - `html`: the folder of the pages.

    Raises `WebsiteError`.
    """
    page = html / "index.html"
    text = page.read_text()
    wanted = [match["file"] for match in _LIBRARY.finditer(text)]
    if unknown := [file for file in wanted if file not in LIBRARIES]:
        raise WebsiteError(f"asv's pages load what LIBRARIES does not have: {unknown}")
    (html / "vendor").mkdir()
    for file, content in _fetch(wanted).items():
        (html / "vendor" / file).write_bytes(content)
    text = _LIBRARY.sub(r'\g<name>="vendor/\g<file>"', text)
    page.write_text(_OF_ELSEWHERE.sub("", text))


def _fetch(files: list[str]) -> dict[str, bytes]:
    npm = shutil.which("npm")
    if npm is None:
        raise WebsiteError("--offline needs npm, which is not here")
    packages = sorted({LIBRARIES[file][0] for file in files})
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [npm, "pack", "--json", *packages],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise WebsiteError(f"npm has not got {packages}: {run.stderr.strip()}")
        archives = {
            packed["id"]: Path(folder) / packed["filename"]
            for packed in json.loads(run.stdout)
        }
        return {file: _member(archives, *LIBRARIES[file]) for file in files}


def _member(archives: dict[str, Path], package: str, path: str) -> bytes:
    with tarfile.open(archives[package]) as tar:
        member = tar.extractfile(f"package/{path}")
        assert member is not None, path
        return member.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="*", type=_commit, metavar="COMMIT")
    parser.add_argument(
        "--quick", action="store_true", help="one sample of each benchmark"
    )
    parser.add_argument("--bench", action="append", default=[], metavar="REGEX")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--output", type=Path, default=TREE / ".asv" / "website")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    config = write_config(output)
    commits = options.commits or last_commits(3)
    how = [f"--bench={regex}" for regex in options.bench]
    how += ["--quick"] * options.quick
    try:
        for commit in commits:
            run_commit(config, commit, *how)
        html = publish(config)
        if options.offline:
            vendor(html)
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)
    except WebsiteError as error:
        sys.exit(f"benchmarks.website: {error}")
    print(f"{len(commits)} commits: {html / 'index.html'}")
    print(f"asv --config {config} preview")


if __name__ == "__main__":
    main()
