"""The results file, and what is shown of it: tests/docs compare whole tables."""

import pytest

from benchmarks import results_file, table


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(("load", "is_busy"), [(3.0, False), (3.2, True)])
def test_a_busy_machine_is_named(load, is_busy, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert ("busy (load 3, 2 cores)" in results_file.busy()) == is_busy


def test_a_median_whose_interval_is_wider_than_itself_is_not_shown():
    noise, ones = [1.0, 3.0, 9.0], [1.0] * 3
    dash = "–"  # noqa: RUF001
    assert table.median_cell(noise) == dash
    assert table.ratio_cell({"ours": noise, "jit": ones}, "jit") == dash
    # No ratio is shown of what was not measured, though they agree in each round.
    assert table.ratio_cell({"ours": noise, "jit": noise}, "jit") == dash
