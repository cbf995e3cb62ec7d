"""asv's suite, and its website."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from importlib.metadata import version

import pytest

from benchmarks import suite, website
from benchmarks.case import CASES
from benchmarks.timing import CALL_MODES
from tests.benchmarks.conftest import ROOT


util = pytest.importorskip("asv.util")

pytestmark = pytest.mark.one_engine

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
_ONE = r"Ratios.track_dispatch\('(jit|eqx)', 'error_if'"


def _git(*args):
    command = ["git", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def asv(tmp_path_factory):
    """Run asv in this environment, with its files in a folder of their own."""
    if _git("rev-parse", "HEAD").returncode:
        pytest.skip("needs git's history")
    folder = tmp_path_factory.mktemp("asv")
    config = util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    config |= {
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks"),
        **{f"{x}_dir": str(folder / x) for x in ("env", "results", "html")},
        "matrix": {"req": {name: [version(name)] for name in ("jax", "equinox")}},
        "exclude": [],
    }
    file = folder / "asv.conf.json"
    file.write_text(json.dumps(config))
    env = {"ASV_PYTHONPATH": str(ROOT), "HOME": str(folder)}

    def asv(run, *words):
        return run("asv", "--config", file, *words, **env)

    asv.config, asv.folder = file, folder
    return asv


def test_each_case_is_listed_once():
    calls, first = suite.Ratios.params[1], suite.FirstRatios.params[1]
    assert sorted(calls + first) == sorted(CASES)


def test_every_mode_has_a_ratio():
    for mode in CALL_MODES:
        assert hasattr(suite.Ratios, f"track_{mode}")


def test_a_case_without_the_contender_is_skipped():
    with pytest.raises(NotImplementedError, match="error_if has not all of"):
        suite._case("error_if", "flat")


def test_the_site_of_two_commits(asv, run):
    assert asv(run, "machine", "--yes").returncode == 0
    for revision in ("HEAD", "HEAD~1"):
        commit = _git("rev-parse", revision).stdout.strip()
        if not commit:
            pytest.skip("a shallow clone")
        words = ("--python=same", "--quick", "--bench", _ONE, "--show-stderr")
        words += ("--launch-method=forkserver", f"--set-commit-hash={commit}")
        out = asv(run, "run", *words)
        assert out.returncode == 0, out.stdout + out.stderr
    if not shutil.which("npm"):
        pytest.skip("no npm to fetch asv's libraries")
    out = run("benchmarks.website", "--config", asv.config)
    assert out.returncode == 0, out.stdout + out.stderr
    html = asv.folder / "html"
    page = (html / "index.html").read_text()
    assert 'src="https:' not in page and "integrity" not in page
    assert all((html / "vendor" / name).exists() for name in website._LIBRARIES)
    index = json.loads((html / "index.json").read_text())
    assert _git("rev-parse", "--short=8", "HEAD").stdout.strip() in index["tags"]
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    _look_at_a_chart(
        html, "suite.Ratios.track_dispatch?p-rival='eqx'&p-case='error_if'"
    )


def _look_at_a_chart(html, name):
    from playwright.sync_api import sync_playwright

    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(html)
    )
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/#{name}")
        page.wait_for_function("window.$ && $('#main-graph').data('plot')")
        points = page.evaluate(
            "$('#main-graph').data('plot').getData()"
            ".map(x => x.data.filter(y => y[1] > 0).length)"
        )
        browser.close()
        server.shutdown()
    assert points == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no results in"), ("npm", "npm is needed")],
)
def test_a_website_that_cannot_be_made(text, message, tmp_path, monkeypatch, capsys):
    file = tmp_path / "asv.conf.json"
    file.write_text('{"results_dir": "results", "html_dir": "html"}')
    found = None if text == "npm" else sys.executable
    monkeypatch.setattr(website.shutil, "which", lambda name: found)
    with pytest.raises(SystemExit) as e:
        website.main(["--config", str(file)])
    assert e.value.code == 2 and message in capsys.readouterr().err
