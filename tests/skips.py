"""Fails a session in which tests are skipped that should run.

This is enabled by the environment variable `EQX_FASTJIT_SKIPS`, which lists the
permitted reasons for skipping: substrings, separated by semicolons. `.ci/run` sets it.
"""

import os


_VARIABLE = "EQX_FASTJIT_SKIPS"
# Of versions that the matrix has, too; and Debian has no `_testcapi`, which others do.
BY_DESIGN = (
    "a sample is all there is in this version of JAX",
    "not in this Equinox",
    "this Python has no _testcapi",
)


class Skips:
    """A plugin that fails a session if a test is skipped for another reason."""

    def __init__(self, allowed):
        self.allowed = (*BY_DESIGN, *allowed)
        self.unexpected = []

    def note(self, report):
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = str(report.longrepr)
        if isinstance(report.longrepr, tuple):
            reason = report.longrepr[-1].removeprefix("Skipped: ")
        if not any(part in reason for part in self.allowed):
            self.unexpected.append(f"{report.nodeid}: {reason}")

    pytest_runtest_logreport = pytest_collectreport = note

    def pytest_sessionfinish(self, session):
        if self.unexpected and session.exitstatus in (0, 5):
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        if self.unexpected:
            terminalreporter.section(f"skipped in spite of {_VARIABLE}")
            for line in self.unexpected:
                terminalreporter.line(line)


def pytest_configure(config):
    """Start, in the process to which the workers report."""
    text = os.environ.get(_VARIABLE)
    if text is not None and not hasattr(config, "workerinput"):
        allowed = [part.strip() for part in text.split(";") if part.strip()]
        config.pluginmanager.register(Skips(allowed))
