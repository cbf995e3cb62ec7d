"""A pytest plugin: the marker and the fixture `retrace_guard`.

pytest loads this file in every session of an environment that has eqx_fastjit, so it
imports nothing of JAX until a test asks for it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import eqx_fastjit


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    text = "retrace_guard(max_traces=None, warn=False): see eqx_fastjit.insight.guard"
    config.addinivalue_line("markers", text)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("eqx_fastjit")
    text = "fail each test in which a function is traced to a program that it had"
    group.addoption("--retrace-guard", action="store_true", help=text)


@pytest.fixture
def retrace_guard() -> Any:
    """`eqx_fastjit.insight.guard`, for a part of a test."""
    return eqx_fastjit.insight.guard


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a marked test under its guard."""
    marker = item.get_closest_marker("retrace_guard")
    guard = contextlib.nullcontext()
    if marker is not None:
        # `args` may have the function that alone is guarded.
        guard = eqx_fastjit.insight.guard(*marker.args, **marker.kwargs)
    elif item.config.getoption("--retrace-guard"):
        guard = eqx_fastjit.insight.guard()

    with guard:
        return (yield)
