"""The asv suite, with each benchmark run once, and its website for real commits."""

import ast
import itertools
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import calls, first_calls, processes, ratios, website
from benchmarks._suite import CONTENDERS
from eqx_fastjit import bench


TREE = Path(__file__).parent.parent
CHART = "calls.Calls.time_dispatch"
LINES = ("ours", "jax.jit", "eqx.filter_jit")

# The parameters with which each benchmark is run. A new benchmark is added here.
ONCE = (
    rf"^{CHART}\('({'|'.join(LINES)})', 'identity', 'cpu'\)",
    rf"^{CHART}\('ours', 'identity', 'gpu'\)",
    r"^calls.Calls.time_blocked\('aot', 'identity', 'cpu'\)",
    r"^calls.Widths.time_\w+\('ours', 8, 'cpu'\)",
    r"^calls.Layers.time_\w+\('flat', 1, 'cpu'\)",
    r"^calls.Batches.time_\w+\('ours', 4, 'cpu'\)",
    r"^calls.Zoo.time_\w+\('ours', 'particles', 'cpu'\)",
    r"^calls.Strategies.time_\w+\('ours', 'named_in_loop', 'cpu'\)",
    r"^first_calls.FirstCall.track_\w+\('ours', 'total', 'cpu'\)",
    r"^first_calls.Loops.track_\w+\('jax.jit', 'scan', 10, 'cpu'\)",
    r"^processes.Memory.peakmem_\w+\('ours', 'identity', 'cpu'\)",
    r"^processes.Import.timeraw_\w+\('eqx_fastjit after equinox'\)",
    r"^processes.ImportAlone",
    r"^ratios.Ratios.track_dispatch\('jax.jit', 'identity', 'cpu'\)",
    r"^ratios.Ratios.track_blocked\('eqx.filter_jit', 'static_arguments', 'cpu'\)",
    r"^ratios.ZooRatios.track_\w+\('flat', 'particles', 'cpu'\)",
)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


pytestmark = [pytest.mark.one_engine, pytest.mark.slow]


def _is_shallow():
    command = ["git", "rev-parse", "--is-shallow-repository"]
    out = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True)
    return out.stdout.strip() == "true"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder with asv's results and pages, for this checkout and two commits."""
    if not (TREE / ".git").exists():
        pytest.skip("needs git's history")
    commits = website.last_commits(3)
    if len(commits) < 3 and _is_shallow():
        pytest.skip("a shallow clone: fewer than three commits touch the package")
    assert len(commits) == 3
    output = tmp_path_factory.mktemp("asv")
    with pytest.MonkeyPatch.context() as patch:
        # asv stores what it knows of the machine in the home directory.
        gitconfig = Path.home() / ".gitconfig"
        patch.setenv("HOME", str(output))
        if gitconfig.exists():
            patch.setenv("GIT_CONFIG_GLOBAL", str(gitconfig))
        # JAX is imported in half the time if its bytecode is cached.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(output / "bytecode"))
        config = website.write_config(output)
        website.asv(config, "machine", "--yes")
        website.asv(config, "check", "--python=same")
        once = [f"--bench={regex}" for regex in ONCE]
        *before, head = commits
        website.asv(config, *website.RUN, f"--set-commit-hash={head}", "--quick", *once)
        for commit in before:
            website.run_commit(config, commit, "--quick", once[0])
        html = website.publish(config)
        if shutil.which("npm"):
            website.vendor(html)
    return output


def _benchmarks(site):
    """Each benchmark as asv lists it, with its parameters as Python values."""
    from asv.util import load_json

    found = load_json(str(site / "results" / "benchmarks.json"), api_version=2)
    for benchmark in found.values():
        params = [[ast.literal_eval(p) for p in ps] for ps in benchmark["params"]]
        yield benchmark, params


def _results(site, commit):
    """What asv measured for each benchmark and its parameters: None if it failed, NaN
    if it was skipped.
    """
    from asv.results import iter_results

    (results,) = [
        r for r in iter_results(str(site / "results")) if r.commit_hash == commit
    ]
    for benchmark, params in _benchmarks(site):
        name = benchmark["name"]
        if name in results.get_all_result_keys():
            values = results.get_result_value(name, benchmark["params"])
            yield name, dict(zip(itertools.product(*params), values, strict=True))


