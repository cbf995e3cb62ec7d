"""Output made from results: files, tables, figures, the page, comparisons."""

import copy
import json
import os
import re
import struct
from html.parser import HTMLParser

import pytest

from benchmarks import render
from benchmarks.render import BadMarker, rendered
from eqx_fastjit import cli
from eqx_fastjit.bench import _grids, _results, BadResults, load, markdown
from scripts import generate_docs


pytestmark = pytest.mark.one_engine


def _entry(name, group="mlp", mode_times=None, **size):
    times = {"jit": [10.0, 11.0, 12.0], "ours": [5.0, 5.5, 6.0]}
    return {
        "name": name,
        "group": group,
        "title": 'a title with <b>tags</b> & "quotes"',
        "size": size,
        "device": "cpu",
        "device_kind": "cpu",
        "unit": "us",
        "times": mode_times or {"dispatch": times, "blocked": dict(times)},
    }


@pytest.fixture
def results():
    out = _results.new_results("eqx-fastjit bench --cases '<i>'", "native")
    out["problems"] = ["case: <script>alert(1)</script>"]
    out["cases"] = [
        _entry("mlp_8", width=8, layers=3, nodes=13),
        _entry("mlp_16", width=16, layers=3, nodes=13),
        _entry("mlp_8_16_layers", width=8, layers=16, nodes=52),
        _entry("batch_4", group="batch", batch=4),
        _entry("loop_10", group="loops", mode_times={"trace": {"ours": [1.5, 2.5]}}),
    ]
    return out


@pytest.fixture
def file(results, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(_results.dumps(results))
    return path


def test_results_are_read_as_they_were_written(results, file):
    assert load(file) == results
    for key in ("machine", "versions", "date", "command", "engine"):
        assert results[key]
    assert results["versions"]["jax"] and results["versions"]["eqx_fastjit"]
    assert results["machine"]["cores"] == os.cpu_count()
    # All rounds of a contender are on one line.
    assert '"jit": [10.0, 11.0, 12.0]' in file.read_text()


def test_figures_have_four_digits(results, tmp_path):
    case = _entry("a", mode_times={"x": {"ours": [1.23456, 98765.4, 7]}})
    text = _results.dumps(results | {"cases": [case]})
    (tmp_path / "long.json").write_text(text)
    (case,) = load(tmp_path / "long.json")["cases"]
    assert case["times"]["x"]["ours"] == [1.235, 98770, 7]


def test_figures_are_of_paired_rounds():
    entry = _entry("a", mode_times={"blocked": {"ours": [1, 4, 9], "jit": [2, 4, 3]}})
    assert _results.ratio(entry, "blocked", "jit") == (0.75, 1.0, 2.0)
    assert _results.indistinct(_results.ratio(entry, "blocked", "jit"))
    assert _results.ratio(entry, "blocked", "eqx") is None
    assert _results.ratio(entry, "dispatch", "jit") is None
    assert _results.spread([7.0]) == (7.0, 7.0, 7.0)


def test_half_a_round_is_left_out():
    entry = _entry("a", mode_times={"blocked": {"ours": [1.0, 2.0], "jit": [3.0]}})
    assert _results.even(entry)["times"] == {"blocked": {"ours": [1.0], "jit": [3.0]}}
    assert _results.even(entry | {"times": {}})["times"] == {}


def test_noise_is_told(results):
    assert _grids.noise(results) == []
    results["cases"][0]["times"]["blocked"] = {"ours": [1.0, 3.0], "jit": [2.0, 2.0]}
    (line,) = _grids.noise(results)
    assert "cpu, blocked" in line and "mlp_8: ours and jit" in line


def test_samples_share_the_fixed_cost(results):
    (grid,) = [g for g in _grids.grids(results) if "a sample" in g.title]
    assert list(grid.columns)[-2:] == ["ours", "jit"]
    assert [[c.text for c in row] for row in grid.rows] == [["batch_4", "1.38", "2.75"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("schema"), "it has no 'schema'"),
        (lambda r: r.update(schema=99), "has schema 99; this version reads 1"),
        (
            lambda r: r.pop("machine"),
            "not a complete results file: KeyError: 'machine'",
        ),
        (lambda r: r["cases"][0].update(name=3), "name is 3"),
        (
            lambda r: r["cases"][0]["times"]["blocked"].update(jit=[1.0]),
            "mlp_8, blocked: unequal numbers of rounds",
        ),
        (
            lambda r: r["cases"][0]["times"].update(blocked={"jit": [], "ours": []}),
            "mlp_8, blocked: unequal numbers of rounds",
        ),
        (
            lambda r: r["cases"][0]["times"].update(blocked={}),
            "mlp_8, blocked: unequal numbers of rounds",
        ),
        (
            lambda r: r["cases"][4]["times"]["trace"].update(ours=["a", "b"]),
            "loop_10, trace: expected numbers",
        ),
    ],
)
def test_broken_results(change, message, results, file, capsys):
    change(results)
    file.write_text(json.dumps(results))
    with pytest.raises(BadResults, match=message):
        load(file)
    assert cli.main(["bench", "--compare", str(file), str(file)]) == 2
    err = capsys.readouterr().err
    assert message in err and str(file) in err and err.count("\n") == 1


