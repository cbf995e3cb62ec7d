"""The results file, and what is shown of it: tests/docs compare whole tables."""

import pytest

from benchmarks import results_file


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(("load", "is_busy"), [(3.0, False), (3.2, True)])
def test_a_busy_machine_is_named(load, is_busy, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert ("busy (load 3, 2 cores)" in results_file.busy()) == is_busy
