"""A thread of the engine's sends a signal, by which tools sample the main thread."""

import os
import signal
import subprocess
import sys
import time

import pytest

from eqx_fastjit import _native


@pytest.fixture
def ticks():
    """Of each signal, how long it had waited, and Python computed meanwhile."""
    received: list[tuple[float, float]] = []

    def handle(number, frame):
        received.append(_native.seconds_since_tick())

    before = signal.signal(signal.SIGURG, handle)
    _native.start_ticks(signal.SIGURG, 0.002)
    yield received
    _native.stop_ticks()
    signal.signal(signal.SIGURG, before)


def wait_for(condition):
    """Python runs until a condition holds, or a minute is over."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        pass


def test_python_is_interrupted_until_the_ticks_stop(ticks):
    wait_for(lambda: len(ticks) >= 10)
    assert len(ticks) >= 10 and min(map(min, ticks)) >= 0.0
    _native.stop_ticks()
    n = len(ticks)
    time.sleep(0.05)
    assert len(ticks) == n


def test_calls_of_the_system_go_on(ticks):
    """And the signal has waited for as long as they kept Python from running."""
    reading, writing = os.pipe()
    os.write(writing, b"x")
    time.sleep(0.05)
    assert os.read(reading, 1) == b"x"
    wait_for(lambda: ticks)
    os.close(reading), os.close(writing)


def test_there_is_one_thread_of_ticks(ticks):
    with pytest.raises(RuntimeError, match="ticks already"):
        _native.start_ticks(signal.SIGURG, 0.002)


FORK = """
import os, signal, time
from eqx_fastjit import _native

received = []
signal.signal(signal.SIGURG, lambda number, frame: received.append(number))
_native.start_ticks(signal.SIGURG, 0.002)
process = os.fork()
if process == 0:
    received.clear()
    time.sleep(0.05)
    os._exit(len(received) > 0)
_, status = os.waitpid(process, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_has_no_ticks():
    """The thread is its parent's. In a process of its own: JAX warns of a fork."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr
