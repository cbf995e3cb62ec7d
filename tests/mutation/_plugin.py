"""A plugin for pytest, in the processes that run tests with a mutant in place.

With `MUTATION_RECORD`, the tests say which they are, so that what they run of the
source is known by test, and leave what became of them in that file. With
`MUTATION_CHOSEN`, only the tests run that this file names, in its order.
"""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest


_RECORD = os.environ.get("MUTATION_RECORD")
_CHOSEN = os.environ.get("MUTATION_CHOSEN")
# The one that runs, for the processes that it starts as well.
_TEST = "MUTATION_TEST"

_results: dict[str, dict[str, Any]] = {}

if _CHOSEN is not None:
    # A mutant that asks for ever more memory must not take that of the machine.
    _hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, _hard))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
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


def pytest_runtest_logreport(report: Any) -> None:
    if _RECORD is not None:
        result = _results[report.nodeid]
        result["seconds"] += report.duration
        result["passed"] &= report.passed


def pytest_sessionfinish() -> None:
    if _RECORD is not None:
        Path(_RECORD).write_text(json.dumps(_results))


def _switch(name: str) -> None:
    """Whatever runs from now on is run by this test, or by none."""
    import coverage

    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)
    if "GCOV_PREFIX" in os.environ:
        _dump_counters(Path(os.environ["GCOV_PREFIX"]), name)


def _dump_counters(folder: Path, name: str) -> None:
    """The same of the extension, which was built to count its lines."""
    import ctypes

    import eqx_fastjit._native as native  # type: ignore[reportMissingImports]

    ctypes.PyDLL(native.__file__).mutation_dump()
    if not name:
        target = folder / "tests" / os.environ[_TEST]
        for path in folder.glob("*.gcda"):
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)
