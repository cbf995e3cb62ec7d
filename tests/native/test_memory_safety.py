"""The extension: reference counts, failing allocations, many threads.

Programs of their own, since a fault might crash; all with Python's debug allocator,
which overwrites freed memory. Under a sanitizer, this folder is run like any other.
"""

import os
import sys

import pytest

import eqx_fastjit
from tests.support.programs import run_program


pytestmark = pytest.mark.skipif(
    eqx_fastjit.engine() != "native", reason="the reference is in use"
)
# A long form: `EQX_FASTJIT_THREADS_SECONDS=60`.
SECONDS = os.environ.get("EQX_FASTJIT_THREADS_SECONDS", "4")


def test_reference_counts():
    """Neither readers, results, errors nor retraces leave references behind."""
    out = run_program("native_references.py", PYTHONMALLOC="debug")
    assert out.stdout == "done\n"


def test_failing_allocations():
    """Where an allocation fails, it is an error, and the next call is right."""
    pytest.importorskip("_testcapi")
    out = run_program("native_allocations.py", PYTHONMALLOC="debug", timeout=500)
    assert out.stdout == "done\n"


def test_sixteen_threads():
    """Threads that wrap, call, change, clear and fail get their own results."""
    out = run_program("native_threads.py", SECONDS, PYTHONMALLOC="debug")
    assert out.stdout == "done\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_deep_trees_with_the_debug_allocator():
    """Recursion ends with an error and not with the stack."""
    out = run_program("deep_trees.py", PYTHONMALLOC="debug", timeout=500)
    assert "usable_afterwards fine" in out.stdout