def test_every_benchmark_runs(site):
    ran = dict(_results(site, website.last_commits(1)[0]))
    for benchmark, _ in _benchmarks(site):
        name = benchmark["name"]
        assert name in ran, f"{name} is not in ONCE"
        values = ran[name].values()
        assert None not in values, f"{name} failed"
        assert any(value > 0 for value in values), f"{name} has not run"


def test_an_absent_device_is_skipped(site):
    import jax

    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    values = dict(_results(site, website.last_commits(1)[0]))[CHART]
    assert math.isnan(values["ours", "identity", "gpu"])
    assert values["ours", "identity", "cpu"] > 0


def test_kinds_and_parameters(site):
    kinds = {benchmark["type"] for benchmark, _ in _benchmarks(site)}
    assert kinds == {"time", "track", "peakmemory"}
    names = [benchmark["name"].split(".")[-1] for benchmark, _ in _benchmarks(site)]
    assert any(name.startswith("timeraw_") for name in names)
    used = {
        name for benchmark, _ in _benchmarks(site) for name in benchmark["param_names"]
    }
    assert used >= {"case", "contender", "device", "width", "batch"}


# Regular expressions of `case contender` that `eqx-fastjit bench` times and asv does
# not, with the reason.
_NOT_OF_ASV = {
    r"mlp_(?!8_)\d+_\d+_layers \w+": "width and depth are varied one at a time",
    r"(strategy|walk)_\w+_first \w+": "`FirstCall` and `Loops` are first calls enough",
    r"identity nnx_\w+": "models are what nnx is compared on",
    r"import_time \w+": "`processes.Import` imports the packages one by one",
    r"overlap \w+": "a training loop with a host of its own",
    r"peak_memory \w+": "`processes.Memory` has asv measure that, of other cases",
}


def _cases(values):
    """The cases that a benchmark's parameters name."""
    yield from values.get("case", ())
    yield from (f"mlp_{width}" for width in values.get("width", ()))
    yield from (f"batch_{batch}" for batch in values.get("batch", ()))
    for layers in values.get("layers", ()):
        yield "mlp_8" if layers == 3 else f"mlp_8_{layers}_layers"
    for kind, steps in itertools.product(
        values.get("kind", ()), values.get("steps", ())
    ):
        yield f"{kind}_{steps}"
    if "stage" in values:
        yield "first_call"


def _of_asv():
    """Each case and contender of the suite; contenders have asv's names."""
    for module in (calls, first_calls, processes, ratios):
        for benchmark in vars(module).values():
            if hasattr(benchmark, "param_names"):
                values = dict(zip(benchmark.param_names, benchmark.params, strict=True))
                contenders = ("ours", *values.get("rival", ()))
                contenders = values.get("contender", contenders)
                yield from itertools.product(_cases(values), contenders)


def test_cases_and_contenders_of_asv_are_those_of_the_command():
    pairs = set(_of_asv())
    assert {case for case, _ in pairs} <= set(bench.case_names())
    assert {contender for _, contender in pairs} == CONTENDERS.keys()
    assert set(CONTENDERS.values()) == set(bench.CONTENDERS)
    of_asv = {f"{case} {CONTENDERS[contender]}" for case, contender in pairs}
    of_command = {
        f"{case} {contender}"
        for case in bench.case_names()
        for contender in bench.case_info(case).contenders
    }
    missing = of_command - of_asv
    for pattern in _NOT_OF_ASV:
        left_out = {pair for pair in missing if re.fullmatch(pattern, pair)}
        assert left_out, f"{pattern} matches no case"
        missing -= left_out
    assert missing == set(), "add them to the suite, or state here why not"


