"""`Reporter` in this process: what asks for a report, and what does not."""

import os
import queue
import signal

import pytest

from eqx_fastjit._signals import handler_of, held
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
