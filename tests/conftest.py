import contextlib
import gc
import os
import signal
import subprocess
import sys
import weakref

import jax
import pytest


# Must precede the first use of a device.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from eqx_fastjit import _callables, _compat, _engine, _install, _record  # noqa: E402
from tests.skips import pytest_configure  # noqa: E402, F401


# A shell starts background processes with Ctrl-C ignored, which child processes
# inherit, and then the tests that send it would fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


ENGINES = ("native", "python")
_states: dict[str, dict] = {}


def pytest_generate_tests(metafunc):
    """Run each test on both engines, unless it is marked with `one_engine`."""
    once = metafunc.definition.get_closest_marker("one_engine") is not None
    engines = ENGINES[:1] if once else ENGINES
    metafunc.parametrize("engine", engines, indirect=True)


def pytest_collection_modifyitems(items):
    """Begin with the files of slow tests, so that no worker is left with one alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Exclude what tests of other files have left from full garbage collections.

    After most of the suite that is 1.5 GB, or one second per collection, and some tests
    run many.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def engine(request, monkeypatch):
    """The name of the engine that the test runs on."""
    name = request.param
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", name)
    monkeypatch.setattr(_engine, "_state", _states.setdefault(name, {}))
    # Module classes outlive a test, and so would what the other engine keeps for them.
    monkeypatch.setattr(_callables, "_functions", weakref.WeakKeyDictionary())
    # Other tests may have recorded functions defined on the same line.
    _record.traces.clear()
    # `insight`, once imported, looks at the program's modules before each trace: with
    # all of the tests that takes 25 ms, or a third of the suite.
    insight = sys.modules.get("eqx_fastjit.insight._surroundings")
    if insight is not None and "insight" not in request.module.__name__:
        before = [x for x in _record.before if x is not insight._on_trace]
        monkeypatch.setattr(_record, "before", before)
    # A test, or a program that it ran, may have installed ours. It would then be
    # compared with itself instead of Equinox.
    _install.uninstall()
    yield name
    _install.uninstall()


@pytest.fixture
def take_away(monkeypatch):
    """Make a private name of JAX or Equinox unavailable, as in another version."""

    def take_away(name):
        resolve = _compat.resolve

        def without(path):
            if path == name:
                raise _compat.MissingPrivateName(path)
            return resolve(path)

        monkeypatch.setattr(_compat, "resolve", without)

    return take_away


@pytest.fixture
def kept_excepthook(monkeypatch):
    """Restored, since `end_as_interrupted` replaces it."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The current folder, with an empty program `a.py` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    return tmp_path


@pytest.fixture
def waited(monkeypatch):
    """The shape of each array that is blocked on."""
    shapes = []
    array = type(jax.numpy.ones(()))
    block = array.block_until_ready
    monkeypatch.setattr(
        array, "block_until_ready", lambda x: shapes.append(x.shape) or block(x)
    )
    return shapes


@pytest.fixture
def python_events():
    """The events that a profiler sees during a call."""

    def python_events(call):
        seen = []
        # What JAX and hypothesis do at a collection is not of the call.
        gc.disable()
        sys.setprofile(lambda frame, event, arg: seen.append(event))
        try:
            call()
        finally:
            sys.setprofile(None)
            gc.enable()
        return seen

    return python_events


@pytest.fixture
def start():
    """Start a process in a process group of its own, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(command, **kwargs):
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                **kwargs,
            )
            stack.enter_context(process)
            stack.callback(_kill_group, process.pid)
            return process

        yield start


def _kill_group(number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)