def test_not_json(tmp_path, capsys):
    broken = tmp_path / "a.json"
    broken.write_text("{")
    for path, message in ((broken, "is not JSON"), (tmp_path / "b", "cannot read")):
        assert cli.main(["bench", "--compare", str(path), str(path)]) == 2
        assert message in capsys.readouterr().err
    broken.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["bench", "--compare", str(broken), str(broken)]) == 2


def test_compare(results, file, tmp_path, capsys):
    slower = copy.deepcopy(results)
    times = slower["cases"][0]["times"]["dispatch"]
    times["ours"] = [2 * t for t in times["ours"]]
    after = tmp_path / "after.json"
    after.write_text(_results.dumps(slower))
    command = ["bench", "--compare", str(file), str(after)]
    assert cli.main(command) == 0
    assert "+100.0%" in capsys.readouterr().out
    assert cli.main([*command, "--fail-above", "101"]) == 0
    capsys.readouterr()
    assert cli.main([*command, "--fail-above", "5"]) == 1
    out = capsys.readouterr().out
    assert "mlp_8 (cpu), dispatch, ours: +100.0% is above 5%" in out
    assert out.count("is above") == 1
    # A speedup does not fail the comparison.
    backwards = ["bench", "--compare", str(after), str(file), "--fail-above", "5"]
    assert cli.main(backwards) == 0
    # A timing that is new in B does not fail either; one that is missing in B does.
    del slower["cases"][1]["times"]["blocked"]["jit"]
    after.write_text(_results.dumps(slower))
    assert cli.main([*command, "--fail-above", "101"]) == 1
    assert "mlp_16 (cpu), blocked, jit: missing in B" in capsys.readouterr().out
    assert cli.main(backwards) == 0
    assert "Only in B: mlp_16 (cpu), blocked, jit" in capsys.readouterr().out
    slower["cases"] = []
    after.write_text(_results.dumps(slower))
    assert cli.main(command) == 2
    assert "do not share any case and contender" in capsys.readouterr().err
    assert cli.main(["bench", "--fail-above", "5"]) == 2


def test_compare_ratios_of_two_machines(results, file, tmp_path, capsys):
    other = copy.deepcopy(results)
    # Rich would interpret this as markup.
    other["machine"]["cpu"] = "CPU [/x] [red]"
    for entry in other["cases"]:
        for by in entry["times"].values():
            for values in by.values():
                values[:] = [3 * t for t in values]
    other["cases"][0]["times"]["dispatch"]["ours"] = [0.0, 0.0, 0.0]
    after = tmp_path / "after.json"
    after.write_text(_results.dumps(other))
    command = ["bench", "--compare", str(file), str(after)]
    assert cli.main([*command, "--fail-above", "150"]) == 1
    out = capsys.readouterr().out
    assert "CPU [/x] [red]" in out
    assert "These are different machines: compare --ratios." in out
    assert cli.main([*command, "--ratios", "--fail-above", "1"]) == 0
    out = capsys.readouterr().out
    assert "ours/jit" in out and "different machines" not in out
    backwards = ["bench", "--compare", str(after), str(file), "--fail-above", "1000"]
    assert cli.main(backwards) == 1
    assert "mlp_8 (cpu), dispatch, ours: +inf% is above 1000%" in (
        capsys.readouterr().out
    )


