"""Values that a trace has read, and that had changed when it was called again.

Promise 36 of docs/reliability.md.
"""

from tests.support.commands import doctor
from tests.support.programs import PROGRAMS


def test_values_that_a_call_did_not_see(tmp_path):
    """Globals, variables, entries and attributes; only of a trace that was called."""
    report, _ = doctor(PROGRAMS / "stale.py", tmp_path)
    found = {row["parts"][0]["path"]: row for row in report["rows"][:7]}
    assert {row["parts"][0]["rule"] for row in found.values()} == {"stale-value"}
    assert "stale-value" not in str(report["rows"][7:])  # they come first
    assert {path: row["function"] for path, row in found.items()} == {
        "SCALE": "step",
        "table['deep']['x']": "step",
        "config.rate": "step",
        "config.size": "step",
        "given.size": "step",
        "factor": "<lambda>",
        "self.size": "Config.scaled",
    }
    (part,) = found["SCALE"]["parts"]
    assert part["what"] == "SCALE is 5.0, and step uses 1.0"
    assert part["edit"] == "pass it as an argument"
    assert part["values"] == ["1.0", "5.0"]
    # Where it is read, and the call that was traced.
    lines = (PROGRAMS / "stale.py").read_text().splitlines()
    reads, calls = part["line"][1], found["SCALE"]["line"][1]
    assert "x * SCALE" in lines[reads - 1] and lines[calls - 1] == "step(two, passed)"
