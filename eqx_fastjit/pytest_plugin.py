"""A pytest plugin: tests that fail if something is traced in vain, or too often.

    @pytest.mark.retrace_guard
    def test_training(): ...

    def test_step(retrace_guard):
        step(model, x)
        with retrace_guard(max_traces=0):
            step(model, x)

With `pytest --retrace-guard`, all tests are marked.

pytest loads this file in every session of an environment that has eqx_fastjit, so it
imports nothing of JAX until a test asks for it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import eqx_fastjit


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "retrace_guard(max_traces=None, warn=False): fail (or warn) if a function "
        "jitted by eqx_fastjit is traced to a program that it had, or too often.",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("eqx_fastjit")
    group.addoption(
        "--retrace-guard",
        action="store_true",
        help="fail each test in which a function is traced to a program that it had",
    )


@pytest.fixture
def retrace_guard() -> Any:
    """`eqx_fastjit.insight.guard`, for a part of a test."""
    return eqx_fastjit.insight.guard


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a marked test under its guard."""
    marker = item.get_closest_marker("retrace_guard")
    if marker is None and not item.config.getoption("--retrace-guard"):
        return (yield)
    args, kwargs = ((), {}) if marker is None else (marker.args, marker.kwargs)
    with eqx_fastjit.insight.guard(*args, **kwargs):
        return (yield)