def test_ratios_to_nothing(results):
    results["cases"][0]["times"]["dispatch"]["jit"] = [0.0, 1.0, 2.0]
    assert _results.ratio(results["cases"][0], "dispatch", "jit") is None
    assert "mlp\\_8" in markdown(results)


def test_figures_of_each_device(results):
    from eqx_fastjit.bench import _page, _plots

    results["cases"] += [e | {"device": "gpu"} for e in results["cases"]]
    names = {f"{n}_{d}" for n in _plots.FIGURES for d in ("cpu", "gpu")}
    assert set(_plots.render(results, "svg")) == names
    assert _page.page(results).count("<figure>") == 6


def test_figures_exist(results):
    from eqx_fastjit.bench import _plots

    drawn = _plots.render(results, "png")
    assert set(drawn) == set(_plots.FIGURES) == {"width", "ratios", "nodes"}
    for content in drawn.values():
        assert len(content) > 10_000
        assert content.startswith(b"\x89PNG")
        # 9 inches wide, with 150 dots each.
        assert struct.unpack(">I", content[16:20]) == (1350,)
    results["cases"] = results["cases"][-1:]
    assert _plots.render(results, "png") == {}


def test_what_figures_show():
    """By width: models of three layers. By nodes: the narrowest models."""
    from eqx_fastjit.bench import _plots

    sizes = [(1024, 3), (2048, 3), (1024, 16), (4096, 16)]
    entries = [_entry("", width=w, layers=n, nodes=4 * n + 1) for w, n in sizes]
    # As they are read from a file: no number is another one's object.
    results = _results.new_results("", "native") | {"cases": entries}
    results = json.loads(_results.dumps(results))
    drawn = _plots.render(results, "svg")
    assert b"width of an MLP of 3 linear layers" in drawn["width"]
    assert b"nodes of an MLP of width 1024" in drawn["nodes"]
    del results["cases"][2]
    assert set(_plots.render(results, "svg")) == {"width", "ratios"}
    del results["cases"][1]
    assert set(_plots.render(results, "svg")) == {"ratios"}


def test_a_figure_says_what_it_shows(results):
    from eqx_fastjit.bench import _plots

    def identifiers(dark=False):
        drawn = _plots.render(results, "svg", dark=dark)
        pattern = rb"<dc:identifier>(\w{64})</dc:identifier>"
        return {name: re.findall(pattern, svg) for name, svg in drawn.items()}

    before = identifiers()
    assert all(len(found) == 1 for found in before.values())
    assert before == identifiers()
    assert all(before[name] != found for name, found in identifiers(dark=True).items())
    results["cases"][0]["times"]["dispatch"]["ours"][0] *= 2
    assert before != identifiers()


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.urls = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.urls += [v for k, v in attrs if k in ("src", "href", "srcset")]


def test_page_is_escaped_and_needs_no_network(results):
    from eqx_fastjit.bench._page import page

    text = page(results)
    parsed = _Page()
    parsed.feed(text)
    assert "script" not in parsed.tags and "i" not in parsed.tags
    assert "&lt;script&gt;alert(1)" in text and "&lt;b&gt;tags" in text
    assert parsed.tags.count("img") == 3 and parsed.tags.count("table") == 4
    assert all(url.startswith("data:") for url in parsed.urls)
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://", text)


