"""`Reporter` in this process: what asks for a report, and what does not."""

import os
import queue
import signal
import threading
import time
import types

import pytest

from eqx_fastjit._signals import handler_of, held
from eqx_fastjit.cli import _signals
from eqx_fastjit.cli._signals import Reporter


pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
    pytest.mark.one_engine,
]
NUMBERS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)


class Reports:
    """Takes the exit codes that reports are written with."""

    def __init__(self):
        self.codes = queue.Queue()
        self.errors = []

    def __call__(self, code):
        self.codes.put(code)
        if self.errors:
            raise self.errors.pop()

    def next(self):
        return self.codes.get(timeout=60)

    def is_quiet(self):
        try:
            return self.codes.get(timeout=0.3) and False
        except queue.Empty:
            return True


@pytest.fixture
def reports():
    return Reports()


@pytest.fixture
def started(reports, monkeypatch):
    """Start a `Reporter`; afterwards the handlers are as before."""
    monkeypatch.setattr("eqx_fastjit.cli._signals._INTERVAL", 0.01)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS}
    reporters = []

    def started(file=None):
        reporters.append(Reporter(reports, file))
        reporters[-1].start()
        return reporters[-1]

    yield started
    for reporter in reporters:
        reporter.stop()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_is_held_twice():
    arrived = []

    def handler(*_):
        arrived.append(1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with held([signal.SIGUSR1]):
            with held([signal.SIGUSR1]):
                signal.raise_signal(signal.SIGUSR1)
                assert handler_of(signal.SIGUSR1) is handler
            assert handler_of(signal.SIGUSR1) is handler and arrived == []
        assert handler_of(signal.SIGUSR1) is handler and arrived == [1]
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_asks_for_one_report(started, reports):
    started()
    assert reports.is_quiet()
    signal.raise_signal(signal.SIGUSR1)
    assert reports.next() is None
    assert reports.is_quiet()
    signal.raise_signal(signal.SIGUSR1)
    assert reports.next() is None


def test_a_file_asks_for_one_report(started, reports, tmp_path):
    file = tmp_path / "now"
    started(str(file))
    assert reports.is_quiet()
    file.touch()
    assert reports.next() is None
    assert reports.is_quiet() and not file.exists()


def test_a_file_that_cannot_be_removed_asks_once(started, reports, tmp_path):
    (tmp_path / "now").mkdir()
    started(str(tmp_path / "now"))
    assert reports.next() is None
    assert reports.is_quiet()
    signal.raise_signal(signal.SIGUSR1)
    assert reports.next() is None


def test_other_signals_ask_for_nothing(started, reports):
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        started()
        signal.raise_signal(signal.SIGUSR2)
        assert reports.is_quiet()
        # Neither does one that the program handles by now.
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.raise_signal(signal.SIGUSR1)
        assert reports.is_quiet()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_what_is_ignored_stays_ignored(started, reports):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    started()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    signal.raise_signal(signal.SIGUSR1)
    assert reports.is_quiet()


def test_a_report_that_fails_is_told_of(started, reports, capfd):
    started()
    reports.errors = [OSError("disk full")]
    signal.raise_signal(signal.SIGUSR1)
    assert reports.next() is None
    signal.raise_signal(signal.SIGUSR1)
    assert reports.next() is None
    assert capfd.readouterr().err == "eqx-fastjit: no report: OSError: disk full\n"


def test_stopping_restores_the_handlers(started, reports):
    reporter = started()
    assert all(signal.getsignal(number) != signal.SIG_DFL for number in NUMBERS)
    own = print  # any callable
    signal.signal(signal.SIGHUP, own)
    reporter.stop()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is own
    assert signal.set_wakeup_fd(-1) == -1
    assert reports.is_quiet()
    reporter.stop()  # once more does nothing


def test_another_wakeup_file_is_kept(started, reports):
    reporter = started()
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        signal.set_wakeup_fd(write)
        signal.raise_signal(signal.SIGUSR1)
        assert reports.next() is None and reports.is_quiet()
        reporter.stop()
        assert signal.set_wakeup_fd(-1) == write
    finally:
        os.close(read)
        os.close(write)


def test_a_report_before_the_end(monkeypatch):
    """The main thread waits for the report, and then ends by the signal itself."""
    reporter = Reporter(lambda code: None)
    asked = []
    monkeypatch.setattr(
        _signals,
        "os",
        types.SimpleNamespace(kill=lambda *a: asked.append(a), getpid=os.getpid),
    )
    monkeypatch.setattr(reporter, "_ask", asked.append)
    monkeypatch.setattr(reporter._written, "wait", asked.append)
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with pytest.raises(SystemExit) as e:
            reporter._end(signal.SIGUSR2, None)
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert asked == [signal.SIGUSR2, 60.0, (os.getpid(), signal.SIGUSR2)]
    assert e.value.code == 128 + signal.SIGUSR2


def test_a_process_that_does_not_end_is_ended(monkeypatch):
    codes, exits = [], []
    reporter = Reporter(codes.append)
    monkeypatch.setattr(_signals, "_GRACE", 0.01)
    monkeypatch.setattr(os, "_exit", exits.append)
    reporter._finish(15)
    assert codes == exits == [143] and reporter._written.is_set()
    assert (
        *(1.0,),
        (signal.SIGTERM, signal.SIGHUP),
    ) == (_signals._INTERVAL, _signals._FATAL)


def test_reports_are_written_one_at_a_time(monkeypatch):
    reporter = Reporter(lambda code: (code, reporter._writing.locked()))
    assert reporter.write(3) == (3, True)
    assert not reporter._writing.locked()
    waited = []

    class Lock:
        def acquire(self, timeout):
            waited.append(timeout)
            return False

        def locked(self):
            return True

    # The main thread holds it, and is interrupted by what asks for a report.
    reporter._writing = Lock()
    assert reporter.write(None) == (None, True) and waited == [5.0]


def test_only_in_the_main_thread_of_posix(monkeypatch):
    reporter = Reporter(lambda code: None)
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=reporter.start)
    thread.start()
    thread.join()
    monkeypatch.setattr(_signals.os, "name", "nt")
    reporter.start()
    assert signal.getsignal(signal.SIGTERM) is before and not reporter._alive.locked()


def test_many_signals_fill_the_pipe():
    reporter = Reporter(lambda code: None)
    started = time.monotonic()
    for _ in range(100_000):
        reporter._ask(10)
    assert time.monotonic() - started < 60
    assert reporter._asked() == {10}
    while reporter._asked():
        pass
    assert reporter._asked() == set()
