"""What plots of results show, as matplotlib has it."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from eqx_fastjit.bench import (
    _plots,
)
from tests.bench_entries import CASES, entry, results


pytestmark = pytest.mark.one_engine


def mlps(sizes, contenders=("jit", "ours")):
    """MLPs of three rounds: in microseconds, the width and the layers, and more."""
    return [
        entry(
            f"mlp_{width}_{layers}",
            {
                mode: {
                    name: [more + width * layers + 2.0 * i for i in range(3)]
                    for name in contenders
                }
                for mode, more in (("dispatch", 0.0), ("blocked", 100.0))
            },
            width=width,
            layers=layers,
            nodes=3 * layers,
        )
        for width, layers in sizes
    ]


def drawn(prepare, entries):
    figure = Figure(figsize=(9, 4.8))
    prepare(entries)(figure)
    return figure


def test_time_against_width():
    figure = drawn(_plots._width, mlps([(16, 3), (8, 3), (8, 1)]))
    assert figure.get_suptitle() == "The cost of a call against the work in it"
    left, right = figure.axes
    assert left.get_title() == "until the call returns"
    assert right.get_title() == "until the result is ready"
    assert (left.get_ylabel(), right.get_ylabel()) == ("microseconds a call", "")
    for axes, more in ((left, 0), (right, 100)):
        assert axes.get_xlabel() == "width of an MLP of 3 linear layers"
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert list(axes.get_xticks()) == [8, 16]
        jit, ours = axes.lines
        assert (jit.get_label(), ours.get_label()) == ("jit", "ours")
        for line in (jit, ours):
            # The medians.
            assert line.get_xydata().tolist() == [[8, more + 26], [16, more + 50]]
        assert (jit.get_linewidth(), ours.get_linewidth()) == (1.4, 2.4)
        assert (jit.get_zorder(), ours.get_zorder()) == (2, 3)
        assert (jit.get_color(), ours.get_color()) == ("#0072B2", "#D55E00")
        assert (jit.get_marker(), ours.get_marker()) == ("s", "o")
        (area, _) = axes.collections
        # The quartiles.
        ys = {y for x, y in area.get_paths()[0].vertices.tolist() if x == 8}
        assert ys == {more + 25, more + 27}
        assert area.get_alpha() == 0.15 and to_hex(area.get_facecolor()[0]) == "#0072b2"
        assert axes.xaxis.get_major_formatter()(16.0, 0) == "16"
        assert axes.yaxis.get_major_formatter()(0.5, 0) == "0.5"
        assert axes.xaxis.get_minor_formatter()(16.0, 0) == ""
        assert axes.xaxis.get_tick_params(which="minor")["length"] == 0
        assert axes.xaxis.get_gridlines()[0].get_alpha() == 0.3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "jit: jax.jit",
        "ours: eqx_fastjit.filter_jit",
    ]
    assert legend._ncols == 2 and not legend.get_frame_on()
    assert legend.get_texts()[0].get_fontsize() == 9
    assert left.get_shared_x_axes().joined(left, right)
    assert left.get_shared_y_axes().joined(left, right)


def test_time_against_nodes():
    figure = drawn(_plots._nodes, mlps([(16, 3), (8, 3), (8, 1)]))
    assert figure.get_suptitle() == "The cost of a call against the size of the pytree"
    axes = figure.axes[0]
    assert axes.get_xlabel() == "pytree nodes of an MLP of width 8"
    assert axes.lines[0].get_xydata().tolist() == [[3, 10], [9, 26]]


def test_figures_need_two_sizes():
    two = mlps([(8, 3), (8, 1)])
    assert _plots._width(two) is None and _plots._nodes(two) is not None
    two = mlps([(8, 3), (16, 3)])
    assert _plots._width(two) is not None and _plots._nodes(two) is None
    other = [e | {"group": "batch"} for e in mlps([(8, 3), (8, 1), (16, 3)])]
    assert _plots._width(other) is None and _plots._nodes(other) is None
    assert _plots._width([]) is None and _plots._nodes([]) is None
    assert _plots._ratios(mlps([(8, 3)], ["jit"])) is None
    assert _plots._ratios(mlps([(8, 3)], ["ours"])) is None


def test_a_bar_for_each_ratio():
    def dispatch(**times):
        return {"dispatch": times}

    entries = [
        entry("a", dispatch(jit=[4.0] * 3, ours=[1.0, 2.0, 3.0], eager=[9.0] * 3)),
        entry("b", dispatch(eqx=[2.0] * 3, ours=[3.0, 3.0, 3.0])),
        entry("c", dispatch(jit=[2.0] * 3, ours=[1.0, 2.0, 3.0])),
        entry("d", dispatch(jit=[2.0] * 3)),
    ]
    figure = drawn(_plots._ratios, entries)
    assert figure.get_figheight() == pytest.approx(2.2 + 3 * 0.34)
    assert figure.get_suptitle() == "Ours over its rivals, until the call returns"
    jit, eqx = figure.axes
    assert [axes.get_title() for axes in (jit, eqx)] == ["ours / jit", "ours / eqx"]
    assert jit.get_xlabel() == eqx.get_xlabel() == "below 1: ours is cheaper"
    labels = [text.get_text() for text in jit.get_yticklabels()]
    assert labels == ["a", "b", "c"] and jit.yaxis_inverted()

    def bars(axes):
        return [
            (
                round(bar.get_y() + bar.get_height() / 2, 3),
                bar.get_width(),
                to_hex(bar.get_facecolor()),
                bar.get_alpha(),
            )
            for bar in axes.patches
        ]

    grey = _plots._COLOURS["eager"].lower()
    assert bars(jit) == [(0, 0.5, "#d55e00", 1), (2, 1.0, grey, 0.45)]
    assert bars(eqx) == [(1, 1.5, grey, 1)]
    # Lines from quartile to quartile, with caps.
    segments = jit.collections[0].get_segments()
    assert segments[0].tolist() == [[0.375, 0], [0.625, 0]]
    assert [(t.get_text(), t.xy, t.get_position()) for t in jit.texts] == [
        ("0.50", (0.625, 0), (4, 0)),
        ("1.00", (1.25, 2), (4, 0)),
    ]
    (text, _) = jit.texts
    assert (text.get_va(), text.get_fontsize()) == ("center", 8)
    one = jit.lines[-1]
    assert list(one.get_xdata()) == [1, 1] and one.get_linestyle() == "--"
    assert one.get_linewidth() == 1
    low, high = jit.get_xlim()
    assert low == 0 and high > 1.25 * 1.2


def test_a_figure_for_each_device():
    cases = mlps([(8, 3), (16, 3)])
    both = results(*cases, *[e | {"device": "gpu"} for e in cases], CASES[2])
    assert list(_plots.render(both, "svg")) == [
        *("width_cpu", "ratios_cpu", "width_gpu", "ratios_gpu")
    ]
    svg = _plots.render(both, "svg")["width_gpu"]
    assert b"The cost of a call against the work in it (gpu)" in svg
    assert b"work in it (" not in _plots.render(results(*cases), "svg")["width"]
    # Nothing of the settings for these figures remains.
    assert matplotlib.rcParams["svg.hashsalt"] is None


def test_the_digest_is_of_all_that_is_shown():
    digests = set()

    def add(change=lambda cases: None, prepare=_plots._width, title=None):
        cases = mlps([(8, 3), (16, 3)])
        change(cases)
        figure = drawn(prepare, cases)
        if title is not None:
            figure.suptitle(title)
        digests.add(_plots._digest(figure))

    add()
    add()
    assert len(digests) == 1

    def median(cases):
        cases[0]["times"]["dispatch"]["jit"][1] *= 1.01

    def quartiles(cases):
        cases[0]["times"]["dispatch"]["jit"][0] *= 0.99

    def sizes(cases):
        cases[0]["size"]["width"] = 9

    def contenders(cases):
        for by in cases[0]["times"].values():
            by["eqx"] = [1.0] * 3

    def names(cases):
        cases[0]["name"] = "other"

    for i, do in enumerate((median, quartiles, sizes, contenders)):
        add(do)
        assert len(digests) == 2 + i
    add(title="other")
    assert len(digests) == 6
    add(names)  # not shown in this one
    assert len(digests) == 6
    for i, do in enumerate((lambda cases: None, median, quartiles)):
        add(do, _plots._ratios)
        assert len(digests) == 7 + i
    assert _plots._digits(np.array([[1.23456789, 2.0]])) == ["1.23457", "2"]
