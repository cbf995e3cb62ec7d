"""Values that a trace has read, and that had changed when it was called again.

Promise 36 of docs/reliability.md.
"""

from tests.support.commands import doctor
from tests.support.programs import PROGRAMS


def test_values_that_a_call_did_not_see(tmp_path):
    """Globals, variables, entries and attributes; only of a trace that was called."""
    report, _ = doctor(PROGRAMS / "stale.py", tmp_path)
    found = [f for f in report["findings"] if f["cause"] == "stale value"]
    assert {f["leaf"]: next(iter(f["functions"])) for f in found} == {
        "SCALE": "step",
        "table['deep']['x']": "step",
        "config.rate": "step",
        "config.size": "step",
        "given.size": "step",
        "factor": "<lambda>",
        "self.size": "Config.scaled",
    }
    (scale,) = [f for f in found if f["leaf"] == "SCALE"]
    says = "the global `SCALE` was 1.0, and called again when it was 5.0"
    assert says in scale["says"] and "`step` reads it at" in scale["says"]
    assert "Pass `SCALE` as an argument" in scale["fix"]
