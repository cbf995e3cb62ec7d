"""Event files (docs/event-file.md), and what the command says of them."""

import json

from eqx_fastjit import cli


VERSION = 5


def write(file, events, seconds=100.0, cache="/tmp/x"):
    """Write a file of these lines of compilations, with a beginning and an end."""
    header = {"type": "run", "version": VERSION, "program": "a.py", "started": 1000.0}
    end = {"type": "end", "seconds": seconds}
    lines = ({**header, "cache": cache}, *events, end)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def report_on(file, *options):
    """The doctor's report on an event file, as JSON and as a page."""
    report, page = file.with_suffix(".json"), file.with_suffix(".html")
    files = ("--json", f"{report}", "--html", f"{page}")
    assert cli.main(["doctor", *files, *options, f"{file}"]) == 0
    return json.loads(report.read_text()), page.read_text()
