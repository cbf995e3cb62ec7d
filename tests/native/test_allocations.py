"""A failed allocation is a `MemoryError`, and later calls are right.

Promise 31 of docs/reliability.md.
"""

import pytest

from eqx_fastjit import engine
from tests.support.programs import run_program


pytestmark = pytest.mark.one_engine


@pytest.mark.skipif(engine() != "native", reason="the extension was not built")
def test_every_allocation_of_a_call_may_fail():
    """One after the other, of cache hits and of reading alone."""
    pytest.importorskip("_testcapi", reason="this Python has no _testcapi")
    assert run_program("failing_allocations.py", 40).stdout == "done\n"
