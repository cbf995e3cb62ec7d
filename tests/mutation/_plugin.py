"""A pytest plugin for the processes that run tests with a mutant.

With `MUTATION_RECORD`, it attributes coverage to the running test, or to all tests that
share the fixture being set up, and writes the tests' outcomes to that file. With
`MUTATION_CHOSEN`, only the tests listed in that file run, in its order.
"""

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest


_RECORD = os.environ.get("MUTATION_RECORD")
_CHOSEN = os.environ.get("MUTATION_CHOSEN")
# An environment variable with the running test, which subprocesses inherit.
_TEST = "MUTATION_TEST"

_results: dict[str, dict[str, Any]] = {}
# Fixtures that tests share: the seconds that each took to set up, and its tests.
_fixtures: dict[str, dict[str, Any]] = {}
_items: list[Any] = []

if _CHOSEN is not None:
    # A mutant that allocates without bound must not exhaust the machine's memory.
    _hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, _hard))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    _items[:] = items
    if _CHOSEN is None:
        return
    chosen = json.loads(Path(_CHOSEN).read_text())
    order = {name: i for i, name in enumerate(chosen)}
    kept = [x for x in items if x.nodeid in order]
    config.hook.pytest_deselected(items=[x for x in items if x.nodeid not in order])
    items[:] = sorted(kept, key=lambda x: order[x.nodeid])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any) -> Any:
    if _RECORD is None:
        return (yield)
    name = f"t{len(_results)}"
    _results[item.nodeid] = {"name": name, "seconds": 0.0, "passed": True}
    os.environ[_TEST] = name
    _switch(name)
    try:
        return (yield)
    finally:
        _switch("")
        os.environ[_TEST] = ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    test = os.environ.get(_TEST)
    if _RECORD is None or not test or fixturedef.scope == "function":
        return (yield)
    name = f"f{len(_fixtures)}"
    _switch("")
    os.environ[_TEST] = name
    _switch(name)
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        seconds = time.perf_counter() - start
        users = [
            item.nodeid
            for item in _items
            if fixturedef.argname in item.fixturenames
            and item.nodeid.startswith(fixturedef.baseid)
        ]
        _fixtures[name] = {"seconds": seconds, "tests": users}
        list(_results.values())[-1]["seconds"] -= seconds
        _switch("")
        os.environ[_TEST] = test
        _switch(test)


def pytest_runtest_logreport(report: Any) -> None:
    if _RECORD is not None:
        result = _results[report.nodeid]
        result["seconds"] += report.duration
        result["passed"] &= report.passed


def pytest_sessionfinish() -> None:
    if _RECORD is not None:
        found = {"tests": _results, "fixtures": _fixtures}
        Path(_RECORD).write_text(json.dumps(found))


def _switch(name: str) -> None:
    """Attribute coverage to this test from now on, or to none."""
    import coverage

    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)
    if "GCOV_PREFIX" in os.environ:
        _dump_counters(Path(os.environ["GCOV_PREFIX"]), name)


def _dump_counters(folder: Path, name: str) -> None:
    """The same for the extension, which was built with line counters."""
    import ctypes

    import eqx_fastjit._native as native  # type: ignore[reportMissingImports]

    ctypes.PyDLL(native.__file__).mutation_dump()
    if not name:
        parent = folder / "tests" / os.environ[_TEST]
        for path in folder.glob("*.gcda"):
            parent.mkdir(parents=True, exist_ok=True)
            # A shared fixture is set up in the midst of a test.
            target = parent / str(len(list(parent.iterdir())))
            target.mkdir()
            path.rename(target / path.name)
