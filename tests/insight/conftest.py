"""Nothing of what a test has asked for is watched in the next one."""

import pytest

from eqx_fastjit.insight import _events, _explain


@pytest.fixture(autouse=True)
def _unwatched():
    yield
    _events.unwatch(_explain.describe_from_now_on)
