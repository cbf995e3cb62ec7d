"""Nothing of what a test has compiled or asked for is known in the next one."""

import pytest

from eqx_fastjit import _facts
from eqx_fastjit.insight import _events, _explain


@pytest.fixture(autouse=True)
def _forget():
    _facts.history.clear()  # where a lambda of the same line is created again
    yield
    _events.unwatch(_explain.describe_from_now_on)
