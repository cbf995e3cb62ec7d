"""Instructions of a call, counted by callgrind: `python -m benchmarks --instructions`.

Other programs on the machine disturb times, but not this figure, which holds to 1%. A
process that runs this file makes the calls of all cases. What other threads do is not
counted, nor are cache misses.
"""

import ctypes
import gc
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from benchmarks.case import Call
from benchmarks.cases import CASES
from benchmarks.pages import made_by
from benchmarks.table import markdown_table, NAMES
from benchmarks.timing import check_equal


COUNTED = "identity,mlp_32,depth_100,steps,method,callable_model,error_if,statics_1"
COUNTED += ",numpy_inputs,typed_key,zoo"
_CALLS = 11
_RIVALS = ("flat", "jit", "eqx")
# What our instructions over those of the first rival may be, over that in another file.
_ALLOWED = 1.02

# By these, the process tells callgrind what to count.
_MARKS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_VALGRIND = "valgrind -q --tool=callgrind --separate-threads=yes"
_VALGRIND += " --instr-atstart=no --collect-atstart=no"
_DUMP = r"^desc: Trigger: Client Request: (\w+)/(\w+)$.*?^totals: (\d+)"


class CannotCount(Exception):
    """There is no valgrind or no C compiler, or the process failed."""


def count(module: str, *words: str) -> dict[str, dict[str, float]]:
    """Run a module, which gets a library of marks for `record`, and words after it.

    **Returns:** instructions of a call in the thread that calls, by case and contender.

    Raises `CannotCount` in one line.
    """
    if not shutil.which("valgrind") or not shutil.which("cc"):
        raise CannotCount("this needs valgrind, its headers and a C compiler")
    counts: dict[tuple[str, str], list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, library = f"{folder}/marks.c", f"{folder}/marks.so"
        Path(source).write_text(_MARKS)
        _run(["cc", "-shared", "-fPIC", source, "-o", library])
        valgrind = [*_VALGRIND.split(), f"--callgrind-out-file={folder}/out"]
        _run([*valgrind, sys.executable, "-m", module, library, *words])

        dumps = Path(folder).glob("out.*-01")  # of the main thread
        for dump in sorted(dumps, key=lambda path: int(path.suffix[1:-3])):
            match = re.search(_DUMP, dump.read_text(), re.MULTILINE | re.DOTALL)
            # What `_MARKS` has not asked for has no name.
            if match is not None:
                name, contender, total = match.groups()
                counts.setdefault((name, contender), []).append(int(total))

    medians: dict[str, dict[str, float]] = {}
    for (name, contender), totals in counts.items():
        if contender != "nothing":
            of_marks = statistics.median(counts[name, "nothing"])
            of_call = statistics.median(totals) - of_marks
            medians.setdefault(name, {})[contender] = of_call
    return medians


def _run(command: list[str]) -> None:
    """Run a command. Raises `CannotCount`, with the last line that it wrote."""
    # Dictionaries and sets have another order in each process otherwise.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise CannotCount(f"{command[0]}: {lines[-1]}")


def record(marks: Any, name: str, calls: dict[str, Call], warm: int = 40) -> None:
    """Make the calls of a case, which callgrind counts, and calls of nothing."""
    for contender, call in (*calls.items(), ("nothing", lambda: None)):
        for _ in range(warm):
            jax.block_until_ready(call())

        gc.collect()
        gc.disable()
        marks.start()
        call()  # so that callgrind knows all code
        for _ in range(_CALLS):
            marks.zero()
            marks.toggle()
            out = call()
            marks.toggle()
            marks.dump(f"{name}/{contender}".encode())
            jax.block_until_ready(out)  # as the next call would be in its way
        marks.stop()
        gc.enable()


def main(library: str, names: list[str]) -> None:
    """Make the calls of some cases, which callgrind counts."""
    jax.config.update("jax_enable_compilation_cache", False)

    for name in names:
        calls = CASES[name].build()
        check_equal(calls)
        record(ctypes.PyDLL(library), name, calls)
        jax.clear_caches()


# --- what was counted -----------------------------------------------------------------


def _ratio(entry: dict[str, Any], rival: str) -> float | None:
    counts = entry["instructions"]
    if rival not in counts:
        return None
    return counts["ours"] / counts[rival]


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file, with medians."""
    rows = []
    compared: dict[str, list[float]] = {rival: [] for rival in _RIVALS}
    for entry in results["cases"]:
        row = [f"`{entry['name']}`", f"{entry['instructions']['ours'] / 1000:.1f}"]
        for rival in _RIVALS:
            ratio = _ratio(entry, rival)
            if ratio is None:
                row.append("")
            else:
                row.append(f"{ratio:.2f}")
                compared[rival].append(ratio)
        rows.append(row)

    medians = [statistics.median(x) if x else None for x in compared.values()]
    rows.append(["median", "", *("" if x is None else f"{x:.2f}" for x in medians)])
    head = ["case", "thousands", *(f"over {NAMES[rival]}" for rival in _RIVALS)]
    return f"{markdown_table(head, rows)}\n\n{made_by(results)}"


def slower_cases(results: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """A line for each case that takes more than before, over its first rival."""
    entries_before = {entry["name"]: entry for entry in before["cases"]}
    lines = []
    for entry in results["cases"]:
        name = entry["name"]
        rival = next(x for x in _RIVALS if x in entry["instructions"])
        new, old = _ratio(entry, rival), _ratio(entries_before.get(name, entry), rival)
        # Before, it may have had another rival.
        if new and old and new > _ALLOWED * old:
            lines.append(f"{name}: {new:.3f} of {rival}, and was {old:.3f}")
    return lines


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