def test_markdown(results):
    text = markdown(results)
    assert "| case | ours | jit | ours/jit |\n| --- | ---: | ---: | ---: |" in text
    assert "| mlp\\_8 | 5.50\u00a0±5% | 11.0\u00a0±5% | **0.50** |" in text
    assert "Made by" in text and results["date"][:10] in text
    assert "jaxlib" in text


def test_brief_markdown(results):
    whole, brief = markdown(results), markdown(results, brief=True)
    assert "Blocked" in whole and "Blocked" not in brief
    assert "| case | ours | jit | ours/jit |" in brief


@pytest.fixture
def folder(results, tmp_path):
    """A folder with one results file."""
    (tmp_path / "a.json").write_text(_results.dumps(results))
    return tmp_path


def test_render_fills_blocks(results, folder):
    brief = "<!-- bench:a.brief -->\n<!-- /bench:a.brief -->\n"
    old = f"x\n<!-- bench:a -->\nstale\n<!-- /bench:a -->\n{brief}y\n"
    new = rendered(old, folder)
    assert markdown(results) in new and "stale" not in new
    assert markdown(results, brief=True) in new
    assert new.startswith("x\n<!-- bench:a -->\n") and new.endswith("-->\ny\n")
    assert rendered(new, folder) == new


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- bench:broken -->\n<!-- /bench:broken -->\n", "broken.json"),
        ("<!-- bench:a -->\n", "has no partner"),
        ("<!-- bench:a -->\n<!-- /bench:b -->\n", "is followed by"),
    ],
)
def test_render_refuses(text, message, folder):
    (folder / "broken.json").write_text("{")
    with pytest.raises((BadMarker, BadResults), match=message):
        rendered(text, folder)


def test_render_says_what_was_not_measured(folder):
    new = rendered("<!-- bench:b -->\n<!-- /bench:b -->\n", folder)
    assert "*Not measured yet.*" in new
    assert rendered(new, folder) == new


def _in_ratio(name, to_jit, to_flat):
    rivals = {"jit": [10.0, 10.0], "flat": [5.0, 5.0]}
    assert to_jit * 10 == to_flat * 5
    times = {"ours": [to_jit * 10, to_jit * 10], **rivals}
    return _entry(name, group="zoo", mode_times={"dispatch": times})


@pytest.fixture
def zoo(results):
    return results | {
        "cases": [
            _in_ratio("gpt", 0.5, 1.0),
            _in_ratio("policy", 0.75, 1.5),
            _in_ratio("gan", 0.25, 0.5),
        ]
    }


def test_summary_names_the_worst_case(zoo):
    table = render.summary_table(zoo)
    assert "by hand | 0.50 | 0.75 | `policy` |" in table
    assert "list of arrays | 1.00 | 1.50 | `policy` |" in table
    assert "equinox" not in table  # it was not timed
    line = " ".join(render.summary_line(zoo, "there#zoo").split())
    assert "Over [3 whole programs as people write them](there#zoo)" in line
    assert "0.50 times that of `jax.jit` with the statics removed" in line
    assert "(worst 0.75, `policy`)" in line


def test_pages_show_the_zoo_once_it_is_measured(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(generate_docs, "RESULTS", tmp_path)
    readme, index = tmp_path / "README.md", tmp_path / "index.md"
    parts = [
        f"<!-- generated:zoo-{name} -->\n<!-- /generated:zoo-{name} -->\n"
        for name in ("line", "summary", "programs")
    ]
    for page in (readme, index):
        page.write_text("".join(parts))
    assert generate_docs.generated(index, ["zoo-*"])[1] == ["zoo-programs"]
    (tmp_path / "zoo.json").write_text(_results.dumps(zoo))
    text, differing = generate_docs.generated(index, ["zoo-*"])
    assert differing == ["zoo-line", "zoo-summary", "zoo-programs"]
    assert render.summary_table(zoo) in text
    assert "](performance.md#the-zoo)" in text
    assert "| `statics_200` | " in text
    text, _ = generate_docs.generated(readme, ["zoo-*"])
    assert "](docs/performance.md#the-zoo)" in text