def test_commits_without_what_a_case_needs_are_skipped(tmp_path):
    """The suite can be imported with a package that lacks almost everything."""
    (tmp_path / "eqx_fastjit").mkdir()
    (tmp_path / "eqx_fastjit" / "__init__.py").write_text("")
    code = (
        "import importlib, pkgutil, benchmarks\n"
        "for module in pkgutil.iter_modules(benchmarks.__path__, 'benchmarks.'):\n"
        "    importlib.import_module(module.name)\n"
        "from benchmarks import calls, first_calls, processes, ratios\n"
        "for benchmark, params in [\n"
        "    (calls.Calls, ('ours', 'identity', 'cpu')),\n"
        "    (first_calls.Loops, ('ours', 'scan', 10, 'cpu')),\n"
        "    (processes.Memory, ('ours', 'identity', 'cpu')),\n"
        "    (ratios.Ratios, ('jax.jit', 'identity', 'cpu')),\n"
        "]:\n"
        "    try:\n"
        "        benchmark().setup(*params)\n"
        "    except NotImplementedError as skipped:\n"
        "        print(benchmark.__name__, skipped)\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{TREE}"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    skipped = run.stdout.splitlines()
    assert [line.split()[0] for line in skipped] == [
        "Calls",
        "Loops",
        "Memory",
        "Ratios",
    ]
    assert all("filter_jit" in line for line in skipped)


def test_pages_show_what_was_measured(site):
    index = json.loads((site / "html" / "index.json").read_text())
    chart = index["benchmarks"][CHART]
    params = [[ast.literal_eval(p) for p in values] for values in chart["params"]]
    names = dict(zip(chart["param_names"], params, strict=True))
    assert set(names.pop("contender")) == set(LINES)
    assert names == {"case": ["identity"], "device": ["cpu"]}
    (summary,) = (site / "html" / "graphs").rglob("summary.json")
    rows = json.loads(summary.read_text())
    assert {row["name"] for row in rows} == {b["name"] for b, _ in _benchmarks(site)}
    assert all(row["last_value"] > 0 for row in rows)
    by_revision = {int(r): c[:8] for r, c in index["revision_to_hash"].items()}
    assert len(by_revision) == 3
    assert {r: commit for commit, r in index["tags"].items()} == by_revision


@contextmanager
def _preview(site):
    """The address at which `asv preview` serves the pages."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = str(site / "asv.conf.json")
    command = [sys.executable, "-m", "asv", "--config", config]
    server = subprocess.Popen(
        [*command, "preview", f"--port={port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for line in server.stdout:
            if "Serving at" in line:
                break
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.communicate()


def test_preview_serves_the_pages(site):
    with _preview(site) as address, urllib.request.urlopen(address) as page:
        assert b"airspeed velocity" in page.read()


_DRAWN = """
() => {
    const plot = $('#main-graph').data('plot');
    const canvas = plot.getCanvas();
    const {data} = canvas.getContext('2d')
        .getImageData(0, 0, canvas.width, canvas.height);
    const pixels = {};
    for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] === 255) {
            const color = `rgb(${data[i]},${data[i + 1]},${data[i + 2]})`;
            pixels[color] = (pixels[color] || 0) + 1;
        }
    }
    return plot.getData().map(line => ({
        label: line.label,
        points: line.data.filter(point => point[1] > 0).length,
        pixels: pixels[$.color.parse(line.color).toString()] || 0,
    }));
}
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.skipif(not shutil.which("npm"), reason="no npm to fetch asv's libraries")
def test_chart_of_ours_against_jax_jit_and_eqx_filter_jit(site):
    from playwright.sync_api import sync_playwright

    with _preview(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        page = browser.new_page()
        page.goto(f"{address}#{CHART}")
        page.wait_for_function("window.$ && $('#main-graph').data('plot')")
        lines = page.evaluate(_DRAWN)
        legend = page.locator("#main-graph .legend").inner_text()
        width = page.viewport_size["width"]
        for commit in website.last_commits(3):
            box = page.get_by_text(commit[:8], exact=True).bounding_box()
            assert 0 < box["x"] < box["x"] + box["width"] < width
        browser.close()
    for contender in LINES:
        assert contender in legend
        (line,) = [line for line in lines if line["label"] == f"contender-{contender}"]
        assert line["points"] == 3
    # Checked for all lines together, since one line may cover another.
    assert sum(line["pixels"] for line in lines) > 30
